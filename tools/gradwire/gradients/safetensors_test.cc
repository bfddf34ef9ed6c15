#include "gradients/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

/// A file in memory, aligned as a mapped one is. Its data starts aligned, as safetensors pads the
/// header.
class File {
 public:
  File(std::string header, std::size_t data_bytes) {
    while (header.size() % 8 != 0) header += ' ';
    const std::uint64_t length = header.size();
    append(&length, sizeof(length));
    append(header.data(), header.size());
    for (std::size_t i = 0; i < data_bytes; ++i) {
      const auto byte = static_cast<unsigned char>(i);
      append(&byte, 1);
    }
  }

  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words_)).first(size_); }
  std::span<std::byte> mutable_bytes() {
    return std::as_writable_bytes(std::span(words_)).first(size_);
  }

 private:
  void append(const void* data, std::size_t size) {
    words_.resize((size_ + size + 7) / 8);
    std::memcpy(reinterpret_cast<std::byte*>(words_.data()) + size_, data, size);
    size_ += size;
  }

  std::vector<std::uint64_t> words_;
  std::size_t size_ = 0;
};

std::string error_of(std::span<const std::byte> bytes) {
  try {
    parse_safetensors(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(ErrorCode::io, error.code());
    return error.what();
  }
  return "";
}

std::string error_of(const std::string& header, std::size_t data_bytes) {
  return error_of(File(header, data_bytes).bytes());
}

constexpr const char* kTwoTensors =
    R"({"__metadata__": {"content": "anything"},
        "b": {"dtype": "F16", "shape": [3], "data_offsets": [24, 30]},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})";

TEST(Safetensors, good_file_gives_tensors_in_the_order_of_their_data) {
  const File file(kTwoTensors, 30);
  const auto tensors = parse_safetensors(file.bytes());
  ASSERT_EQ(2U, tensors.size());
  EXPECT_EQ("a", tensors[0].name);
  EXPECT_EQ(Dtype::f32, tensors[0].values.dtype);
  EXPECT_EQ(6U, tensors[0].values.count);
  EXPECT_EQ("b", tensors[1].name);
  EXPECT_EQ(Dtype::f16, tensors[1].values.dtype);
  EXPECT_EQ(3U, tensors[1].values.count);
  EXPECT_EQ(std::byte{24}, *static_cast<const std::byte*>(tensors[1].values.data));
}

TEST(Safetensors, empty_tensor_and_scalar_are_taken) {
  const File file(R"({"e": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [0, 0]},
                      "s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})",
                  4);
  const auto tensors = parse_safetensors(file.bytes());
  ASSERT_EQ(2U, tensors.size());
  EXPECT_EQ(0U, tensors[0].values.count);
  EXPECT_EQ(1U, tensors[1].values.count);
}

TEST(Safetensors, file_without_tensors_is_taken) {
  EXPECT_TRUE(parse_safetensors(File("{}", 0).bytes()).empty());
}

TEST(Safetensors, every_truncation_is_refused) {
  const File file(kTwoTensors, 30);
  for (std::size_t size = 0; size < file.bytes().size(); ++size) {
    EXPECT_NE("", error_of(file.bytes().first(size))) << size;
  }
}

TEST(Safetensors, any_changed_byte_of_the_header_never_crashes) {
  for (const int value : {0x00, 0x01, 0x22, 0x39, 0x7b, 0x80, 0xff}) {
    File file(kTwoTensors, 30);
    for (std::size_t i = 0; i < file.bytes().size() - 30; ++i) {
      const std::byte kept = file.bytes()[i];
      file.mutable_bytes()[i] = static_cast<std::byte>(value);
      error_of(file.bytes());
      file.mutable_bytes()[i] = kept;
    }
  }
}

TEST(Safetensors, header_length_beyond_the_limit_is_refused) {
  File file(kTwoTensors, 30);
  std::memset(file.mutable_bytes().data(), 0xff, 8);
  EXPECT_NE(std::string::npos, error_of(file.bytes()).find("longer than 100 MB"));
}

struct Malformed {
  const char* fear;
  const char* header;
  std::size_t data_bytes;
  const char* message;  // part of it
};

TEST(Safetensors, malformed_header_is_refused_with_the_reason) {
  const Malformed cases[] = {
      {"not JSON", "{", 0, "not a JSON object"},
      {"an array", "[]", 0, "not a JSON object"},
      {"a tensor that is a number", R"({"x": 3})", 0, "'x' is not described by an object"},
      {"no dtype", R"({"x": {"shape": [1], "data_offsets": [0, 4]}})", 4, "no 'dtype'"},
      {"no shape", R"({"x": {"dtype": "F32", "data_offsets": [0, 4]}})", 4, "no 'shape'"},
      {"no offsets", R"({"x": {"dtype": "F32", "shape": [1]}})", 4, "no 'data_offsets'"},
      {"integers", R"({"x": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}})", 8,
       "dtype \"I64\"; gradients are F32, F16 or BF16"},
      {"dtype of a wrong kind", R"({"x": {"dtype": 3, "shape": [1], "data_offsets": [0, 4]}})", 4,
       "has dtype 3"},
      {"negative size", R"({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4,
       "shape of other than sizes"},
      {"fractional size", R"({"x": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})", 4,
       "shape of other than sizes"},
      {"shape is a number", R"({"x": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}})", 4,
       "no array 'shape'"},
      {"count overflows",
       R"({"x": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]}})", 4,
       "too large to exist"},
      {"bytes overflow",
       R"({"x": {"dtype": "F32", "shape": [4611686018427387905], "data_offsets": [0, 4]}})", 4,
       "does not fit its offsets"},
      {"one offset", R"({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4]}})", 4,
       "two numbers"},
      {"negative offset", R"({"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}})", 4,
       "two numbers"},
      {"reversed offsets", R"({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4,
       "ends before it begins"},
      {"beyond the file", R"({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 4,
       "behind the end of the file"},
      {"huge offsets",
       R"({"x": {"dtype": "F32", "shape": [1], "data_offsets": [18446744073709551612, 18446744073709551615]}})",
       4, "behind the end of the file"},
      {"a hole", R"({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", 8,
       "does not begin where"},
      {"an overlap",
       R"({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
           "y": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
       8, "'y' does not begin where"},
      {"bytes left over", R"({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 8,
       "follow its last tensor"},
      {"shape against offsets", R"({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})",
       8, "does not fit its offsets"},
      {"half an element", R"({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 6]}})", 6,
       "does not fit its offsets"},
      {"misaligned floats",
       R"({"x": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]},
           "y": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}})",
       6, "'y' is not aligned"},
  };
  for (const Malformed& c : cases) {
    const std::string message = error_of(c.header, c.data_bytes);
    EXPECT_NE(std::string::npos, message.find(c.message)) << c.fear << ": " << message;
  }
}

}  // namespace
}  // namespace gradwire::cli
