// Runs the schedules of all ranks together, in memory, with whatever stands for numbers.
//
// An `Algebra` says what the numbers of one chunk are and what happens to them:
//
//   using Value = …;                                    copyable, default-constructible
//   Value input(Rank rank, std::uint32_t chunk);        what the caller hands over
//   Value take(const Value& value);                     what is exchanged of it
//   Value encode(const Value& value, const Step& step); what a message of it decodes to
//   Value add(const Value& sum, const Value& value);
//   Value finish(const Value& sum);
//
// Sends never block, receives wait for the peer's oldest message: schedules that come to an end
// here do so on every transport that takes what a lane sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collective/schedule.h"

namespace gradwire {

template <class Algebra>
class Interpreter {
 public:
  using Value = typename Algebra::Value;

  Interpreter(std::span<const Schedule> schedules, Algebra algebra)
      : schedules_(schedules), algebra_(std::move(algebra)), count_(schedules.size()) {
    chunks_ = schedules[0].chunks;
    ranks_.resize(count_);
    queues_.resize(count_ * count_);
    cells_.resize(count_ * chunks_);
    roundings_kept_.resize(chunks_);
    for (Rank rank = 0; rank < count_; ++rank) {
      ranks_[rank].slots.assign(schedules[rank].slots, kNone);
      for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) {
        Cell& cell = cells_[rank * chunks_ + chunk];
        cell.input = cell.output = algebra_.input(rank, chunk);
      }
      for (const Step& step : schedules[rank].preparation) prepare(rank, step);
    }
  }

  /// Runs until nobody can go on. `next(n)` chooses among n ranks that can, and how many steps the
  /// chosen one makes. Returns what went wrong, or nothing.
  template <class Next>
  std::optional<std::string> run(Next next) {
    std::vector<Rank> able(count_);
    for (Rank rank = 0; rank < count_; ++rank) able[rank] = rank;
    while (!able.empty()) {
      const auto [index, steps] = next(able.size());
      const Rank rank = able[index];
      std::swap(able[index], able.back());
      able.pop_back();
      woken_.clear();
      if (advance(rank, steps)) able.push_back(rank);
      able.insert(able.end(), woken_.begin(), woken_.end());
      if (!problem_.empty()) return problem_;
    }
    return unfinished();
  }

  const Value& output(Rank rank, std::uint32_t chunk) const {
    return cells_[rank * chunks_ + chunk].output;
  }
  std::uint32_t chunks() const { return chunks_; }

