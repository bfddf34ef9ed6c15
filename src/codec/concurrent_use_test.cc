// One codec, many threads: the same bytes as from one.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "codec/codec_test_data.h"
#include "gradwire/frame.h"

namespace gradwire::test {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 5;

TEST(ConcurrentUse, threads_that_share_a_codec_agree_with_one) {
  for (const std::string& spec : typical_specs()) {
    const Codec codec = Codec::parse(spec);
    const Tensor x(gradient_like(70'000, 3), Dtype::f32);
    const EncodeOptions options{.random = {.seed = 6}};
    std::vector<std::vector<std::byte>> frames(kThreads);
    std::vector<Tensor> decoded(kThreads, Tensor(x.count(), Dtype::f32));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < kRounds; ++round) {
          const Segment segment{codec, x.view(), options};
          std::vector<std::byte> bytes(max_frame_bytes(codec, x.count()));
          bytes.resize(encode_frame({&segment, 1}, bytes).bytes);
          if (decode_frame(bytes, decoded[t].view()) != Status::ok) bytes.clear();
          frames[t] = bytes;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Tensor alone = decode(codec, encode(codec, x, options), x.dtype(), x.count());
    for (int t = 0; t < kThreads; ++t) {
      EXPECT_FALSE(frames[t].empty()) << spec;
      EXPECT_TRUE(frames[t] == frames[0]) << spec;
      EXPECT_TRUE(decoded[t].bytes() == alone.bytes()) << spec;
    }
  }
}

}  // namespace
}  // namespace gradwire::test
