#include "plan/load.h"

#include <gtest/gtest.h>

#include <map>

#include "collective/algorithms.h"
#include "collective/lifetimes.h"
#include "collective/validate.h"

namespace gradwire {
namespace {

/// Elements that ranks send, counted on their schedules: in all, exactly, and between hosts.
struct Sent {
  double exact = 0, lossy = 0;
};

struct Counted {
  Sent inside, between;
};

/// What is in each message, followed from rank to rank: a receiver learns it from what it decodes.
Counted count(const std::vector<Schedule>& schedules, const Ranks& ranks, double elements) {
  struct Message {
    double elements;
    bool exact;
  };
  Counted counted;
  const double chunk = elements / schedules[0].chunks;
  std::map<std::pair<Rank, Rank>, std::vector<Message>> under_way;
  std::vector<std::size_t> at(ranks.count);
  std::vector<std::vector<Message>> slots(ranks.count);
  for (Rank rank = 0; rank < ranks.count; ++rank) slots[rank].resize(schedules[rank].slots);
  for (bool moved = true; moved;) {
    moved = false;
    for (Rank rank = 0; rank < ranks.count; ++rank) {
      for (; at[rank] < schedules[rank].steps.size(); ++at[rank], moved = true) {
        const Step& step = schedules[rank].steps[at[rank]];
        if (step.op == Op::encode) slots[rank][step.slot] = {chunk * step.count, step.exact};
        if (step.op == Op::send) {
          const Message& message = slots[rank][step.slot];
          const bool near = rank / ranks.per_host == step.peer / ranks.per_host;
          Sent& sent = near ? counted.inside : counted.between;
          (message.exact ? sent.exact : sent.lossy) += message.elements;
          under_way[{rank, step.peer}].push_back(message);
        }
        if (step.op == Op::receive) {
          auto& queue = under_way[{step.peer, rank}];
          if (queue.empty()) break;
          slots[rank][step.slot] = queue.front();
          queue.erase(queue.begin());
        }
      }
    }
  }
  return counted;
}

TEST(Loads, are_what_schedules_send) {
  for (const Cluster& cluster : {Cluster{2, 2}, Cluster{4, 1}, Cluster{1, 4}, Cluster{4, 2},
                                 Cluster{2, 4}, Cluster{3, 2}, Cluster{1, 1}}) {
    const Ranks ranks{.count = cluster.ranks(), .per_host = cluster.ranks_per_host};
    constexpr std::size_t kElements = 3 * 64;
    for (const Option& option : all_options()) {
      SCOPED_TRACE(option.text() + ", " + std::to_string(cluster.hosts) + " hosts of " +
                   std::to_string(cluster.ranks_per_host));
      const Algorithm algorithm{option.text(), "", option.legs()};
      const Counted counted =
          count(make_all(algorithm, Collective::all_reduce, ranks), ranks, kElements);
      Counted predicted;
      for (const Load& load : loads_of(option, kElements, cluster)) {
        Sent& sent = load.kind == Load::Kind::between ? predicted.between : predicted.inside;
        (load.exact ? sent.exact : sent.lossy) += load.total;
      }
      EXPECT_NEAR(predicted.inside.exact + predicted.between.exact,
                  counted.inside.exact + counted.between.exact, 1e-6);
      EXPECT_NEAR(predicted.inside.lossy + predicted.between.lossy,
                  counted.inside.lossy + counted.between.lossy, 1e-6);
      // A tree of all ranks crosses hosts inside its steps, which loads count as between them.
      const bool tree =
          option.text().find("broadcast") != std::string::npos && !option.has_levels();
      if (tree) continue;
      EXPECT_NEAR(predicted.between.exact, counted.between.exact, 1e-6);
      EXPECT_NEAR(predicted.between.lossy, counted.between.lossy, 1e-6);
    }
  }
}

}  // namespace
}  // namespace gradwire