  /// What messages, and with `sums` rounding, take and nobody keeps, or somebody twice; or nothing.
  std::optional<std::string> lost(bool sums) const {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> replicas_kept;
    for (const Message& message : messages_) {
      if (message.replicated) replicas_kept[{message.first, message.count}] += message.kept;
      if (message.kept == 1 || message.replicated) continue;
      return "what a message of rank " + std::to_string(message.maker) + " lacks of chunk " +
             std::to_string(message.first) + " is kept " + std::to_string(message.kept) + " times";
    }
    for (const auto& [chunks, kept] : replicas_kept) {
      if (kept == 1) continue;
      return "what replicated messages lack of chunk " + std::to_string(chunks.first) +
             " is kept " + std::to_string(kept) + " times";
    }
    for (std::uint32_t chunk = 0; sums && chunk < chunks_; ++chunk) {
      if (roundings_kept_[chunk] == 1) continue;
      return "what rounding takes of chunk " + std::to_string(chunk) + " is kept " +
             std::to_string(roundings_kept_[chunk]) + " times";
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  /// One chunk of one rank.
  struct Cell {
    Value input, sum, output;
    bool has_input = true;  // until the output is written, which may be the same memory
    bool has_sum = false;
    bool finished = false;     // the sum
    std::uint32_t writes = 0;  // to the sum
  };
  struct Message {
    std::uint32_t first, count;
    std::size_t values;    // in values_
    Rank maker;            // who encoded it
    Place place;           // of what
    std::uint32_t writes;  // to the first chunk's sum, until then
    bool replicated;
    Sum sum;
    std::uint32_t kept = 0;
  };
  struct Queued {
    std::uint32_t message, next;
  };
  struct Queue {  // from one rank to another
    std::uint32_t head = kNone, tail = kNone;
  };
  struct State {
    std::size_t at = 0;
    std::vector<std::uint32_t> slots;  // messages
    std::uint64_t unused = 0;          // bit s: the message of slot s was neither sent nor decoded
    Rank waits_for = kNone;
  };

  /// Makes up to `steps` steps; true when the rank could make more.
  bool advance(Rank rank, std::size_t steps) {
    State& state = ranks_[rank];
    const auto& program = schedules_[rank].steps;
    for (; steps > 0 && state.at < program.size(); --steps) {
      if (!execute(rank, state, program[state.at])) return false;
      ++state.at;
    }
    return state.at < program.size();
  }

  bool execute(Rank rank, State& state, const Step& step) {
    switch (step.op) {
      case Op::send:
        return send(rank, state, step);
      case Op::receive:
        return receive(rank, state, step);
      case Op::encode:
        return encode(rank, state, step);
      case Op::keep:
        return keep(rank, state, step);
      case Op::decode:
      case Op::echo:
      case Op::decode_add:
        return decode(rank, state, step);
      default:
        return local(rank, step);
    }
  }

  void prepare(Rank rank, const Step& step) {
    if (!in_range(step)) {
      wrong(rank, step, "there are no such chunks");
    } else if (step.op == Op::take) {
      const std::size_t first = rank * chunks_ + step.first;
      for (std::size_t i = first; i < first + step.count; ++i) {
        cells_[i].input = algebra_.take(cells_[i].input);
      }
    }
  }

  bool send(Rank rank, State& state, const Step& step) {
    if (step.peer >= count_ || step.peer == rank) return wrong(rank, step, "there is no such peer");
    const std::uint32_t message = use(rank, state, step);
    if (message == kNone) return false;
    Queue& queue = queues_[rank * count_ + step.peer];
    queued_.push_back({message, kNone});
    const auto index = static_cast<std::uint32_t>(queued_.size() - 1);
    (queue.head == kNone ? queue.head : queued_[queue.tail].next) = index;
    queue.tail = index;
    if (ranks_[step.peer].waits_for == rank) {
      ranks_[step.peer].waits_for = kNone;
      woken_.push_back(step.peer);
    }
    return true;
  }

  bool receive(Rank rank, State& state, const Step& step) {
    if (step.peer >= count_ || step.peer == rank) return wrong(rank, step, "there is no such peer");
    Queue& queue = queues_[step.peer * count_ + rank];
    if (queue.head == kNone) {
      state.waits_for = step.peer;
      return false;
    }
    const Queued& arrived = queued_[queue.head];
    const Message& message = messages_[arrived.message];
    if (message.first != step.first || message.count != step.count) {
      return wrong(rank, step, "the message holds other chunks");
    }
    queue.head = arrived.next;
    return fill(rank, state, step, arrived.message);
  }

  bool encode(Rank rank, State& state, const Step& step) {
    if (!in_range(step)) return wrong(rank, step, "there are no such chunks");
    const std::size_t first = rank * chunks_ + step.first;
    const std::uint32_t writes = step.count > 0 ? cells_[first].writes : 0;
    messages_.push_back({step.first, step.count, values_.size(), rank, step.place, writes,
                         step.replicated, step.sum});
    for (std::size_t i = first; i < first + step.count; ++i) {
      if (!holds(rank, step, cells_[i]) || !says_which_sum(rank, step, cells_[i])) return false;
      values_.push_back(algebra_.encode(number(step.place, cells_[i]), step));
    }
    return fill(rank, state, step, static_cast<std::uint32_t>(messages_.size() - 1));
  }

  bool says_which_sum(Rank rank, const Step& step, const Cell& cell) {
    const bool finished = step.place == Place::sum && cell.finished;
    return finished == (step.sum != Sum::partial) ||
           wrong(rank, step, "the sum is not as finished as the step says");
  }

  /// Whether the message is one of the step's numbers, which are still what they were.
  bool is_own(Rank rank, const Step& step, const Message& message) {
    if (message.maker != rank || message.place != step.place) {
      return wrong(rank, step, "the message was not made of that here");
    }
    if (message.first != step.first || message.count != step.count) {
      return wrong(rank, step, "the message holds other chunks");
    }
    for (std::uint32_t i = 0; i < step.count; ++i) {
      if (!holds(rank, step, cells_[rank * chunks_ + step.first + i])) return false;
    }
    const std::uint32_t writes = step.count > 0 ? cells_[rank * chunks_ + step.first].writes : 0;
    const bool changed = step.place == Place::sum && writes != message.writes;
    return !changed || wrong(rank, step, "the sum has changed since the message was made");
  }

  bool keep(Rank rank, State& state, const Step& step) {
    const std::uint32_t index = look(rank, state, step);
    if (index == kNone || !is_own(rank, step, messages_[index])) return false;
    if (messages_[index].sum != step.sum) return wrong(rank, step, "the message is of another sum");
    ++messages_[index].kept;
    for (std::uint32_t chunk = step.first; chunk < step.first + step.count; ++chunk) {
      if (step.sum == Sum::delivered) ++roundings_kept_[chunk];
    }
    return true;
  }

  bool decode(Rank rank, State& state, const Step& step) {
    const std::uint32_t index = use(rank, state, step);
    if (index == kNone) return false;
    const Message& message = messages_[index];
    if (message.first != step.first || message.count != step.count) {
      return wrong(rank, step, "the message holds other chunks");
    }
    if (step.op == Op::echo && !is_own(rank, step, message)) return false;
    const bool into_sum = step.op == Op::decode_add || step.place == Place::sum;
    const bool to_output = step.op == Op::echo || !into_sum;
    if (message.place == Place::sum && to_output != (message.sum == Sum::delivered)) {
      return wrong(rank, step, "the message is not meant for that");
    }
    for (std::uint32_t i = 0; i < step.count; ++i) {
      Cell& cell = cells_[rank * chunks_ + step.first + i];
      const Value& value = values_[message.values + i];
      if (step.op == Op::decode_add) {
        if (!cell.has_sum) return wrong(rank, step, "the sum is empty");
        write_sum(cell, algebra_.add(cell.sum, value));
      } else if (step.op == Op::decode && step.place == Place::sum) {
        write_sum(cell, value);
        cell.finished = message.sum == Sum::complete;
      } else {
        write_output(cell, value);
      }
    }
    return true;
  }

  bool local(Rank rank, const Step& step) {
    if (!in_range(step)) return wrong(rank, step, "there are no such chunks");
    for (std::uint32_t chunk = step.first; chunk < step.first + step.count; ++chunk) {
      Cell& cell = cells_[rank * chunks_ + chunk];
      const bool takes_input = step.op == Op::load || step.op == Op::add;
      if (takes_input && !cell.has_input) return wrong(rank, step, "the input is gone");
      if (step.op != Op::load && !cell.has_sum) return wrong(rank, step, "the sum is empty");
      if (step.op == Op::load) write_sum(cell, cell.input);
      if (step.op == Op::add) write_sum(cell, algebra_.add(cell.sum, cell.input));
      if (step.op == Op::store) write_output(cell, cell.sum);
      if (step.op == Op::keep_rounding) ++roundings_kept_[chunk];
      if (step.op != Op::finish) continue;
      write_sum(cell, algebra_.finish(cell.sum));
      cell.finished = true;
    }
    return true;
  }

  static const Value& number(Place place, const Cell& cell) {
    return place == Place::sum ? cell.sum : cell.input;
  }
  static void write_sum(Cell& cell, Value value) {
    cell.sum = std::move(value);
    cell.has_sum = true;
    cell.finished = false;
    ++cell.writes;
  }
  static void write_output(Cell& cell, Value value) {
    cell.output = std::move(value);
    cell.has_input = false;
  }
  /// Whether the cell has what the step reads.
  bool holds(Rank rank, const Step& step, const Cell& cell) {
    if (step.place == Place::sum) return cell.has_sum || wrong(rank, step, "the sum is empty");
    return cell.has_input || wrong(rank, step, "the input is gone");
  }
  bool in_range(const Step& step) const {
    return step.first <= chunks_ && step.count <= chunks_ - step.first;
  }

  /// Puts a message into a slot whose last one has been used.
  bool fill(Rank rank, State& state, const Step& step, std::uint32_t message) {
    if ((state.unused >> step.slot & 1) != 0) return wrong(rank, step, "the slot is still in use");
    state.unused |= std::uint64_t{1} << step.slot;
    state.slots[step.slot] = message;
    return true;
  }

  std::uint32_t look(Rank rank, const State& state, const Step& step) {
    if (state.slots[step.slot] == kNone) wrong(rank, step, "the slot is empty");
    return state.slots[step.slot];
  }
  std::uint32_t use(Rank rank, State& state, const Step& step) {
    state.unused &= ~(std::uint64_t{1} << step.slot);
    return look(rank, state, step);
  }

  bool wrong(Rank rank, const Step& step, const char* what) {
    problem_ = "rank " + std::to_string(rank) + ", step " + std::to_string(ranks_[rank].at) + " (" +
               describe(step) + "): " + what;
    return false;
  }

  std::optional<std::string> unfinished() const {
    for (Rank rank = 0; rank < count_; ++rank) {
      const State& state = ranks_[rank];
      const auto& program = schedules_[rank].steps;
      if (state.at < program.size()) {
        return "rank " + std::to_string(rank) + " waits forever at step " +
               std::to_string(state.at) + " (" + describe(program[state.at]) + ")";
      }
      if (state.unused != 0) return "rank " + std::to_string(rank) + " leaves a message unused";
    }
    for (Rank from = 0; from < count_; ++from) {
      for (Rank to = 0; to < count_; ++to) {
        if (queues_[from * count_ + to].head == kNone) continue;
        return "a message of rank " + std::to_string(from) + " to rank " + std::to_string(to) +
               " is never received";
      }
    }
    return std::nullopt;
  }

  std::span<const Schedule> schedules_;
  Algebra algebra_;
  std::size_t count_;
  std::uint32_t chunks_ = 0;
  std::vector<State> ranks_;
  std::vector<Queue> queues_;
  std::vector<Queued> queued_;
  std::vector<Message> messages_;
  std::vector<Value> values_;
  std::vector<Cell> cells_;
  std::vector<std::uint32_t> roundings_kept_;  // by chunk, of all ranks
  std::vector<Rank> woken_;
  std::string problem_;
};

}  // namespace gradwire
