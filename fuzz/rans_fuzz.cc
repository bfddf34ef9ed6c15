// The entropy coder: arbitrary states and words are decoded within bounds, and what is encoded
// comes back.
#include "codec/rans.h"

#include "codec/grid_classes.h"
#include "fuzz_input.h"

namespace gradwire::fuzz {
namespace {

const RansTable& table_of(unsigned index) { return grid::tables()[index % grid::kTables]; }

void decode_anything(Input input) {
  const RansTable& table = table_of(input.take<std::uint8_t>());
  const std::size_t groups = input.take<std::uint8_t>();
  RansReader reader{};
  for (std::uint32_t& state : reader.states) {
    state = kRansLow + input.take<std::uint32_t>() % ((1u << 31) - kRansLow);
  }
  const ExactBytes words(input.rest().first(input.rest().size() / 2 * 2));
  reader.at = words.span().data();
  reader.end = reader.at + words.span().size();
  const ExactBytes symbols(groups * kRansStates);
  const bool ok =
      rans_decode(reader, table, groups, reinterpret_cast<std::uint8_t*>(symbols.span().data()));
  require(reader.at <= reader.end, "words were read beyond their end");
  if (!ok) return;
  for (const std::byte symbol : symbols.span())
    require(symbol < std::byte{kRansSymbols}, "no such symbol");
  for (const std::uint32_t state : reader.states) {
    require(state >= kRansLow && state < 1u << 31, "a state left its range");
  }
}

/// Each byte of the input is a symbol; runs of two groups take turns with the tables.
void encode_and_decode(Input input) {
  const unsigned first_table = input.take<std::uint8_t>();
  const unsigned next_table = input.take<std::uint8_t>();
  const std::size_t groups = input.rest().size() / kRansStates;
  std::vector<std::uint8_t> symbols(groups * kRansStates);
  for (std::size_t i = 0; i < symbols.size(); ++i)
    symbols[i] = std::to_integer<std::uint8_t>(input.rest()[i]) % 16;
  std::vector<RansRun> runs;
  for (std::size_t g = 0; g < groups; g += 2) {
    runs.push_back({&table_of(g % 4 == 0 ? first_table : next_table), g + 1 < groups ? 2u : 1u});
  }
  constexpr std::size_t kOverwritten = 8;
  std::vector<std::uint16_t> words(groups * kRansMaxGroupWords + kOverwritten);
  std::uint16_t* const end = words.data() + words.size();
  RansStates states;
  states.fill(kRansLow);
  const std::uint16_t* const begin = rans_encode(runs, symbols.data(), states, end);
  require(begin >= words.data() + kOverwritten, "more words than the bound says");

  const ExactBytes exact(std::as_bytes(std::span(begin, end)));
  RansReader reader{states, exact.span().data(), exact.span().data() + exact.span().size()};
  std::vector<std::uint8_t> decoded(symbols.size());
  std::size_t at = 0;
  for (const RansRun& run : runs) {
    require(rans_decode(reader, *run.table, run.groups, decoded.data() + at), "words ran out");
    at += run.groups * kRansStates;
  }
  require(decoded == symbols, "other symbols came back");
  require(rans_finished(reader), "decoding did not end where encoding started");
}

}  // namespace
}  // namespace gradwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gradwire::fuzz::decode_anything({data, size});
  gradwire::fuzz::encode_and_decode({data, size});
  return 0;
}
