// Ranks that compute together.
//
//   gradwire::ConnectOptions options{.rank = rank, .size = size, .store = "file:/shared/job42"};
//   auto ranks = gradwire::Communicator::connect(options);
//   gradwire::Tensor gradient{"layer1.weight", view, gradwire::Way::parse("grid:step=0.5")};
//   gradwire::Work work = ranks->all_reduce({&gradient, 1}, {.seed = 7, .step = step});
//   ...                                     // compute something else
//   work.wait();                            // the view holds the sum; throws when a rank failed
//
// Every rank makes the same calls in the same order, with tensors of the same sizes and dtypes.
// Results are equal on all ranks to the bit, whatever the codec, and do not depend on timing.
//
// Threads: any thread may call, but the order of calls must be the same on all ranks. One thread
// per communicator does the work, with helpers where there are cores to spare.
//
// Failure: every operation ends within its timeout. A rank that died, left, stopped or sent garbage
// is named in the error on every other rank. After an error the communicator takes only
// destruction; a new one may be made in the same process.
//
// Forks: a communicator and its works belong to the process that made them. In a child of it they
// can be dropped, which nobody notices; calls throw `Error(invalid_argument)`. The child closes the
// connections that it inherited, so the others see the end of a rank whose child lives on. It may
// make communicators of its own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradwire/error.h"
#include "gradwire/plan.h"
#include "gradwire/store.h"
#include "gradwire/tensor.h"
#include "gradwire/way.h"

namespace gradwire {

/// Longer timeouts count as this one: a deadline must not overflow the clock.
inline constexpr std::chrono::milliseconds kMaxTimeout = std::chrono::hours(24 * 365);

struct ConnectOptions {
  /// Who may join, and what goes over tcp encrypted.
  struct Security {
    /// Text that the ranks of a job know and nobody else. Empty (default): the job's key is in the
    /// store, and whoever can read that can join.
    std::string secret{};
    /// "auto" (default) encrypts what goes over tcp by TLS 1.3 when there is a secret or a
    /// certificate, "tls" insists on it, "none" does without. The same on all ranks.
    std::string encryption = "auto";
    /// PEM files for TLS by certificates rather than by the secret: this rank's certificate, its
    /// private key without a password, and the authority that signed all ranks' certificates. Empty
    /// (default): none.
    std::string certificate{};
    std::string private_key{};
    std::string authority{};
  };

  /// By what messages travel.
  struct Network {
    /// "auto" (default) takes shared memory inside a host, and between hosts tcp, or mpi if that is
    /// the store; "shm", "tcp" and "mpi" take that for all.
    std::string transport = "auto";
    /// Network interface that tcp listens on, by name or address. Empty (default): all that are up.
    std::string interface {};
    /// Port that tcp listens on. 0 (default): any free one.
    std::uint16_t port = 0;
  };

