#include "auto_plan.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <thread>
#include <utility>

#include "base/sampling.h"
#include "calibrate/codec_costs.h"
#include "plan/calibration.h"
#include "plan/resources.h"

namespace gradwire::pytorch {
namespace {

constexpr unsigned kStepsUntilBucketsStay = 2;  // DDP fills them anew after its first step
constexpr unsigned kStepsBeside = 4;
constexpr unsigned kStepsAlone = 4;
constexpr std::size_t kExample = std::size_t{1} << 20U;  // numbers
constexpr std::size_t kCodecSizes[] = {1U << 10U, 1U << 14U, 1U << 17U, kExample};
constexpr unsigned kLatencies = 5;  // messages of which the median counts
constexpr std::size_t kWatchedSteps = 12;
// As a share of the steps that were expected: another duration, and one that is so far off that it
// weighs as much as several.
constexpr double kDrift = 0.3;
constexpr double kLargeDrift = 1;
constexpr unsigned kLargeDriftWeight = 3;
constexpr std::size_t kShownEvents = 3;
constexpr unsigned kPatience = 6;  // drifts at first, twice as many each time

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

bool exchanges(const AutoPlanOptions& options) {
  const auto has_peers = [](const auto& channel) { return channel->size() > 1; };
  return std::ranges::any_of(options.channels, has_peers) &&
         proposals(options.layers, options.fixed).size() > 1;
}

}  // namespace

void AutoPlan::Arrivals::begin_step(std::chrono::steady_clock::time_point begin) {
  const std::lock_guard lock(mutex_);
  begin_ = begin;
  computed_seconds_ = exchanged_seconds_ = processor_seconds_ = 0;
}

double AutoPlan::Arrivals::since_begin() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
}

void AutoPlan::Arrivals::computed() {
  const std::lock_guard lock(mutex_);
  computed_seconds_ = since_begin();
  processor_at_end_of_computing_ = processor_seconds();
}

void AutoPlan::Arrivals::came() {
  const std::lock_guard lock(mutex_);
  exchanged_seconds_ = since_begin();
  processor_seconds_ = processor_seconds() - processor_at_end_of_computing_;
}

void AutoPlan::Arrivals::tell(StepTimes& times) const {
  const std::lock_guard lock(mutex_);
  times.computed_seconds = computed_seconds_;
  times.exchanged_seconds = exchanged_seconds_;
  times.processor_seconds = processor_seconds_;
}

// ---------------------------------------------------------------------------------------------

AutoPlan::AutoPlan(AutoPlanOptions options)
    : options_(std::move(options)),
      exchanges_(exchanges(options_)),
      exact_(proposals(options_.layers, options_.fixed).front().plan),
      plan_(exact_),
      chosen_(exact_),
      patience_(kPatience) {
  for (std::size_t i = 0; i < options_.layers.size(); ++i) places_[options_.layers[i].name] = i;
  if (!exchanges_) {
    outcome_ = "all layers exactly: there is nothing to choose";
    return;
  }
  adapting_ = std::make_unique<Adapting>(open_layers(), options_.channels);
  begin_again();
  plan_ = *next_;
}

void AutoPlan::begin_again() {
  steps_seen_ = 0;
  trial_.reset();
  begin_.reset();
  if (options_.tries) {
    next_ = exact_;
    outcome_.clear();
    seen_ = Seen::nothing;
  } else {
    next_ = plan_for(options_.layers, options_.fixed);
    outcome_ = options_.fixed.way.short_text() + ", as fine as each layer needs it";
    seen_ = Seen::adapted;
  }
}

std::vector<adapt::AdaptedLayer> AutoPlan::open_layers() const {
  std::vector<adapt::AdaptedLayer> open;
  for (const Layer& layer : options_.layers) {
    if (is_open(layer.name)) open.push_back({layer.name, layer.elements});
  }
  return open;
}

bool AutoPlan::is_open(std::string_view layer) const {
  return exact_.stages_of(layer).front().reason == kOnTrial;
}

