// `exponential`: a sign and a power of two. Each bucket travels as its largest magnitude, the norm;
// each number as a sign bit and a level: 0 is zero, level i of the top one is norm * 2^(i - top).
// Small numbers keep their relative precision where `uniform` rounds them all to the same few
// levels.
//
// The error of a number is below the distance of the two levels around it: at most its own
// magnitude, or norm * 2^(1 - top) for numbers below the smallest level.
#include "codec/bucketed_kind.h"

namespace gradwire {

constexpr Leveled kLeveled{.id = 4,
                           .name = "exponential",
                           .scheme = kernels::Scheme::exponential,
                           .min_bits = 2,
                           .keeps_zeros = true,
                           .cost = {2, 1.0}};
const CodecKind kExponential = LeveledKind<kLeveled>::kind();

}  // namespace gradwire
