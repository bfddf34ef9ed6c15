// `uniform`: CGX's bucketed max-min quantizer. Each bucket travels as its minimum and its unit, the
// distance between two of its 2^bits levels; each number as the index of a level.
//
// The error of a number is below one unit (stochastic) or half a unit (nearest), plus the rounding
// of a float. The unit is (max - min) / (2^bits - 1), where `meta=bf16` rounds the minimum down and
// the unit up to bf16: no number lies outside of the levels, so stochastic rounding stays unbiased.
// bf16 and not fp16, since gradients below 6e-8 would vanish in fp16. `meta=fp32` is what CGX does.
#include "codec/bucketed_kind.h"

namespace gradwire {

constexpr Leveled kLeveled{.id = 3,
                           .name = "uniform",
                           .scheme = kernels::Scheme::uniform,
                           .min_bits = 1,
                           .keeps_zeros = false,
                           .cost = {2, 0.6}};
const CodecKind kUniform = LeveledKind<kLeveled>::kind();

}  // namespace gradwire
