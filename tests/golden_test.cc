// The format does not change by accident: frames of tests/golden decode to the same bits, encoding
// writes the same bytes, and bad frames are refused for the right reason, on every instruction set.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>

#include "golden_cases.h"
#include "gradwire/isa.h"

namespace gradwire::golden {
namespace {

namespace fs = std::filesystem;

const fs::path kDirectory = GRADWIRE_GOLDEN_DIRECTORY;

Bytes read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  const std::vector<char> read{std::istreambuf_iterator<char>(stream), {}};
  const auto* const begin = reinterpret_cast<const std::byte*>(read.data());
  return {begin, begin + read.size()};
}

/// The rows of a table, without its heading.
std::vector<std::vector<std::string>> read_table(const fs::path& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream) << path;
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(stream, line);
  while (std::getline(stream, line)) {
    std::istringstream cells(line);
    rows.push_back({std::istream_iterator<std::string>(cells), {}});
  }
  return rows;
}

Status status_named(const std::string& name) {
  static const std::map<std::string, Status> kStatuses = {
      {"truncated", Status::truncated},
      {"corrupt", Status::corrupt},
      {"unsupported_version", Status::unsupported_version},
      {"unknown_codec", Status::unknown_codec}};
  return kStatuses.at(name);
}

/// The first failure of checking a frame and decoding its segments. The frame gets an allocation of
/// its own size, so that a sanitizer sees what is read behind it.
Status decode_all(const Bytes& bytes) {
  const auto exact = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  FrameReader frame({exact.get(), bytes.size()});
  if (frame.status() != Status::ok) return frame.status();
  for (std::size_t i = 0; i < frame.segment_count(); ++i) {
    std::vector<float> numbers(frame.segment(i).count);
    const Status status = frame.decode(i, {numbers.data(), numbers.size(), Dtype::f32});
    if (status != Status::ok) return status;
  }
  return Status::ok;
}

class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { use_isa(GetParam()); }
  void TearDown() override { use_isa("auto"); }
};

TEST_P(GoldenTest, Frame_decoded_gives_the_expected_bits) {
  std::string read_name;
  Bytes bytes;
  for (const auto& row : read_table(kDirectory / "v1" / "expected.tsv")) {
    ASSERT_EQ(row.size(), 4u);
    if (row[0] != read_name)
      bytes = read_file(kDirectory / "v1" / ((read_name = row[0]) + ".frame"));
    FrameReader frame(bytes);
    ASSERT_EQ(frame.status(), Status::ok) << row[0];
    const std::size_t index = std::stoull(row[1]);
    std::vector<float> numbers(frame.segment(index).count);
    EXPECT_EQ(numbers.size(), std::stoull(row[2])) << row[0];
    ASSERT_EQ(frame.decode(index, {numbers.data(), numbers.size(), Dtype::f32}), Status::ok)
        << row[0];
    EXPECT_EQ(hash_of(numbers), std::stoull(row[3], nullptr, 16))
        << row[0] << ", segment " << index;
  }
}

TEST_P(GoldenTest, Numbers_encoded_again_give_the_same_bytes) {
  for (const GoldenCase& golden : golden_cases()) {
    EXPECT_TRUE(encode(golden) == read_file(kDirectory / "v1" / (golden.name + ".frame")))
        << golden.name;
  }
}

TEST_P(GoldenTest, Bad_frame_is_refused_with_its_status) {
  for (const auto& row : read_table(kDirectory / "bad" / "expected.tsv")) {
    EXPECT_EQ(decode_all(read_file(kDirectory / "bad" / (row[0] + ".frame"))), status_named(row[1]))
        << row[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, GoldenTest, testing::ValuesIn(available_isas()),
                         [](const auto& of) { return of.param; });

// Every byte of a small frame matters: all single-bit flips and all lengths.
TEST(GoldenFrames, Any_bit_flipped_is_reported) {
  Bytes bytes = read_file(kDirectory / "v1" / "one_element.frame");
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(decode_all(bytes), Status::corrupt) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(GoldenFrames, Any_truncation_is_reported) {
  const Bytes bytes = read_file(kDirectory / "v1" / "one_element.frame");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode_all(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))),
              Status::truncated)
        << size;
  }
}

}  // namespace
}  // namespace gradwire::golden
