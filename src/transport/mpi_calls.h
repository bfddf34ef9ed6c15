// What gradwire asks of MPI, without <mpi.h>.
//
// libgradwire_mpi.so answers (mpi_module.cc). It is the only part that is linked with MPI, and is
// loaded when somebody asks for mpi: nobody else's process has libmpi in it. Nothing throws here,
// and no MPI call that could wait for another rank is made: what is not done yet is `pending`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradwire {

using MpiRequest = std::uint64_t;  ///< MPI's own handle

enum class MpiState { pending, done, failed };

/// A message that is matched, and not received yet.
struct MpiMessage {
  std::uint32_t peer = 0;
  int kind = 0;
  std::size_t bytes = 0;
  std::uint64_t handle = 0;  ///< MPI's own
};

/// A duplicate of MPI_COMM_WORLD: its messages meet no others. Any thread may call.
class MpiComm {
 public:
  /// MPI_Comm_free: all ranks do it, when none of them sends here any more. MPI allows it to wait
  /// for them; Open MPI and MPICH do not.
  virtual ~MpiComm() = default;

  /// Whether all ranks have come to duplicate. Until it is done nothing else may be called.
  virtual MpiState ready() noexcept = 0;
  /// Begins to send; done when the receiver has taken the message, not merely when it has left.
  virtual MpiState send(std::uint32_t peer, int kind, std::span<const std::byte> bytes,
                        MpiRequest& request) noexcept = 0;
  /// `done` when there is a message, the oldest of some peer.
  virtual MpiState probe(MpiMessage& message) noexcept = 0;
  virtual MpiState receive(const MpiMessage& message, std::span<std::byte> bytes,
                           MpiRequest& request) noexcept = 0;
  /// After `done` and `failed` the request is gone.
  virtual MpiState test(MpiRequest request) noexcept = 0;
};

class MpiCalls {
 public:
  /// Starts MPI if nobody has; it then ends with the process, after the last `leave`. Returns null,
  /// or why MPI cannot be used; then there is nothing to leave.
  virtual const char* enter(std::uint32_t& rank, std::uint32_t& size) noexcept = 0;
  virtual void leave() noexcept = 0;
  /// Begins to duplicate, between `enter` and `leave`. Null when MPI refuses.
  virtual MpiComm* duplicate() noexcept = 0;

 protected:
  ~MpiCalls() = default;
};

/// The module's only symbol. It changes with this file, so that no other version's module is taken.
inline constexpr const char* kMpiSymbol = "gradwire_mpi_calls_1";
using MpiEntry = MpiCalls* (*)();

}  // namespace gradwire
