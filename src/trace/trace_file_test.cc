#include "trace/trace_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "gradwire/error.h"
#include "trace/trace_test_folder.h"

namespace gradwire::trace {
namespace {

constexpr std::size_t kHeaderBytes = 64;

/// The bytes of a good file, changed, and what reading them says.
std::string refusal_of(const std::function<void(std::string&)>& change) {
  const TestFolder folder;
  const std::string path = folder.path + "/a.gwtrace";
  const std::vector<std::string> texts{"", "encode"};
  const std::vector<Event> events(2, Event{.what = 1});
  write_trace(path, {}, 0, texts, events, {});
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

template <class T>
std::function<void(std::string&)> overwrite(std::size_t at_from_end, T value) {
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

TEST(TraceFile, every_shorter_file_is_refused) {
  const std::size_t whole = kHeaderBytes + 2 * 4 + 6 + 2 * sizeof(Event);
  for (std::size_t bytes = 0; bytes < whole; ++bytes) {
    EXPECT_NE(refusal_of([&](std::string& all) { all.resize(bytes); }), "") << bytes;
  }
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
