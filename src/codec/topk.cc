// `topk`: the elements of the largest magnitude, where they stand and what they are; the others are
// 0 to the receiver. Biased: use it with error feedback.
//
// `fit` finds the threshold, once for a layer, and puts it in the place of the density. What is
// then left to do for a slice is one pass that keeps what exceeds it. A fitted codec may be kept
// for several steps, which saves finding it; how many elements exceed it then drifts with the
// numbers.
//
// With values=mean only places travel, and one number: in even turns of the most positive
// elements, in odd turns of the most negative, each of which decodes to their mean. Such a codec
// has a threshold for each side.
#include <fmt/format.h>

#include <bit>
#include <cfloat>
#include <cmath>

#include "base/bytes.h"
#include "base/random_stream.h"
#include "codec/registry.h"
#include "codec/sparse.h"
#include "codec/threshold.h"

namespace gradwire {
namespace {

using kernels::Side;

constexpr float kMinDensity = 1e-5f;
constexpr auto kFitted = static_cast<std::uint8_t>(std::size(kSelects));

struct Settings {
  float amount;  // the density, or when fitted the threshold
  float low_threshold;
  std::uint16_t ties;
  std::uint16_t low_ties;
  std::uint8_t select;  // a Select, or kFitted
  Values values;

  bool fitted() const noexcept { return select == kFitted; }
  bool two_sided() const noexcept { return values != Values::mean; }
};
static_assert(offsetof(Settings, values) + 1 == sizeof(Codec::Params));

Codec::Params parse(SpecReader& spec) {
  Settings settings{};
  settings.values = static_cast<Values>(spec.choice("values", 0, kValues));
  const bool fitted = spec.has("threshold");
  if (fitted && (spec.has("density") || spec.has("select"))) {
    throw Error(ErrorCode::invalid_spec, "codec topk takes threshold=, or density= and select=");
  }
  settings.amount = spec.number("density", 0.001f, kMinDensity, 1);
  settings.select = spec.choice("select", 0, kSelects);
  const float threshold = spec.number("threshold", 0, 0, FLT_MAX) + 0.0f;
  if (!fitted) return pack(settings);
  settings.amount = threshold;
  settings.select = kFitted;
  settings.ties = static_cast<std::uint16_t>(spec.integer("ties", 0, 0, 65535));
  if (settings.two_sided()) return pack(settings);
  settings.low_threshold = spec.number("low_threshold", threshold, 0, FLT_MAX) + 0.0f;
  settings.low_ties = static_cast<std::uint16_t>(spec.integer("low_ties", 0, 0, 65535));
  return pack(settings);
}

std::string format(const Codec::Params& params) {
  const auto settings = unpack<Settings>(params);
  const std::string_view values = kValues[static_cast<int>(settings.values)];
  if (!settings.fitted()) {
    return fmt::format("topk:density={},select={},values={}", settings.amount,
                       kSelects[settings.select], values);
  }
  std::string text = fmt::format("topk:threshold={},ties={}", settings.amount, settings.ties);
  if (!settings.two_sided()) {
    text += fmt::format(",low_threshold={},low_ties={}", settings.low_threshold, settings.low_ties);
  }
  return text + fmt::format(",values={}", values);
}

bool is_magnitude(float x) noexcept {
  return std::bit_cast<std::uint32_t>(x) <= kernels::kLargestFiniteKey;
}

bool valid(const Codec::Params& params) noexcept {
  const auto settings = unpack<Settings>(params);
  if (settings.select > kFitted || settings.values > Values::mean) return false;
  if (!settings.fitted()) {
    return settings.amount >= kMinDensity && settings.amount <= 1 && settings.ties == 0 &&
           std::bit_cast<std::uint32_t>(settings.low_threshold) == 0 && settings.low_ties == 0;
  }
  if (!is_magnitude(settings.amount) || !is_magnitude(settings.low_threshold)) return false;
  return !settings.two_sided() || (settings.low_threshold == 0 && settings.low_ties == 0);
}

Traits traits(const Codec::Params&) noexcept {
  return {.lossless = false,
          .unbiased = false,
          .fixed_size = false,
          .keeps_zeros = true,
          .sparse = true};
}

/// How many of `count` elements are wanted: count * density, rounded up. The density has been
/// rounded itself, by less than 2^-24, which must not make one more of what is a whole number.
std::uint64_t wanted(float density, std::uint64_t count) noexcept {
  const double share = static_cast<double>(density) * (1 - 0x1p-23);
  const double elements = std::ceil(share * static_cast<double>(count));
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(elements), 1, count);
}

/// The settings' threshold for a side, found among the numbers if they have none.
Threshold threshold_of(const Settings& settings, Side side,
                       std::span<const ConstTensorView> layer) noexcept {
  if (settings.fitted()) {
    const bool low = side == Side::negative;
    return {std::bit_cast<std::uint32_t>(low ? settings.low_threshold : settings.amount),
            low ? settings.low_ties : settings.ties};
  }
  return find_threshold(layer, side, wanted(settings.amount, count_of(layer)),
                        static_cast<Select>(settings.select));
}

Codec::Params fit(const Codec::Params& params, std::span<const ConstTensorView> layer,
                  std::span<double>) noexcept {
  const auto settings = unpack<Settings>(params);
  if (settings.fitted() || count_of(layer) == 0) return params;
  const Side side = settings.two_sided() ? Side::both : Side::positive;
  const Threshold high = threshold_of(settings, side, layer);
  const Threshold low =
      settings.two_sided() ? Threshold{0, 0} : threshold_of(settings, Side::negative, layer);
  return pack(Settings{.amount = std::bit_cast<float>(high.key),
                       .low_threshold = std::bit_cast<float>(low.key),
                       .ties = high.ties,
                       .low_ties = low.ties,
                       .select = kFitted,
                       .values = settings.values});
}

std::size_t max_bytes(const Codec::Params& params, std::size_t count) noexcept {
  return max_sparse_bytes(unpack<Settings>(params).values, count);
}

/// Of a fitted one nobody knows.
std::size_t expected_bytes(const Codec::Params& params, std::size_t count) noexcept {
  const auto settings = unpack<Settings>(params);
  if (settings.fitted()) return max_bytes(params, count);
  const double bits = place_bits(settings.amount) + value_bits(settings.values);
  const auto elements = static_cast<double>(count == 0 ? 0 : wanted(settings.amount, count));
  return static_cast<std::size_t>(std::ceil(elements * bits / 8));
}

constexpr float kSumDensity = 4;    // times that of the data
constexpr float kWholeSums = 0.5f;  // from this density on

/// A mean is no value for sums, whose numbers differ by how many ranks sent them.
Codec for_sums(const Codec::Params& params) noexcept {
  auto settings = unpack<Settings>(params);
  if (settings.values == Values::mean) settings.values = Values::int8;
  if (settings.fitted()) return CodecAccess::make(&kTopk, pack(settings));
  settings.amount *= kSumDensity;
  if (settings.amount >= kWholeSums) return CodecAccess::make(&kNone, {});
  return CodecAccess::make(&kTopk, pack(settings));
}

std::size_t encode(const Codec::Params& params, ConstTensorView x, const EncodeOptions& options,
                   std::byte* out) noexcept {
  const auto settings = unpack<Settings>(params);
  const Side of_turn = options.turn % 2 == 0 ? Side::positive : Side::negative;
  const Side side = settings.two_sided() ? Side::both : of_turn;
  const Threshold threshold = threshold_of(settings, side, {&x, 1});
  const bool ties = threshold.ties > 0 && threshold.key > 0;
  const std::uint64_t folded = fold(options.random);
  SparseWriter writer(settings.values, out);
  for (std::size_t first = 0; first < x.count; first += kernels::kSiftElements) {
    kernels::Sifted found;
    kernels::sift(x.slice(first, std::min(kernels::kSiftElements, x.count - first)), side,
                  threshold.key - (ties ? 1 : 0), found);
    for (std::size_t i = 0; i < found.count; ++i) {
      const std::uint64_t at = first + found.at[i];
      const bool tie = ties && kernels::key_of(found.values[i], side) == threshold.key;
      if (tie && draw(folded, options.first_element + at) >= threshold.ties) continue;
      writer.add(at, found.values[i]);
    }
  }
  return writer.finish();
}

Status each_sent(const Codec::Params& params, std::span<const std::byte> payload, Dtype,
                 std::size_t count, NumberSink sink) noexcept {
  return read_sparse(unpack<Settings>(params).values, payload, count, sink);
}

Status decode(const Codec::Params& params, std::span<const std::byte> payload, Dtype source,
              TensorView out, Into into) noexcept {
  return decode_sparse(
      [&](NumberSink sink) { return each_sent(params, payload, source, out.count, sink); }, out,
      into);
}

/// Of one that was fitted, the cost of sending what it selects.
CodecCost selection_cost(const Codec::Params& params) noexcept {
  constexpr CodecCost kCosts[] = {{35, 0.55}, {35, 0.75}, {35, 1.15}, {10, 0.9}};  // by `Select`
  const auto settings = unpack<Settings>(params);
  return settings.fitted() ? CodecCost{} : kCosts[settings.select];
}

}  // namespace

const CodecKind kTopk = {.id = 7,
                         .name = "topk",
                         .parse = parse,
                         .format = format,
                         .valid = valid,
                         .traits = traits,
                         .fit = fit,
                         .for_sums = for_sums,
                         .cost_of = selection_cost,
                         .max_bytes = max_bytes,
                         .expected_bytes = expected_bytes,
                         .encode = encode,
                         .decode = decode,
                         .each_sent = each_sent};

}  // namespace gradwire
