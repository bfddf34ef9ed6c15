#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gradwire::trace