bool AutoPlan::begin_step(std::uint64_t step) {
  if (!exchanges_) return false;
  if (begin_) end_last_step(Clock::now());
  if (trial_ && !trial_->is_over()) next_ = proposals_[trial_->plan()].plan;
  const bool changes = take_next(step);
  left_out_ = adapts_ && adapting_->is_careful();  // it takes longer than its plan does
  tell();
  ready_seconds_.assign(options_.layers.size(), -1);
  begin_ = Clock::now();
  arrivals_->begin_step(*begin_);
  return changes;
}

bool AutoPlan::take_next(std::uint64_t step) {
  const bool adapts = adapts_ && adapting_->begin_step();
  if (!next_ && !adapts) return false;
  if (next_) {
    chosen_ = *std::exchange(next_, std::nullopt);
    if (!adapts_) adapting_->forget_steps();
    adapts_ = is_lossy(chosen_);
  }
  change(plan_, step, adapting_->adapted(chosen_));
  return true;
}

/// In a layer that is open.
bool AutoPlan::is_lossy(const Plan& plan) const {
  return std::ranges::any_of(plan.layers, [&](const LayerPlan& entry) {
    return is_open(entry.layers) && !entry.stages.front().way.codec.traits().lossless;
  });
}

void AutoPlan::tell() {
  if (const auto events = adapting_->take_events(); !events.empty() && options_.on_choice) {
    const std::size_t shown = std::min(events.size(), kShownEvents);
    std::string text = fmt::format("{}", fmt::join(std::span(events).first(shown), "; "));
    if (shown < events.size()) text += fmt::format("; and {} more", events.size() - shown);
    options_.on_choice(text);
  }
  if (!news_.empty() && options_.on_choice) options_.on_choice(std::exchange(news_, {}));
}

void AutoPlan::end_last_step(Clock::time_point now) {
  if (left_out_) return;
  StepTimes times{.ready_seconds = ready_seconds_,
                  .step_seconds = std::chrono::duration<double>(now - *begin_).count()};
  arrivals_->tell(times);
  switch (seen_) {
    case Seen::adapted:
      break;
    case Seen::nothing:
      if (++steps_seen_ == kStepsUntilBucketsStay) observe_again();
      break;
    case Seen::beside:
      beside_.push_back(std::move(times));
      if (beside_.size() < kStepsBeside) break;
      if (options_.can_wait) {
        seen_ = Seen::alone;
      } else {
        propose();
      }
      break;
    case Seen::alone:
      alone_.push_back(std::move(times));
      if (alone_.size() == kStepsAlone) propose();
      break;
    case Seen::trial:
      trial_->add(times.step_seconds);
      if (trial_->round_is_over()) choose();
      break;
    case Seen::choice:
      watched_.push_back(times.step_seconds);
      if (watched_.size() == kWatchedSteps) watch();
      break;
  }
}

void AutoPlan::observe_again() {
  beside_.clear();
  alone_.clear();
  outcome_.clear();
  trial_.reset();
  next_ = exact_;
  seen_ = Seen::beside;
}

void AutoPlan::ready(std::string_view layer) {
  if (seen_ != Seen::beside && seen_ != Seen::alone) return;
  arrivals_->computed();
  const auto found = places_.find(layer);
  if (found == places_.end()) return;
  ready_seconds_[found->second] = std::chrono::duration<double>(Clock::now() - *begin_).count();
}

void AutoPlan::see(const at::Tensor& gradients) {
  const auto count = static_cast<std::size_t>(gradients.numel());
  if (seen_ != Seen::alone || example_.size() >= std::min(count, kExample)) return;
  const at::Tensor some =
      gradients.narrow(0, 0, static_cast<std::int64_t>(std::min(count, kExample)))
          .to(at::kCPU, at::kFloat);
  example_.assign(some.data_ptr<float>(), some.data_ptr<float>() + some.numel());
}

