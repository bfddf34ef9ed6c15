#include "collective/validate.h"

#include <algorithm>

#include "base/random_stream.h"
#include "collective/interpreter.h"

namespace gradwire {
namespace {

/// A number as what it was made of.
struct Symbol {
  std::uint64_t made = 0;   // a hash of how: equal hashes, equal bits
  std::uint64_t parts = 0;  // the sum of a random weight for each input in it
};

struct Symbols {
  using Value = Symbol;

  static std::uint64_t weight(Rank rank, std::uint32_t chunk) {
    return mix64((std::uint64_t{rank} << 32 | chunk) + 1);
  }
  Symbol input(Rank rank, std::uint32_t chunk) const {
    return {weight(rank, chunk), weight(rank, chunk)};
  }
  Symbol take(const Symbol& input) const { return {mix64(input.made + 1), taken(input.parts)}; }
  /// So that an input that was never taken up, or twice, has other parts.
  static std::uint64_t taken(std::uint64_t parts) { return parts * 0xD1B54A32D192ED03; }
  /// Encoding draws random numbers: two encodings of the same numbers are not the same bytes,
  /// unless they are meant to be.
  Symbol encode(const Symbol& value, const Step& step) {
    if (step.exact) return value;
    if (step.replicated) return {mix64(value.made ^ mix64(0)), value.parts};
    return {mix64(value.made ^ mix64(++encodings)), value.parts};
  }
  Symbol add(const Symbol& sum, const Symbol& value) const {
    return {mix64(mix64(sum.made) + value.made), sum.parts + value.parts};
  }
  Symbol finish(const Symbol& sum) const { return {mix64(~sum.made), finished(sum.parts)}; }
  /// So that a sum finished too early, twice or never has other parts.
  static std::uint64_t finished(std::uint64_t parts) { return parts * 0x9E3779B97F4A7C15; }

  std::uint64_t encodings = 0;
};

/// Steps that one rank makes before another gets its turn: all it can.
struct Greedy {
  std::pair<std::size_t, std::size_t> operator()(std::size_t able) const {
    return {able - 1, ~std::size_t{0}};
  }
};

class Checker {
 public:
  Checker(const Interpreter<Symbols>& interpreter, Collective collective, const Ranks& ranks)
      : interpreter_(interpreter), collective_(collective), ranks_(ranks) {}

  std::optional<std::string> problem() const {
    for (std::uint32_t chunk = 0; chunk < interpreter_.chunks(); ++chunk) {
      const std::uint64_t parts = expected(chunk);
      for (Rank rank = 0; rank < ranks_.count; ++rank) {
        if (collective_ == Collective::reduce_scatter && chunk != rank) continue;
        const Symbol& value = interpreter_.output(rank, chunk);
        if (value.parts != parts) return at(rank, chunk, "is not what it should be");
        if (value.made != reference(chunk).made) return at(rank, chunk, "differs from rank 0's");
      }
    }
    return std::nullopt;
  }

 private:
  const Symbol& reference(std::uint32_t chunk) const {
    return interpreter_.output(collective_ == Collective::reduce_scatter ? chunk : 0, chunk);
  }
  std::uint64_t expected(std::uint32_t chunk) const {
    if (collective_ == Collective::broadcast) return Symbols::weight(ranks_.root, chunk);
    if (collective_ == Collective::all_gather) return Symbols::weight(chunk, chunk);
    std::uint64_t sum = 0;
    for (Rank rank = 0; rank < ranks_.count; ++rank) sum += Symbols::weight(rank, chunk);
    if (collective_ == Collective::barrier) {  // nobody has anything to take up, nor to divide
      return ranks_.count == 1 ? sum : Symbols::finished(sum);
    }
    return Symbols::finished(Symbols::taken(sum));
  }
  static std::string at(Rank rank, std::uint32_t chunk, const char* what) {
    return "chunk " + std::to_string(chunk) + " on rank " + std::to_string(rank) + " " + what;
  }

  const Interpreter<Symbols>& interpreter_;
  Collective collective_;
  Ranks ranks_;
};

/// What is wrong with how tensors are prepared, or nothing.
std::optional<std::string> check_preparation(const Schedule& schedule, Collective collective) {
  std::vector<Op> wanted;
  if (has_sums(collective)) wanted = {Op::measure, Op::take};
  if (has_owners(collective)) wanted.push_back(Op::fit);
  std::vector<Op> found;
  for (const Step& step : schedule.preparation) {
    found.push_back(step.op);
    if (step.first != 0 || step.count != schedule.chunks) {
      return "tensors are prepared in part: " + describe(step);
    }
  }
  if (found == wanted) return std::nullopt;
  return "tensors must be measured, taken up and fitted, in this order, for what they need";
}

bool reads_input(const Step& step) {
  return step.op == Op::load || step.op == Op::add ||
         (step.op == Op::encode && step.place == Place::input);
}

/// By chunk: how many of a schedule's steps are of this kind.
template <class Predicate>
void count_steps(const Schedule& schedule, Predicate is_one, std::vector<std::uint32_t>& counts) {
  counts.resize(schedule.chunks);
  for (const Step& step : schedule.steps) {
    if (!is_one(step)) continue;
    for (std::uint32_t i = 0; i < step.count; ++i) ++counts[step.first + i];
  }
}

/// Whether statistics of numbers and of sums, taken in these steps, have each of them once.
std::optional<std::string> check_counts(std::span<const Schedule> schedules) {
  const auto is_once = [](std::uint32_t count) { return count == 1; };
  std::vector<std::uint32_t> finished;
  for (const Schedule& schedule : schedules) {
    std::vector<std::uint32_t> read;
    count_steps(schedule, reads_input, read);
    if (!std::ranges::all_of(read, is_once)) return "an input is not read exactly once";
    count_steps(
        schedule, [](const Step& step) { return step.counts; }, finished);
  }
  if (!std::ranges::all_of(finished, is_once)) return "a sum is not counted by exactly one rank";
  return std::nullopt;
}

}  // namespace

std::vector<Schedule> make_all(const Algorithm& algorithm, Collective collective,
                               const Ranks& ranks) {
  std::vector<Schedule> schedules;
  schedules.reserve(ranks.count);
  for (Rank me = 0; me < ranks.count; ++me) {
    schedules.push_back(algorithm.make(collective, ranks, me));
  }
  return schedules;
}

std::optional<std::string> validate(std::span<const Schedule> schedules, Collective collective,
                                    const Ranks& ranks) {
  if (schedules.size() != ranks.count) return "there must be one schedule per rank";
  for (const Schedule& schedule : schedules) {
    if (schedule.chunks != schedules[0].chunks) return "ranks cut the numbers into unlike chunks";
    if (schedule.slots > 64) return "more than 64 slots";
    if (auto problem = check_preparation(schedule, collective)) return problem;
  }
  Interpreter<Symbols> interpreter(schedules, Symbols{});
  if (auto problem = interpreter.run(Greedy())) return problem;
  if (auto problem = Checker(interpreter, collective, ranks).problem()) return problem;
  if (auto problem = interpreter.lost(has_sums(collective))) return problem;
  return has_sums(collective) ? check_counts(schedules) : std::nullopt;
}

}  // namespace gradwire
