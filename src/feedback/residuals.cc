#include "feedback/residuals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/byte_cursor.h"
#include "base/bytes.h"
#include "base/checksum.h"
#include "codec/notes.h"
#include "gradwire/codec.h"
#include "gradwire/communicator.h"
#include "gradwire/error.h"
#include "tensor/arithmetic.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

constexpr std::uint64_t kMagic = 0x34534552'57475247;  // "GRGWRES4"

[[noreturn]] void refuse() {
  throw Error(ErrorCode::bad_frame, "these bytes are no saved residuals, or they are damaged");
}

void put_number(ByteWriter& to, std::uint64_t number) { to.write(number); }

void put_text(ByteWriter& to, const std::string& text) {
  put_number(to, text.size());
  to.write_all(std::span(text.data(), text.size()));
}

void put_floats(ByteWriter& to, const KeptNumbers& floats) {
  to.write_all(std::span(floats.data(), floats.size()));
}

std::uint64_t take_number(ByteReader& from) {
  std::uint64_t number;
  if (!from.read(number)) refuse();
  return number;
}

std::string take_text(ByteReader& from) {
  std::span<const std::byte> text;
  if (!from.take(take_number(from), text)) refuse();
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

KeptNumbers take_floats(ByteReader& from, std::uint64_t count) {
  if (count > from.rest().size() / sizeof(float)) refuse();
  KeptNumbers floats(count);
  if (!from.read_all(std::span(floats))) refuse();
  return floats;
}

void put_fitted(ByteWriter& to, const Residual& residual) {
  put_number(to, residual.turn);
  put_number(to, residual.sent_since_fit);
  put_number(to, residual.fitted ? residual.fitted->uses : 0);
  if (!residual.fitted) return;
  put_text(to, residual.fitted->asked.spec());
  put_text(to, residual.fitted->codec.spec());
  put_number(to, residual.fitted->first_sent);
}

void take_fitted(ByteReader& from, Residual& residual) {
  residual.turn = take_number(from);
  residual.sent_since_fit = take_number(from);
  const auto uses = static_cast<std::uint32_t>(take_number(from));
  if (uses == 0) return;
  const Codec asked = Codec::parse(take_text(from));
  const Codec codec = Codec::parse(take_text(from));
  residual.fitted = FittedCodec{asked, codec, uses, take_number(from)};
}

// ---------------------------------------------------------------------------------------------

constexpr std::size_t kAtOnce = 1024;

/// A NaN has arrived, and must not come again forever.
float finite_or_zero(float x) noexcept { return x - x == 0 ? x : 0; }

/// Calls visit(first, numbers) for one stretch of the input after the other, as floats.
template <class Visit>
void each_stretch(ConstTensorView input, Visit visit) {
  float floats[kAtOnce];
  for (std::size_t first = 0; first < input.count; first += kAtOnce) {
    const ConstTensorView part = input.slice(first, std::min(kAtOnce, input.count - first));
    kernels::cast(part, {floats, part.count, Dtype::f32}, Into::assign);
    visit(first, std::span<const float>(floats, part.count));
  }
}

/// Refuses to lend it twice: whether an operation gets what is kept must not depend on timing.
void lend(Residual& residual, const std::string& label) {
  if (residual.lent) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an operation on a tensor '{}' is under way: wait for it, "
                            "or give another tensor another name",
                            label));
  }
  residual.lent = true;
  residual.label = label;
}

}  // namespace

void Residual::accumulate(std::size_t first, ConstTensorView input, const Feedback& how) {
  masking = how.masking;
  float* const kept = numbers.data() + first;
  if (how.momentum == 0) {
    kernels::cast(input, {kept, input.count, Dtype::f32}, Into::add);
    return;
  }
  momentum.resize(numbers.size());
  float* const speeds = momentum.data() + first;
  each_stretch(input, [&](std::size_t begin, std::span<const float> gradients) {
    kernels::add_step(gradients, {how.momentum, how.nesterov}, {kept + begin, gradients.size()},
                      {speeds + begin, gradients.size()});
  });
}

Codec Residual::fit(const Codec& codec, std::vector<double>& notes, std::uint32_t reuse) {
  const std::uint64_t last_sent = sent_since_fit.exchange(0);
  if (fitted && fitted->uses == 1) fitted->first_sent = last_sent;
  const bool drifted = fitted && (last_sent == 0 || last_sent > 2 * fitted->first_sent ||
                                  2 * last_sent < fitted->first_sent);
  if (fitted && fitted->asked == codec && fitted->uses < reuse && !drifted) {
    ++fitted->uses;
    notes.clear();
    return fitted->codec;
  }
  fitted.reset();
  const Codec now = gradwire::fit(codec, {numbers.data(), numbers.size()}, notes);
  if (reuse > 1 && codec.traits().sparse) fitted = FittedCodec{codec, now, 1};
  return now;
}

void Residual::clear(std::size_t first, std::size_t count) noexcept {
  std::fill_n(numbers.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0f);
}

void Residual::keep(std::size_t first, std::span<const float> wanted, std::span<const float> sent,
                    float divisor, Into into) noexcept {
  const std::span<float> kept = std::span(numbers).subspan(first, wanted.size());
  (into == Into::add ? kernels::add_rest : kernels::keep_rest)(wanted, sent, divisor, kept);
}

void Residual::stop(std::size_t first, std::size_t count) noexcept {
  if (masking) std::fill_n(momentum.begin() + static_cast<std::ptrdiff_t>(first), count, 0.0f);
}

