#include "machine/memory_speed.h"

#include <cstdint>
#include <cstring>
#include <span>

namespace gradwire::cli {
namespace {

using Vector = std::uint64_t __attribute__((vector_size(32)));

/// Keeps the compiler from dropping work whose result nobody reads.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

/// Integers, because their additions take one cycle: memory is the limit, not arithmetic. `values`
/// holds a multiple of eight vectors. Inlined into callers that may use wider instructions.
[[gnu::always_inline]] inline void sum_all(std::span<const Vector> values) {
  Vector a{};
  Vector b{};
  Vector c{};
  Vector d{};
  Vector e{};
  Vector f{};
  Vector g{};
  Vector h{};
  const Vector* at = values.data();
  for (const Vector* end = at + values.size(); at != end; at += 8) {
    a += at[0];
    b += at[1];
    c += at[2];
    d += at[3];
    e += at[4];
    f += at[5];
    g += at[6];
    h += at[7];
  }
  const Vector sum = a + b + c + d + e + f + g + h;
  keep(sum);
}

void sum_plain(std::span<const Vector> values) { sum_all(values); }

#if defined(__x86_64__)
// With 16-byte loads the same loop reaches two thirds of the speed.
__attribute__((target("avx2"))) void sum_avx2(std::span<const Vector> values) { sum_all(values); }
#endif

void sum(std::span<const Vector> values) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return sum_avx2(values);
#endif
  sum_plain(values);
}

}  // namespace

MemorySpeed::MemorySpeed() {
  std::memset(source_.bytes().data(), 1, kBytes);
  sample_copy();  // warm-up, not counted
  sample_read();
  copy_ = {};
  read_ = {};
}

void MemorySpeed::sample_copy() {
  copy_.add(seconds_per_call(1, [&] {
    std::memcpy(target_.bytes().data(), source_.bytes().data(), kBytes);
    keep(target_);
  }));
}

void MemorySpeed::sample_read() {
  const std::span<const Vector> values(reinterpret_cast<const Vector*>(source_.bytes().data()),
                                       kBytes / sizeof(Vector));
  read_.add(seconds_per_call(1, [&] { sum(values); }));
}

}  // namespace gradwire::cli
