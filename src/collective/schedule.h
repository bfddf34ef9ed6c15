// A collective operation as data: what one rank encodes, sends, receives and decodes, in order.
//
// A schedule depends on the algorithm, the ranks and their hosts; not on counts, codecs or links.
// It speaks of `chunks`, equal shares of the numbers at hand: who executes it says which elements a
// chunk is. A large tensor is cut into pieces, and the same steps run once per piece. What needs to
// see a whole tensor is its preparation, which runs once before the first of its pieces.
//
// Three places hold numbers: `input`, what this rank contributes; `sum`, where contributions are
// added up in fp32; and `output`, the caller's. The output may be the memory of the input, so that
// a chunk of the input is gone once that of the output is written. Messages are made by `encode` or
// `receive`, named by a slot, and live until the slot is written again. The bytes of a message may
// have any length.
//
// What a rank's messages lack of its numbers is kept for the next operation on the same tensor, or
// measured, where that is asked for (`Feedback`, `OperationOptions::measure_error`): schedules say
// when, so that nothing is kept twice or lost.
//
// Four readers share this description: the engine executes it, `validate` proves it right,
// `interpret` runs it in memory under hostile orderings, and the planner walks it with a clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gradwire {

using Rank = std::uint32_t;

enum class Collective : std::uint8_t {
  all_reduce,      ///< every rank ends with the sum of all
  reduce_scatter,  ///< rank r ends with the sum's chunk r; other chunks are unspecified
  all_gather,      ///< chunk r of rank r's input ends up in everybody's output
  broadcast,       ///< everybody ends with the root's input
  barrier,         ///< nobody ends before all have begun
};
inline constexpr std::size_t kCollectives = 5;

enum class Op : std::uint8_t {
  // Preparation, of a whole tensor
  measure,  ///< finds out whether the caller's numbers are such that anything may be kept of them
  take,     ///< input = the caller's numbers, with what was kept of them before
  fit,      ///< what codecs must know of the whole input
  // Steps, of a piece
  load,           ///< sum = input, of which nothing is kept
  add,            ///< sum += input, of which nothing is kept
  finish,         ///< sum is complete: the place to divide it, for an average
  store,          ///< output = sum
  keep_rounding,  ///< keeps what the output, which was stored, lacks of the sum
  encode,         ///< slot = a message of input or sum
  keep,           ///< keeps what slot, a message made here, lacks of input or sum
  decode,         ///< output or sum = slot
  echo,           ///< output = slot, a message made here of input or sum: what all others have
  decode_add,     ///< sum += slot
  send,           ///< slot to peer
  receive,        ///< slot from peer; messages of one peer arrive in the order it sent them
};
inline constexpr std::size_t kOps = 15;

enum class Place : std::uint8_t { input, sum, output };

/// What a sum is of which a message is made.
enum class Sum : std::uint8_t {
  partial,    ///< some ranks' numbers are missing
  complete,   ///< and finished; those who decode the message go on with it
  delivered,  ///< and finished; all ranks decode the message into their outputs
};

/// One step; which fields count is said at the op. Steps of one schedule run in their order.
struct Step {
  Op op;
  Place place = Place::input;  ///< encode, keep, echo: what is in the message; decode: where to
  std::uint16_t slot = 0;      ///< encode, keep, decode, echo, decode_add, send, receive
  std::uint32_t first = 0;     ///< all but send: these chunks
  std::uint32_t count = 0;
  Rank peer = 0;       ///< send, receive
  bool exact = false;  ///< encode, keep: by no codec, whatever the way of the tensor
  /// encode: other ranks make the same message, of the same sum; one of them keeps what it lacks.
  bool replicated = false;
  Sum sum = Sum::partial;  ///< encode, keep: of sums
  bool counts = false;     ///< finish: of the ranks that finish this sum, the one that counts it

  friend bool operator==(const Step&, const Step&) = default;
};

/// One rank's part.
struct Schedule {
  std::uint32_t chunks = 1;  ///< shares that the numbers are cut into, the same on every rank
  std::uint16_t slots = 0;
  std::vector<Step> preparation;  ///< of all chunks; it neither sends nor receives
  std::vector<Step> steps;
};

/// Who takes part. Ranks of one host stand together: host h has the ranks [h * local, (h+1) *
/// local).
struct Ranks {
  Rank count = 1;
  Rank per_host = 1;  ///< 0 when hosts have different numbers of ranks
  Rank root = 0;      ///< of a broadcast
};

/// Those in which every rank owns a chunk, or can.
constexpr bool has_owners(Collective collective) noexcept {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::all_gather;
}

/// Those that add up numbers, so that what messages lack of them can be kept.
constexpr bool has_sums(Collective collective) noexcept {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter;
}

const char* name_of(Collective collective) noexcept;
const char* name_of(Op op) noexcept;

/// "receive 2 <- rank 1", for people.
std::string describe(const Step& step);

}  // namespace gradwire
