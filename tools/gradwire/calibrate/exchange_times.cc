#include "calibrate/exchange_times.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <limits>
#include <thread>
#include <utility>

#include "calibrate/busy_cores.h"
#include "gradwire/communicator.h"
#include "machine/measure.h"
#include "run/scratch_folder.h"
#include "terminal/json_output.h"

namespace gradwire::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSizes[] = {1, 1U << 14U, 1U << 16U, 1U << 18U, 1U << 20U, 1U << 22U};
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kLongestGather = 0.2;                     // seconds; larger ones are left out
constexpr unsigned kBlock = 5;                             // gathers
constexpr std::size_t kExchanged = std::size_t{1} << 20U;  // elements, beside computing

struct Rounds {
  unsigned gathers;   // blocks of them, of each size
  unsigned messages;  // beside busy threads
  unsigned blocks;    // of computing
  double block_seconds;
  double most_seconds;  // of gathers
};
constexpr Rounds kUsual{
    .gathers = 16, .messages = 200, .blocks = 12, .block_seconds = 0.06, .most_seconds = 3};
constexpr Rounds kQuick{
    .gathers = 2, .messages = 10, .blocks = 1, .block_seconds = 0.02, .most_seconds = 0.3};

std::uint32_t from_environment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) + " is not set: leave out --store, and calibrate starts ranks");
  }
  return static_cast<std::uint32_t>(std::atoi(text));
}

/// Cores of this machine for each of the two ranks.
unsigned cores_of_rank() { return std::max(1U, std::thread::hardware_concurrency() / 2); }

class Rank {
 public:
  Rank(Communicator& ranks, const Rounds& rounds) : ranks_(ranks), rounds_(rounds) {}

  /// The median of the fastest of several blocks: of moments in which others left the cores alone,
  /// the usual time.
  GatherTimes gathers() {
    const auto begin = Clock::now();
    GatherTimes times;
    for (const std::size_t elements : kSizes) {
      const double first = gather(elements);
      if (!agreed(first < kLongestGather) && !times.empty()) break;
      times.push_back({elements, first, kNever});
      gather_block(times.back());
    }
    for (unsigned round = 1; round < rounds_.gathers; ++round) {
      const std::chrono::duration<double> elapsed = Clock::now() - begin;
      if (!agreed(elapsed.count() < rounds_.most_seconds)) break;
      for (GatherTime& time : times) gather_block(time);
    }
    return times;
  }

  /// The mean, as a message rarely waits for a core, but then long.
  double busy_message_seconds() {
    const BusyCores busy(cores_of_rank());
    double sum = 0;
    for (unsigned i = 0; i < rounds_.messages; ++i) sum += gather(1);
    return sum / rounds_.messages;
  }

  double interference() {
    const BusyCores others(cores_of_rank() - 1);
    Timings alone;
    Timings beside;
    for (unsigned i = 0; i < rounds_.blocks; ++i) {
      ranks_.barrier().wait();
      alone.add(block_seconds());
      ranks_.barrier().wait();
      beside.add(block_seconds_beside_exchanges());
    }
    return std::max(1.0, beside.lower_quartile() / alone.lower_quartile());
  }

 private:
  double gather(std::size_t elements) {
    x_.resize(std::max(x_.size(), 2 * elements));
    ranks_.barrier().wait();
    Work work = ranks_.all_gather({"x", {x_.data(), 2 * elements}, Way{}});
    work.wait();
    return work.statistics().seconds;
  }

  /// Takes what is less than before.
  void gather_block(GatherTime& time) {
    const double barriers = cpu_seconds([&] { ranks_.barrier().wait(); });
    Timings timings;
    const double cpu = cpu_seconds([&] { timings.add(gather(time.elements)); });
    time.seconds = std::min(time.seconds, timings.median());
    time.cpu_seconds = std::min(time.cpu_seconds, std::max(0.0, cpu - barriers));
  }

  /// Of this process, per call.
  template <class Call>
  static double cpu_seconds(Call call) {
    const std::clock_t begin = std::clock();
    for (unsigned i = 0; i < kBlock; ++i) call();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / kBlock;
  }