  /// What changes speed. Algorithm, lanes and pieces also change who sums up what, and with it
  /// bits: of lossy ways those of their rounding, of exact ones at most the order of sums.
  struct Tuning {
    /// "auto" (default), "sra", "ring", "tree", "allgather", "hierarchical" or
    /// "hierarchical-exact": the route of all_reduces whose ways name none.
    std::string algorithm = "auto";
    /// Pieces of a tensor that are under way at once, 1 to 64.
    std::uint32_t lanes = 8;
    /// Threads that encode and decode. 0 (default): one per spare core of this host. 1: the
    /// communicator's own, which moves messages as well. More: it moves messages, and all others
    /// encode and decode.
    std::uint32_t threads = 0;
    /// Numbers per piece. 0 (default): chosen by transport and ranks.
    std::size_t piece_elements = 0;
  };

  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  /// Where these ranks are a group of a larger job: what the job calls each of them. Errors then
  /// name both numbers. Empty (default): they are the job.
  std::vector<std::uint32_t> job_ranks{};
  /// Where ranks find one another: "file:DIRECTORY" (seen by all, and of this user unless there is
  /// a secret), "tcp:HOST:PORT" (rank 0 listens there, and nowhere else) or, in jobs of mpirun or
  /// srun, "mpi" (docs/mpi.md): rank and size are then MPI's; leave them as they are.
  std::string store{};
  Security security{};
  Network network{};
  Tuning tuning{};
  /// Longest time that an operation takes unless it says otherwise. More than 0; more than
  /// `kMaxTimeout` is that.
  std::chrono::milliseconds timeout{60'000};
  /// Longest time that connecting takes. 0 (default): `timeout`.
  std::chrono::milliseconds connect_timeout{0};
  /// Folder in which each rank leaves a trace when the communicator ends or fails (docs/trace.md).
  /// Empty (default): none. All ranks have one, or none has.
  std::string trace{};
  /// Function that `connect` and `set_plan` call while they wait for others, on their thread and
  /// several times per second. What it throws ends the waiting: a program that answers Ctrl-C looks
  /// for it here.
  std::function<void()> while_waiting{};
};

/// One tensor of an operation.
struct Tensor {
  /// Tells random streams, turns and residuals apart; the same on all ranks. Without names it is
  /// the place in the call that tells them apart.
  std::string name{};
  TensorView view{};
  /// The same on all ranks. None (default): the plan's way of the layer with this name, see
  /// `Communicator::set_plan`; without a plan, exactly. Only all_reduce and reduce_scatter take
  /// feedback, and by tensors that have names. In all other calls than all_reduce all tensors take
  /// one route.
  std::optional<Way> way{};
  /// What errors call it. Empty (default): its name.
  std::string label{};
};

/// A tensor that operations will come to, as `Communicator::set_plan` must know it.
struct LayerShape {
  std::string name{};
  std::size_t count = 0;  ///< elements; of reduce_scatter and all_gather: those of all parts
  Dtype dtype = Dtype::f32;

  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

struct OperationOptions {
  std::uint64_t seed = 0;  ///< of stochastic rounding; the same on all ranks
  /// Another step draws other random numbers. None (default): the communicator counts its
  /// operations, so that those that repeat draw new ones. The count is saved with the residuals.
  std::optional<std::uint64_t> step{};
  std::chrono::milliseconds timeout{0};  ///< 0: the communicator's. At most `kMaxTimeout`.
  /// Divides sums by the number of ranks. For all_reduce and reduce_scatter. The same on all ranks.
  bool average = false;
  /// Finds out what codecs lose of all of this rank's numbers, for `TensorStatistics`, and not of a
  /// sample of them. Costs a decoding.
  bool measure_error = false;
  /// Finds out the energies also of tensors that travel exactly. Costs reading them once more.
  bool exact_energies = false;
};

/// What one tensor of an operation cost this rank, and what became of its numbers there. An energy
/// is a sum of squares, within a millionth of it, and not finite where a number is not. The same
/// numbers give the same statistics, whatever the threads and the timing. Added up over all ranks
/// they tell of the tensor how far the ranks agree,
///
///   agreement = ||mean||^2 / mean ||.||^2 = ranks * sum_energy / energy    with `average`
///                                         = sum_energy / (ranks * energy)  without,
///
/// 1 where all have the same numbers and about 1 / ranks where they have nothing in common. Sums
/// are of numbers as messages brought them, so what codecs lose of them is in it.
struct TensorStatistics {
  std::uint64_t sent_bytes = 0;  ///< its segments of all messages sent
  /// Of this rank's numbers, as it contributed them: with feedback, with what was kept of them
  /// before. Of a reduce_scatter those of all parts, of an all_gather this rank's part, of a
  /// broadcast the root's numbers. 0 where nothing travels, and where numbers travel exactly,
  /// unless `OperationOptions::exact_energies` asks for them.
  double energy = 0;
  /// Of the sums that this rank finished, divided if they are, before a codec encodes them. Where
  /// several ranks finish the same sum, one has its energy: added up over all ranks it is that of
  /// the result, but for what codecs lose of finished sums. 0 as above, and where nothing is added.
  double sum_energy = 0;
  /// Of what feedback keeps of the tensor on this rank after the operation. 0 without feedback.
  double residual_energy = 0;
  /// Of a sample of this rank's numbers, or with `OperationOptions::measure_error` of all, as far
  /// as it encoded them, and of what the codec lost of them. Their NMSE is squared_error /
  /// measured_energy. A message is in the sample in one of 31 steps, others in others; of sums, it
  /// is only where all numbers travel exactly until they are added up. Both are 0 where nothing was
  /// encoded or nothing was in the sample.
  double measured_energy = 0;
  double squared_error = 0;
  /// Of the numbers that were measured: finite ones that decode to what is not finite, as `fp16`
  /// makes of large ones. `squared_error` is then not finite.
  std::uint64_t saturated = 0;
};

/// What an operation cost this rank.
struct Statistics {
  /// On the wire or in shared memory: those of all tensors, and `kFrameOverheadBytes` per message.
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_messages = 0;
  double seconds = 0;  ///< from the call to the end
  /// In the order of the call. The parts of a tensor count together.
  std::vector<TensorStatistics> tensors{};
};

namespace engine {
struct WorkState;
}
namespace trace {
class Recorder;
}

/// An operation under way. Copies mean the same operation. The tensors must live until it is done,
/// also when nobody waits.
class Work {
 public:
  explicit Work(std::shared_ptr<engine::WorkState> state) : state_(std::move(state)) {}
  /// Returns when the operation is done; throws its `Error`.
  void wait();
  /// The same for some time: false when it is not done by then.
  bool wait_for(std::chrono::milliseconds timeout);
  bool done() const noexcept;
  /// Calls `callback` once, with null or what went wrong: on the communicator's thread when the
  /// operation ends, or right here when it has ended. It must not throw and should be short, as
  /// other operations wait meanwhile; it may start operations, but not wait for them, nor destroy
  /// the communicator.
  void on_done(std::function<void(const Error*)> callback);
  Statistics statistics() const;  ///< once done

