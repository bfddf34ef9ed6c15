// What operations say of the numbers themselves: energies, agreement, what feedback keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "collective/option.h"
#include "engine/engine_test_ranks.h"
#include "feedback/residuals.h"

namespace gradwire {
namespace {

template <class Floats>
double energy_of(const Floats& x) {
  double energy = 0;
  for (const float value : x) energy += double{value} * value;
  return energy;
}

void expect_energy(double found, double expected, const std::string& what) {
  EXPECT_NEAR(found, expected, 1e-6 * expected) << what;
}

TensorStatistics& operator+=(TensorStatistics& total, const TensorStatistics& one) {
  total.energy += one.energy;
  total.sum_energy += one.sum_energy;
  total.residual_energy += one.residual_energy;
  total.measured_energy += one.measured_energy;
  total.squared_error += one.squared_error;
  total.saturated += one.saturated;
  return total;
}

/// Statistics of all ranks, and their sum.
struct Everywhere {
  std::vector<TensorStatistics> of;
  TensorStatistics total{};
  std::vector<Numbers> results;
};

template <class Input>
Everywhere all_reduce(RanksHere& ranks, const Way& way, const OperationOptions& options,
                      Input input) {
  Everywhere found{.of = std::vector<TensorStatistics>(ranks.size()),
                   .results = std::vector<Numbers>(ranks.size())};
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers& x = found.results[me.rank()] = input(me.rank());
    const Tensor tensor{"x", {x.data(), x.size()}, way};
    Work work = me.all_reduce({&tensor, 1}, options);
    work.wait();
    found.of[me.rank()] = work.statistics().tensors.at(0);
  });
  for (const TensorStatistics& one : found.of) found.total += one;
  return found;
}

struct Hosts {
  std::uint32_t ranks, per_host;
};
constexpr Hosts kHosts[] = {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {4, 2}};

std::vector<std::string> routes(const Hosts& hosts) {
  std::vector<std::string> names = usable_algorithms(hosts.ranks, hosts.per_host);
  if (hosts.per_host != 2) return names;
  for (const Option& option : all_options()) names.push_back(option.text());
  return names;
}

RanksHere connect(const Hosts& hosts, std::size_t piece = 1024, std::uint32_t threads = 0) {
  return Communicator::in_process(
      hosts.ranks, {.tuning = {.threads = threads, .piece_elements = piece}}, hosts.per_host);
}

TEST(Energies, are_those_of_inputs_and_results_on_every_route) {
  constexpr std::size_t kCount = 5003;
  for (const Hosts& hosts : kHosts) {
    RanksHere ranks = connect(hosts);
    for (const std::string& route : routes(hosts)) {
      for (const char* codec : {"fp16", "grid:step=0.001"}) {
        const Way way = by(route, codec);
        const bool average = hosts.ranks % 2 == 1;
        const auto found = all_reduce(ranks, way, {.average = average},
                                      [](std::uint32_t rank) { return gaussian(kCount, rank); });
        const std::string what = way.short_text() + ", " + std::to_string(hosts.ranks) + " ranks";
        for (std::uint32_t rank = 0; rank < hosts.ranks; ++rank) {
          expect_energy(found.of[rank].energy, energy_of(gaussian(kCount, rank)), what);
        }
        const double result = energy_of(found.results[0]);
        EXPECT_NEAR(found.total.sum_energy, result, 1e-4 * result) << what;
      }
    }
  }
}

TEST(Energies, of_small_integers_are_exact_sums) {
  for (const Hosts& hosts : kHosts) {
    RanksHere ranks = connect(hosts);
    for (const std::string& route : routes(hosts)) {
      const auto found = all_reduce(ranks, by(route), {.exact_energies = true},
                                    [](std::uint32_t rank) { return integers(3001, rank); });
      EXPECT_EQ(found.total.sum_energy, energy_of(sum_of_all(3001, hosts.ranks))) << route;
      EXPECT_EQ(found.of[0].energy, energy_of(integers(3001, 0))) << route;
    }
  }
}

