#include "trace/recorder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "gradwire/error.h"
#include "trace/trace_file.h"
#include "trace/trace_test_folder.h"

namespace gradwire::trace {
namespace {

Event numbered(std::uint64_t number) { return {.number = number}; }

TEST(Recorder, keeps_all_events_until_the_ring_is_full) {
  const TestFolder folder;
  Recorder recorder(folder.path, {.communicator = 7, .clock_offset_ns = -5, .rank = 2, .size = 3},
                    4);
  const Text layer = recorder.text("fc1.weight");
  for (std::uint64_t i = 0; i < 3; ++i) {
    recorder.add({.number = i, .what = recorder.text("encode"), .layer = layer});
  }
  ASSERT_EQ(recorder.save(), "");
  const RankTrace trace = read_trace(recorder.path());
  EXPECT_EQ(trace.origin.communicator, 7u);
  EXPECT_EQ(trace.origin.clock_offset_ns, -5);
  EXPECT_EQ(trace.origin.rank, 2u);
  EXPECT_EQ(trace.overwritten, 0u);
  ASSERT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.events[2].number, 2u);
  EXPECT_EQ(trace.texts[trace.events[2].what], "encode");
  EXPECT_EQ(trace.texts[trace.events[2].layer], "fc1.weight");
}

TEST(Recorder, full_ring_keeps_the_latest_in_their_order) {
  const TestFolder folder;
  Recorder recorder(folder.path, {}, 4);
  for (std::uint64_t i = 0; i < 11; ++i) recorder.add(numbered(i));
  ASSERT_EQ(recorder.save(), "");
  const RankTrace trace = read_trace(recorder.path());
  EXPECT_EQ(trace.overwritten, 7u);
  ASSERT_EQ(trace.events.size(), 4u);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(trace.events[i].number, 7 + i);
}

TEST(Recorder, same_text_has_the_same_number_and_texts_are_bounded) {
  const TestFolder folder;
  Recorder recorder(folder.path, {});
  EXPECT_EQ(recorder.text(""), 0u);
  EXPECT_EQ(recorder.text("a"), recorder.text("a"));
  EXPECT_NE(recorder.text("a"), recorder.text("b"));
  for (int i = 0; i < 70'000; ++i) recorder.text(std::to_string(i));
  EXPECT_EQ(recorder.text("one more"), recorder.text("and another"));
  EXPECT_NE(recorder.text("a"), recorder.text("one more"));
}

TEST(Recorder, several_threads_lose_nothing) {
  const TestFolder folder;
  Recorder recorder(folder.path, {}, 4000);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < 1000; ++i) recorder.add(numbered(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(recorder.save(), "");
  std::uint64_t sum = 0;
  for (const Event& event : read_trace(recorder.path()).events) sum += event.number;
  EXPECT_EQ(sum, 4u * 999 * 1000 / 2);
}

TEST(Recorder, slow_disk_holds_nobody_up_and_is_waited_for_in_the_end) {
  const TestFolder folder;
  Recorder recorder(folder.path, {}, 4);
  recorder.add(numbered(1));
  SlowDisk disk(recorder.path());
  EXPECT_EQ(recorder.save_within(std::chrono::milliseconds(1)), std::nullopt);
  recorder.add(numbered(2));
  EXPECT_EQ(recorder.text("a"), recorder.text("a"));
  disk.write_all();
  ASSERT_EQ(recorder.save(), "");  // the one before is done by then
  EXPECT_EQ(read_trace(recorder.path()).events.size(), 2u);
}

TEST(Recorder, disk_that_refuses_is_told_of) {
  const TestFolder folder;
  Recorder recorder(folder.path + "/run", {}, 4);
  std::filesystem::remove_all(folder.path + "/run");
  const auto failure = recorder.save_within(std::chrono::seconds(10));
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->find("cannot be written: No such file"), std::string::npos) << *failure;
}

std::string refusal_of(const std::string& directory) {
  try {
    make_trace_folder(directory);
    return {};
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    return error.what();
  }
}

TEST(Recorder, folder_is_made_and_left_empty) {
  const TestFolder folder;
  EXPECT_EQ(refusal_of(folder.path + "/a/b"), "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path + "/a/b"));
  EXPECT_EQ(refusal_of(folder.path + "/a/b"), "");
}

TEST(Recorder, folder_that_cannot_be_written_is_refused_at_once) {
  const TestFolder folder;
  const std::string file = folder.path + "/file";
  std::ofstream(file) << "x";
  EXPECT_NE(refusal_of(file).find(file + ": Not a directory; name a folder"), std::string::npos);
  EXPECT_NE(refusal_of(file + "/in"), "");
  EXPECT_NE(refusal_of("/proc/no-such-folder"), "");
  EXPECT_NE(refusal_of("/proc/self"), "");  // it is there, and takes no files
  EXPECT_THROW(Recorder("/proc/self", {}), Error);
}

}  // namespace
}  // namespace gradwire::trace
