#include "compression.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <cmath>

namespace gradwire::pytorch {
namespace {

constexpr int kOwedExchanges = 3;  // `LayerUse` finds in the third what was done with the first
constexpr std::uint64_t kStepsPerMeasurement = 50;  // of errors, which costs a decoding

template <class Predicate>
bool any_stage(const Rule& rule, Predicate predicate) {
  const Stage* const now = &stage_at(rule.stages, rule.step);
  const Stage* const end = rule.stages.data() + rule.stages.size();
  return std::any_of(now, end, [&](const Stage& stage) { return predicate(stage.way); });
}

bool has_momentum(const Way& way) { return way.feedback && way.feedback->momentum != 0; }

/// Whether an exchange leaves something for the next one.
bool keeps(const Way& way) {
  return has_momentum(way) || (way.feedback && !way.codec.traits().lossless);
}

}  // namespace

std::string_view Rule::layer_name() const {
  return std::string_view(name).substr(name.find('/') + 1);  // npos + 1 is 0: all of it
}

bool Rule::has_feedback() const {
  return owed_exchanges > 0 ||
         any_stage(*this, [](const Way& way) { return way.feedback.has_value(); });
}

bool Rule::has_momentum() const { return any_stage(*this, pytorch::has_momentum); }

bool Rule::keeps_something() const { return owed_exchanges > 0 || any_stage(*this, keeps); }

bool Rule::is_exact() const {
  return !may_become_lossy &&
         std::ranges::all_of(stages, [exact = Way{}.codec](const Stage& stage) {
           return stage.way.codec == exact;
         });
}

// ---------------------------------------------------------------------------------------------

void Ledger::count(const std::vector<LayerPtr>& layers, std::span<const std::uint64_t> exact_bytes,
                   const Statistics& statistics) {
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerTotals& totals = layers[i]->totals;
    const TensorStatistics& cost = statistics.tensors[i];
    totals.bytes += exact_bytes[i];
    totals.sent_bytes += cost.sent_bytes;
    // A step that a loss scaler skips is no reason to show no errors any more.
    if (!std::isfinite(cost.squared_error) || !std::isfinite(cost.measured_energy)) continue;
    totals.squared_error += cost.squared_error;
    totals.energy += cost.measured_energy;
  }
}

void Ledger::count_exact(const std::vector<LayerPtr>& layers,
                         std::span<const std::uint64_t> exact_bytes) {
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerTotals& totals = layers[i]->totals;
    totals.way = Way{};
    totals.bytes += exact_bytes[i];
    totals.sent_bytes += exact_bytes[i];
  }
}

void Ledger::see(const std::vector<LayerPtr>& layers, const Statistics& statistics, double ranks,
                 double divisor) {
  const std::shared_ptr<Sights> adapted_by = [&] {
    const std::lock_guard lock(mutex);
    return sights;
  }();
  if (!adapted_by) return;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    adapted_by->count(layers[i]->rule.layer_name(), statistics.tensors[i], ranks, divisor);
  }
}

// ---------------------------------------------------------------------------------------------

void Compression::set_rules(const std::unordered_map<const void*, Rule>& rules) {
  for (const auto& [parameter, rule] : rules) {
    LayerPtr& layer = layers_[parameter];
    if (!layer) layer = std::make_shared<LayerState>();
    const std::lock_guard lock(ledger_->mutex);
    layer->totals.name = rule.name;
    layer->totals.way.reset();
    layer->totals.elements = rule.elements;
    const int owed = layer->rule.owed_exchanges;
    layer->rule = rule;
    layer->rule.step = steps_;
    layer->rule.may_become_lossy = chooser_ && chooser_->is_open(rule.layer_name());
    layer->rule.owed_exchanges = owed;
    look_for_misuse(*layer);
  }
}

void Compression::choose_by(std::shared_ptr<AutoPlan> chooser) {
  chooser_ = std::move(chooser);
  const std::lock_guard lock(ledger_->mutex);
  ledger_->sights = chooser_ ? chooser_->sights() : nullptr;
}

void Compression::take_plan(const Plan& plan) {
  for (const auto& [parameter, layer] : layers_) {
    const std::lock_guard lock(ledger_->mutex);
    layer->rule.stages = plan.stages_of(layer->rule.layer_name());
  }
}

