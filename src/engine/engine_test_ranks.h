// Ranks as threads, and numbers whose sums are known, for the engine's tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "collective/algorithms.h"
#include "gradwire/communicator.h"

namespace gradwire {

using Numbers = std::vector<float>;
using RanksHere = std::vector<std::unique_ptr<Communicator>>;

/// Runs `body(communicator)` for every rank, each in a thread.
template <class Body>
void on_all_ranks(RanksHere& ranks, Body body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

/// Independent of those of other ranks.
inline Numbers gaussian(std::size_t count, std::uint32_t rank) {
  std::mt19937 random(rank + 1);
  std::normal_distribution<float> normal;
  Numbers x(count);
  for (float& value : x) value = normal(random);
  return x;
}

/// Small integers: their sums are exact in fp32.
inline Numbers integers(std::size_t count, std::uint32_t rank) {
  Numbers x(count);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(static_cast<int>((i * 7 + rank * 13) % 31) - 15);
  }
  return x;
}

inline Numbers sum_of_all(std::size_t count, std::uint32_t ranks) {
  Numbers sum(count);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const Numbers x = integers(count, rank);
    for (std::size_t i = 0; i < count; ++i) sum[i] += x[i];
  }
  return sum;
}

inline bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// The way of a text, by this algorithm; "auto": by the communicator's.
inline Way by(const std::string& algorithm, const std::string& text = "none") {
  Way way = Way::parse(text);
  if (algorithm != "auto") way.route = algorithm;
  return way;
}

/// That `ranks` ranks can use for all_reduce, on one host or on several.
inline std::vector<std::string> usable_algorithms(std::uint32_t ranks, std::uint32_t per_host = 0) {
  const Ranks who{.count = ranks, .per_host = per_host == 0 ? ranks : per_host};
  std::vector<std::string> names;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.refusal(Collective::all_reduce, who).empty()) names.push_back(algorithm.name);
  }
  return names;
}

}  // namespace gradwire
