#include "plan/forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSameTime = 1e-12;  // seconds, that sums of the same differ by at most
constexpr std::uint16_t kPreparation = ~std::uint16_t{0};
constexpr auto kCodec = static_cast<std::size_t>(Resource::codec);

std::size_t index_of(Resource resource) { return static_cast<std::size_t>(resource); }

}  // namespace

/// Time goes on from a state.
class Forecast::Run {
 public:
  Run(const Forecast& forecast, State& state) : forecast_(forecast), state_(state) {}

  std::size_t changed = ~std::size_t{0};       // this tensor has
  const Chain* other = nullptr;                // another chain
  std::vector<double>* ends = nullptr;         // of exchanges
  std::vector<Interval>* intervals = nullptr;  // all there are

  /// Until a tensor becomes ready, at whose time it is then; or until all is done. False: the
  /// latter.
  bool to_next_ready() {
    while (true) {
      std::size_t server = kResources;
      double first = next_ready();
      for (std::size_t i = 0; i < kResources; ++i) {
        const Server& each = state_.servers[i];
        if (!each.idle() && each.done < first) {
          first = each.done;
          server = i;
        }
      }
      if (first == kNever) return false;
      state_.time = std::max(state_.time, first);
      if (server == kResources) return true;
      finish(server);
    }
  }

  void begin_computing() {
    if (state_.next >= forecast_.chains_.size()) return;
    const auto& tensors = forecast_.workload_.tensors;
    const double last = state_.next == 0 ? 0 : tensors[state_.next - 1].ready_seconds;
    state_.computing_left = tensors[state_.next].ready_seconds - last;
    state_.computing_since = state_.time;
  }

  /// The tensor that has become ready begins its exchange, and the next is computed.
  void begin_exchange() {
    const std::size_t tensor = state_.next;
    account_computing();
    ++state_.next;
    state_.computed = state_.time;
    begin_computing();
    ++state_.under_way;
    const Chain& chain = chain_of(tensor);
    if (chain.preparation > 0) {
      push(kCodec, {static_cast<std::uint32_t>(tensor), 0, kPreparation, chain.preparation});
    } else {
      begin_pieces(tensor);
    }
  }

 private:
  const Chain& chain_of(std::size_t tensor) const {
    return other != nullptr && tensor == changed ? *other : *forecast_.chains_[tensor];
  }
  /// Seconds of computing in a second.
  double computing_rate() const {
    if (forecast_.sharing_.one_device) return state_.servers[kCodec].idle() ? 1 : 0;
    return state_.under_way == 0 ? 1 : 1 / forecast_.sharing_.interference;
  }
  double next_ready() const {
    const double rate = computing_rate();
    if (rate == 0 || state_.next >= forecast_.chains_.size()) return kNever;
    return state_.computing_since + state_.computing_left / rate;
  }
  /// Before its rate changes.
  void account_computing() {
    if (state_.next >= forecast_.chains_.size()) return;
    const double rate = computing_rate();
    const double since = std::exchange(state_.computing_since, state_.time);
    if (rate == 0 || since == state_.time) return;
    state_.computing_left = std::max(0.0, state_.computing_left - rate * (state_.time - since));
    if (intervals == nullptr) return;
    intervals->push_back(
        {Interval::Kind::computing, state_.next, 0, Resource::codec, 0, since, state_.time});
  }
  void push(std::size_t server, Waiting job) {
    Server& to = state_.servers[server];
    if (!to.idle()) return to.queue.push_back(job);
    if (server == kCodec) account_computing();
    to.queue.assign(1, job);
    to.first = 0;
    serve(to);
  }
  void serve(Server& server) { server.done = state_.time + server.queue[server.first].seconds; }

  /// The server's task is done.
  void finish(std::size_t index) {
    Server& server = state_.servers[index];
    const Waiting job = server.queue[server.first];
    if (intervals != nullptr) record(index, job);
    state_.left[index] -= job.seconds;
    if (index == kCodec) account_computing();
    ++server.first;
    if (!server.idle()) serve(server);
    if (job.task == kPreparation) return begin_pieces(job.tensor);
    if (--state_.beside[job.tensor][job.piece] > 0) return;
    const std::vector<Task>& tasks = chain_of(job.tensor).tasks;
    std::size_t next = job.task + std::size_t{1};
    while (next < tasks.size() && tasks[next].beside) ++next;
    begin(job.tensor, job.piece, next);
  }

  void record(std::size_t index, const Waiting& job) const {
    const bool task = job.task != kPreparation;
    intervals->push_back({task ? Interval::Kind::task : Interval::Kind::preparing, job.tensor,
                          job.piece, static_cast<Resource>(index), task ? job.task : std::size_t{0},
                          state_.time - job.seconds, state_.time});
  }

  void begin_pieces(std::size_t tensor) {
    const Chain& chain = chain_of(tensor);
    state_.pieces_left[tensor] = static_cast<std::uint8_t>(chain.pieces);
    for (std::uint32_t piece = 0; piece < chain.pieces; ++piece) begin(tensor, piece, 0);
  }

