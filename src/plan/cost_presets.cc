#include "plan/cost_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "gradwire/error.h"

namespace gradwire {
namespace {

CostTable constant_table(double microseconds, std::size_t elements) {
  return CostTable({{elements, 1e-6 * microseconds}});
}

/// One of the two testbeds of the paper.
Costs testbed(const char* source, double inside_seconds_per_kib, double between_bits_per_second) {
  struct Compressor {
    const char* spec;
    double both_us;  // compressing and decompressing, on one level
    double decode_us;
    double bytes_per_element;
  };
  // Sparse messages have a value and an index of 4 bytes each; those of sums have four times as
  // many, as `Codec::for_sums` has them.
  constexpr Compressor kCompressors[] = {{"randomk:density=0.01", 88, 34, 0.08},
                                         {"topk:density=0.01", 390, 34, 0.08},
                                         {"topk:density=0.04", 390, 34, 0.32},
                                         {"sign", 270, 140, 0.125}};
  constexpr std::size_t kConstantUpTo = std::size_t{1} << 20U;
  constexpr double kHopSeconds = 2 * 150e-6 / 4;
  Costs costs{.source = source,
              .host = "",
              .isa = "gpu",
              .version = "",
              .inside = {kHopSeconds, inside_seconds_per_kib / 1024},
              .between = {kHopSeconds, 8 / between_bits_per_second},
              .codecs = {}};
  costs.codecs["none"] = {constant_table(0, 1), constant_table(0, 1), {}, 4};
  for (const Compressor& each : kCompressors) {
    costs.codecs[Codec::parse(each.spec).spec()] = {
        constant_table(each.both_us - each.decode_us, kConstantUpTo),
        constant_table(each.decode_us, kConstantUpTo),
        {},
        each.bytes_per_element};
  }
  return costs;
}

Costs testbed_a() {
  return testbed(
      "preset testbed-a: ByteComp's hosts with 8 V100, NVLink inside, 100 Gbit/s between; figures "
      "of the paper and its code",
      0.02e-6, 100e9);
}

Costs testbed_b() {
  return testbed(
      "preset testbed-b: ByteComp's hosts with 8 V100, PCIe inside, 25 Gbit/s between; figures of "
      "the paper and its code",
      0.4e-6, 25e9);
}

/// Microseconds of one thread for as many elements as `kMeasured` has.
struct CpuCodec {
  const char* spec;
  std::vector<double> encode;
  std::vector<double> decode;
  std::vector<double> preparation;
  double bytes_per_element;
};

constexpr std::size_t kMeasured[] = {1U << 10U, 1U << 12U, 1U << 14U, 1U << 16U,
                                     1U << 18U, 1U << 20U, 1U << 22U, 1U << 26U};

CostTable measured_table(const std::vector<double>& microseconds) {
  std::vector<std::pair<std::size_t, double>> points;
  for (std::size_t i = 0; i < microseconds.size(); ++i) {
    points.emplace_back(kMeasured[i], 1e-6 * microseconds[i]);
  }
  return CostTable(std::move(points));
}

/// `gradwire calibrate --link 10gbit`, November 2026, AMD EPYC with AVX-512, two cores.
Costs cpu() {
  const CpuCodec codecs[] = {
      {"fp16",
       {0.08, 0.194, 0.609, 2.18, 13, 60.9, 370, 8320},
       {0.0713, 0.2, 0.764, 2.9, 13.5, 64.7, 327, 9450},
       {},
       2},
      {"grid:step=0.25",
       {3.38, 6.73, 23.2, 68.1, 279, 1140, 4480, 71400},
       {1.24, 4.39, 17, 69.2, 278, 1100, 4410, 71100},
       {0.09, 0.177, 0.564, 2.08, 8.66, 43.5, 283, 7330},
       0.517},
      {"grid:step=0.5",
       {3.21, 6.02, 20.6, 59.6, 244, 976, 3920, 63700},
       {0.732, 2.47, 9.63, 38.2, 153, 613, 2440, 39400},
       {0.0901, 0.177, 0.565, 2.09, 8.64, 40.4, 299, 7310},
       0.392},
      {"none",
       {0.0809, 0.147, 0.556, 2, 14.8, 95.8, 355, 8140},
       {0.0716, 0.192, 0.819, 3.1, 18.4, 84, 456, 9880},
       {},
       4},
      {"randomk:density=0.01",
       {0.147, 0.372, 1.33, 5.43, 24.9, 251, 1620, 30100},
       {0.105, 0.292, 1.02, 4.24, 17.4, 209, 1260, 18500},
       {},
       0.0398},
      {"sign",
       {0.17, 0.512, 1.88, 7.37, 30.1, 127, 719, 11800},
       {0.104, 0.301, 1.11, 4.27, 17.9, 74.5, 463, 8430},
       {},
       0.128},
      {"topk:density=0.01",
       {0.16, 0.399, 1.45, 5.83, 30.1, 255, 1030, 15900},
       {0.0649, 0.167, 0.597, 2.32, 9.33, 38.2, 193, 5340},
       {4.23, 4.63, 5.61, 13.7, 64, 527, 1720, 27000},
       0.0503},
      {"topk:density=0.04",
       {0.324, 1.09, 4.22, 17, 96, 708, 2790, 45000},
       {0.168, 0.62, 2.34, 9.3, 39, 169, 1180, 19200},
       {3.97, 4.57, 6.84, 18.2, 260, 914, 3210, 47700},
       0.191},
      {"uniform:bits=4,bucket=128",
       {0.265, 0.601, 2.07, 7.81, 32.4, 135, 661, 11200},
       {0.126, 0.387, 1.41, 5.45, 22.7, 94.3, 492, 8900},
       {},
       0.532},
      {"uniform:bits=8,bucket=128",
       {0.262, 0.719, 2.51, 9.58, 39.5, 161, 738, 12200},
       {0.13, 0.398, 1.45, 5.49, 22.7, 93.7, 403, 8940},
       {},
       1.03},
  };
  Costs costs{.source =
                  "preset cpu: two ranks on two cores of an AMD EPYC, 10 Gbit/s between hosts; "
                  "measured by gradwire calibrate",
              .host = "",
              .isa = "avx3",
              .version = "0.1.0",
              .inside = {5.9e-06, 1.2e-10},
              .between = {0.00017, 9.27e-10},
              .delay = 0.001,
              .threads = 1,
              .interference = 1.2,
              .codecs = {}};
  for (const CpuCodec& each : codecs) {
    costs.codecs[Codec::parse(each.spec).spec()] = {
        measured_table(each.encode), measured_table(each.decode), measured_table(each.preparation),
        each.bytes_per_element};
  }
  return costs;
}

struct Preset {
  const char* name;
  Costs (*make)();
};

constexpr Preset kPresets[] = {{"testbed-a", testbed_a}, {"testbed-b", testbed_b}, {"cpu", cpu}};

}  // namespace

std::vector<std::string> cost_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

Costs preset_costs(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.make();
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no preset '{}'; there are {}",
                                                       name, fmt::join(cost_preset_names(), ", ")));
}

}  // namespace gradwire