 private:
  std::shared_ptr<engine::WorkState> state_;
};

class Communicator {
 public:
  /// Throws `Error(timeout)` that names who did not come.
  static std::unique_ptr<Communicator> connect(const ConnectOptions& options);
  /// The ranks find one another through `store` instead of `options.store`. It is used during the
  /// call only, and must not hold keys of another communicator.
  static std::unique_ptr<Communicator> connect(const ConnectOptions& options, Store& store);
  /// All ranks as threads of this process, for tests and simulations. They stand as on hosts of
  /// `per_host` ranks each, or with 0 on a single one. `options.rank`, `size`, `store` and
  /// `network` are ignored. Throws `Error(invalid_argument)` when `per_host` does not divide
  /// `size`.
  static std::vector<std::unique_ptr<Communicator>> in_process(std::uint32_t size,
                                                               const ConnectOptions& options = {},
                                                               std::uint32_t per_host = 0);
  /// Operations that are not done fail.
  virtual ~Communicator() = default;

  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t size() const noexcept = 0;
  /// 0 when hosts have different numbers of ranks.
  virtual std::uint32_t ranks_per_host() const noexcept = 0;

  /// Names layers for plans; more may follow. Throws `Error(invalid_argument)` for one that is
  /// known with another count or dtype.
  virtual void register_layers(std::span<const LayerShape> layers) = 0;

  /// From a step on, tensors without a way of their own take the plan's, by their names. A later
  /// plan takes the place of an earlier one from its step on; whatever changes, nothing that
  /// feedback kept is lost. All ranks call it together, at the same place among their operations,
  /// and it waits for them: ranks that differ in plan, step or layers are named in an
  /// `Error(invalid_argument)` on all ranks, with the first layer that would travel otherwise, and
  /// nothing changes. Also thrown for a pattern that matches no layer, and for a route that these
  /// ranks cannot take.
  virtual void set_plan(const Plan& plan, std::uint64_t from_step = 0) = 0;

  /// Throws `Error(invalid_argument)` for a plan with a route that these ranks cannot take, as
  /// `set_plan` does. Waits for nobody.
  virtual void check_routes(const Plan& plan) const = 0;

  /// The sum of every tensor over all ranks, in place. Tensors travel together, and each has the
  /// bits that it would have alone; those that overlap are refused.
  virtual Work all_reduce(std::span<const Tensor> tensors,
                          const OperationOptions& options = {}) = 0;

  /// `parts` are those of rank 0, then those of rank 1, and so on, equally many for each. The i-th
  /// of every rank are the parts of one tensor: of the same count, dtype, way and name. This
  /// rank's become the sums over all ranks, the others are left unspecified.
  virtual Work reduce_scatter(std::span<const Tensor> parts,
                              const OperationOptions& options = {}) = 0;
  /// With parts as above: this rank's are sent to all.
  virtual Work all_gather(std::span<const Tensor> parts, const OperationOptions& options = {}) = 0;
  /// The same for one tensor, which is cut into size() equal parts.
  Work reduce_scatter(const Tensor& tensor, const OperationOptions& options = {});
  Work all_gather(const Tensor& tensor, const OperationOptions& options = {});

  virtual Work broadcast(std::span<const Tensor> tensors, std::uint32_t root,
                         const OperationOptions& options = {}) = 0;
  /// Done when every rank has called it.
  virtual Work barrier(const OperationOptions& options = {}) = 0;

  /// What feedback keeps on this rank, and how many operations there were, for a checkpoint, and
  /// back. Both throw `Error(invalid_argument)` while an operation with feedback is under way: wait
  /// for it first. `load_residuals` throws `Error(bad_frame)` for other bytes and then changes
  /// nothing.
  virtual std::vector<std::byte> save_residuals() const = 0;
  virtual void load_residuals(std::span<const std::byte> bytes) = 0;

  /// For a caller that cannot go on, while others wait for it: every operation that is under way or
  /// follows fails at once, on all ranks, by an `Error(peer_failed)` with this text (480 bytes at
  /// most), which says who gave up and why.
  virtual void abort(const std::string& reason) = 0;

  /// Takes what a caller wants to see beside the operations; null unless there is a trace. Lives as
  /// long as the communicator.
  virtual trace::Recorder* recorder() noexcept = 0;
};

/// What several ranks have saved, as one rank's, for a job that goes on with another number of
/// ranks: the sum of their residuals, each times `scale(name of its tensor)`. Where sums are
/// divided by the number of ranks, that is the new number over the old one. Throws as
/// `load_residuals`, and `Error(invalid_argument)` when a tensor has not the same number of
/// elements everywhere.
std::vector<std::byte> merge_residuals(std::span<const std::span<const std::byte>> saved,
                                       const std::function<float(const std::string&)>& scale);

}  // namespace gradwire
