// How the numbers of a sum can travel: the decision tree of ByteComp/Espresso.
//
// An option is a list of actions, in the order in which a number meets them. It is written as their
// names, joined by "-":
//
//   encode-all_to_all-decode-encode-all_gather-decode
//   inside.reduce_scatter-encode-between.all_gather-inside.all_gather-decode
//
// The second one adds up exactly inside each host, whose ranks then own a share each; encodes the
// shares; sends them to the owners on all other hosts; passes them on inside, as they are; and only
// then everybody decodes. What is between `encode` and `decode` are messages that nobody can add
// up: all_gather and all_to_all stand for all_reduce and reduce_scatter there. The steps of one
// group come in pairs, which belong to one of two families: `reduce_scatter` or `all_to_all` with
// `all_gather`, by which every rank owns a share; and `reduce` or `gather` with `broadcast`, by
// which one rank owns all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradwire {

/// Among whom a message travels.
enum class Level : std::uint8_t {
  all,      ///< all ranks
  inside,   ///< those of one host
  between,  ///< one of each host: those with the same place there
};
inline constexpr std::size_t kLevels = 3;

enum class Move : std::uint8_t {
  encode,
  decode,
  all_reduce,
  reduce_scatter,
  reduce,
  all_to_all,
  gather,
  all_gather,
  broadcast,
};

/// Where numbers are encoded and decoded.
enum class Device : std::uint8_t {
  own,    ///< where the gradients are
  other,  ///< the CPU, of gradients that are elsewhere; written as in "encode@other"
};

struct Action {
  Move move;
  Level level = Level::all;     ///< of all but encode and decode
  Device device = Device::own;  ///< of encode and decode

  friend bool operator==(const Action&, const Action&) = default;
};

/// A way from rank to rank, of messages or of sums that grow on it.
struct Hop {
  enum class Kind : std::uint8_t {
    around,       ///< sums grow from neighbour to neighbour, then go round
    up,           ///< sums grow along a tree to the first rank
    to_owners,    ///< messages go to the owners of what is in them
    to_root,      ///< messages go to the first rank
    to_all,       ///< messages go to everybody
    from_owners,  ///< messages go from their owners to everybody
    from_root,    ///< messages go along a tree from the first rank to everybody
  };
  Kind kind;
  Level level;

  /// Whether others' numbers come to those that a rank has already.
  bool merges() const { return kind < Kind::from_owners; }
  /// Whether a message goes to one rank.
  bool moves() const { return kind == Kind::to_owners || kind == Kind::to_root; }
  friend bool operator==(const Hop&, const Hop&) = default;
};

/// Hops between an encoding and its decoding: messages are passed on as they are. `around` and `up`
/// are alone in theirs.
struct Leg {
  bool exact = false;  ///< by no codec
  std::vector<Hop> hops;

  friend bool operator==(const Leg&, const Leg&) = default;
};

class Option {
 public:
  explicit Option(std::vector<Action> actions) : actions_(std::move(actions)) {}

  /// Throws `Error(invalid_argument)` that says what may stand where it cannot be followed.
  static Option parse(std::string_view text);
  std::string text() const;

  const std::vector<Action>& actions() const noexcept { return actions_; }
  std::vector<Leg> legs() const;

  bool has_codec() const noexcept;   ///< something is encoded by the tensor's codec
  bool has_levels() const noexcept;  ///< it tells hosts from one another
  bool needs_second_device() const noexcept;
  /// How often a number is encoded by the codec on its way, at most.
  std::uint32_t encodings() const noexcept;

  friend bool operator==(const Option&, const Option&) = default;

 private:
  std::vector<Action> actions_;
};

/// All there are: 174 for one device, 4341 for two.
std::vector<Option> all_options(std::uint32_t devices = 1);

}  // namespace gradwire