void Compression::count_step() {
  ++steps_;
  if (!chooser_) return;
  try {
    if (chooser_->begin_step(step())) take_plan(chooser_->plan());
  } catch (const Error& error) {
    TORCH_CHECK_WITH(DistBackendError, false, "gradwire: ", error.what());
  }
  if (exact_scopes > 0) chooser_->leave_out();
}

std::vector<LayerTotals> Compression::totals() const {
  const std::lock_guard lock(ledger_->mutex);
  std::vector<LayerTotals> totals;
  for (const auto& [parameter, layer] : layers_) {
    LayerTotals& shown = totals.emplace_back(layer->totals);
    const Way& way = stage_at(layer->rule.stages, layer->rule.step).way;
    if (!shown.way) shown.way = way;
    if (layer->measured != way) shown.squared_error = shown.energy = 0;
  }
  return totals;
}

void Compression::set_steps(std::uint64_t steps) {
  steps_ = steps;
  if (chooser_) {
    chooser_->go_to(steps);
    take_plan(chooser_->plan());
  }
  for (const auto& [parameter, layer] : layers_) {
    Rule& rule = layer->rule;
    rule.step = 0;  // what came before may have left something
    rule.owed_exchanges = rule.keeps_something() ? kOwedExchanges : 0;
    rule.step = steps;
    look_for_misuse(*layer);
  }
}

bool Compression::has_feedback() const {
  return std::ranges::any_of(layers_,
                             [](const auto& each) { return each.second->rule.has_feedback(); });
}

const LayerPtr& Compression::layer_of(const void* parameter) const {
  const auto found = layers_.find(parameter);
  TORCH_CHECK(found != layers_.end(),
              "gradwire: the model has a parameter that it did not have when compression began; "
              "call gradwire.torch.compress again after changing it");
  return found->second;
}

void Compression::begin_exchange() {
  if (!before_first_exchange) return;
  const auto call = before_first_exchange;  // which may set another
  call();
  before_first_exchange = nullptr;
}

OperationOptions Compression::options_at(std::uint64_t step) const {
  OperationOptions options;
  options.seed = seed_;
  options.step = step;
  options.exact_energies = chooser_ && chooser_->sees_exact();
  return options;
}

Way Compression::take_way(LayerState& layer, std::uint64_t step) {
  Rule& rule = layer.rule;
  Way way = stage_at(rule.stages, step).way;
  if (exact_scopes > 0) way.codec = Way{}.codec;
  const bool kept = rule.keeps_something();
  rule.step = step;
  if (keeps(way)) {
    rule.owed_exchanges = kOwedExchanges;
  } else if (!way.feedback && rule.owed_exchanges > 0) {
    --rule.owed_exchanges;
  }
  if (rule.keeps_something() != kept) look_for_misuse(layer);
  return way;
}

bool Compression::measures(LayerState& layer, std::uint64_t step) const {
  if (exact_scopes > 0) return false;
  const Way& way = stage_at(layer.rule.stages, step).way;
  if (layer.measured == way) return step % kStepsPerMeasurement == 0;
  const std::lock_guard lock(ledger_->mutex);
  layer.totals.squared_error = layer.totals.energy = 0;
  layer.measured = way;
  return true;
}

void Compression::look_for_misuse(LayerState& layer) {
  const Rule& rule = layer.rule;
  if (layer.use) {
    layer.use->look_for(rule.has_momentum() || rule.weight_decay != 0, rule.keeps_something());
  }
}

std::string Compression::misuse_of(const LayerState& layer, const LayerUse::Findings& findings,
                                   std::string_view instead) {
  const std::string name(layer.rule.layer_name());
  if (findings.added) {
    return name +
           " got several gradients for one step of the optimizer, of which the first "
           "entered its momentum twice: where several backward passes make one step, put "
           "`with model.no_sync():` around all but the last, with their forward passes. "
           "Set the gradient to zero after every step, also of layers that no optimizer "
           "has (model.zero_grad())";
  }
  if (!findings.discarded) return {};
  return name +
         " got a gradient that was exchanged and then thrown away without a step of the "
         "optimizer, but feedback keeps part of it, and its momentum, for later steps. "
         "If the gradient is not wanted, " +
         std::string(instead) +
         "freeze the parameters meanwhile with requires_grad_(False). Do not skip "
         "steps of the optimizer under feedback, or compress without feedback";
}

}  // namespace gradwire::pytorch