  /// A task and those beside it.
  void begin(std::size_t tensor, std::uint32_t piece, std::size_t task) {
    const std::vector<Task>& tasks = chain_of(tensor).tasks;
    if (task >= tasks.size()) return finish_piece(tensor);
    do {
      ++state_.beside[tensor][piece];
      push(index_of(tasks[task].resource),
           {static_cast<std::uint32_t>(tensor), static_cast<std::uint16_t>(piece),
            static_cast<std::uint16_t>(task), tasks[task].seconds});
      ++task;
    } while (task < tasks.size() && tasks[task].beside);
  }

  void finish_piece(std::size_t tensor) {
    if (--state_.pieces_left[tensor] > 0) return;
    account_computing();
    --state_.under_way;
    state_.end = std::max(state_.end, state_.time);
    if (ends != nullptr) (*ends)[tensor] = state_.time;
  }

  const Forecast& forecast_;
  State& state_;
};

Forecast::Forecast(const Workload& workload, const Sharing& sharing)
    : workload_(workload),
      sharing_(sharing),
      states_(workload.tensors.size() / kMarks + 1),
      marks_(workload.tensors.size()),
      ends_(workload.tensors.size()),
      ends_from_(workload.tensors.size() + 1) {}

double Forecast::end_of_step(double computed, double exchanged) const noexcept {
  const double last = workload_.tensors.empty() ? 0 : workload_.tensors.back().ready_seconds;
  const double rest = workload_.backward_seconds - last;
  return workload_.forward_seconds + std::max(computed + rest, exchanged);
}

Forecast::Mark Forecast::mark_of(const State& state) {
  Mark mark{state.time, state.under_way == 0, state.left};
  for (std::size_t i = 0; i < kResources; ++i) {
    const Server& server = state.servers[i];
    if (server.idle()) continue;
    const double rest = server.done - state.time;
    mark.left[i] -= server.queue[server.first].seconds - rest;
  }
  return mark;
}

void Forecast::simulate_from(std::size_t tensor) {
  State state = states_[tensor / kMarks];
  Run run(*this, state);
  run.ends = &ends_;
  do {
    const std::size_t i = state.next;
    if (i % kMarks == 0) states_[i / kMarks] = state;
    marks_[i] = mark_of(state);
    run.begin_exchange();
  } while (run.to_next_ready());
  bubble_ = 0;
  for (std::size_t i = chains_.size(); i-- > 0;) {
    ends_from_[i] = std::max(ends_[i], ends_from_[i + 1]);
    if (marks_[i].idle) bubble_ = std::max(bubble_, i);
  }
  computed_ = state.computed;
  step_seconds_ = end_of_step(state.computed, state.end);
}

/// The first tensor has become ready.
Forecast::State Forecast::first_state() const {
  State state;
  state.beside.resize(chains_.size());
  state.pieces_left.resize(chains_.size());
  for (const Chain* chain : chains_) {
    const auto busy = busy_seconds(*chain);
    for (std::size_t i = 0; i < kResources; ++i) state.left[i] += busy[i];
  }
  Run run(*this, state);
  run.begin_computing();
  run.to_next_ready();
  return state;
}

void Forecast::set(std::span<const Chain* const> chains) {
  chains_.assign(chains.begin(), chains.end());
  if (chains_.empty()) {
    step_seconds_ = end_of_step(0, 0);
    return;
  }
  states_[0] = first_state();
  simulate_from(0);
}

void Forecast::set(std::size_t tensor, const Chain& chain) {
  const auto before = busy_seconds(*chains_[tensor]);
  const auto after = busy_seconds(chain);
  chains_[tensor] = &chain;
  for (std::size_t i = 0; i < kResources; ++i) {
    const double more = after[i] - before[i];
    for (std::size_t at = 0; at <= tensor / kMarks; ++at) states_[at].left[i] += more;
    for (std::size_t at = 0; at < tensor; ++at) marks_[at].left[i] += more;
  }
  simulate_from(tensor);
}

double Forecast::with(std::size_t tensor, const Chain& chain, double limit) const {
  const Mark& mark = marks_[tensor];
  const auto before = busy_seconds(*chains_[tensor]);
  const auto after = busy_seconds(chain);
  for (std::size_t i = 0; i < kResources; ++i) {
    const double least = end_of_step(0, mark.time + mark.left[i] - before[i] + after[i]);
    if (least >= limit) return least;
  }
  State state = states_[tensor / kMarks];
  Run run(*this, state);
  run.changed = tensor;
  run.other = &chain;
  do {
    const std::size_t i = state.next;
    if (i > tensor && state.under_way == 0 && marks_[i].idle &&
        std::abs(marks_[i].time - state.time) < kSameTime) {
      return end_of_step(computed_, std::max(state.end, ends_from_[i]));
    }
    run.begin_exchange();
  } while (run.to_next_ready());
  return end_of_step(state.computed, state.end);
}

std::vector<Interval> Forecast::timeline() const {
  std::vector<Interval> intervals;
  if (chains_.empty()) return intervals;
  State state = first_state();
  Run run(*this, state);
  run.intervals = &intervals;
  do {
    run.begin_exchange();
  } while (run.to_next_ready());
  return intervals;
}

}  // namespace gradwire
