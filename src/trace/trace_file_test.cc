#include "trace/trace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>

#include "base/checksum.h"
#include "gradwire/error.h"
#include "trace/trace_test_folder.h"

namespace gradwire::trace {
namespace {

constexpr std::size_t kHeaderBytes = 72;
constexpr std::size_t kChecksumBytes = 8;

using Change = std::function<void(std::string&)>;

/// The bytes of a good file, changed, and what reading them says.
std::string refusal_of_file(const Change& change) {
  const TestFolder folder;
  const std::string path = folder.path + "/a.gwtrace";
  const std::vector<std::string> texts{"", "encode"};
  const std::vector<Event> events(2, Event{.what = 1});
  write_trace(path, {}, 0, texts, events);
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  change(bytes);
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    read_trace(path);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// The same for a change before the checksum was taken: what a reader must not believe a writer.
std::string refusal_of(const Change& change) {
  return refusal_of_file([&](std::string& bytes) {
    bytes.resize(bytes.size() - kChecksumBytes);
    change(bytes);
    const std::uint64_t seal = checksum(std::as_bytes(std::span(bytes)));
    bytes.append(reinterpret_cast<const char*>(&seal), sizeof seal);
  });
}

template <class T>
Change overwrite(std::size_t at_from_end, T value) {
  return [=](std::string& bytes) {
    std::memcpy(bytes.data() + bytes.size() - at_from_end, &value, sizeof value);
  };
}

TEST(TraceFile, good_file_is_read) {
  EXPECT_EQ(refusal_of([](std::string&) {}), "");
}

TEST(TraceFile, damage_is_refused_and_never_believed) {
  EXPECT_NE(refusal_of([](std::string& bytes) { bytes.clear(); }), "");
  EXPECT_NE(refusal_of([](std::string& bytes) { bytes[0] = 'x'; }), "");
  EXPECT_NE(refusal_of([](std::string& bytes) { bytes.pop_back(); }), "");
  EXPECT_NE(refusal_of([](std::string& bytes) { bytes.push_back(0); }), "");
  EXPECT_NE(refusal_of([](std::string& bytes) { bytes[kHeaderBytes] = 100; }), "");  // a length
  EXPECT_NE(refusal_of(overwrite(sizeof(Event) - offsetof(Event, what), Text{2})), "");
  EXPECT_NE(refusal_of(overwrite(sizeof(Event) - offsetof(Event, layer), Text{1} << 31)), "");
  EXPECT_NE(refusal_of(overwrite(sizeof(Event) - offsetof(Event, peer), 1u)), "");
  EXPECT_NE(refusal_of(overwrite(sizeof(Event) - offsetof(Event, kind), std::uint8_t{9})), "");
  EXPECT_NE(refusal_of(overwrite(sizeof(Event) - offsetof(Event, begin_ns), std::int64_t{1})), "");
}

/// A file of one event with these times, and clocks that are far from others'.
std::string refusal_of_times(std::int64_t begin_ns, std::int64_t end_ns, std::int64_t offset_ns) {
  const TestFolder folder;
  const std::string path = folder.path + "/a.gwtrace";
  const std::vector<std::string> texts{""};
  const std::vector<Event> events{{.begin_ns = begin_ns, .end_ns = end_ns}};
  write_trace(path, {.clock_offset_ns = offset_ns}, 0, texts, events);
  try {
    read_trace(path);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(TraceFile, times_that_no_clock_tells_are_damage) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kTenYears = std::int64_t{10} * 365 * 86'400 * 1'000'000'000;
  EXPECT_EQ(refusal_of_times(0, kTenYears, kTenYears), "");
  EXPECT_EQ(refusal_of_times(kTenYears, kTenYears, -kTenYears), "");
  EXPECT_NE(refusal_of_times(0, kMost, 0).find("cannot be"), std::string::npos);
  EXPECT_NE(refusal_of_times(kMost, kMost, 0), "");
  EXPECT_NE(refusal_of_times(kLeast, 0, 0), "");
  EXPECT_NE(refusal_of_times(0, 0, kMost).find("clocks cannot be"), std::string::npos);
  EXPECT_NE(refusal_of_times(0, 0, kLeast), "");
  constexpr std::size_t kUnixMinusSteady = 40;  // its place in the header
  for (const std::int64_t wrong : {kMost, kLeast, std::int64_t{-1}}) {
    EXPECT_NE(refusal_of([&](std::string& bytes) {
                std::memcpy(bytes.data() + kUnixMinusSteady, &wrong, sizeof wrong);
              }),
              "");
  }
}

TEST(TraceFile, every_shorter_file_is_refused) {
  const std::size_t whole = kHeaderBytes + 2 * 4 + 6 + 2 * sizeof(Event);
  for (std::size_t bytes = 0; bytes < whole; ++bytes) {
    EXPECT_NE(refusal_of_file([&](std::string& all) { all.resize(bytes); }), "") << bytes;
    EXPECT_NE(refusal_of([&](std::string& all) { all.resize(bytes); }), "") << bytes;
  }
}

TEST(TraceFile, every_changed_byte_is_refused) {
  const std::size_t whole = kHeaderBytes + 2 * 4 + 6 + 2 * sizeof(Event) + kChecksumBytes;
  for (std::size_t at = 0; at < whole; ++at) {
    for (const int flipped : {1, 128, 255}) {
      EXPECT_NE(refusal_of_file([&](std::string& all) {
                  ASSERT_EQ(all.size(), whole);
                  all[at] = static_cast<char>(all[at] ^ flipped);
                }),
                "")
          << at;
    }
  }
}

TEST(TraceFile, a_copy_does_not_count_as_another_rank) {
  const TestFolder folder;
  const std::vector<std::string> texts{""};
  write_trace(folder.path + "/rank0.gwtrace", {.rank = 0, .size = 2}, 0, texts, {});
  std::filesystem::copy(folder.path + "/rank0.gwtrace", folder.path + "/copy.gwtrace");
  const TraceFolder read = read_traces(folder.path);
  EXPECT_EQ(read.traces.size(), 1u);
  ASSERT_EQ(read.left_out.size(), 1u);
  EXPECT_NE(read.left_out[0].find("copy.gwtrace and "), std::string::npos);
  EXPECT_NE(read.left_out[0].find("rank0.gwtrace are of the same rank"), std::string::npos);
}

TEST(TraceFile, one_that_cannot_be_read_does_not_keep_others_from_it) {
  const TestFolder folder;
  const std::vector<std::string> texts{""};
  write_trace(folder.path + "/rank1.gwtrace", {.rank = 1, .size = 2}, 0, texts, {});
  write_trace(folder.path + "/rank0.gwtrace", {.rank = 0, .size = 2}, 0, texts, {});
  std::ofstream(folder.path + "/broken.gwtrace") << "no trace";
  std::filesystem::create_directory(folder.path + "/folder.gwtrace");
  ASSERT_EQ(mkfifo((folder.path + "/pipe.gwtrace").c_str(), 0600), 0);
  const TraceFolder read = read_traces(folder.path);
  ASSERT_EQ(read.traces.size(), 2u);
  EXPECT_EQ(read.traces[0].origin.rank, 0u);
  ASSERT_EQ(read.left_out.size(), 3u);
  EXPECT_NE(read.left_out[0].find("broken.gwtrace"), std::string::npos);
  EXPECT_NE(read.left_out[0].find("too short"), std::string::npos);
  EXPECT_NE(read.left_out[1].find("folder.gwtrace"), std::string::npos);
  EXPECT_NE(read.left_out[2].find("no file"), std::string::npos);
}

TEST(TraceFile, folder_without_traces_says_how_to_make_them) {
  const TestFolder folder;
  try {
    read_traces(folder.path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gradwire run --trace"), std::string::npos);
  }
}

}  // namespace
}  // namespace gradwire::trace
