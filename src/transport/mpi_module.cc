// libgradwire_mpi.so: MPI behind mpi_calls.h.
#define OMPI_SKIP_MPICXX 1  // Open MPI's C++ bindings would need a library of their own
#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "transport/mpi_calls.h"

namespace gradwire {
namespace {

/// Handles are pointers or integers, as the MPI likes.
template <class Handle>
struct Wrapped {
  Handle handle;
};

template <class Handle>
std::uint64_t pack(Handle handle) noexcept {
  const Wrapped<Handle> wrapped{handle};
  static_assert(sizeof(wrapped) <= sizeof(std::uint64_t));
  std::uint64_t packed = 0;
  std::memcpy(&packed, &wrapped, sizeof(wrapped));
  return packed;
}

template <class Handle>
Handle unpack(std::uint64_t packed) noexcept {
  Wrapped<Handle> wrapped;
  std::memcpy(&wrapped, &packed, sizeof(wrapped));
  return wrapped.handle;
}

MpiState begun(int result) noexcept {
  return result == MPI_SUCCESS ? MpiState::done : MpiState::failed;
}

class Duplicate final : public MpiComm {
 public:
  ~Duplicate() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0 && comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

  bool begin() noexcept { return MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &duplicated_) == 0; }

  MpiState ready() noexcept override {
    const MpiState state = test_at(duplicated_);
    if (state == MpiState::done) MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    return state;
  }

  MpiState send(std::uint32_t peer, int kind, std::span<const std::byte> bytes,
                MpiRequest& request) noexcept override {
    MPI_Request made;
    const int result = MPI_Issend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE,
                                  static_cast<int>(peer), kind, comm_, &made);
    request = pack(made);
    return begun(result);
  }

  MpiState probe(MpiMessage& message) noexcept override {
    int found = 0;
    MPI_Message handle;
    MPI_Status status;
    if (MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, &handle, &status) != MPI_SUCCESS) {
      return MpiState::failed;
    }
    if (found == 0) return MpiState::pending;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    message = {static_cast<std::uint32_t>(status.MPI_SOURCE), status.MPI_TAG,
               static_cast<std::size_t>(bytes), pack(handle)};
    return MpiState::done;
  }

  MpiState receive(const MpiMessage& message, std::span<std::byte> bytes,
                   MpiRequest& request) noexcept override {
    MPI_Message handle = unpack<MPI_Message>(message.handle);
    MPI_Request made;
    const int result =
        MPI_Imrecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, &handle, &made);
    request = pack(made);
    return begun(result);
  }

  MpiState test(MpiRequest request) noexcept override {
    MPI_Request handle = unpack<MPI_Request>(request);
    return test_at(handle);
  }

 private:
  static MpiState test_at(MPI_Request& request) noexcept {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return MpiState::failed;
    return done != 0 ? MpiState::done : MpiState::pending;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Request duplicated_ = MPI_REQUEST_NULL;
};

/// One per process, however many copies of the library it holds.
class Module final : public MpiCalls {
 public:
  const char* enter(std::uint32_t& rank, std::uint32_t& size) noexcept override {
    const std::lock_guard lock(mutex_);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return "MPI has been finalised in this process";
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised == 0 && !initialise()) return "MPI_Init_thread failed";
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) {
      return "gradwire calls MPI from a thread of its own: start it by MPI_Init_thread with "
             "MPI_THREAD_MULTIPLE, or leave that to gradwire";
    }
    int number = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    rank = static_cast<std::uint32_t>(number);
    MPI_Comm_size(MPI_COMM_WORLD, &number);
    size = static_cast<std::uint32_t>(number);
    ++users_;
    return nullptr;
  }

  void leave() noexcept override {
    const std::lock_guard lock(mutex_);
    --users_;
    finalise_if_last();
  }

  MpiComm* duplicate() noexcept override {
    auto* const made = new (std::nothrow) Duplicate;
    if (made != nullptr && made->begin()) return made;
    delete made;
    return nullptr;
  }

  void process_exits() noexcept {
    const std::lock_guard lock(mutex_);
    exiting_ = true;
    finalise_if_last();
  }

 private:
  bool initialise() noexcept;

  /// Not under the feet of a communicator that outlives `exit`: that one does it.
  void finalise_if_last() noexcept {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (ours_ && exiting_ && users_ == 0 && finalized == 0) MPI_Finalize();
  }

  std::mutex mutex_;
  int users_ = 0;
  bool ours_ = false;  // we have initialised it, so we finalise it
  bool exiting_ = false;
};

Module& module() noexcept {
  static auto& the_only = *new Module;  // never destroyed: see `finalise_if_last`
  return the_only;
}

bool Module::initialise() noexcept {
  int level = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) return false;
  ours_ = true;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  std::atexit([] { module().process_exits(); });
  return true;
}

}  // namespace
}  // namespace gradwire

extern "C" __attribute__((visibility("default"))) gradwire::MpiCalls* gradwire_mpi_calls_1() {
  return &gradwire::module();
}
