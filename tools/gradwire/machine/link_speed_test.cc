#include "machine/link_speed.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace gradwire::cli {
namespace {

TEST(LinkSpeed, a_rank_that_comes_late_is_waited_for) {
  const std::string folder = testing::TempDir() + "link_speed_test";
  std::filesystem::remove_all(folder);
  std::vector<std::future<double>> speeds;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    speeds.push_back(std::async(std::launch::async, [&folder, rank] {
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      const auto store =
          open_store("file:" + folder, rank, Clock::now() + std::chrono::seconds(20));
      return measure_link_speed(*store, rank, 3, std::chrono::milliseconds(50));
    }));
  }
  for (auto& speed : speeds) EXPECT_GT(speed.get(), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gradwire::cli
