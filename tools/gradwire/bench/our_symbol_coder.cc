#include <algorithm>
#include <array>
#include <cstring>

#include "bench/symbol_coder.h"
#include "codec/rans.h"

namespace gradwire::cli {
namespace {

using Counts = std::array<std::uint32_t, kSymbolCount>;
using Frequencies = std::array<std::uint16_t, kRansSymbols>;
static_assert(kSymbolCount == kRansSymbols);

constexpr std::size_t kOverwrittenWords = 8;  // rans_encode may write this far before its words

struct BlockHeader {
  Frequencies frequencies;
  RansStates states;
};

/// Several counters per symbol, because equal symbols in a row would wait for each other's
/// addition.
Counts count(std::span<const std::uint8_t> symbols) {
  std::array<Counts, 4> partial{};
  for (std::size_t i = 0; i + 4 <= symbols.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) ++partial[k][symbols[i + k]];
  }
  Counts counts{};
  for (const Counts& part : partial) {
    for (std::size_t s = 0; s < counts.size(); ++s) counts[s] += part[s];
  }
  return counts;
}

/// Scaled to the coder's total, none zero; the most frequent symbol takes what rounding left over.
Frequencies scale(const Counts& counts, std::size_t symbols) {
  Frequencies frequencies{};
  int left = kRansTotal;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    const std::uint64_t scaled = (counts[s] * std::uint64_t{kRansTotal} + symbols / 2) / symbols;
    frequencies[s] = static_cast<std::uint16_t>(std::max<std::uint64_t>(scaled, 1));
    left -= frequencies[s];
  }
  auto& largest = *std::max_element(frequencies.begin(), frequencies.end());
  largest = static_cast<std::uint16_t>(largest + left);
  return frequencies;
}

class OurCoder final : public SymbolCoder {
 public:
  std::size_t max_bytes() const override {
    return sizeof(BlockHeader) + 2 * (kOverwrittenWords + max_words(kBlockSymbols));
  }

  std::size_t encode(std::span<const std::uint8_t> block, std::span<std::byte> out) override {
    BlockHeader header{scale(count(block), block.size()), {}};
    make_table(header.frequencies, table_);
    header.states.fill(kRansLow);
    const RansRun run{&table_, static_cast<std::uint32_t>(block.size() / kRansStates)};
    auto* const first_word = reinterpret_cast<std::uint16_t*>(out.data() + sizeof(BlockHeader));
    std::uint16_t* const end = first_word + kOverwrittenWords + max_words(block.size());
    const std::uint16_t* const begin = rans_encode({&run, 1}, block.data(), header.states, end);
    const auto bytes = static_cast<std::size_t>(end - begin) * sizeof(std::uint16_t);
    std::memcpy(out.data(), &header, sizeof(header));
    std::memmove(first_word, begin, bytes);
    return sizeof(header) + bytes;
  }

  bool decode(std::span<const std::byte> bytes, std::span<std::uint8_t> block) override {
    BlockHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    make_table(header.frequencies, table_);
    RansReader reader{header.states, bytes.data() + sizeof(header), bytes.data() + bytes.size()};
    return rans_decode(reader, table_, block.size() / kRansStates, block.data()) &&
           rans_finished(reader);
  }

 private:
  static std::size_t max_words(std::size_t symbols) {
    return symbols / kRansStates * kRansMaxGroupWords;
  }

  RansTable table_;
};

}  // namespace

std::unique_ptr<SymbolCoder> make_our_coder() { return std::make_unique<OurCoder>(); }

}  // namespace gradwire::cli