void Residual::keep_rounding(std::size_t first, std::span<const float> sums, ConstTensorView stored,
                             float divisor) noexcept {
  each_stretch(stored, [&](std::size_t begin, std::span<const float> delivered) {
    kernels::add_rest(sums.subspan(begin, delivered.size()), delivered, divisor,
                      std::span(numbers).subspan(first + begin, delivered.size()));
  });
}

void Residual::keep_all(std::size_t first, std::span<const float> wanted, float divisor,
                        Into into) noexcept {
  float* const kept = numbers.data() + first;
  if (kept == wanted.data()) return;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const float before = into == Into::add ? kept[i] : 0;
    kept[i] = finite_or_zero(before + wanted[i] * divisor);
  }
}

void Residual::take_sent(std::size_t first, std::span<const std::uint64_t> places,
                         std::span<const float> values, float divisor) noexcept {
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t at = first + places[i];
    numbers[at] = finite_or_zero(numbers[at] - values[i] * divisor);
    if (masking && values[i] != 0) momentum[at] = 0;
  }
}

void Residuals::GiveBack::operator()(Residual* residual) const noexcept {
  const std::lock_guard lock(owner->mutex_);
  residual->lent = false;
  if (!residual->ends) return;
  std::erase_if(owner->by_name_, [&](const auto& each) { return each.second.get() == residual; });
}

Residuals::Loan Residuals::borrow_last(const std::string& name, std::size_t count,
                                       const std::string& label) {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  Residual& known = *found->second;
  if (known.numbers.size() != count) return nullptr;
  lend(known, label);
  return Loan(&known, GiveBack{this});
}

Residuals::Loan Residuals::borrow(const std::string& name, std::size_t count,
                                  const std::string& label) {
  const std::lock_guard lock(mutex_);
  auto& known = by_name_[name];
  if (!known) {
    known = std::make_unique<Residual>();
    known->numbers.resize(count);
  }
  if (known->numbers.size() != count) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("tensor '{}' has {} elements and had {} before: its residual does not fit; "
                    "give another tensor another name",
                    label, count, known->numbers.size()));
  }
  lend(*known, label);
  return Loan(known.get(), {this});
}

void Residuals::refuse_while_lent() const {
  for (const auto& [name, residual] : by_name_) {
    if (!residual->lent) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an operation on a tensor '{}' is under way: wait for the "
                            "operations before you save or load residuals",
                            residual->label));
  }
}

std::vector<std::byte> Residuals::save() const {
  const std::lock_guard lock(mutex_);
  refuse_while_lent();
  ByteWriter bytes;
  put_number(bytes, kMagic);
  put_number(bytes, operations);
  put_number(bytes, by_name_.size());
  for (const auto& [name, residual] : by_name_) {
    put_text(bytes, name);
    put_fitted(bytes, *residual);
    put_number(bytes, residual->numbers.size());
    put_number(bytes, residual->momentum.size());
    put_floats(bytes, residual->numbers);
    put_floats(bytes, residual->momentum);
  }
  put_number(bytes, checksum(bytes.bytes()));
  return std::move(bytes).finish();
}

void Residuals::load(std::span<const std::byte> bytes) {
  if (bytes.size() < 32) refuse();
  const auto body = bytes.first(bytes.size() - 8);
  if (checksum(body) != gradwire::load<std::uint64_t>(bytes.data() + body.size())) refuse();
  ByteReader reader(body);
  if (take_number(reader) != kMagic) refuse();
  const std::uint64_t counted = take_number(reader);
  std::map<std::string, std::unique_ptr<Residual>> loaded;
  for (std::uint64_t left = take_number(reader); left > 0; --left) {
    std::string name = take_text(reader);
    auto residual = std::make_unique<Residual>();
    take_fitted(reader, *residual);
    const std::uint64_t count = take_number(reader);
    const std::uint64_t with_momentum = take_number(reader);
    if (with_momentum != 0 && with_momentum != count) refuse();
    residual->numbers = take_floats(reader, count);
    residual->momentum = take_floats(reader, with_momentum);
    loaded[std::move(name)] = std::move(residual);
  }
  if (!reader.empty()) refuse();
  const std::lock_guard lock(mutex_);
  refuse_while_lent();
  operations = counted;
  by_name_ = std::move(loaded);
}

void Residuals::add(const Residuals& others,
                    const std::function<float(const std::string&)>& scale) {
  const auto add_scaled = [](KeptNumbers& to, const KeptNumbers& from, float factor) {
    if (to.size() < from.size()) to.resize(from.size());  // momentum, where there was none
    for (std::size_t i = 0; i < from.size(); ++i) to[i] += from[i] * factor;
  };
  operations = std::max(operations.load(), others.operations.load());
  for (const auto& [name, other] : others.by_name_) {
    const Loan own = borrow(name, other->numbers.size());
    const float factor = scale(name);
    own->turn = std::max(own->turn, other->turn);
    add_scaled(own->numbers, other->numbers, factor);
    add_scaled(own->momentum, other->momentum, factor);
  }
}

std::vector<std::byte> merge_residuals(std::span<const std::span<const std::byte>> saved,
                                       const std::function<float(const std::string&)>& scale) {
  Residuals sum;
  for (const std::span<const std::byte> bytes : saved) {
    Residuals one;
    one.load(bytes);
    sum.add(one, scale);
  }
  return sum.save();
}

}  // namespace gradwire
