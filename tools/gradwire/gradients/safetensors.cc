#include "gradients/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/byte_cursor.h"
#include "gradwire/error.h"

namespace gradwire::cli {
namespace {

using Header = nlohmann::json;

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the safetensors library's own limit

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::io, "not a usable safetensors file: " + why);
}

[[noreturn]] void refuse_tensor(const std::string& name, const std::string& why) {
  refuse("tensor '" + name + "' " + why);
}

/// One entry of the header, before it is matched with the data.
struct Entry {
  std::string name;
  Dtype dtype;
  std::uint64_t count;
  std::uint64_t begin;
  std::uint64_t end;
  std::size_t dimensions;
};

Dtype parse_dtype(const std::string& name, const Header& text) {
  if (text == "F32") return Dtype::f32;
  if (text == "F16") return Dtype::f16;
  if (text == "BF16") return Dtype::bf16;
  refuse_tensor(name, "has dtype " + text.dump() + "; gradients are F32, F16 or BF16");
}

std::uint64_t parse_count(const std::string& name, const Header& shape) {
  if (!shape.is_array()) refuse_tensor(name, "has no array 'shape'");
  std::uint64_t count = 1;
  for (const Header& dimension : shape) {
    if (!dimension.is_number_unsigned()) refuse_tensor(name, "has a shape of other than sizes");
    if (__builtin_mul_overflow(count, dimension.get<std::uint64_t>(), &count)) {
      refuse_tensor(name, "has a shape too large to exist");
    }
  }
  return count;
}

std::pair<std::uint64_t, std::uint64_t> parse_offsets(const std::string& name,
                                                      const Header& offsets) {
  const bool valid = offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
                     offsets[1].is_number_unsigned();
  if (!valid) refuse_tensor(name, "needs 'data_offsets' of two numbers, [begin, end]");
  return {offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
}

Entry parse_entry(const std::string& name, const Header& entry) {
  if (!entry.is_object()) refuse_tensor(name, "is not described by an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) refuse_tensor(name, "has no '" + std::string(key) + "'");
  }
  const auto [begin, end] = parse_offsets(name, entry["data_offsets"]);
  const Header& shape = entry["shape"];
  return {name,        parse_dtype(name, entry["dtype"]), parse_count(name, shape), begin, end,
          shape.size()};
}

/// Length and text of the header; what follows is data.
std::string_view header_text(std::span<const std::byte> file) {
  ByteReader bytes(file);
  std::uint64_t length = 0;
  std::span<const std::byte> text;
  if (!bytes.read(length)) refuse("it has fewer than 8 bytes");
  if (length > kMaxHeaderBytes) refuse("its header would be longer than 100 MB");
  if (!bytes.take(length, text)) refuse("it ends within its header; it was cut short");
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

std::vector<Entry> parse_header(std::string_view text) {
  const Header header = Header::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) refuse("its header is not a JSON object");
  std::vector<Entry> entries;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") entries.push_back(parse_entry(name, entry));
  }
  return entries;
}

/// The format asks for tensors back to back that fill the data. That also finds names that occur
/// twice.
void check_places(std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.end < entry.begin) refuse_tensor(entry.name, "ends before it begins");
    if (entry.end > data_bytes) refuse_tensor(entry.name, "lies behind the end of the file");
    if (entry.begin != at) refuse_tensor(entry.name, "does not begin where the one before it ends");
    const std::uint64_t bytes = entry.end - entry.begin;
    if (bytes % size_of(entry.dtype) != 0 || bytes / size_of(entry.dtype) != entry.count) {
      refuse_tensor(entry.name, "has a shape that does not fit its offsets");
    }
    at = entry.end;
  }
  if (at != data_bytes) refuse("bytes follow its last tensor");
}

NamedTensor locate(const Entry& entry, std::span<const std::byte> data) {
  const std::byte* const first = data.data() + entry.begin;
  if (reinterpret_cast<std::uintptr_t>(first) % size_of(entry.dtype) != 0) {
    refuse_tensor(entry.name, "is not aligned to its elements; save it again with safetensors");
  }
  return {entry.name, {first, entry.count, entry.dtype}, entry.dimensions};
}

}  // namespace

std::vector<NamedTensor> parse_safetensors(std::span<const std::byte> file) {
  const std::string_view text = header_text(file);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + text.size());
  std::vector<Entry> entries = parse_header(text);
  check_places(entries, data.size());
  std::vector<NamedTensor> tensors;
  tensors.reserve(entries.size());
  for (const Entry& entry : entries) tensors.push_back(locate(entry, data));
  return tensors;
}

std::vector<NamedTensor> read_safetensors(const std::string& path, const MappedFile& file) {
  try {
    return parse_safetensors(file.bytes());
  } catch (const Error& error) {
    throw Error(error.code(), path + " is " + error.what());
  }
}

}  // namespace gradwire::cli
