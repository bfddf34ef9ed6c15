#include "adapting.h"

#include <algorithm>
#include <utility>

#include "base/byte_cursor.h"

namespace gradwire::pytorch {
namespace {

/// What is averaged of each layer, and of the loss at the end.
enum Number : std::size_t { energy, mean_energy, sampled_energy, sampled_error, kNumbers };
enum LossNumber : std::size_t { loss, losses, kLossNumbers };

std::vector<std::string> names_of(const std::vector<adapt::AdaptedLayer>& layers) {
  std::vector<std::string> names;
  for (const adapt::AdaptedLayer& layer : layers) names.push_back(layer.name);
  return names;
}

std::uint32_t ranks_of(const std::vector<std::shared_ptr<Channel>>& channels) {
  return static_cast<std::uint32_t>(channels.front()->size());
}

}  // namespace

Adapting::Adapting(std::vector<adapt::AdaptedLayer> layers,
                   std::vector<std::shared_ptr<Channel>> channels)
    : channels_(std::move(channels)),
      names_(names_of(layers)),
      adaptation_(layers, ranks_of(channels_)),
      averages_(kNumbers * layers.size() + kLossNumbers),
      seen_(averages_.size()) {
  for (std::size_t i = 0; i < names_.size(); ++i) places_[names_[i]] = i;
}

Adapting::~Adapting() {
  try {
    await();
  } catch (...) {
    // Whoever waits for gradients hears of it.
  }
}

void Adapting::count(std::string_view layer, const TensorStatistics& statistics, double divisor) {
  const auto found = places_.find(layer);
  if (found == places_.end()) return;
  const std::lock_guard lock(mutex_);
  double* const numbers = seen_.data() + kNumbers * found->second;
  numbers[energy] += statistics.energy;
  // Each sum is finished by one rank: their number makes a sum of what is averaged.
  numbers[mean_energy] += statistics.sum_energy * channels_.front()->size() / (divisor * divisor);
  numbers[sampled_energy] += statistics.measured_energy;
  numbers[sampled_error] += statistics.squared_error;
}

void Adapting::count_loss(double value) {
  const std::lock_guard lock(mutex_);
  double* const numbers = seen_.data() + kNumbers * names_.size();
  numbers[loss] += value;
  numbers[losses] += 1;
}

void Adapting::await() {
  if (!under_way_) return;
  Work work = *std::exchange(under_way_, std::nullopt);
  work.wait();
  has_averages_ = true;
}

bool Adapting::begin_step() {
  await();
  bool changed = false;
  if (std::exchange(has_averages_, false)) {
    std::vector<adapt::Sight> step;
    const float* numbers = averages_.data();
    for (std::size_t i = 0; i < names_.size(); ++i, numbers += kNumbers) {
      step.push_back({.energy = numbers[energy],
                      .mean_energy = numbers[mean_energy],
                      .sampled_energy = numbers[sampled_energy],
                      .sampled_error = numbers[sampled_error]});
    }
    std::optional<double> mean_loss;
    if (numbers[losses] >= 1) mean_loss = numbers[loss] / numbers[losses];
    changed = adaptation_.see(std::move(step), mean_loss);
  }
  {
    const std::lock_guard lock(mutex_);
    std::ranges::transform(seen_, averages_.begin(), [](double x) { return static_cast<float>(x); });
    std::ranges::fill(seen_, 0);
  }
  const Tensor tensor{.name = "statistics", .view = {averages_.data(), averages_.size(), Dtype::f32}};
  OperationOptions options;
  options.average = true;
  for (const auto& channel : channels_) {
    if (under_way_) under_way_->wait();  // the ranks of one channel know those of the one before
    under_way_ = channel->communicator()->all_reduce({&tensor, 1}, options);
  }
  return changed;
}

void Adapting::forget_steps() {
  await();
  has_averages_ = false;
  const std::lock_guard lock(mutex_);
  std::ranges::fill(seen_, 0);
}

Plan Adapting::adapted(Plan plan) const {
  for (LayerPlan& entry : plan.layers) {
    const auto found = places_.find(entry.layers);
    if (found == places_.end()) continue;
    Stage& stage = entry.stages.front();
    const Codec codec = adaptation_.adapted(found->second, stage.way.codec);
    if (codec == stage.way.codec) continue;
    stage.way.codec = codec;
    stage.reason = adaptation_.reason(found->second);
  }
  return plan;
}

bool Adapting::is_careful() const {
  const Codec grid = Codec::parse("grid");
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (adaptation_.adapted(i, grid) == Codec::parse("none")) return true;
  }
  return false;
}

std::string Adapting::saved() {
  await();
  ByteWriter writer;
  writer.write(has_averages_);
  writer.write_all(std::span<const float>(averages_));
  {
    const std::lock_guard lock(mutex_);
    writer.write_all(std::span<const double>(seen_));
  }
  const std::vector<std::byte> concluded = adaptation_.save();
  writer.write_all(std::span<const std::byte>(concluded));
  const std::span<const std::byte> bytes = writer.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Adapting::load(std::string_view saved) {
  await();
  ByteReader reader(std::as_bytes(std::span(saved)));
  std::uint8_t has_averages = 0;
  std::vector<float> averages(averages_.size());
  std::vector<double> seen(averages_.size());
  if (!reader.read(has_averages) || !reader.read_all(std::span(averages)) ||
      !reader.read_all(std::span(seen)) || !adaptation_.load(reader.rest())) {
    return;
  }
  has_averages_ = has_averages != 0;
  averages_ = std::move(averages);
  const std::lock_guard lock(mutex_);
  seen_ = std::move(seen);
}

}  // namespace gradwire::pytorch
