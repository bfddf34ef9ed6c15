// Where the ranks of a benchmark run: on test hosts, or beside one another on this host.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hosts/test_hosts.h"

namespace gradwire::cli {

class RankStage {
 public:
  /// Test hosts with one rank each. Throws as TestHosts does.
  static RankStage on_hosts(unsigned count, const std::string& link);
  /// Processes of this host.
  static RankStage on_this_host(unsigned ranks);

  unsigned ranks() const noexcept { return ranks_; }
  bool has_hosts() const noexcept { return hosts_.has_value(); }

  using LineSink = std::function<void(std::string_view)>;

  /// Runs the command once per rank, waits, and hands over each line that rank 0 prints. Throws
  /// Error with what the ranks complained of unless all succeeded, and Interrupted after a signal.
  /// May be called again: the hosts stay.
  void run(const std::vector<std::string>& arguments, const LineSink& on_line) const;

 private:
  RankStage(unsigned ranks, std::optional<TestHosts> hosts);

  unsigned ranks_;
  std::optional<TestHosts> hosts_;
};

}  // namespace gradwire::cli
