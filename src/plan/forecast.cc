#include "plan/forecast.h"

#include <algorithm>

namespace gradwire {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t index_of(Resource resource) { return static_cast<std::size_t>(resource); }

}  // namespace

/// Time goes on from a state.
class Forecast::Run {
 public:
  Run(const Forecast& forecast, State& state) : forecast_(forecast), state_(state) {}

  std::size_t changed = ~std::size_t{0};  // this tensor has
  const Chain* other = nullptr;           // another chain
  std::vector<double>* ends = nullptr;    // of exchanges

  /// Until a tensor becomes ready, at whose time it is then; or until all is done. False: the
  /// latter.
  bool to_next_ready() {
    while (true) {
      const double ready = next_ready();
      std::size_t server = kResources;
      double first = ready;
      for (std::size_t i = 0; i < kResources; ++i) {
        const Server& each = state_.servers[i];
        if (!each.idle() && each.done < first) {
          first = each.done;
          server = i;
        }
      }
      if (first == kNever) return false;
      state_.time = first;
      if (server == kResources) return true;
      if (finish(server)) return true;
    }
  }

  void begin_computing() {
    if (!forecast_.shares_compute_ || state_.next >= forecast_.chains_.size()) return;
    const auto& tensors = forecast_.workload_.tensors;
    const double last = state_.next == 0 ? 0 : tensors[state_.next - 1].ready_seconds;
    push(index_of(Resource::codec), {kComputing, 0, tensors[state_.next].ready_seconds - last});
  }

  /// The tensor that has become ready begins its exchange, and the next is computed.
  void begin_exchange() {
    const std::size_t tensor = state_.next++;
    state_.computed = state_.time;
    ++state_.under_way;
    begin(tensor, 0);
    begin_computing();
  }

 private:
  const Chain& chain_of(std::size_t tensor) const {
    return other != nullptr && tensor == changed ? *other : *forecast_.chains_[tensor];
  }
  /// When the next tensor is ready, unless computing is a task.
  double next_ready() const {
    if (forecast_.shares_compute_ || state_.next >= forecast_.chains_.size()) return kNever;
    return forecast_.workload_.tensors[state_.next].ready_seconds;
  }
  void push(std::size_t server, Waiting job) {
    Server& to = state_.servers[server];
    const bool idle = to.idle();
    if (idle) {
      to.queue.clear();
      to.first = 0;
    }
    to.queue.push_back(job);
    if (idle) serve(to);
  }
  void serve(Server& server) { server.done = state_.time + server.queue[server.first].seconds; }

  /// The server's task is done. True when that was the computing of a gradient.
  bool finish(std::size_t index) {
    Server& server = state_.servers[index];
    const Waiting job = server.queue[server.first++];
    const bool computing = job.tensor == kComputing;
    if (!computing) state_.left[index] -= job.seconds;
    if (!server.idle()) serve(server);
    if (computing) return true;
    if (--state_.beside[job.tensor] > 0) return false;
    const Chain& chain = chain_of(job.tensor);
    std::size_t next = job.task + 1;
    while (next < chain.size() && chain[next].beside) ++next;
    begin(job.tensor, next);
    return false;
  }

  /// A task and those beside it.
  void begin(std::size_t tensor, std::size_t task) {
    const Chain& chain = chain_of(tensor);
    if (task >= chain.size()) {
      --state_.under_way;
      state_.end = std::max(state_.end, state_.time);
      if (ends != nullptr) (*ends)[tensor] = state_.time;
      return;
    }
    do {
      ++state_.beside[tensor];
      push(index_of(chain[task].resource), {static_cast<std::uint32_t>(tensor),
                                            static_cast<std::uint32_t>(task), chain[task].seconds});
      ++task;
    } while (task < chain.size() && chain[task].beside);
  }

  const Forecast& forecast_;
  State& state_;
};

Forecast::Forecast(const Workload& workload, bool shares_compute)
    : workload_(workload),
      shares_compute_(shares_compute),
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
    if (server.idle() || server.queue[server.first].tensor == kComputing) continue;
    // Of the task that is under way only the rest.
    const Waiting& job = server.queue[server.first];
    mark.left[i] -= job.seconds - (server.done - state.time);
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

void Forecast::set(std::span<const Chain* const> chains) {
  chains_.assign(chains.begin(), chains.end());
  State begin;
  begin.beside.resize(chains.size());
  for (const Chain* chain : chains) {
    const auto busy = busy_seconds(*chain);
    for (std::size_t i = 0; i < kResources; ++i) begin.left[i] += busy[i];
  }
  if (chains_.empty()) {
    step_seconds_ = end_of_step(0, 0);
    return;
  }
  Run run(*this, begin);
  run.begin_computing();
  run.to_next_ready();
  states_[0] = begin;
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
    if (i > tensor && state.under_way == 0 && marks_[i].idle && marks_[i].time == state.time) {
      return end_of_step(computed_, std::max(state.end, ends_from_[i]));
    }
    run.begin_exchange();
  } while (run.to_next_ready());
  return end_of_step(state.computed, state.end);
}

}  // namespace gradwire
