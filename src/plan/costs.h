// What exchanging gradients costs on some machines: measured there, or a preset.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/codec.h"

namespace gradwire {

/// A message takes `seconds` and `seconds_per_byte` times its bytes. Of that the processor of a
/// rank is busy for `cpu_seconds` and so on, for one message that it sends and one that comes.
struct LinkCost {
  double seconds = 0;
  double seconds_per_byte = 0;
  double cpu_seconds = 0;
  double cpu_seconds_per_byte = 0;

  double of(double bytes) const noexcept { return seconds + bytes * seconds_per_byte; }

  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

/// Seconds by a number of elements: measured for some numbers, straight lines between them, in
/// proportion beyond the last, and below the first as for the first. Never less for more elements.
class CostTable {
 public:
  CostTable() = default;
  /// Points with ascending elements; seconds that are less than those before become the same.
  explicit CostTable(std::vector<std::pair<std::size_t, double>> points);

  double at(std::size_t elements) const noexcept;  ///< 0 without points
  const std::vector<std::pair<std::size_t, double>>& points() const noexcept { return points_; }

  friend bool operator==(const CostTable&, const CostTable&) = default;

 private:
  std::vector<std::pair<std::size_t, double>> points_;
};

/// Of one thread.
struct MeasuredCodec {
  CostTable encode;
  CostTable decode;              ///< to where nothing is yet, or added to what is there
  CostTable preparation;         ///< what must see all of a tensor before any of it is encoded
  double bytes_per_element = 4;  ///< of a typical gradient
  /// On the second device, with copies of the numbers to it and back, and with what prepares them.
  /// Without points there is none for this codec.
  CostTable other_encode{};
  CostTable other_decode{};

  bool has_other_device() const noexcept { return !other_encode.points().empty(); }

  friend bool operator==(const MeasuredCodec&, const MeasuredCodec&) = default;
};

struct Costs {
  std::string source;   ///< "measured on HOST, DATE", or what the preset stands for
  std::string host;     ///< where they hold; empty: wherever they are asked for
  std::string isa;      ///< instruction set by which codecs were measured
  std::string version;  ///< of gradwire
  LinkCost inside;      ///< between two ranks of one host that has cores to spare
  LinkCost between;     ///< between two hosts
  /// More for every message while backward keeps all cores busy: until a rank gets one. Apart from
  /// the links, as it is there while backward runs only, and hundreds of times their latency: two
  /// ranks on two cores need 4 us for a message, and 7 ms beside threads that compute.
  double delay = 0;
  std::size_t threads = 1;  ///< that encode and decode, of each rank
  /// Of a host, for each of its ranks. With fewer than two, computing, codecs and messages take
  /// turns.
  double cores = 1;
  double interference = 1;  ///< backward with exchanges under way, as a multiple of it alone
  std::map<std::string, MeasuredCodec> codecs;  ///< by `Codec::spec`; "none" for exact messages

  /// Throws `Error(invalid_argument)` that says how to measure a codec that is not among them.
  const MeasuredCodec& codec(const Codec& codec) const;

  /// Gradients are computed and encoded by one device, which is no processor.
  bool on_gpu() const noexcept { return isa == "gpu"; }
  /// What encodes computes gradients, too, one thing at a time.
  bool shares_compute() const noexcept { return on_gpu() || cores < 2; }
  /// Whether some codec can run beside what computes gradients, such as on the processors of hosts
  /// with GPUs.
  bool has_other_device() const noexcept;
  /// The same without what can run there.
  Costs without_other_device() const;
  /// By which seconds of a processor become longer as ranks share it.
  double processor_share() const noexcept { return on_gpu() || cores >= 1 ? 1 : 1 / cores; }

  friend bool operator==(const Costs&, const Costs&) = default;
};

/// Reads the text of a JSON file as docs/plan.md has it. Throws `Error(invalid_spec)`, as plans do,
/// that names the line and says what is wrong.
Costs parse_costs(std::string_view text);
/// That text. Every codec has tables for encoding and decoding.
std::string text_of(const Costs& costs);

}  // namespace gradwire