double AutoPlan::latency_seconds() const {
  std::vector<double> seconds;
  float number = 0;
  const Tensor tensor{.name = "latency", .view = {&number, 1, Dtype::f32}};
  Communicator& all = *options_.channels.front()->communicator();
  for (unsigned i = 0; i < kLatencies; ++i) {
    all.barrier().wait();
    seconds.push_back(seconds_per_call(1, [&] { all.all_reduce({&tensor, 1}).wait(); }));
  }
  return median_of(seconds) / 2;  // to the owner of the sum, and back
}

/// As text for others; empty if it cannot be measured here.
std::string AutoPlan::observed(double latency) const try {
  Observation seen = observe(options_.layers, alone_, beside_);
  const Channel& channel = *options_.channels.front();
  const std::uint32_t per_host = channel.communicator()->ranks_per_host();
  const double cores = std::thread::hardware_concurrency() /
                       static_cast<double>(std::max<std::uint32_t>(1, per_host));
  const MachineIdentity machine = this_machine();
  Costs& costs = seen.costs;
  costs = {.source = "measured in this job",
           .host = machine.host,
           .isa = machine.isa,
           .version = machine.version,
           .inside = {},
           .between = {},
           .threads = std::max(1U, codec_threads(static_cast<std::uint32_t>(cores), 0)),
           .cores = std::max(cores, 1e-3),
           .codecs = {}};
  std::vector<Codec> codecs = usual_codecs();
  codecs.push_back(Way{}.codec);
  for (const auto& [pattern, way] : options_.fixed.others) {
    for (const Codec& codec : {way.codec, way.codec.for_sums()}) {
      if (std::ranges::find(codecs, codec) == codecs.end()) codecs.push_back(codec);
    }
  }
  std::vector<float> room(example_.size());
  CodecEffort effort{.sizes = {}, .rounds = 1};
  for (const std::size_t size : kCodecSizes) {
    if (size <= example_.size()) effort.sizes.push_back(size);
  }
  if (effort.sizes.empty()) effort.sizes.push_back(example_.size());
  costs.codecs = measure_codecs(codecs, {example_, room}, effort);
  seen.latency_seconds = latency;
  return text_of(seen);
} catch (const Error&) {
  return {};
}

/// By the first rank, for all.
std::vector<Proposal> AutoPlan::proposed() const {
  const Channel& channel = *options_.channels.front();
  const std::uint32_t per_host = channel.communicator()->ranks_per_host();
  // Hosts that differ in their ranks are not in any forecast.
  if (alone_.empty() || example_.empty() || per_host == 0) {
    return proposals(options_.layers, options_.fixed);
  }
  const auto gather = [&](const std::string& text) {
    return channel.all_gather_text(text, std::chrono::milliseconds(0));
  };
  const double latency = latency_seconds();
  const std::vector<std::string> texts = gather(observed(latency));
  std::string mine;
  if (channel.rank() == 0) {
    std::vector<Proposal> found = proposals(options_.layers, options_.fixed);
    try {
      std::vector<Observation> ranks;
      for (const std::string& text : texts) ranks.push_back(parse_observation(text));
      const Cluster cluster{static_cast<std::uint32_t>(ranks.size()) / per_host, per_host};
      found = proposals(options_.layers, options_.fixed, joined(ranks), cluster);
    } catch (const Error&) {
      // What some rank has seen is of no use: the usual codecs are tried.
    }
    mine = text_of(found);
  }
  return parse_proposals(gather(mine).front());
}

void AutoPlan::propose() {
  proposals_ = proposed();
  example_ = {};
  beside_.clear();
  alone_.clear();
  seen_ = Seen::trial;
  trial_.emplace(proposals_.size());
  if (trial_->is_over()) choose();
}

void AutoPlan::agree(std::vector<float>& numbers) const {
  const Tensor tensor{.name = "durations", .view = {numbers.data(), numbers.size(), Dtype::f32}};
  OperationOptions options;
  options.average = true;
  for (const auto& channel : options_.channels) {
    channel->communicator()->all_reduce({&tensor, 1}, options).wait();
  }
}

