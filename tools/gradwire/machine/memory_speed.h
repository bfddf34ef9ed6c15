// The physical limits that codecs are judged by: how fast one thread reads memory, and copies it.
#pragma once

#include <cstddef>

#include "machine/huge_buffer.h"
#include "machine/measure.h"

namespace gradwire::cli {

/// Samples are taken one at a time, so that a benchmark can put them between its own: whatever
/// disturbs the machine then disturbs both. Each sample also replaces what the caches held.
class MemorySpeed {
 public:
  static constexpr std::size_t kBytes = std::size_t{128}
                                        << 20;  // far beyond any last-level cache slice

  MemorySpeed();

  void sample_copy();
  /// A sum over one sequential stream of 32-byte vectors in eight independent accumulators.
  void sample_read();

  const Timings& copy() const { return copy_; }
  const Timings& read() const { return read_; }

 private:
  HugeBuffer source_{kBytes};
  HugeBuffer target_{kBytes};
  Timings copy_;
  Timings read_;
};

}  // namespace gradwire::cli
