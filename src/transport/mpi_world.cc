#include "transport/mpi_world.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <thread>

#include "base/clock.h"
#include "gradwire/error.h"

namespace gradwire {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::unavailable, why); }

/// Opened once and never closed: MPI does not survive that.
MpiCalls& load_module() {
#if !GRADWIRE_HAVE_MPI
  refuse("this gradwire was built without MPI: install libopenmpi-dev and build again");
#endif
  void* const module = dlopen("libgradwire_mpi.so", RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) {
    refuse(
        fmt::format("MPI cannot be loaded: {}; install openmpi-bin, and libgradwire_mpi.so "
                    "beside gradwire's own library or in LD_LIBRARY_PATH",
                    dlerror()));
  }
  const auto entry = reinterpret_cast<MpiEntry>(dlsym(module, kMpiSymbol));
  if (entry == nullptr) refuse("libgradwire_mpi.so is of another version of gradwire");
  return *entry();
}

}  // namespace

MpiWorld::MpiWorld() : calls_(load_module()) {
  const char* const refusal = calls_.enter(rank_, size_);
  if (refusal != nullptr) refuse(refusal);
}

MpiWorld::~MpiWorld() { calls_.leave(); }

std::unique_ptr<MpiComm> MpiWorld::duplicate(Deadline deadline) {
  std::unique_ptr<MpiComm> comm(calls_.duplicate());
  if (!comm) refuse("MPI refuses to duplicate MPI_COMM_WORLD");
  while (true) {
    const MpiState state = comm->ready();
    if (state == MpiState::done) return comm;
    if (state == MpiState::pending && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      continue;
    }
    (void)comm.release();  // half made: it cannot be freed, and MPI may still write to it
    if (state == MpiState::failed) refuse("MPI fails to duplicate MPI_COMM_WORLD");
    throw Error(ErrorCode::timeout,
                fmt::format("not all {} ranks of MPI came before the deadline: do all of them "
                            "connect, in the same order as their other collective calls?",
                            size_));
  }
}

}  // namespace gradwire