void AutoPlan::choose() {
  if (!trial_->is_over()) {
    const std::vector<double> mine = trial_->usual_seconds();
    std::vector<float> seconds(mine.begin(), mine.end());
    agree(seconds);
    trial_->judge(std::vector<double>(seconds.begin(), seconds.end()));
    if (!trial_->is_over()) return;
  }
  const std::size_t best = trial_->best();
  expected_seconds_ = trial_->step_seconds(best);
  outcome_ = outcome_of(proposals_, *trial_);
  next_ = proposals_[best].plan;
  explain(*next_, outcome_);
  seen_ = Seen::choice;
  watched_.clear();
  drifts_ = 0;
  news_ = outcome_;
}

void AutoPlan::watch() {
  std::vector<float> seconds{static_cast<float>(middle_mean(watched_))};
  watched_.clear();
  agree(seconds);
  const double now = seconds.front();
  if (expected_seconds_ == 0) expected_seconds_ = now;
  const double longer = std::max(now / expected_seconds_, expected_seconds_ / now) - 1;
  if (longer < kDrift) {
    drifts_ = 0;
  } else {
    drifts_ += longer < kLargeDrift ? 1 : kLargeDriftWeight;
  }
  if (drifts_ < patience_) return;
  news_ = drift_of(expected_seconds_, now);
  patience_ *= 2;
  observe_again();
}

void AutoPlan::go_to(std::uint64_t step) {
  for (LayerPlan& entry : plan_.layers) {
    const auto is_later = [&](const Stage& stage) {
      return stage.from_step >= step && stage.from_step > 0;
    };
    std::erase_if(entry.stages, is_later);
  }
  if (!exchanges_) return;
  adapting_->begin_again();
  adapts_ = false;
  begin_again();
}

std::string AutoPlan::saved() const {
  return seen_ == Seen::choice || seen_ == Seen::adapted ? plan_.json() : "";
}

AutoPlan::SavedAdapting AutoPlan::saved_adapting() const {
  if (saved().empty() || !exchanges_) return {};
  return {(next_ ? *next_ : chosen_).json(), adapting_->saved(), options_.tries};
}

std::string AutoPlan::compared() const {
  return saved().empty() || !exchanges_ ? saved()
                                        : fmt::format("{} {:x}", saved(), adapting_->hash());
}

void AutoPlan::load(const std::string& saved, const SavedAdapting& adapting) {
  if (saved.empty() || adapting.tried != options_.tries) return;
  Plan loaded = Plan::parse(saved);
  std::optional<Plan> chosen_then;
  if (!adapting.chosen.empty()) chosen_then = Plan::parse(adapting.chosen);
  const auto is_known = [&](const Layer& layer) {
    return std::ranges::find(loaded.layers, layer.name, &LayerPlan::layers) != loaded.layers.end();
  };
  if (!std::ranges::all_of(options_.layers, is_known)) return;
  try {
    options_.channels.front()->communicator()->check_routes(loaded);
  } catch (const Error&) {
    return;  // these ranks stand on other hosts: they choose anew
  }
  plan_ = std::move(loaded);
  Plan chosen;
  for (const LayerPlan& entry : plan_.layers) {
    chosen.layers.push_back({entry.layers, {entry.stages.back()}});
    chosen.layers.back().stages.front().from_step = 0;
  }
  if (chosen_then) chosen = std::move(*chosen_then);
  next_ = options_.tries ? plan_for(options_.layers, options_.fixed, chosen)  // others may be fixed
                         : plan_for(options_.layers, options_.fixed);
  if (exchanges_ && !adapting.seen.empty()) {
    adapting_->load(adapting.seen);
    adapts_ = is_lossy(*next_);
  }
  trial_.reset();
  if (!options_.tries) return;
  outcome_ = "as before the checkpoint";
  seen_ = Seen::choice;
  expected_seconds_ = 0;
  watched_.clear();
  begin_.reset();
}

}  // namespace gradwire::pytorch
