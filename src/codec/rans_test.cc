#include "codec/rans.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "codec/codec_test_data.h"
#include "codec/grid_classes.h"

namespace gradwire::test {
namespace {

using Frequencies = std::array<std::uint16_t, kRansSymbols>;

int value_of(const std::uint8_t (&bytes)[2][kRansSymbols], int index) {
  return bytes[0][index] | bytes[1][index] << 8;
}

Frequencies frequencies_of(const RansTable& table) {
  Frequencies frequencies;
  for (int s = 0; s < kRansSymbols; ++s)
    frequencies[s] = static_cast<std::uint16_t>(value_of(table.frequency, s));
  return frequencies;
}

/// Sixteen numbers above 0 that add up to 4096; some draws are as uneven as can be.
Frequencies random_frequencies(std::mt19937& random) {
  Frequencies frequencies;
  frequencies.fill(1);
  int left = static_cast<int>(kRansTotal) - kRansSymbols;
  while (left > 0) {
    const int part = 1 + static_cast<int>(random() % static_cast<unsigned>(left));
    frequencies[random() % kRansSymbols] += static_cast<std::uint16_t>(part);
    left -= part;
  }
  return frequencies;
}

std::unique_ptr<RansTable> table_of(const Frequencies& frequencies) {
  auto table = std::make_unique<RansTable>();
  make_table(frequencies, *table);
  return table;
}

// ---------------------------------------------------------------------------------------------
// Tables

/// What a decoder finds at a slot, by the rules of rans.h alone.
struct Owner {
  int symbol;
  int rank;
};

Owner owner_of(const RansTable& table, int slot) {
  const int bin = slot / 256;
  const int position = slot % 256;
  if (position < table.divider[bin]) return {bin, position};
  return {table.alias[bin], position + static_cast<std::int16_t>(value_of(table.bias, bin))};
}

/// Every symbol owns as many slots as its frequency says, its ranks are 0, 1, 2, … and the encoder
/// knows the slot of each.
void expect_sound(const RansTable& table) {
  const Frequencies frequencies = frequencies_of(table);
  ASSERT_EQ(std::accumulate(frequencies.begin(), frequencies.end(), 0u), kRansTotal);
  std::vector<bool> seen(kRansTotal);
  int start = 0;
  std::array<int, kRansSymbols> starts;
  for (int s = 0; s < kRansSymbols; ++s) {
    starts[s] = start;
    ASSERT_GT(frequencies[s], 0);
    ASSERT_EQ(value_of(table.start, s), start);
    start += frequencies[s];
    const double bits = -std::log2(frequencies[s] / 4096.0);
    ASSERT_NEAR(table.cost[s], bits * 256, 0.51);
  }
  for (int slot = 0; slot < static_cast<int>(kRansTotal); ++slot) {
    const Owner owner = owner_of(table, slot);
    ASSERT_GE(owner.rank, 0);
    ASSERT_LT(owner.rank, frequencies[owner.symbol]);
    const int place = starts[owner.symbol] + owner.rank;
    ASSERT_FALSE(seen[place]) << "two slots for one rank";
    seen[place] = true;
    ASSERT_EQ(table.slot[place], slot);
  }
}

TEST(RansTable, all_tables_of_the_grid_are_sound) {
  for (const RansTable& table : grid::tables()) ASSERT_NO_FATAL_FAILURE(expect_sound(table));
}

TEST(RansTable, any_frequencies_make_a_sound_table) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const Frequencies frequencies = random_frequencies(random);
    const auto table = table_of(frequencies);
    ASSERT_EQ(frequencies_of(*table), frequencies);
    ASSERT_NO_FATAL_FAILURE(expect_sound(*table));
  }
}

TEST(RansTable, extreme_frequencies_make_a_sound_table) {
  Frequencies even, uneven;
  even.fill(256);
  uneven.fill(1);
  uneven[15] = 4096 - 15;
  for (const Frequencies& frequencies : {even, uneven}) expect_sound(*table_of(frequencies));
}

// ---------------------------------------------------------------------------------------------
// Coding

struct Coded {
  RansStates states;
  std::vector<std::byte> words;  // exactly as long as they are
};

Coded code(std::span<const RansRun> runs, const std::vector<std::uint8_t>& symbols) {
  std::vector<std::uint16_t> room(symbols.size() + 8);
  Coded coded;
  coded.states.fill(kRansLow);
  const std::uint16_t* const begin =
      rans_encode(runs, symbols.data(), coded.states, room.data() + room.size());
  const auto words = std::as_bytes(std::span(begin, room.data() + room.size()));
  coded.words.assign(words.begin(), words.end());
  return coded;
}

RansReader reader_of(const Coded& coded) {
  return {coded.states, coded.words.data(), coded.words.data() + coded.words.size()};
}

bool decode_runs(RansReader& reader, std::span<const RansRun> runs, std::uint8_t* symbols) {
  for (const RansRun& run : runs) {
    if (!rans_decode(reader, *run.table, run.groups, symbols)) return false;
    symbols += std::size_t{run.groups} * kRansStates;
  }
  return true;
}

/// Draws symbols as a table expects them, or (one in eight) any.
std::vector<std::uint8_t> random_symbols(std::span<const RansRun> runs, std::mt19937& random) {
  std::vector<std::uint8_t> symbols;
  for (const RansRun& run : runs) {
    for (std::uint32_t i = 0; i < run.groups * kRansStates; ++i) {
      const int likely = owner_of(*run.table, static_cast<int>(random() % kRansTotal)).symbol;
      symbols.push_back(
          static_cast<std::uint8_t>(random() % 8 == 0 ? random() % kRansSymbols : likely));
    }
  }
  return symbols;
}