TEST(Energies, of_exact_tensors_are_found_out_only_when_asked_for) {
  RanksHere ranks = connect({2, 0});
  for (const char* way : {"none", "fp16"}) {
    const auto found = all_reduce(ranks, Way::parse(way), {},
                                  [](std::uint32_t rank) { return integers(100, rank); });
    const bool lossy = std::string(way) != "none";
    EXPECT_EQ(found.total.energy > 0, lossy);
    EXPECT_EQ(found.total.sum_energy > 0, lossy);
  }
}

TEST(Energies, tell_how_far_ranks_agree) {
  constexpr std::size_t kCount = 100'000;
  for (const std::uint32_t size : {2u, 3u, 4u}) {
    RanksHere ranks = connect({size, 0}, 0);
    for (const bool average : {false, true}) {
      const auto agreement = [&](bool equal) {
        const auto found =
            all_reduce(ranks, Way::parse("grid:step=0.1"), {.average = average},
                       [&](std::uint32_t rank) { return gaussian(kCount, equal ? 0 : rank); });
        const double per_energy = found.total.sum_energy / found.total.energy;
        return average ? size * per_energy : per_energy / size;
      };
      EXPECT_NEAR(agreement(true), 1, 0.002);
      EXPECT_NEAR(agreement(false), 1.0 / size, 0.02);
    }
  }
}

TEST(Energies, of_parts_are_those_of_all_parts_and_of_what_their_owners_sum_up) {
  constexpr std::size_t kPart = 1009;
  for (const char* route : {"sra", "ring"}) {
    RanksHere ranks = connect({3, 0});
    std::mutex mutex;
    double sums = 0, results = 0;
    on_all_ranks(ranks, [&](Communicator& me) {
      Numbers x = gaussian(3 * kPart, me.rank());
      const Tensor tensor{"x", {x.data(), x.size()}, by(route, "grid:step=0.01")};
      const double all = energy_of(x);
      const double own = energy_of(std::span(x).subspan(me.rank() * kPart, kPart));
      Work gather = me.all_gather(tensor);
      gather.wait();
      expect_energy(gather.statistics().tensors[0].energy, own, "all_gather");
      EXPECT_EQ(gather.statistics().tensors[0].sum_energy, 0);
      std::ranges::copy(gaussian(3 * kPart, me.rank()), x.begin());
      Work scatter = me.reduce_scatter(tensor);
      scatter.wait();
      expect_energy(scatter.statistics().tensors[0].energy, all, "reduce_scatter");
      const std::lock_guard lock(mutex);
      sums += scatter.statistics().tensors[0].sum_energy;
      results += energy_of(std::span(x).subspan(me.rank() * kPart, kPart));
    });
    EXPECT_NEAR(sums, results, 1e-6 * results) << route;
  }
}

TEST(Energies, of_a_broadcast_are_the_roots) {
  RanksHere ranks = connect({3, 0});
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x = gaussian(5000, me.rank());
    const double root = energy_of(gaussian(5000, 1));
    const Tensor tensor{"x", {x.data(), x.size()}, Way::parse("uniform:bits=4")};
    Work work = me.broadcast({&tensor, 1}, 1);
    work.wait();
    expect_energy(work.statistics().tensors[0].energy, me.rank() == 1 ? root : 0, "broadcast");
  });
}

TEST(Energies, show_what_is_not_finite) {
  for (const char* way : {"grid", "uniform", "fp16", "sign+feedback"}) {
    for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
      RanksHere ranks = connect({2, 0});
      const auto found = all_reduce(ranks, Way::parse(way), {}, [&](std::uint32_t rank) {
        Numbers x = gaussian(3000, rank);
        if (rank == 1) x[2500] = bad;
        return x;
      });
      EXPECT_TRUE(std::isfinite(found.of[0].energy)) << way;
      EXPECT_FALSE(std::isfinite(found.of[1].energy)) << way;
      EXPECT_FALSE(std::isfinite(found.total.sum_energy)) << way;
    }
  }
}

