#include "codec/rans.h"

#include <bit>
#include <cmath>

namespace gradwire {
namespace {

constexpr int kBinSlots = kRansTotal / kRansSymbols;
static_assert(kBinSlots == 256, "positions in a bin are bytes");

void put(std::uint8_t (&bytes)[2][kRansSymbols], int index, int value) {
  bytes[0][index] = static_cast<std::uint8_t>(value);
  bytes[1][index] = static_cast<std::uint8_t>(value >> 8);
}

/// A first-in first-out list of symbols; each enters at most twice.
class Queue {
 public:
  void push(int symbol) { items_[tail_++] = symbol; }
  int pop() { return items_[head_++]; }
  int front() const { return items_[head_]; }
  bool empty() const { return head_ == tail_; }

 private:
  int items_[2 * kRansSymbols];
  int head_ = 0;
  int tail_ = 0;
};

/// Gives each bin that its own symbol does not fill the rest from the first symbol that has more
/// than a bin left.
void build_alias(std::span<const std::uint16_t, kRansSymbols> frequencies, RansTable& table) {
  int left[kRansSymbols];
  Queue small, large;
  for (int s = 0; s < kRansSymbols; ++s) {
    left[s] = frequencies[s];
    (left[s] < kBinSlots ? small : large).push(s);
  }
  while (!small.empty()) {
    const int bin = small.pop();
    const int donor = large.front();
    table.divider[bin] = static_cast<std::uint8_t>(left[bin]);
    table.alias[bin] = static_cast<std::uint8_t>(donor);
    left[donor] -= kBinSlots - left[bin];
    put(table.bias, bin,
        left[donor] - left[bin]);  // the bin's last slot is the donor's last rank so far
    if (left[donor] < kBinSlots) small.push(large.pop());
  }
  while (!large.empty()) {  // bins of one symbol
    const int bin = large.pop();
    table.divider[bin] = 0;
    table.alias[bin] = static_cast<std::uint8_t>(bin);
    put(table.bias, bin, 0);
  }
}

void build_slots(const std::uint16_t* starts, RansTable& table) {
  for (int slot = 0; slot < static_cast<int>(kRansTotal); ++slot) {
    const int bin = slot / kBinSlots;
    const int position = slot % kBinSlots;
    const bool own = position < table.divider[bin];
    const int symbol = own ? bin : table.alias[bin];
    const int bias = static_cast<std::int16_t>(table.bias[0][bin] | table.bias[1][bin] << 8);
    table.slot[starts[symbol] + position + (own ? 0 : bias)] = static_cast<std::uint16_t>(slot);
  }
  table.slot[kRansTotal] = table.slot[kRansTotal + 1] = 0;
}

}  // namespace

void make_table(std::span<const std::uint16_t, kRansSymbols> frequencies,
                RansTable& table) noexcept {
  std::uint16_t starts[kRansSymbols];
  std::uint16_t start = 0;
  for (int s = 0; s < kRansSymbols; ++s) {
    starts[s] = start;
    put(table.frequency, s, frequencies[s]);
    put(table.start, s, start);
    start = static_cast<std::uint16_t>(start + frequencies[s]);
    // Short by 2^-21: quotients below 2^19 then come out right or one too small, never too large.
    const float reciprocal = static_cast<float>((1.0 - 0x1p-21) / frequencies[s]);
    const auto bits = std::bit_cast<std::uint32_t>(reciprocal);
    for (int b = 0; b < 4; ++b) table.reciprocal[b][s] = static_cast<std::uint8_t>(bits >> (8 * b));
    const double cost = -std::log2(static_cast<double>(frequencies[s]) / kRansTotal);
    table.cost[s] = static_cast<std::uint16_t>(std::lround(cost * 256));
  }
  build_alias(frequencies, table);
  build_slots(starts, table);
}

bool rans_finished(const RansReader& reader) noexcept {
  for (const std::uint32_t state : reader.states) {
    if (state != kRansLow) return false;
  }
  return reader.at == reader.end;
}

}  // namespace gradwire
