#include "collective/lifetimes.h"

#include <algorithm>
#include <optional>

namespace gradwire {
namespace {

bool uses_slot(Op op) { return op == Op::send || op == Op::decode || op == Op::decode_add; }
bool fills_slot(Op op) { return op == Op::encode || op == Op::receive; }
bool writes(Op op) { return !fills_slot(op) && op != Op::send; }

/// One chunk, if data and sum were the same memory: which of the two it holds.
struct Chunk {
  bool data = true;
  bool sum = false;
  bool summed = false;  // there is a sum at all
  bool fits = true;     // so far

  void step(const Step& step) {
    switch (step.op) {
      case Op::load:
        fits &= data;
        sum = true;
        break;
      case Op::store:
        fits &= sum;
        data = true;
        break;
      case Op::add:
        fits = false;
        break;
      case Op::encode:
        fits &= step.place == Place::data ? data : sum;
        break;
      case Op::decode:
        data = step.place == Place::data;
        sum = !data;
        break;
      case Op::decode_add:
      case Op::finish:
        fits &= sum;
        data = false;
        break;
      case Op::send:
      case Op::receive:
        break;
    }
    summed |= sum;
  }
};

std::vector<bool> sums_in_data(const Schedule& schedule) {
  std::vector<bool> result;
  std::vector<Chunk> chunks(schedule.chunks);
  for (const Step& step : schedule.steps) {
    for (std::uint32_t i = step.first; i < step.first + step.count; ++i) chunks[i].step(step);
  }
  for (const Chunk& chunk : chunks) {
    result.push_back(chunk.summed && chunk.fits && chunk.data);
  }
  return result;
}

std::vector<bool> last_uses(const Schedule& schedule) {
  std::vector<bool> result(schedule.steps.size());
  std::vector<bool> needed(schedule.slots, false);  // by a later step
  for (std::size_t i = schedule.steps.size(); i-- > 0;) {
    const Step& step = schedule.steps[i];
    if (uses_slot(step.op)) {
      result[i] = !needed[step.slot];
      needed[step.slot] = true;
    } else if (fills_slot(step.op)) {
      needed[step.slot] = false;
    }
  }
  return result;
}

/// Whether nothing of what `encode` read has been written since, and `decode` writes just that.
bool is_echo(const Schedule& schedule, std::size_t encode, std::size_t decode,
             const std::vector<bool>& sum_in_data) {
  const Step& made = schedule.steps[encode];
  const Step& step = schedule.steps[decode];
  if (made.first != step.first || made.count != step.count) return false;
  for (std::uint32_t chunk = step.first; chunk < step.first + step.count; ++chunk) {
    if (made.place != step.place && !sum_in_data[chunk]) return false;
  }
  return std::none_of(schedule.steps.begin() + encode, schedule.steps.begin() + decode,
                      [&](const Step& between) {
                        return writes(between.op) && between.first < step.first + step.count &&
                               step.first < between.first + between.count;
                      });
}

std::vector<bool> echoes(const Schedule& schedule, const std::vector<bool>& sum_in_data) {
  std::vector<bool> result(schedule.steps.size());
  std::vector<std::optional<std::size_t>> made(schedule.slots);  // the encode that filled the slot
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.op == Op::encode) made[step.slot] = i;
    if (step.op == Op::receive) made[step.slot].reset();
    if (step.op != Op::decode || !made[step.slot]) continue;
    result[i] = is_echo(schedule, *made[step.slot], i, sum_in_data);
  }
  return result;
}

std::vector<std::uint32_t> sends_of(const Schedule& schedule) {
  struct Message {
    std::optional<std::size_t> described;  // by this step
    std::uint32_t sends = 0;
  };
  std::vector<std::uint32_t> result(schedule.steps.size());
  std::vector<Message> messages(schedule.slots);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (!fills_slot(step.op) && !uses_slot(step.op)) continue;
    Message& message = messages[step.slot];
    if (fills_slot(step.op)) message = {};
    if (step.op == Op::send) ++message.sends;
    if (step.count > 0 && !message.described) message.described = i;
    if (message.described) result[*message.described] = message.sends;
  }
  return result;
}

std::vector<bool> encodes_of_finished(const Schedule& schedule) {
  std::vector<bool> result(schedule.steps.size());
  std::vector<bool> finished(schedule.chunks);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    if (step.op == Op::finish) {
      std::fill_n(finished.begin() + step.first, step.count, true);
    }
    result[i] = step.op == Op::encode && step.place == Place::sum && finished[step.first];
  }
  return result;
}

}  // namespace

Lifetimes lifetimes_of(const Schedule& schedule) {
  Lifetimes result{sums_in_data(schedule),
                   last_uses(schedule),
                   {},
                   sends_of(schedule),
                   encodes_of_finished(schedule)};
  result.echo = echoes(schedule, result.sum_in_data);
  return result;
}

}  // namespace gradwire