  /// What rank 0 thinks.
  bool agreed(bool opinion) {
    float answer = opinion ? 1 : 0;
    const Tensor tensor{"answer", {&answer, 1}, Way{}};
    ranks_.broadcast({&tensor, 1}, 0).wait();
    return answer > 0;
  }

  /// Per call, of so many that the system has shared out its cores several times.
  double block_seconds() {
    const auto begin = Clock::now();
    std::size_t calls = 0;
    std::chrono::duration<double> elapsed{};
    do {
      computation_.run();
      ++calls;
      elapsed = Clock::now() - begin;
    } while (elapsed.count() < rounds_.block_seconds);
    return elapsed.count() / static_cast<double>(calls);
  }

  /// The ranks exchange until both have done their blocks.
  double block_seconds_beside_exchanges() {
    std::atomic<bool> done{false};
    const std::jthread exchanges([&] {
      std::vector<float> x(kExchanged);
      for (float left = 1; left > 0;) {
        left = done.load() ? 0 : 1;
        const Tensor tensors[] = {{"x", {x.data(), x.size()}, Way{}}, {"left", {&left, 1}, Way{}}};
        ranks_.all_reduce(tensors).wait();
      }
    });
    const double seconds = block_seconds();
    done.store(true);
    return seconds;
  }

  Communicator& ranks_;
  const Rounds& rounds_;
  Computation computation_;
  std::vector<float> x_;
};

}  // namespace

ExchangeTimes measure_exchanges(const RankStage& stage, const ExchangeEffort& effort) {
  const ScratchFolder scratch;
  std::vector<std::string> arguments{std::filesystem::read_symlink("/proc/self/exe").string(),
                                     "calibrate",
                                     "--store",
                                     "file:" + scratch.path() + "/store",
                                     "--transport",
                                     effort.transport};
  if (effort.quick) arguments.emplace_back("--quick");
  std::string text;
  stage.run(arguments, [&](std::string_view line) { text += line; });
  const Json found = Json::parse(text);
  GatherTimes gathers;
  for (const Json& each : found.at("gathers")) {
    gathers.push_back({each.at(0), each.at(1), each.at(2)});
  }
  return {.gathers = std::move(gathers),
          .delay = found.at("delay").get<double>(),
          .interference = found.at("interference").get<double>()};
}

void run_exchange_rank(const std::string& store, const ExchangeEffort& effort) {
  const auto ranks = Communicator::connect({.rank = from_environment("RANK"),
                                            .size = from_environment("WORLD_SIZE"),
                                            .store = store,
                                            .network = {.transport = effort.transport}});
  Rank rank(*ranks, effort.quick ? kQuick : kUsual);
  const GatherTimes gathers = rank.gathers();
  Json found;
  for (const GatherTime& time : gathers) {
    found["gathers"].push_back({time.elements, time.seconds, time.cpu_seconds});
  }
  found["delay"] = std::max(0.0, rank.busy_message_seconds() - gathers.front().seconds);
  found["interference"] = rank.interference();
  ranks->barrier().wait();
  if (ranks->rank() == 0) print_json(found);
}

LinkCost link_cost(const GatherTimes& times, const MeasuredCodec& exact) {
  // The latency of the smallest, and what others take longer by byte.
  const auto line = [&](double GatherTime::*seconds) {
    const auto on_the_way = [&](const GatherTime& time) {
      const double codec = exact.encode.at(time.elements) + exact.decode.at(time.elements);
      return std::max(0.0, time.*seconds - codec);
    };
    const double latency = on_the_way(times.front());
    Timings per_byte;
    for (std::size_t i = std::max<std::size_t>(1, times.size() / 2); i < times.size(); ++i) {
      const double bytes = exact.bytes_per_element * static_cast<double>(times[i].elements);
      per_byte.add(std::max(0.0, on_the_way(times[i]) - latency) / bytes);
    }
    return std::pair(latency, per_byte.median());
  };
  const auto [seconds, seconds_per_byte] = line(&GatherTime::seconds);
  const auto [cpu_seconds, cpu_seconds_per_byte] = line(&GatherTime::cpu_seconds);
  return {seconds, seconds_per_byte, cpu_seconds, cpu_seconds_per_byte};
}

}  // namespace gradwire::cli
