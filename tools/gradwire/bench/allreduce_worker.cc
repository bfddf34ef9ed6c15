#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/checksum.h"
#include "base/clock.h"
#include "bench/allreduce_case.h"
#include "bench/allreduce_check.h"
#include "gradients/synthetic.h"
#include "gradwire/communicator.h"
#include "machine/link_speed.h"
#include "machine/measure.h"

namespace gradwire::cli {
namespace {

std::uint32_t from_environment(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) + " is not set: start ranks by bench");
  }
  return static_cast<std::uint32_t>(std::atoi(text));
}

/// Longer tensors repeat their beginning: drawing numbers would take longer than reducing them.
constexpr std::size_t kFresh = std::size_t{1} << 20;

void fill_input(Distribution data, std::uint32_t rank, std::span<float> x) {
  fill(data, 100 + rank, x.first(std::min(kFresh, x.size())));
  for (std::size_t i = kFresh; i < x.size(); i += kFresh) {
    std::copy_n(x.begin(), std::min(kFresh, x.size() - i), x.begin() + static_cast<long>(i));
  }
}

/// Whether all ranks hold the same bits.
bool replicas_equal(Communicator& ranks, std::span<const float> result) {
  const std::uint64_t hash = checksum(std::as_bytes(result));
  std::vector<float> hashes(2 * ranks.size());
  std::memcpy(hashes.data() + 2 * ranks.rank(), &hash, sizeof(hash));
  ranks.all_gather({"hashes", {hashes.data(), hashes.size()}}).wait();
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (std::memcmp(hashes.data() + 2 * rank, hashes.data(), sizeof(hash)) != 0) return false;
  }
  return true;
}

class Bench {
 public:
  Bench(const AllreducePlan& plan, Communicator& ranks)
      : plan_(plan), ranks_(ranks), data_(parse_distribution(plan.data)) {}

  Json row(std::size_t bytes, const std::string& codec) {
    input_.resize(bytes / sizeof(float));
    x_.resize(input_.size());
    fill_input(data_, ranks_.rank(), input_);
    std::optional<AllreduceCheck> check;  // drawing all ranks' inputs takes a while
    if (plan_.check || ranks_.rank() == 0) {
      check.emplace(ranks_.size(), std::min(kFresh, input_.size()),
                    [&](std::uint32_t rank, std::span<float> x) { fill_input(data_, rank, x); });
    }
    float wrong = 0;
    run(codec, 0);
    run(codec, 1);
    Timings timings;
    Statistics statistics;
    for (unsigned i = 0; i < plan_.repeat; ++i) {
      statistics = run(codec, 2 + i);
      timings.add(statistics.seconds);
      if (!plan_.check) continue;
      const bool equal = replicas_equal(ranks_, x_);  // all ranks must ask, whatever they hold
      wrong += equal && check->holds(x_, Codec::parse(codec)) ? 0 : 1;
    }
    Json row;
    row["codec"] = codec;
    row["bytes"] = bytes;
    row["elements"] = input_.size();
    row["seconds"] = measured(timings.median());
    row["seconds_min"] = measured(timings.fastest());
    row["seconds_max"] = measured(timings.slowest());
    row["wire_bytes"] = statistics.sent_bytes;
    row["messages"] = statistics.sent_messages;
    const bool equal = replicas_equal(ranks_, x_);
    row["nmse"] = check ? measured(check->nmse(x_)) : Json();
    row["replicas_equal"] = equal;
    if (plan_.check) {
      const Tensor tensor{"wrong", {&wrong, 1}};
      ranks_.all_reduce({&tensor, 1}).wait();
      row["wrong"] = static_cast<std::size_t>(wrong);
    }
    return row;
  }

 private:
  Statistics run(const std::string& codec, std::uint64_t step) {
    std::copy(input_.begin(), input_.end(), x_.begin());
    const Tensor tensor{"x", {x_.data(), x_.size()}, Way::parse(codec)};
    ranks_.barrier().wait();
    Work work = ranks_.all_reduce({&tensor, 1}, {.seed = 1, .step = step});
    work.wait();
    return work.statistics();
  }

  const AllreducePlan& plan_;
  Communicator& ranks_;
  Distribution data_;
  std::vector<float> input_, x_;
};

}  // namespace

std::optional<Json> run_allreduce_rank(const AllreducePlan& plan, const std::string& store) {
  const bool by_mpi = store == "mpi";                  // which knows rank and size
  const std::string secret = plan.tls ? "bench" : "";  // hides nothing
  const auto ranks = Communicator::connect(
      {.rank = by_mpi ? 0 : from_environment("RANK"),
       .size = by_mpi ? 1 : from_environment("WORLD_SIZE"),
       .store = store,
       .security = {.secret = secret, .encryption = plan.tls ? "tls" : "none"},
       .network = {.transport = plan.transport},
       .tuning = {.algorithm = plan.algorithm, .lanes = plan.lanes, .piece_elements = plan.piece}});
  const std::uint32_t rank = ranks->rank();
  const std::uint32_t size = ranks->size();
  Json report;
  if (plan.line_rate && size > 1) {
    const auto links = open_store(store, rank, Clock::now() + std::chrono::minutes(1));
    float speed =
        static_cast<float>(measure_link_speed(*links, rank, size, std::chrono::milliseconds(1000)));
    const Tensor tensor{"speed", {&speed, 1}};
    ranks->all_reduce({&tensor, 1}).wait();
    report["line_rate_bytes_per_s"] = measured(speed / static_cast<float>(size));
  }
  report["ranks"] = size;
  report["rows"] = Json::array();
  Bench bench(plan, *ranks);
  for (const std::size_t bytes : plan.sizes) {
    for (const std::string& codec : plan.codecs) report["rows"].push_back(bench.row(bytes, codec));
  }
  ranks->barrier().wait();
  return rank == 0 ? std::optional(report) : std::nullopt;
}

}  // namespace gradwire::cli
