// Sparse codecs on as many elements as they are made for, and on more than 32 bits count.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "base/random_stream.h"
#include "codec/codec_test_data.h"
#include "gradwire/frame.h"

namespace gradwire::test {
namespace {

/// Heavy-tailed, and quick to make: a power of uniform numbers, of either sign.
std::vector<float> heavy_tailed(std::size_t count) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = mix64(i);
    const float uniform = (static_cast<float>(bits >> 40) + 1) * 0x1p-24f;
    x[i] = (bits % 2 == 0 ? 1.0f : -1.0f) / (uniform + 1e-3f * static_cast<float>(bits >> 8 & 255));
  }
  return x;
}

/// Of dense fp32's bytes, in a frame.
TEST(SixteenMillionElements, at_a_thousandth_take_the_bytes_of_places_and_values) {
  const std::vector<float> x = heavy_tailed(16u << 20);
  const auto share = [&](const std::string& values) {
    const Segment segment{
        Codec::parse("topk:density=0.001,values=" + values), {x.data(), x.size()}, {}};
    std::vector<std::byte> frame(max_frame_bytes({&segment, 1}));
    const Encoded done = encode_frame({&segment, 1}, frame);
    EXPECT_EQ(done.status, Status::ok);
    return static_cast<double>(done.bytes) / static_cast<double>(4 * x.size());
  };
  EXPECT_LE(share("mean"), 0.00045);
  EXPECT_LE(share("int8"), 0.0007);
  EXPECT_LE(share("fp16"), 0.001);
  EXPECT_LE(share("fp32"), 0.00145);
  EXPECT_GE(share("fp32"), 0.0013) << "of a thousandth of the elements";
}

/// Elements that take no memory until they are written to.
class Vast {
 public:
  explicit Vast(std::size_t count)
      : count_(count),
        data_(mmap(nullptr, 2 * count, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Vast() {
    if (data_ != MAP_FAILED) munmap(data_, 2 * count_);
  }
  bool exists() const { return data_ != MAP_FAILED; }
  TensorView view() const { return {data_, count_, Dtype::bf16}; }
  std::uint16_t& operator[](std::size_t i) const { return static_cast<std::uint16_t*>(data_)[i]; }

 private:
  std::size_t count_;
  void* data_;
};

TEST(BeyondFourBillionElements, places_are_right) {
  constexpr std::size_t kCount = (std::size_t{1} << 32) + 1000;
  const std::size_t places[] = {7, kCount - 3, kCount - 1};
  const Vast x(kCount), out(kCount);
  const Codec codec = Codec::parse("topk:threshold=1");
  const Vast room(codec.max_encoded_bytes(kCount) / 2 + 1);
  if (!x.exists() || !out.exists() || !room.exists()) GTEST_SKIP() << "no room to map memory";
  for (const std::size_t at : places) x[at] = 0x4040;  // 3
  const std::span<std::byte> all(static_cast<std::byte*>(room.view().data), 2 * room.view().count);
  const Encoded done = codec.encode(x.view(), {}, all);
  ASSERT_EQ(done.status, Status::ok);
  EXPECT_LT(done.bytes, 64u);
  ASSERT_EQ(codec.decode_add(all.first(done.bytes), Dtype::bf16, out.view()), Status::ok);
  for (const std::size_t at : places) {
    EXPECT_EQ(out[at], 0x4040) << at;
    EXPECT_EQ(out[at - 1], 0) << at;
    EXPECT_EQ(out[at & 0xffffffff], at < kCount / 2 ? 0x4040 : 0) << at;
  }
}

}  // namespace
}  // namespace gradwire::test
