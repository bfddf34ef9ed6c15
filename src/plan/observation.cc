#include "plan/observation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/sampling.h"
#include "plan/cost_presets.h"
#include "plan/json_fields.h"
#include "plan/prediction.h"

namespace gradwire {
namespace {

// Of links, from far slower than a modem to far faster than memory: so many halvings leave less
// than a millionth between them.
constexpr double kSlowestByte = 1e-2;
constexpr double kFastestByte = 1e-13;
constexpr int kHalvings = 25;

double median(std::span<const StepTimes> steps, double StepTimes::*seconds) {
  std::vector<double> all;
  for (const StepTimes& step : steps) all.push_back(step.*seconds);
  return median_of(std::move(all));
}

double median_between(std::span<const StepTimes> steps, double StepTimes::*begin,
                      double StepTimes::*end) {
  std::vector<double> all;
  for (const StepTimes& step : steps) all.push_back(std::max(0.0, step.*end - step.*begin));
  return median_of(std::move(all));
}

double mean(std::span<const Observation> ranks, double Observation::*seconds) {
  double sum = 0;
  for (const Observation& rank : ranks) sum += rank.*seconds;
  return sum / static_cast<double>(ranks.size());
}

/// The larger of both, where either has a point.
CostTable slower(const CostTable& a, const CostTable& b) {
  std::vector<std::pair<std::size_t, double>> points;
  for (const CostTable* table : {&a, &b}) {
    for (const auto& [elements, seconds] : table->points()) {
      points.emplace_back(elements, std::max(a.at(elements), b.at(elements)));
    }
  }
  std::ranges::sort(points);
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return CostTable(std::move(points));
}

void take_slower(Costs& costs, const Costs& other) {
  for (auto& [spec, codec] : costs.codecs) {
    const MeasuredCodec& rival = other.codec(Codec::parse(spec));
    codec = {slower(codec.encode, rival.encode), slower(codec.decode, rival.decode),
             slower(codec.preparation, rival.preparation),
             std::max(codec.bytes_per_element, rival.bytes_per_element)};
  }
  costs.threads = std::min(costs.threads, other.threads);
  costs.cores = std::min(costs.cores, other.cores);
}

/// All gradients at once, with nothing to compute.
Workload exchange_of(const Workload& workload) {
  Workload all = workload;
  for (WorkloadTensor& tensor : all.tensors) tensor.ready_seconds = 0;
  all.forward_seconds = all.backward_seconds = 0;
  return all;
}

}  // namespace

Observation observe(std::span<const Layer> layers, std::span<const StepTimes> alone,
                    std::span<const StepTimes> beside) {
  Observation seen{.exchange_seconds = median_between(alone, &StepTimes::computed_seconds,
                                                      &StepTimes::exchanged_seconds),
                   .processor_seconds = median(alone, &StepTimes::processor_seconds),
                   .beside_seconds = median(beside, &StepTimes::computed_seconds)};
  Workload& workload = seen.workload;
  workload.name = "this job";
  workload.backward_seconds = median(alone, &StepTimes::computed_seconds);
  workload.forward_seconds =
      median_between(alone, &StepTimes::exchanged_seconds, &StepTimes::step_seconds);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::vector<double> ready;
    for (const StepTimes& step : alone) {
      if (step.ready_seconds[i] >= 0) ready.push_back(step.ready_seconds[i]);
    }
    if (ready.empty() || layers[i].elements == 0) continue;
    workload.tensors.push_back({layers[i].name, layers[i].elements,
                                std::min(median_of(ready), workload.backward_seconds)});
  }
  std::ranges::stable_sort(workload.tensors, {}, &WorkloadTensor::ready_seconds);
  return seen;
}

std::string text_of(const Observation& observation) {
  return fmt::format(
      "{{\"exchange_seconds\": {}, \"processor_seconds\": {}, \"latency_seconds\": {}, "
      "\"beside_seconds\": {}, \"workload\": {}, \"costs\": {}}}",
      observation.exchange_seconds, observation.processor_seconds, observation.latency_seconds,
      observation.beside_seconds, quoted(text_of(observation.workload)),
      quoted(text_of(observation.costs)));
}

