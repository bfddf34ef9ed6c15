// `sign`: one bit per number. Each bucket travels as the mean of its magnitudes; a number decodes
// to plus or minus that mean. Biased: use it with error feedback.
#include "codec/bucketed_kind.h"

namespace gradwire {
namespace {

using kernels::Bucketed;
using kernels::Scheme;

Codec::Params parse(SpecReader& spec) {
  const std::uint32_t bucket = spec.integer("bucket", 1024, 1, kMaxBucket);
  const auto meta = static_cast<Meta>(spec.choice("meta", 0, kMetas));
  return pack(Bucketed{Scheme::sign, 1, Rounding::nearest, meta, bucket});
}

std::string format(const Codec::Params& params) {
  const auto how = unpack<Bucketed>(params);
  return fmt::format("sign:bucket={},meta={}", how.bucket, kMetas[static_cast<int>(how.meta)]);
}

bool valid(const Codec::Params& params) noexcept {
  const auto how = unpack<Bucketed>(params);
  return how.scheme == Scheme::sign && how.bits == 1 && how.rounding == Rounding::nearest &&
         bucketed_valid(params);
}

Traits traits(const Codec::Params&) noexcept {
  return {.lossless = false, .unbiased = false, .fixed_size = true, .keeps_zeros = false};
}

}  // namespace

const CodecKind kSign = bucketed_kind(5, "sign", parse, format, valid, traits, {2, 0.5});

}  // namespace gradwire
