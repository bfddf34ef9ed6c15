#include "codec/grid_classes.h"

namespace gradwire::grid {
namespace {

constexpr std::uint16_t kFrequencies[kTables][kRansSymbols] = {
#include "codec/grid_tables.inc"
};

struct AllTables {
  std::array<RansTable, kTables> tables;
  AllTables() noexcept {
    for (int t = 0; t < kTables; ++t) make_table(kFrequencies[t], tables[t]);
  }
};

}  // namespace

const std::array<RansTable, kTables>& tables() noexcept {
  static const AllTables kAll;
  return kAll.tables;
}

}  // namespace gradwire::grid
