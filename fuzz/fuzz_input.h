// What fuzz targets share: reading choices from the input, buffers whose edges are watched, codecs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradwire/codec.h"
#include "gradwire/tensor.h"

namespace gradwire::fuzz {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz target: %s\n", what);
  std::abort();
}

/// The input as a row of choices, then a rest. What was not given is 0.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  template <typename T>
  T take() {
    T value{};
    const std::size_t bytes = rest_.size() < sizeof(T) ? rest_.size() : sizeof(T);
    if (bytes > 0) std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }
  /// One byte, as a number below `limit`.
  unsigned below(unsigned limit) { return take<std::uint8_t>() % limit; }
  Dtype dtype() { return static_cast<Dtype>(below(kDtypeCount)); }
  std::span<const std::byte> rest() const { return std::as_bytes(rest_); }

 private:
  std::span<const std::uint8_t> rest_;
};

/// Bytes in an allocation of exactly their size, so that AddressSanitizer sees any step beyond.
class ExactBytes {
 public:
  explicit ExactBytes(std::size_t size) : bytes_(new std::byte[size]()), size_(size) {}
  explicit ExactBytes(std::span<const std::byte> from) : ExactBytes(from.size()) {
    if (!from.empty()) std::memcpy(bytes_.get(), from.data(), from.size());
  }
  /// `size` bytes that repeat `from`.
  ExactBytes(std::span<const std::byte> from, std::size_t size) : ExactBytes(size) {
    for (std::size_t i = 0; i < size && !from.empty(); ++i) bytes_[i] = from[i % from.size()];
  }
  std::span<std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_;
};

/// Zeros to decode into. Without AddressSanitizer, guard bytes around them show what was
/// overwritten.
class Output {
 public:
  Output(std::size_t count, Dtype dtype)
      : count_(count), dtype_(dtype), bytes_(2 * kGuard + count * size_of(dtype)) {
    std::memset(bytes_.span().data(), kMark, kGuard);
    std::memset(bytes_.span().last(kGuard).data(), kMark, kGuard);
  }
  TensorView view() const { return {bytes_.span().data() + kGuard, count_, dtype_}; }
  std::span<const std::byte> elements() const {
    return bytes_.span().subspan(kGuard, count_ * size_of(dtype_));
  }
  void check() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      require(bytes_.span()[i] == std::byte{kMark} &&
                  bytes_.span()[bytes_.span().size() - 1 - i] == std::byte{kMark},
              "a decoder wrote beyond its output");
    }
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kGuard = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
  static constexpr std::size_t kGuard = 0;
#else
  static constexpr std::size_t kGuard = 64;
#endif
#else
  static constexpr std::size_t kGuard = 64;
#endif
  static constexpr unsigned char kMark = 0xa5;

  std::size_t count_;
  Dtype dtype_;
  ExactBytes bytes_;
};

inline constexpr std::size_t kMostElements = std::size_t{1} << 18;

/// Decodes both ways. The outcome must not depend on which.
inline Status decode_both_ways(const Codec& codec, std::span<const std::byte> payload, Dtype source,
                               std::size_t count, Dtype into) {
  const ExactBytes exact(payload);
  const Output out(count, into);
  const Status status = codec.decode(exact.span(), source, out.view());
  out.check();
  require(codec.decode_add(exact.span(), source, out.view()) == status,
          "decode and decode_add disagree");
  out.check();
  return status;
}

inline Codec cast_codec(Input& input) {
  static const Codec kCodecs[] = {Codec::parse("none"), Codec::parse("fp16"), Codec::parse("bf16")};
  return kCodecs[input.below(3)];
}

inline Codec bucketed_codec(Input& input) {
  const unsigned scheme = input.below(3);
  const unsigned bits = 1 + input.below(8);
  const unsigned choices = input.below(256);
  const std::uint32_t bucket = 1 + input.take<std::uint32_t>() % (1u << (choices >> 3));
  std::string rest = "bucket=" + std::to_string(bucket < 1u << 30 ? bucket : 1u << 30);
  rest += (choices & 1) != 0 ? ",meta=fp32" : ",meta=bf16";
  if (scheme == 2) return Codec::parse("sign:" + rest);
  rest += (choices & 2) != 0 ? ",rounding=nearest" : ",rounding=stochastic";
  if (scheme == 0) return Codec::parse("uniform:bits=" + std::to_string(bits) + "," + rest);
  return Codec::parse("exponential:bits=" + std::to_string(bits < 2 ? 2 : bits) + "," + rest);
}

inline Codec grid_codec(Input& input) {
  static constexpr const char* kSteps[] = {"step=0.5", "step=0.0009765625", "step=16", "nmse=0.02"};
  static constexpr const char* kLocalities[] = {"0", "0.5", "1"};
  static constexpr const char* kRoundings[] = {"stochastic", "nearest", "dither"};
  std::string spec = std::string("grid:") + kSteps[input.below(4)];
  spec += std::string(",locality=") + kLocalities[input.below(3)];
  spec += std::string(",rounding=") + kRoundings[input.below(3)];
  return Codec::parse(spec);
}

inline Codec sparse_codec(Input& input) {
  static constexpr const char* kDensities[] = {"density=0.01", "density=0.25", "density=1"};
  static constexpr const char* kSelects[] = {"bracket", "exact", "trimmed", "search"};
  static constexpr const char* kValues[] = {"fp32", "fp16", "int8", "mean"};
  const unsigned kind = input.below(6);
  const char* const density = kDensities[input.below(3)];
  const unsigned select = input.below(5);
  if (kind >= 4) {
    return Codec::parse(std::string("randomk:") + density +
                        (kind == 5 ? ",scale=inverse" : ",scale=none"));
  }
  const std::string values = std::string(",values=") + kValues[kind];
  if (select == 4) return Codec::parse("topk:threshold=1,ties=9999" + values);
  return Codec::parse(std::string("topk:") + density + ",select=" + kSelects[select] + values);
}

inline Codec any_codec(Input& input) {
  switch (input.below(4)) {
    case 0:
      return cast_codec(input);
    case 1:
      return bucketed_codec(input);
    case 2:
      return grid_codec(input);
    default:
      return sparse_codec(input);
  }
}

}  // namespace gradwire::fuzz
