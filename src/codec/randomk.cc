// `randomk`: elements that chance chooses, the same ones on every rank, so that their places need
// not travel. With scale=inverse they are divided by the chance when they come back, which makes
// the codec unbiased; without, it wants error feedback.
//
// Element i is chosen when its random bits, under the key without the rank, are below the density.
// Numbers that are not finite arrive whether chosen or not, as NaN.
#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/bytes.h"
#include "base/random_stream.h"
#include "codec/kernels/sift.h"
#include "codec/registry.h"
#include "codec/sparse.h"
#include "tensor/cast.h"

namespace gradwire {
namespace {

constexpr float kMinDensity = 1e-4f;

constexpr std::string_view kScales[] = {"none", "inverse"};
enum class Scale : std::uint32_t { none = 0, inverse = 1 };

struct Settings {
  float density;
  Scale scale;

  /// Random bits below this choose: the density in units of 2^-16.
  std::uint32_t limit() const noexcept {
    return static_cast<std::uint32_t>(std::lround(density * 65536));
  }
  float factor() const noexcept {
    return scale == Scale::none ? 1 : 65536 / static_cast<float>(limit());
  }
};

/// Whose elements are chosen.
struct PayloadHeader {
  std::uint64_t folded;
  std::uint64_t first_element;
};

Codec::Params parse(SpecReader& spec) {
  const float density = spec.number("density", 0.01f, kMinDensity, 1);
  return pack(Settings{density, static_cast<Scale>(spec.choice("scale", 0, kScales))});
}

std::string format(const Codec::Params& params) {
  const auto settings = unpack<Settings>(params);
  return fmt::format("randomk:density={},scale={}", settings.density,
                     kScales[static_cast<int>(settings.scale)]);
}

bool valid(const Codec::Params& params) noexcept {
  const auto settings = unpack<Settings>(params);
  return settings.density >= kMinDensity && settings.density <= 1 &&
         settings.scale <= Scale::inverse && rest_is_zero<Settings>(params);
}

Traits traits(const Codec::Params& params) noexcept {
  return {.lossless = false,
          .unbiased = unpack<Settings>(params).scale == Scale::inverse,
          .fixed_size = false,
          .keeps_zeros = true,
          .sparse = true};
}

std::size_t max_bytes(const Codec::Params&, std::size_t count) noexcept {
  return sizeof(PayloadHeader) + 4 * count + max_sparse_bytes(Values::mean, count);
}

std::size_t expected_bytes(const Codec::Params& params, std::size_t count) noexcept {
  const double numbers = static_cast<double>(unpack<Settings>(params).density) * count;
  return sizeof(PayloadHeader) + sizeof(float) * static_cast<std::size_t>(std::ceil(numbers));
}

/// The places of sums are those of the data, but one's own numbers are in them undivided: sums stay
/// unbiased only whole.
Codec for_sums(const Codec::Params& params) noexcept {
  const bool divided = unpack<Settings>(params).scale == Scale::inverse;
  return divided ? CodecAccess::make(&kNone, {}) : CodecAccess::make(&kRandomk, params);
}

/// Calls function(first, places) for stretches of `count` elements in order, with the places of
/// those that are chosen in the stretch that starts at `first`; ends when it returns false.
template <typename Function>
bool for_each_choice(const PayloadHeader& header, std::size_t count, std::uint32_t limit,
                     const Function& function) noexcept {
  std::uint16_t places[kernels::kSiftElements];
  for (std::size_t first = 0; first < count;) {
    const std::uint64_t element = header.first_element + first;
    const std::uint64_t region_left = kRegionElements - element % kRegionElements;
    const std::size_t step =
        std::min<std::uint64_t>({kernels::kSiftElements, count - first, region_left});
    const std::size_t chosen = kernels::pick(header.folded, element, step, limit, places);
    if (!function(first, std::span<const std::uint16_t>(places, chosen))) return false;
    first += step;
  }
  return true;
}

template <typename Bits>
std::byte* write_chosen(const Bits* x, Bits infinity, std::span<const std::uint16_t> places,
                        std::byte* to) noexcept {
  for (const std::uint16_t place : places) {
    const bool finite = (x[place] & infinity) != infinity;
    store(to, finite ? x[place] : Bits{0});  // else its place travels, see below
    to += sizeof(Bits);
  }
  return to;
}

std::byte* write_chosen(ConstTensorView x, std::span<const std::uint16_t> places,
                        std::byte* to) noexcept {
  if (x.dtype == Dtype::f32) {
    return write_chosen(static_cast<const std::uint32_t*>(x.data), 0x7f800000u, places, to);
  }
  const std::uint16_t infinity = x.dtype == Dtype::f16 ? 0x7c00 : 0x7f80;
  return write_chosen(static_cast<const std::uint16_t*>(x.data), infinity, places, to);
}

/// The places of all that is not finite.
std::size_t write_not_finite(ConstTensorView x, std::byte* to) noexcept {
  SparseWriter writer(Values::mean, to);
  for (std::size_t first = 0; first < x.count; first += kernels::kSiftElements) {
    kernels::Sifted found;
    kernels::sift(x.slice(first, std::min(kernels::kSiftElements, x.count - first)),
                  kernels::Side::both, kernels::kLargestFiniteKey, found);
    for (std::size_t i = 0; i < found.count; ++i) writer.add(first + found.at[i], NAN);
  }
  return writer.finish();
}

std::size_t encode(const Codec::Params& params, ConstTensorView x, const EncodeOptions& options,
                   std::byte* out) noexcept {
  RandomKey key = options.random;
  key.rank = 0;
  const PayloadHeader header{fold(key), options.first_element};
  store(out, header);
  std::byte* to = out + sizeof(header);
  for_each_choice(header, x.count, unpack<Settings>(params).limit(),
                  [&](std::size_t first, std::span<const std::uint16_t> places) {
                    to = write_chosen(x.slice(first, 0), places, to);
                    return true;
                  });
  to += write_not_finite(x, to);
  return static_cast<std::size_t>(to - out);
}

/// Numbers times the factor; they stay finite.
void scale_up(std::span<float> numbers, float factor) noexcept {
  for (float& x : numbers) x = std::clamp(x * factor, -FLT_MAX, FLT_MAX);
}

/// Reads the elements of a stretch; false when the payload does not have them.
bool read_chosen(std::span<const std::byte>& payload, std::size_t first,
                 std::span<const std::uint16_t> places, Dtype source, float factor,
                 NumberSink sink) noexcept {
  while (!places.empty()) {
    const std::size_t count = std::min(places.size(), SparseWriter::kMembers);
    const std::size_t bytes = count * size_of(source);
    if (payload.size() < bytes) return false;
    alignas(float) std::byte chosen[SparseWriter::kMembers * sizeof(float)];
    std::memcpy(chosen, payload.data(), bytes);
    payload = payload.subspan(bytes);
    float numbers[SparseWriter::kMembers];
    kernels::cast({chosen, count, source}, {numbers, count, Dtype::f32}, Into::assign);
    if (factor != 1) scale_up({numbers, count}, factor);
    std::uint64_t wide[SparseWriter::kMembers];
    for (std::size_t i = 0; i < count; ++i) wide[i] = first + places[i];
    sink({wide, count}, {numbers, count});
    places = places.subspan(count);
  }
  return true;
}

/// What is not finite comes last, whatever its place.
Status each_sent(const Codec::Params& params, std::span<const std::byte> payload, Dtype source,
                 std::size_t count, NumberSink sink) noexcept {
  if (payload.size() < sizeof(PayloadHeader)) return Status::corrupt;
  const auto header = load<PayloadHeader>(payload.data());
  if (header.first_element % kSliceAlignment != 0) return Status::corrupt;
  payload = payload.subspan(sizeof(header));
  const auto settings = unpack<Settings>(params);
  const float factor = settings.factor();
  const bool read =
      for_each_choice(header, count, settings.limit(),
                      [&](std::size_t first, std::span<const std::uint16_t> places) {
                        return read_chosen(payload, first, places, source, factor, sink);
                      });
  return read ? read_sparse(Values::mean, payload, count, sink) : Status::corrupt;
}

Status decode(const Codec::Params& params, std::span<const std::byte> payload, Dtype source,
              TensorView out, Into into) noexcept {
  return decode_sparse(
      [&](NumberSink sink) { return each_sent(params, payload, source, out.count, sink); }, out,
      into);
}

}  // namespace

const CodecKind kRandomk = {.id = 8,
                            .name = "randomk",
                            .parse = parse,
                            .format = format,
                            .valid = valid,
                            .traits = traits,
                            .fit = fit_nothing,
                            .for_sums = for_sums,
                            .cost = {5, 1.0},
                            .max_bytes = max_bytes,
                            .expected_bytes = expected_bytes,
                            .encode = encode,
                            .decode = decode,
                            .each_sent = each_sent};

}  // namespace gradwire
