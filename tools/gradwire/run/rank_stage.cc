#include "run/rank_stage.h"

#include <fmt/format.h>

#include <utility>

#include "gradwire/error.h"
#include "run/interruption.h"
#include "run/local_ranks.h"

namespace gradwire::cli {

RankStage::RankStage(unsigned ranks, std::optional<TestHosts> hosts)
    : ranks_(ranks), hosts_(std::move(hosts)) {}

RankStage RankStage::on_hosts(unsigned count, const std::string& link) {
  return {count, TestHosts(count, parse_link_rate(link))};
}

RankStage RankStage::on_this_host(unsigned ranks) { return {ranks, std::nullopt}; }

void RankStage::run(const std::vector<std::string>& arguments, const LineSink& on_line) const {
  std::string complaints;
  RunOptions options;
  options.on_line = [&](const OutputLine& line) {
    if (line.stream == Stream::output && line.rank == 0) on_line(line.text);
    if (line.stream == Stream::errors) complaints += fmt::format("[{}] {}\n", line.rank, line.text);
  };
  const Outcome outcome =
      hosts_
          ? hosts_->run({.arguments = arguments, .ranks_per_host = 1, .environment = {}}, options)
          : run_local_ranks(ranks_, arguments, options);
  if (outcome.kind == Outcome::Kind::interrupted) throw Interrupted{outcome.signal};
  if (outcome.kind != Outcome::Kind::succeeded) {
    throw Error(ErrorCode::unavailable,
                fmt::format("rank {} failed:\n{}", outcome.rank, complaints));
  }
}

}  // namespace gradwire::cli
