#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <protozero/pbf_reader.hpp>
#include <sstream>

#include "trace/chrome_writer.h"
#include "trace/perfetto_writer.h"

namespace gradwire::trace {
namespace {

// After the epoch of Kineto's files in November 2026, in nanoseconds.
constexpr std::int64_t kKinetoBaseNs = 1'790'857'026'000'000'000;
constexpr std::int64_t kNow = kKinetoBaseNs + 5'000'000'123;

/// Rank 0 sends what rank 1 has waited for.
std::vector<RankTrace> two_ranks() {
  RankTrace first{{.communicator = 1, .rank = 0, .size = 2}, kNow, 0, {"", "send", "fc\"1"}, {}};
  RankTrace second = first;
  second.origin.rank = 1;
  second.texts[1] = "receive";
  Event event{.begin_ns = 1000, .end_ns = 2000, .number = 3, .bytes = 77, .what = 1, .layer = 2};
  event.message = Message::sent;
  event.peer = 1;
  first.events = {event};
  event.message = Message::received;
  event.peer = 0;
  event.begin_ns = 500;
  event.end_ns = 3000;
  second.events = {event};
  return {first, second};
}

TEST(ChromeWriter, is_json_on_the_clock_of_kineto_with_arrows_from_send_to_receive) {
  const auto traces = two_ranks();
  std::ostringstream out;
  write_chrome(out, join(traces));
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["baseTimeNanoseconds"], kKinetoBaseNs);
  std::vector<nlohmann::json> spans, arrows;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
    if (event["ph"] == "s" || event["ph"] == "f") arrows.push_back(event);
  }
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "send fc\"1");
  EXPECT_DOUBLE_EQ(spans[0]["ts"], 5'000'001.123);
  EXPECT_DOUBLE_EQ(spans[0]["dur"], 1);
  EXPECT_EQ(spans[0]["args"], (nlohmann::json{{"bytes", 77}, {"piece", 3}, {"peer", 1}}));
  ASSERT_EQ(arrows.size(), 2u);
  EXPECT_EQ(arrows[0]["ph"], "s");
  EXPECT_EQ(arrows[0]["id"], arrows[1]["id"]);
  EXPECT_LT(arrows[0]["ts"], arrows[1]["ts"]);
}

/// A step that prepares a whole tensor, and an operation.
std::vector<RankTrace> without_messages() {
  std::vector<RankTrace> traces = two_ranks();
  traces.pop_back();
  traces[0].events = {{.number = kNoPiece, .what = 1}, {.number = 9, .kind = Kind::operation}};
  return traces;
}

TEST(ChromeWriter, what_is_of_no_piece_says_none) {
  const auto traces = without_messages();
  std::ostringstream out;
  write_chrome(out, join(traces));
  const auto json = nlohmann::json::parse(out.str());
  std::vector<nlohmann::json> arguments;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") arguments.push_back(event["args"]);
  }
  EXPECT_EQ(arguments, (std::vector<nlohmann::json>{{{"bytes", 0}, {"step", 9}}, {{"bytes", 0}}}));
}

TEST(PerfettoWriter, what_is_of_no_piece_says_none) {
  const auto traces = without_messages();
  std::ostringstream out;
  write_perfetto(out, join(traces));
  EXPECT_EQ(out.str().find("piece"), std::string::npos);
  EXPECT_NE(out.str().find("step"), std::string::npos);
}

TEST(ChromeWriter, empty_traces_are_json_as_well) {
  auto traces = two_ranks();
  for (RankTrace& trace : traces) trace.events.clear();
  std::ostringstream out;
  write_chrome(out, join(traces));
  EXPECT_EQ(nlohmann::json::parse(out.str())["traceEvents"].size(), 4u);  // names of two ranks
}

TEST(PerfettoWriter, is_a_list_of_packets_of_one_sequence) {
  const auto traces = two_ranks();
  std::ostringstream out;
  write_perfetto(out, join(traces));
  const std::string bytes = out.str();
  protozero::pbf_reader trace(bytes);
  int packets = 0;
  while (trace.next(1)) {
    protozero::pbf_reader packet = trace.get_message();
    ASSERT_TRUE(packet.next(10));
    EXPECT_EQ(packet.get_uint32(), 1u);
    ++packets;
  }
  EXPECT_EQ(packets, 2 * (2 + 2));  // a process, a track, begin and end: for each rank
}

/// Both ranks again, in a second communicator.
std::vector<RankTrace> two_ranks_twice() {
  std::vector<RankTrace> traces = two_ranks();
  for (RankTrace trace : two_ranks()) {
    trace.origin.communicator = 2;
    traces.push_back(std::move(trace));
  }
  return traces;
}

TEST(ChromeWriter, communicators_of_a_rank_are_threads_of_its_process) {
  const auto traces = two_ranks_twice();
  std::ostringstream out;
  write_chrome(out, join(traces));
  const auto json = nlohmann::json::parse(out.str());
  std::vector<std::string> processes, threads;
  for (const auto& event : json["traceEvents"]) {
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
    if (event["name"] == "thread_name") threads.push_back(event["args"]["name"]);
  }
  using Names = std::vector<std::string>;
  EXPECT_EQ(processes, (Names{"gradwire rank 0", "gradwire rank 1"}));
  EXPECT_EQ(threads, (Names{"group 1, rank 0 of 2: lane 0", "group 2, rank 0 of 2: lane 0",
                            "group 1, rank 1 of 2: lane 0", "group 2, rank 1 of 2: lane 0"}));
}

/// Names of tracks, each behind that of its parent.
std::vector<std::string> paths_of_tracks(const std::string& bytes) {
  std::map<std::uint64_t, std::string> paths;
  protozero::pbf_reader trace(bytes);
  while (trace.next(1)) {
    protozero::pbf_reader packet = trace.get_message();
    if (!packet.next(60)) continue;
    protozero::pbf_reader track = packet.get_message();
    std::uint64_t uuid = 0, parent = 0;
    std::string name;
    while (track.next()) {
      if (track.tag() == 1) {
        uuid = track.get_uint64();
      } else if (track.tag() == 2) {
        name = track.get_string();
      } else if (track.tag() == 5) {
        parent = track.get_uint64();
      } else {
        track.skip();
      }
    }
    paths[uuid] = paths[parent] + "/" + name;
  }
  std::vector<std::string> found;
  for (const auto& [uuid, path] : paths) {
    if (uuid != 0) found.push_back(path);
  }
  return found;
}

TEST(PerfettoWriter, communicators_of_a_rank_are_tracks_below_it) {
  const auto traces = two_ranks_twice();
  std::ostringstream out;
  write_perfetto(out, join(traces));
  EXPECT_EQ(paths_of_tracks(out.str()),
            (std::vector<std::string>{
                "/rank 0", "/rank 0/group 1, rank 0 of 2", "/rank 0/group 1, rank 0 of 2/lane 0",
                "/rank 0/group 2, rank 0 of 2", "/rank 0/group 2, rank 0 of 2/lane 0", "/rank 1",
                "/rank 1/group 1, rank 1 of 2", "/rank 1/group 1, rank 1 of 2/lane 0",
                "/rank 1/group 2, rank 1 of 2", "/rank 1/group 2, rank 1 of 2/lane 0"}));
}

}  // namespace
}  // namespace gradwire::trace