// ---------------------------------------------------------------------------------------------

/// What feedback keeps of a tensor on this rank.
double kept_energy(const Communicator& me, const std::string& name, std::size_t count) {
  Residuals residuals;
  residuals.load(me.save_residuals());
  return energy_of(residuals.borrow(name, count)->numbers);
}

TEST(ResidualEnergy, is_that_of_what_is_kept_on_every_route) {
  constexpr std::size_t kCount = 3001;
  for (const Hosts& hosts : kHosts) {
    for (const char* codec : {"sign+feedback", "topk:density=0.05+feedback"}) {
      RanksHere ranks = connect(hosts);
      for (const std::string& route : routes(hosts)) {
        const auto found = all_reduce(ranks, by(route, codec), {},
                                      [](std::uint32_t rank) { return gaussian(kCount, rank); });
        for (const auto& me : ranks) {
          expect_energy(found.of[me->rank()].residual_energy, kept_energy(*me, "x", kCount),
                        route + ", " + codec);
        }
      }
    }
  }
}

TEST(ResidualEnergy, of_parts_and_of_halves_is_that_of_what_is_kept) {
  RanksHere ranks = connect({3, 0});
  on_all_ranks(ranks, [&](Communicator& me) {
    Numbers x = gaussian(3 * 1009, me.rank());
    const Tensor parts{"parts", {x.data(), x.size()}, Way::parse("sign+feedback")};
    Work work = me.reduce_scatter(parts);
    work.wait();
    expect_energy(work.statistics().tensors[0].residual_energy, kept_energy(me, "parts", x.size()),
                  "parts");
    std::vector<std::uint16_t> halves(5000, static_cast<std::uint16_t>(0x3f80 + me.rank()));
    const Tensor bf16{
        "halves", {halves.data(), 5000, Dtype::bf16}, by("allgather", "sign+feedback")};
    work = me.all_reduce({&bf16, 1});
    work.wait();
    expect_energy(work.statistics().tensors[0].residual_energy, kept_energy(me, "halves", 5000),
                  "halves");
  });
}

TEST(ResidualEnergy, stays_where_numbers_are_not_finite_and_ends_with_feedback) {
  RanksHere ranks = connect({2, 0});
  const auto exchange = [&](const char* way, float first) {
    return all_reduce(ranks, Way::parse(way), {},
                      [&](std::uint32_t rank) {
                        Numbers x = gaussian(3000, rank);
                        x[0] = first;
                        return x;
                      })
        .of[0]
        .residual_energy;
  };
  const double kept = exchange("sign+feedback", 1);
  EXPECT_GT(kept, 0);
  EXPECT_NEAR(exchange("sign+feedback", std::nanf("")), kept, 1e-6 * kept);
  EXPECT_NE(exchange("sign+feedback", 1), kept);
  EXPECT_EQ(exchange("sign", 1), 0);
  EXPECT_EQ(exchange("sign+feedback", 1), kept) << "as at first: nothing was kept";
}

TEST(Energies, with_feedback_are_those_of_what_is_sent) {
  RanksHere ranks = connect({2, 0});
  for (const char* codec : {"grid:step=2,rounding=nearest", "sign"}) {
    const Way way = by("allgather", std::string(codec) + "+feedback");
    Numbers sent(3000);
    for (std::uint32_t step = 0; step < 3; ++step) {
      Residuals before;
      before.load(ranks[0]->save_residuals());
      const auto found = all_reduce(
          ranks, way, {}, [&](std::uint32_t rank) { return gaussian(3000, rank + 2 * step); });
      sent = gaussian(3000, 2 * step);
      const auto kept = before.borrow("x", 3000);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += kept->numbers[i];
      expect_energy(found.of[0].energy, energy_of(sent), codec);
    }
    for (const auto& rank : ranks) rank->load_residuals(Residuals().save());
  }
}

// ---------------------------------------------------------------------------------------------

