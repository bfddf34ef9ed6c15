// What compression held back, kept until the next step: error feedback.
//
// A tensor's residual is added to its numbers before anything is encoded, and becomes what the
// messages lacked that this rank made of them or of sums of them. Sums count as they are
// delivered, rounded to the tensor's dtype. So nothing is lost over many steps: the results and all
// ranks' residuals are the sum of all inputs, whoever adds up which part.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "feedback/kept_numbers.h"
#include "gradwire/codec.h"
#include "gradwire/tensor.h"
#include "gradwire/way.h"
#include "tensor/into.h"

namespace gradwire {

/// A codec that was fitted to numbers of a step, for steps to come.
struct FittedCodec {
  Codec asked;  // what was fitted
  Codec codec;
  std::uint32_t uses = 0;
  std::uint64_t first_sent = 0;  // numbers, when it was new
};

struct Residual {
  KeptNumbers numbers;
  KeptNumbers momentum{};  // empty while there is none
  bool masking = false;    // of the last input
  std::uint64_t turn = 0;  // of sparse codecs, see `EncodeOptions`
  std::optional<FittedCodec> fitted{};
  std::atomic<std::uint64_t> sent_since_fit = 0;  // numbers of a sparse codec, not of sums
  bool lent = false;                              // guarded by the mutex of `Residuals`
  std::string label{};                            // likewise: what errors call it while it is lent
  bool ends = false;  // when it is given back: nothing is kept of this operation

  /// Adds some of an operation's input, from this number on: the step that torch's SGD of this
  /// momentum would take.
  void accumulate(std::size_t first, ConstTensorView input, const Feedback& how);

  /// The codec fitted to the numbers now, or of a sparse codec one that was before, as often as
  /// `reuse` says; see `Feedback`. `notes` are emptied if they are not of these numbers.
  Codec fit(const Codec& codec, std::vector<double>& notes, std::uint32_t reuse);

  /// Some numbers have entered a sum as they are: nothing is held back of them.
  void clear(std::size_t first, std::size_t count) noexcept;

  /// Keeps the rest of some of the numbers, in their place, or adds that of sums that they entered:
  /// what was `wanted` and not `sent`, which had been divided. What is not finite is not kept.
  void keep(std::size_t first, std::span<const float> wanted, std::span<const float> sent,
            float divisor, Into into) noexcept;

  /// With masking, ends the momentum of numbers that were sent by a codec.
  void stop(std::size_t first, std::size_t count) noexcept;

  /// Keeps as well what rounding took of `sums`, which had been divided, where all ranks store
  /// them: for one of the ranks.
  void keep_rounding(std::size_t first, std::span<const float> sums, ConstTensorView stored,
                     float divisor) noexcept;

  /// `keep` for a sparse codec, which sends few numbers: first what was wanted is kept whole,
  /// unless it is these very numbers, then what was sent is taken away, at these places behind
  /// `first`.
  void keep_all(std::size_t first, std::span<const float> wanted, float divisor,
                Into into) noexcept;
  void take_sent(std::size_t first, std::span<const std::uint64_t> places,
                 std::span<const float> values, float divisor) noexcept;
};

class Residuals {
  struct GiveBack {
    Residuals* owner = nullptr;
    void operator()(Residual* residual) const noexcept;
  };

 public:
  /// A residual in the hands of one operation.
  using Loan = std::unique_ptr<Residual, GiveBack>;

  /// The residual of a tensor, zeros at first. Throws `Error(invalid_argument)` when the tensor had
  /// another number of elements before, or when it is lent already. Errors call it `label`. Any
  /// thread.
  Loan borrow(const std::string& name, std::size_t count, const std::string& label);
  Loan borrow(const std::string& name, std::size_t count) { return borrow(name, count, name); }

  /// What an earlier operation kept of a tensor, for one that keeps nothing: it is to be delivered
  /// with that and then gone, see `Residual::ends`. Null when there is none of this many elements.
  /// Throws `Error(invalid_argument)` when it is lent. Any thread.
  Loan borrow_last(const std::string& name, std::size_t count, const std::string& label);

  /// Operations that the communicator began, by which they are told apart.
  std::atomic<std::uint64_t> operations = 0;

  /// All of this as bytes, and back, replacing what there is. Both throw `Error(invalid_argument)`
  /// while a residual is lent; `load` throws `Error(bad_frame)` for bytes that `save` has not made.
  /// Any thread.
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> bytes);

  /// Adds others to these, each times what `scale` says for its tensor. Counts become the largest.
  void add(const Residuals& others, const std::function<float(const std::string&)>& scale);

 private:
  void refuse_while_lent() const;  // with mutex_ held

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Residual>> by_name_;  // guarded by mutex_
};

}  // namespace gradwire
