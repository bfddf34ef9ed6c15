// What the golden files hold: the numbers and specs that good frames are made of, and the ways in
// which bad frames are bad. golden/make_golden.cc writes the files, golden_test.cc holds the
// library to them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gradwire/codec.h"
#include "gradwire/frame.h"

namespace gradwire::golden {

using Bytes = std::vector<std::byte>;

struct GoldenSegment {
  std::string spec;
  Dtype dtype;
  Bytes values;  ///< elements of `dtype`
  EncodeOptions options;

  std::size_t count() const { return values.size() / size_of(dtype); }
};

struct GoldenCase {
  std::string name;
  std::vector<GoldenSegment> segments;
};

struct BadCase {
  std::string name;
  Status status;  ///< of the first call that fails: checking the frame, or decoding a segment
  Bytes frame;
};

std::vector<GoldenCase> golden_cases();
std::vector<BadCase> bad_cases();

Bytes encode(const GoldenCase& golden);

/// The checksum of decoded numbers that golden/v1/expected.tsv lists. All NaN count as the same
/// one.
std::uint64_t hash_of(const std::vector<float>& numbers);

}  // namespace gradwire::golden