std::vector<RansRun> random_runs(std::mt19937& random) {
  std::vector<RansRun> runs(random() % 12);
  for (RansRun& run : runs) {
    run = {&grid::tables()[random() % grid::kTables], static_cast<std::uint32_t>(random() % 6)};
  }
  return runs;
}

TEST(Rans, any_symbols_come_back_on_every_isa_from_the_same_words) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    const std::vector<RansRun> runs = random_runs(random);
    const std::vector<std::uint8_t> symbols = random_symbols(runs, random);
    use_isa("scalar");
    const Coded scalar = code(runs, symbols);
    on_every_isa([&] {
      const Coded coded = code(runs, symbols);
      ASSERT_EQ(coded.states, scalar.states);
      ASSERT_TRUE(coded.words == scalar.words);
      std::vector<std::uint8_t> decoded(symbols.size());
      RansReader reader = reader_of(coded);
      ASSERT_TRUE(decode_runs(reader, runs, decoded.data()));
      ASSERT_EQ(decoded, symbols);
      EXPECT_TRUE(rans_finished(reader));
    });
  }
}

TEST(Rans, rare_symbols_take_no_more_than_their_room) {
  Frequencies uneven;
  uneven.fill(1);
  uneven[0] = 4096 - 15;
  const auto table = table_of(uneven);
  const RansRun run{table.get(), 50};
  const std::vector<std::uint8_t> symbols(50 * kRansStates, 7);
  on_every_isa([&] {
    const Coded coded = code({&run, 1}, symbols);
    EXPECT_LE(coded.words.size(), 50 * 2 * kRansMaxGroupWords);
    std::vector<std::uint8_t> decoded(symbols.size());
    RansReader reader = reader_of(coded);
    EXPECT_TRUE(decode_runs(reader, {&run, 1}, decoded.data()));
    EXPECT_EQ(decoded, symbols);
  });
}

TEST(Rans, size_is_near_the_entropy) {
  std::mt19937 random(3);
  for (int t = 0; t < grid::kTables; ++t) {
    const RansRun run{&grid::tables()[t], 1000};
    const std::vector<std::uint8_t> symbols = random_symbols({&run, 1}, random);
    double bits = 0;
    for (const std::uint8_t symbol : symbols) bits += run.table->cost[symbol] / 256.0;
    const double coded = 8.0 * static_cast<double>(code({&run, 1}, symbols).words.size());
    EXPECT_NEAR(coded, bits, bits * 0.005 + 32 * 16) << "table " << t;
  }
}

TEST(Rans, no_groups_change_nothing) {
  on_every_isa([] {
    const RansRun none{&grid::tables()[0], 0};
    const Coded coded = code({&none, 1}, {});
    EXPECT_TRUE(coded.words.empty());
    RansReader reader = reader_of(coded);
    EXPECT_TRUE(rans_decode(reader, grid::tables()[0], 0, nullptr));
    EXPECT_TRUE(rans_finished(reader));
  });
}

// ---------------------------------------------------------------------------------------------
// Hostile words

TEST(Rans, missing_words_are_noticed) {
  std::mt19937 random(4);
  const RansRun run{&grid::tables()[15], 20};
  const std::vector<std::uint8_t> symbols = random_symbols({&run, 1}, random);
  const Coded whole = code({&run, 1}, symbols);
  std::vector<std::uint8_t> decoded(symbols.size());
  on_every_isa([&] {
    for (std::size_t bytes = 0; bytes < whole.words.size(); bytes += 2) {
      Coded cut{whole.states,
                {whole.words.begin(), whole.words.begin() + static_cast<std::ptrdiff_t>(bytes)}};
      RansReader reader = reader_of(cut);
      ASSERT_FALSE(decode_runs(reader, {&run, 1}, decoded.data()))
          << bytes << " of " << whole.words.size();
    }
  });
}

TEST(Rans, words_left_over_or_other_states_are_not_finished) {
  const RansRun run{&grid::tables()[15], 2};
  std::vector<std::uint8_t> symbols(2 * kRansStates, 8);
  Coded coded = code({&run, 1}, symbols);
  coded.words.resize(coded.words.size() + 2);
  RansReader reader = reader_of(coded);
  ASSERT_TRUE(decode_runs(reader, {&run, 1}, symbols.data()));
  EXPECT_FALSE(rans_finished(reader));
  coded.words.resize(coded.words.size() - 2);
  reader = reader_of(coded);
  EXPECT_FALSE(rans_finished(reader)) << "before decoding";
}

TEST(Rans, any_words_decode_to_symbols_or_are_refused) {
  std::mt19937 random(5);
  on_every_isa([&] {
    for (int round = 0; round < 2000; ++round) {
      Coded coded;
      for (std::uint32_t& state : coded.states)
        state = kRansLow + random() % ((1u << 31) - kRansLow);
      coded.words.resize(2 * (random() % 400));
      for (std::byte& byte : coded.words) byte = std::byte(random() % 4 == 0 ? 0 : random());
      constexpr std::size_t kGroups = 20;
      std::vector<std::uint8_t> decoded(kGroups * kRansStates);
      RansReader reader = reader_of(coded);
      rans_decode(reader, grid::tables()[random() % grid::kTables], kGroups, decoded.data());
      ASSERT_LE(*std::max_element(decoded.begin(), decoded.end()), kRansSymbols - 1);
      ASSERT_LE(reader.at, reader.end);
    }
  });
}

}  // namespace
}  // namespace gradwire::test
