// Encoding and decoding take no memory from the heap. A binary of its own: it counts every
// allocation of the process, through operator new here and through malloc by the linker's --wrap.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "gradwire/codec.h"
#include "gradwire/frame.h"

namespace {
std::atomic<std::size_t> allocations = 0;
}

extern "C" {
void* __real_malloc(std::size_t bytes);
void* __real_calloc(std::size_t count, std::size_t bytes);
void* __real_realloc(void* at, std::size_t bytes);
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
int __real_posix_memalign(void** at, std::size_t alignment, std::size_t bytes);

void* __wrap_malloc(std::size_t bytes) {
  ++allocations;
  return __real_malloc(bytes);
}
void* __wrap_calloc(std::size_t count, std::size_t bytes) {
  ++allocations;
  return __real_calloc(count, bytes);
}
void* __wrap_realloc(void* at, std::size_t bytes) {
  ++allocations;
  return __real_realloc(at, bytes);
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __real_aligned_alloc(alignment, bytes);
}
int __wrap_posix_memalign(void** at, std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __real_posix_memalign(at, alignment, bytes);
}
}

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* const at = std::malloc(bytes == 0 ? 1 : bytes)) return at;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto multiple = static_cast<std::size_t>(alignment);
  if (void* const at = std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple))
    return at;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::align_val_t) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t, std::align_val_t) noexcept {
  std::free(at);
}

namespace gradwire {
namespace {

template <typename Function>
std::size_t allocations_of(const Function& function) {
  const std::size_t before = allocations;
  function();
  return allocations - before;
}

TEST(AllocationCounter, sees_every_way_to_allocate) {
  EXPECT_EQ(allocations_of([] {}), 0u);
  EXPECT_GE(allocations_of([] {
              std::vector<int> x(1000);
              EXPECT_EQ(x[999], 0);
            }),
            1u);
  void* volatile at = nullptr;
  EXPECT_EQ(allocations_of([&] { at = std::malloc(10); }), 1u);
  EXPECT_EQ(allocations_of([&] { at = std::realloc(at, 20); }), 1u);
  std::free(at);
}

class Allocation : public testing::TestWithParam<const char*> {
 protected:
  Allocation() : x_(100'000) {
    for (std::size_t i = 0; i < x_.size(); ++i)
      x_[i] = static_cast<float>(i * 2654435761u % 1000) - 500;
    x_[70'000] = 1e30f;
  }
  ConstTensorView input() const { return {x_.data(), x_.size(), Dtype::f32}; }

  const Codec codec_ = Codec::parse(GetParam());
  std::vector<float> x_;
};

TEST_P(Allocation, codecs_allocate_nothing) {
  std::vector<std::byte> bytes(codec_.max_encoded_bytes(x_.size()));
  std::vector<float> out(x_.size());
  const TensorView output{out.data(), out.size(), Dtype::f32};
  const std::size_t allocated = allocations_of([&] {
    const Codec fitted = codec_.fit(input());
    const Encoded done = fitted.encode(input(), {}, bytes);
    const auto payload = std::span<const std::byte>(bytes).first(done.bytes);
    ASSERT_EQ(done.status, Status::ok);
    ASSERT_EQ(fitted.decode(payload, Dtype::f32, output), Status::ok);
    ASSERT_EQ(fitted.decode_add(payload, Dtype::f32, output), Status::ok);
    ASSERT_EQ(fitted.decode(payload.first(done.bytes / 2), Dtype::f32, output), Status::corrupt);
  });
  EXPECT_EQ(allocated, 0u);
}

TEST_P(Allocation, frames_allocate_nothing) {
  const Segment segments[] = {{codec_, input(), {}}, {codec_, input().slice(0, 1000), {}}};
  std::vector<std::byte> bytes(max_frame_bytes(segments));
  std::vector<float> out(x_.size());
  const std::size_t allocated = allocations_of([&] {
    const Encoded done = encode_frame(segments, bytes);
    ASSERT_EQ(done.status, Status::ok);
    const std::span<const std::byte> sent(bytes.data(), done.bytes);
    FrameReader frame(sent);
    ASSERT_EQ(frame.decode(0, {out.data(), out.size(), Dtype::f32}), Status::ok);
    ASSERT_EQ(frame.decode_add(1, {out.data(), 1000, Dtype::f32}), Status::ok);
    ASSERT_EQ(FrameReader(sent.first(done.bytes / 2)).status(), Status::truncated);
  });
  EXPECT_EQ(allocated, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    , Allocation,
    testing::Values("none", "fp16", "bf16", "uniform", "uniform:bucket=7,bits=3", "exponential",
                    "sign", "grid", "grid:nmse=0.01", "grid:step=0.1,locality=0,rounding=dither",
                    "topk", "topk:select=exact,values=fp16,density=0.5",
                    "topk:select=trimmed,values=int8", "topk:select=search,values=mean", "randomk",
                    "randomk:density=1,scale=inverse"));

}  // namespace
}  // namespace gradwire