Observation parse_observation(std::string_view text) {
  const LocatedJson root = parse_located_json(text);
  constexpr std::string_view kWhat = "an observation";
  check_keys(root, kWhat,
             {"exchange_seconds", "processor_seconds", "latency_seconds", "beside_seconds",
              "workload", "costs"});
  return {.workload = parse_workload(text_member(root, "workload", kWhat)),
          .exchange_seconds = number_member(root, "exchange_seconds", kWhat),
          .processor_seconds = number_member(root, "processor_seconds", kWhat),
          .latency_seconds = number_member(root, "latency_seconds", kWhat),
          .beside_seconds = number_member(root, "beside_seconds", kWhat),
          .costs = parse_costs(text_member(root, "costs", kWhat))};
}

Observation joined(std::span<const Observation> ranks) {
  Observation all = ranks.front();
  const auto share = 1 / static_cast<double>(ranks.size());
  Workload& workload = all.workload;
  for (WorkloadTensor& tensor : workload.tensors) {
    tensor.ready_seconds = 0;
    for (const Observation& rank : ranks) {
      const auto found =
          std::ranges::find(rank.workload.tensors, tensor.name, &WorkloadTensor::name);
      if (found != rank.workload.tensors.end())
        tensor.ready_seconds += share * found->ready_seconds;
    }
  }
  workload.forward_seconds = workload.backward_seconds = 0;
  for (const Observation& rank : ranks) {
    workload.forward_seconds += share * rank.workload.forward_seconds;
    workload.backward_seconds += share * rank.workload.backward_seconds;
    take_slower(all.costs, rank.costs);
  }
  for (WorkloadTensor& tensor : workload.tensors) {
    tensor.ready_seconds = std::min(tensor.ready_seconds, workload.backward_seconds);
  }
  std::ranges::stable_sort(workload.tensors, {}, &WorkloadTensor::ready_seconds);
  for (auto seconds : {&Observation::exchange_seconds, &Observation::processor_seconds,
                       &Observation::latency_seconds, &Observation::beside_seconds}) {
    all.*seconds = mean(ranks, seconds);
  }
  return all;
}

Costs fitted_costs(const Observation& observation, const Cluster& cluster) {
  Costs costs = observation.costs;
  costs.inside = preset_costs("cpu").inside;
  LinkCost& link = cluster.hosts > 1 ? costs.between : costs.inside;
  link = {.seconds = observation.latency_seconds};
  const double alone = observation.workload.backward_seconds;
  costs.interference = alone > 0 ? std::max(1.0, observation.beside_seconds / alone) : 1;

  const Workload exchange = exchange_of(observation.workload);
  const std::vector<Way> exactly(exchange.tensors.size());
  const auto exchange_seconds = [&] {
    return predict(exchange, cluster, costs, exactly).step_seconds;
  };
  // What the processor did beyond encoding and decoding, it did for messages.
  const Prediction without = predict(exchange, cluster, costs, exactly);
  const double codec = without.busy_seconds[static_cast<std::size_t>(Resource::codec)];
  link.cpu_seconds_per_byte = 1;
  const double of_a_second = predict(exchange, cluster, costs, exactly)
                                 .busy_seconds[static_cast<std::size_t>(Resource::codec)] -
                             codec;
  link.cpu_seconds_per_byte =
      of_a_second > 0
          ? std::max(0.0, observation.processor_seconds * costs.processor_share() - codec) /
                of_a_second
          : 0;
  // By halves: the more seconds a byte takes, the longer the exchange.
  double least = kFastestByte;
  double most = kSlowestByte;
  for (int i = 0; i < kHalvings; ++i) {
    link.seconds_per_byte = std::sqrt(least * most);
    (exchange_seconds() < observation.exchange_seconds ? least : most) = link.seconds_per_byte;
  }
  return costs;
}

}  // namespace gradwire
