// Every instruction set gives the scalar target's bytes and floats.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "codec/codec_test_data.h"

namespace gradwire::test {

/// Encodes x, decodes it to every dtype and adds it to numbers of every dtype, on the scalar
/// target. Checks that narrow outputs and sums are rounded once. Then expects the same bits from
/// every other target.
void expect_agreement(const std::string& spec, const Tensor& x);

/// The same for all `specs` and dtypes, of `count` numbers that are like gradients.
void expect_agreement(const std::vector<std::string>& specs, std::size_t count);

}  // namespace gradwire::test