TEST(Sample, is_a_small_part_whose_error_is_that_of_the_whole) {
  constexpr std::size_t kCount = 100'000;
  for (const char* codec : {"uniform:bits=2", "sign+feedback", "topk:density=0.1"}) {
    for (const char* route : {"sra", "allgather"}) {
      TensorStatistics sampled, all;
      for (const bool measure_all : {false, true}) {
        RanksHere ranks = connect({3, 0});
        for (std::uint64_t step = 0; step < 10; ++step) {
          const OperationOptions options{.step = step, .measure_error = measure_all};
          const auto found = all_reduce(ranks, by(route, codec), options, [&](std::uint32_t rank) {
            return gaussian(kCount, rank + 3 * static_cast<std::uint32_t>(step));
          });
          (measure_all ? all : sampled) += found.total;
        }
      }
      const std::string what = std::string(codec) + ", " + route;
      EXPECT_NEAR(sampled.measured_energy / all.measured_energy, 1.0 / 31, 0.02) << what;
      EXPECT_NEAR(sampled.squared_error / sampled.measured_energy,
                  all.squared_error / all.measured_energy, 0.05)
          << what;
      EXPECT_EQ(sampled.energy, all.energy) << what;
    }
  }
}

TEST(Sample, comes_to_every_small_tensor_once_in_31_steps_however_far_they_are_apart) {
  RanksHere ranks = connect({2, 0}, 0);
  for (const std::uint64_t distance : {1, 2, 32, 50, 1000}) {
    std::vector<int> times(ranks.size());
    for (std::uint64_t step = 0; step < 31; ++step) {
      const auto found = all_reduce(ranks, by("allgather", "uniform"), {.step = step * distance},
                                    [](std::uint32_t rank) { return gaussian(100, rank); });
      for (std::size_t i = 0; i < ranks.size(); ++i) times[i] += found.of[i].measured_energy > 0;
    }
    EXPECT_EQ(times, (std::vector<int>{1, 1})) << distance;
  }
}

TEST(Sample, counts_numbers_that_a_codec_could_not_represent) {
  RanksHere ranks = connect({2, 0});
  for (const char* way : {"fp16", "bf16", "grid", "topk:density=0.01"}) {
    const auto found =
        all_reduce(ranks, by("allgather", way), {.measure_error = true}, [&](std::uint32_t rank) {
          Numbers x = gaussian(3000, rank);
          if (rank == 1) x[7] = 1e6f, x[2007] = -1e30f;
          if (rank == 0) x[7] = INFINITY;
          return x;
        });
    EXPECT_EQ(found.of[0].saturated, 0u) << way << ": it was not finite before";
    EXPECT_EQ(found.of[1].saturated, std::string(way) == "fp16" ? 2u : 0u) << way;
  }
}

// ---------------------------------------------------------------------------------------------

TEST(Energies, are_the_same_to_the_bit_whatever_the_threads_and_the_timing) {
  std::vector<TensorStatistics> first;
  for (const std::uint32_t threads : {1u, 3u, 3u, 2u}) {
    RanksHere ranks = connect({3, 0}, 1 << 14, threads);
    std::vector<TensorStatistics> found;
    for (const char* way : {"uniform:bits=4", "grid", "sign+feedback"}) {
      const auto here = all_reduce(ranks, Way::parse(way), {.step = 5, .average = true},
                                   [](std::uint32_t rank) { return gaussian(1'000'000, rank); });
      found.insert(found.end(), here.of.begin(), here.of.end());
    }
    if (first.empty()) first = found;
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].energy, first[i].energy);
      EXPECT_EQ(found[i].sum_energy, first[i].sum_energy);
      EXPECT_EQ(found[i].residual_energy, first[i].residual_energy);
      EXPECT_EQ(found[i].measured_energy, first[i].measured_energy);
      EXPECT_EQ(found[i].squared_error, first[i].squared_error);
      EXPECT_GT(found[i].measured_energy, 0);
    }
  }
}

}  // namespace
}  // namespace gradwire
