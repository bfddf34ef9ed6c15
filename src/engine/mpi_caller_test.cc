// A program that has started MPI itself, as `mpi_caller_test single` or `mpi_caller_test multiple`.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/communicator.h"

namespace {

constexpr int kRounds = 200;

int fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

/// One message per round to the next rank, and whatever comes on MPI_COMM_WORLD: a stray message of
/// somebody else's would be taken for ours. Returns whether there was none.
bool own_traffic(int rank, int size) {
  bool right = true;
  for (int round = 0; round < kRounds; ++round) {
    const int sent = 1000 * rank + round;
    int got = 0;
    MPI_Status status;
    MPI_Sendrecv(&sent, 1, MPI_INT, (rank + 1) % size, round, &got, 1, MPI_INT, MPI_ANY_SOURCE,
                 MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    const int previous = (rank + size - 1) % size;
    right = right && status.MPI_SOURCE == previous && got == 1000 * previous + status.MPI_TAG;
  }
  return right;
}

bool sums_are_right(gradwire::Communicator& ranks) {
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> x(10'000, static_cast<float>(round));
    const gradwire::Tensor tensor{"x", {x.data(), x.size()}};
    ranks.all_reduce({&tensor, 1}).wait();
    const float sum = static_cast<float>(round) * static_cast<float>(ranks.size());
    if (x != std::vector<float>(x.size(), sum)) return false;
  }
  return true;
}

int with_multiple() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  auto ranks = gradwire::Communicator::connect({.store = "mpi", .network = {.transport = "mpi"}});
  bool undisturbed = false;
  std::thread caller([&] { undisturbed = own_traffic(rank, size); });
  const bool right = sums_are_right(*ranks);
  caller.join();
  ranks.reset();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return fail("gradwire has finalised what it did not initialise");
  MPI_Finalize();
  if (!right) return fail("a sum is wrong");
  return undisturbed ? 0 : fail("the caller's messages were disturbed");
}

int with_single() {
  MPI_Init(nullptr, nullptr);
  int result = 0;
  try {
    gradwire::Communicator::connect({.store = "mpi"});
    result = fail("gradwire took an MPI that only one thread may call");
  } catch (const gradwire::Error& error) {
    const bool helpful = std::strstr(error.what(), "MPI_THREAD_MULTIPLE") != nullptr;
    result = helpful ? 0 : fail(error.what());
  }
  MPI_Finalize();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  return argc > 1 && std::string(argv[1]) == "single" ? with_single() : with_multiple();
}
