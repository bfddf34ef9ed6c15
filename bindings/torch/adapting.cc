#include "adapting.h"

#include <algorithm>
#include <utility>

#include "base/byte_cursor.h"
#include "base/checksum.h"

namespace gradwire::pytorch {
namespace {

/// What is averaged of each layer, and of the loss at the end.
enum Number : std::size_t { energy, mean_energy, sampled_energy, sampled_error, kNumbers };
enum LossNumber : std::size_t { loss, losses, kLossNumbers };

/// A mean of ones may be rounded.
constexpr float kAll = 0.9999F;

/// Shards of a single rank are added up by their replicas.
std::uint32_t ranks_of(const std::vector<std::shared_ptr<Channel>>& channels) {
  const auto has_peers = [](const auto& channel) { return channel->size() > 1; };
  const auto found = std::ranges::find_if(channels, has_peers);
  return static_cast<std::uint32_t>(found == channels.end() ? 1 : (*found)->size());
}

std::uint64_t hash_of(const std::vector<adapt::AdaptedLayer>& layers) {
  std::string names;
  for (const adapt::AdaptedLayer& layer : layers) names += layer.name + '\n';
  return checksum(std::as_bytes(std::span(names)));
}

}  // namespace

Sights::Sights(std::vector<adapt::AdaptedLayer> layers)
    : layers_(std::move(layers)), numbers_(kNumbers * layers_.size() + kLossNumbers) {
  for (std::size_t i = 0; i < layers_.size(); ++i) places_[layers_[i].name] = i;
}

void Sights::count(std::string_view layer, const TensorStatistics& statistics, double ranks,
                   double divisor) {
  const auto found = places_.find(layer);
  if (found == places_.end()) return;
  const std::lock_guard lock(mutex_);
  double* const numbers = numbers_.data() + kNumbers * found->second;
  numbers[energy] += statistics.energy;
  // Each sum is finished by one rank: times their number, its mean over them is the sum of all.
  numbers[mean_energy] += statistics.sum_energy * ranks / (divisor * divisor);
  numbers[sampled_energy] += statistics.measured_energy;
  numbers[sampled_error] += statistics.squared_error;
}

void Sights::count_loss(double value) {
  const std::lock_guard lock(mutex_);
  double* const numbers = numbers_.data() + kNumbers * layers_.size();
  numbers[loss] += value;
  numbers[losses] += 1;
}

std::vector<double> Sights::take() {
  const std::lock_guard lock(mutex_);
  std::vector<double> taken = std::exchange(numbers_, std::vector<double>(numbers_.size()));
  double* const of_loss = taken.data() + kNumbers * layers_.size();
  if (of_loss[losses] > 0) of_loss[loss] /= std::exchange(of_loss[losses], 1);
  return taken;
}

std::vector<double> Sights::counted() const {
  const std::lock_guard lock(mutex_);
  return numbers_;
}

void Sights::set(std::vector<double> counted) {
  const std::lock_guard lock(mutex_);
  numbers_ = std::move(counted);
}

// ---------------------------------------------------------------------------------------------

Adapting::Adapting(std::vector<adapt::AdaptedLayer> layers,
                   std::vector<std::shared_ptr<Channel>> channels)
    : channels_(std::move(channels)),
      layers_(std::move(layers)),
      sights_(std::make_shared<Sights>(layers_)),
      lossy_(layers_.size(), true),
      codecs_(layers_, ranks_of(channels_)),
      averages_(std::make_shared<std::vector<float>>(kNumbers * layers_.size() + kLossNumbers)) {}

void Adapting::await() {
  if (!under_way_) return;
  Work work = *std::exchange(under_way_, std::nullopt);
  work.wait();
  has_averages_ = true;
}

bool Adapting::begin_step() {
  await();
  const bool changed = has_averages_ && conclude();
  has_averages_ = false;
  std::ranges::copy(sights_->take(), averages_->begin());
  const Tensor tensor{.name = "statistics",
                      .view = {averages_->data(), averages_->size(), Dtype::f32}};
  OperationOptions options;
  options.average = true;
  for (const auto& channel : channels_) {
    if (under_way_) under_way_->wait();  // over the ranks of one channel, then of the next
    under_way_ = channel->communicator()->all_reduce({&tensor, 1}, options);
    under_way_->on_done([kept = averages_](const Error*) {});
  }
  if (channels_.size() > 1) {  // those of other shards may have been added up in another order
    under_way_->wait();
    under_way_ = channels_.front()->communicator()->broadcast({&tensor, 1}, 0);
    under_way_->on_done([kept = averages_](const Error*) {});
  }
  return changed;
}

bool Adapting::conclude() {
  std::vector<adapt::Sight> step;
  const float* numbers = averages_->data();
  for (std::size_t i = 0; i < layers_.size(); ++i, numbers += kNumbers) {
    const adapt::Sight seen{.energy = numbers[energy],
                            .mean_energy = numbers[mean_energy],
                            .sampled_energy = numbers[sampled_energy],
                            .sampled_error = numbers[sampled_error]};
    step.push_back(lossy_[i] ? seen : adapt::Sight{});
  }
  std::optional<double> mean_loss;
  if (numbers[losses] > kAll) mean_loss = numbers[loss] / numbers[losses];
  return codecs_.see(std::move(step), mean_loss);
}

void Adapting::settle() {
  try {
    await();
  } catch (const Error&) {
    has_averages_ = false;
  }
}

void Adapting::forget_steps() {
  settle();
  has_averages_ = false;
  sights_->take();
}

void Adapting::begin_again() {
  forget_steps();
  codecs_ = adapt::AdaptedCodecs(layers_, ranks_of(channels_));
}

Plan Adapting::adapted(Plan plan) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto entry = std::ranges::find(plan.layers, layers_[i].name, &LayerPlan::layers);
    if (entry == plan.layers.end()) continue;
    Stage& stage = entry->stages.front();
    lossy_[i] = !stage.way.codec.traits().lossless;
    const Codec codec = codecs_.adapted(i, stage.way.codec);
    if (codec == stage.way.codec) continue;
    stage.way.codec = codec;
    stage.reason = codecs_.reason(i);
  }
  return plan;
}

std::vector<std::byte> Adapting::shared() {
  settle();
  ByteWriter writer;
  writer.write(hash_of(layers_));
  writer.write(has_averages_);
  writer.write_all(std::span<const float>(*averages_));
  const std::vector<std::byte> concluded = codecs_.save();
  writer.write_all(std::span<const std::byte>(concluded));
  return std::move(writer).finish();
}

std::uint64_t Adapting::hash() { return checksum(shared()); }

std::string Adapting::saved() {
  const std::vector<double> counted = sights_->counted();
  const std::vector<std::byte> beside = shared();
  std::string bytes(reinterpret_cast<const char*>(counted.data()), counted.size() * sizeof(double));
  return bytes.append(reinterpret_cast<const char*>(beside.data()), beside.size());
}

void Adapting::load(std::string_view saved) {
  settle();
  ByteReader reader(std::as_bytes(std::span(saved)));
  std::vector<double> counted(averages_->size());
  std::uint64_t names = 0;
  std::uint8_t has_averages = 0;
  std::vector<float> averages(averages_->size());
  if (!reader.read_all(std::span(counted)) || !reader.read(names) || names != hash_of(layers_) ||
      !reader.read(has_averages) || !reader.read_all(std::span(averages)) ||
      !codecs_.load(reader.rest())) {
    return;
  }
  has_averages_ = has_averages != 0;
  *averages_ = std::move(averages);
  sights_->set(std::move(counted));
}

}  // namespace gradwire::pytorch
