#include "plan/forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradwire {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kSameTime = 1e-12;  // seconds, that sums of the same differ by at most
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
      std::size_t which = kReady;
      double first = state_.next_at[kReady];
      for (std::size_t i = 0; i < kResources; ++i) {
        const bool earlier = state_.next_at[i] < first;
        first = earlier ? state_.next_at[i] : first;
        which = earlier ? i : which;
      }
      if (first == kNever) return false;
      state_.time = std::max(state_.time, first);
      if (which == kReady) return true;
      finish(which);
    }
  }

  void begin_computing() {
    const auto& tensors = forecast_.workload_.tensors;
    if (state_.next < tensors.size()) {
      const double last = state_.next == 0 ? 0 : tensors[state_.next - 1].ready_seconds;
      state_.computing_left = tensors[state_.next].ready_seconds - last;
      state_.computing_since = state_.time;
    }
    expect_ready();
  }

  /// The tensor that has become ready begins its exchange, and the next is computed.
  void begin_exchange() {
    const std::size_t tensor = state_.next;
    account_computing();
    ++state_.next;
    state_.computed = state_.time;
    begin_computing();
    ++state_.under_way;
    const Chain& chain =
        other != nullptr && tensor == changed ? *other : *forecast_.chains_[tensor];
    if (chain.preparation > 0) {
      push(kCodec, {nullptr, nullptr, chain.preparation, static_cast<std::uint32_t>(tensor), 0});
    } else {
      begin_pieces(tensor, chain);
    }
    expect_ready();
  }

 private:
  /// Seconds of computing in a second.
  double computing_rate() const {
    if (forecast_.sharing_.one_device) return state_.servers[kCodec].idle() ? 1 : 0;
    return state_.under_way == 0 ? 1 : 1 / forecast_.sharing_.interference;
  }
  /// After its rate has changed.
  void expect_ready() {
    const double rate = computing_rate();
    const bool computes = rate > 0 && state_.next < forecast_.chains_.size();
    state_.next_at[kReady] =
        computes ? state_.computing_since + state_.computing_left / rate : kNever;
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
  void push(std::size_t server, const Waiting& job) {
    Server& to = state_.servers[server];
    if (!to.idle()) return to.queue.push_back(job);
    if (server == kCodec) account_computing();
    to.queue.clear();
    to.queue.push_back(job);
    to.first = 0;
    state_.next_at[server] = state_.time + job.seconds;
    if (server == kCodec) expect_ready();
  }

  /// The server's task is done.
  void finish(std::size_t index) {
    ++forecast_.tasks_walked_;
    Server& server = state_.servers[index];
    const Waiting job = server.queue[server.first];
    if (intervals != nullptr) record(index, job);
    state_.left[index] -= job.seconds;
    if (index == kCodec) account_computing();
    ++server.first;
    state_.next_at[index] =
        server.idle() ? kNever : state_.time + server.queue[server.first].seconds;
    if (index == kCodec) expect_ready();
    if (job.task == nullptr) {
      const bool is_other = other != nullptr && job.tensor == changed;
      return begin_pieces(job.tensor, is_other ? *other : *forecast_.chains_[job.tensor]);
    }
    if (--state_.beside[job.tensor][job.piece] > 0) return;
    const Task* next = job.task + 1;
    while (next != job.end && next->beside) ++next;
    begin(job.tensor, job.piece, next, job.end);
  }

  void record(std::size_t index, const Waiting& job) const {
    const bool task = job.task != nullptr;
    const Task* first = forecast_.chains_[job.tensor]->tasks.data();
    intervals->push_back({task ? Interval::Kind::task : Interval::Kind::preparing, job.tensor,
                          job.piece, static_cast<Resource>(index),
                          task ? static_cast<std::size_t>(job.task - first) : std::size_t{0},
                          state_.time - job.seconds, state_.time});
  }

  void begin_pieces(std::size_t tensor, const Chain& chain) {
    state_.pieces_left[tensor] = static_cast<std::uint8_t>(chain.pieces);
    const Task* first = chain.tasks.data();
    for (std::uint32_t piece = 0; piece < chain.pieces; ++piece) {
      begin(static_cast<std::uint32_t>(tensor), piece, first, first + chain.tasks.size());
    }
  }

  /// A task and those beside it.
  void begin(std::uint32_t tensor, std::uint32_t piece, const Task* task, const Task* end) {
    if (task == end) return finish_piece(tensor);
    do {
      ++state_.beside[tensor][piece];
      push(index_of(task->resource), {task, end, task->seconds, tensor, piece});
      ++task;
    } while (task != end && task->beside);
  }

  void finish_piece(std::size_t tensor) {
    if (--state_.pieces_left[tensor] > 0) return;
    account_computing();
    --state_.under_way;
    expect_ready();
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

double Forecast::computing_after(std::size_t tensor) const noexcept {
  const auto& tensors = workload_.tensors;
  return sharing_.one_device ? tensors.back().ready_seconds - tensors[tensor].ready_seconds : 0;
}

/// A tensor has become ready; every resource still has to do its work.
double Forecast::least_step(const State& state) const noexcept {
  double least = 0;
  for (std::size_t i = 0; i < kResources; ++i) {
    const Server& server = state.servers[i];
    const double since =
        server.idle() ? state.time : state.next_at[i] - server.queue[server.first].seconds;
    const double computing = i == kCodec ? computing_after(state.next) : 0;
    least = std::max(least, since + state.left[i] + computing);
  }
  return end_of_step(0, least);
}

Forecast::Mark Forecast::mark_of(const State& state) {
  Mark mark{state.time, state.under_way == 0, state.left};
  for (std::size_t i = 0; i < kResources; ++i) {
    const Server& server = state.servers[i];
    if (server.idle()) continue;
    const double rest = state.next_at[i] - state.time;
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
    if (i % kMarks == 0) {
      for (Server& server : state.servers) server.forget_done();
      states_[i / kMarks] = state;
    }
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
  state.next_at.fill(kNever);
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
    const double computing = i == kCodec ? computing_after(tensor) : 0;
    const double least =
        end_of_step(0, mark.time + mark.left[i] - before[i] + after[i] + computing);
    if (least >= limit) return least;
  }
  State& state = trial_;
  state = states_[tensor / kMarks];
  for (std::size_t i = 0; i < kResources; ++i) state.left[i] += after[i] - before[i];
  Run run(*this, state);
  run.changed = tensor;
  run.other = &chain;
  do {
    const std::size_t i = state.next;
    if (i > tensor && state.under_way == 0 && marks_[i].idle &&
        std::abs(marks_[i].time - state.time) < kSameTime) {
      return end_of_step(computed_, std::max(state.end, ends_from_[i]));
    }
    if (i > tensor && least_step(state) >= limit) return least_step(state);
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
