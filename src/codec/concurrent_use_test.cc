// One codec, many threads: each gets the bytes and numbers it would get alone.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "codec/codec_test_data.h"
#include "gradwire/frame.h"

namespace gradwire::test {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 10;

/// One thread's work. Tensors differ between threads: what they shared by mistake would show.
struct Work {
  Tensor x;
  std::vector<std::byte> frame;
  Tensor decoded;

  explicit Work(std::uint64_t seed)
      : x(gradient_like(70'000, seed), Dtype::f32), decoded(x.count(), Dtype::f32) {}

  void run(const Codec& codec) {
    const Segment segment{codec, x.view(), {}};
    frame.assign(max_frame_bytes(codec, x.count()), std::byte{0});
    frame.resize(encode_frame({&segment, 1}, frame).bytes);
    if (decode_frame(frame, decoded.view()) != Status::ok) frame.clear();
  }
};

TEST(ConcurrentUse, threads_that_share_a_codec_get_what_each_gets_alone) {
  for (const std::string& spec : typical_specs()) {
    const Codec codec = Codec::parse(spec);
    std::vector<Work> alone, together;
    for (int t = 0; t < kThreads; ++t) {
      together.emplace_back(t);
      alone.emplace_back(t);
      alone.back().run(codec);
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::thread> threads;
      for (Work& work : together) threads.emplace_back([&] { work.run(codec); });
      for (std::thread& thread : threads) thread.join();
      for (int t = 0; t < kThreads; ++t) {
        ASSERT_TRUE(together[t].frame == alone[t].frame) << spec;
        ASSERT_TRUE(together[t].decoded.bytes() == alone[t].decoded.bytes()) << spec;
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::test
