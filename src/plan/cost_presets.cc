#include "plan/cost_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "gradwire/error.h"

namespace gradwire {
namespace {

/// The same for up to so many elements, in proportion beyond.
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
  constexpr std::size_t kHosts = 8;
  constexpr double kRanksPerHost = 8;
  constexpr double kHopSeconds = 2 * 150e-6 / 4;
  constexpr double kMessageSeconds = kHopSeconds / (kRanksPerHost - 1);
  // Encoding and decoding of a tensor of which each rank of a host has a share, by its processors.
  constexpr double kProcessorMicroseconds = 1e6 * 32 / 20e9 * kRanksPerHost;  // per element
  Costs costs{.source = source,
              .host = "",
              .isa = "gpu",
              .version = "",
              .inside = {kMessageSeconds, inside_seconds_per_kib / 1024},
              .between = {kMessageSeconds, 8 / between_bits_per_second},
              .codecs = {}};
  costs.codecs["none"] = {constant_table(0, 1), constant_table(0, 1), {}, 4, {}, {}};
  costs.codecs["fp16"] = {constant_table(0, 1), constant_table(0, 1), {}, 2, {}, {}};
  for (const Compressor& each : kCompressors) {
    costs.codecs[Codec::parse(each.spec).spec()] = {
        .encode = constant_table(each.both_us - each.decode_us, kConstantUpTo),
        .decode = constant_table(each.decode_us, kConstantUpTo * kHosts),
        .preparation = {},
        .bytes_per_element = each.bytes_per_element,
        .other_encode = constant_table(kProcessorMicroseconds / 2, 1),
        .other_decode = constant_table(kProcessorMicroseconds / 2 / kHosts, 1)};
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

/// `gradwire calibrate --link 10gbit`, November 2026, AMD EPYC with AVX-512, two cores; codecs
/// by one run, links, delay and interference rounded from four that differed much.
Costs cpu() {
  const CpuCodec codecs[] = {
      {"fp16",
       {0.101, 0.253, 0.946, 3.62, 14.5, 57.9, 298, 8570},
       {0.0988, 0.269, 0.983, 3.8, 15.1, 60.5, 302, 9490},
       {},
       2},
      {"grid:step=0.25",
       {3.7, 6.61, 22.8, 68.7, 273, 1090, 4420, 70800},
       {1.46, 4.72, 18.1, 71.7, 287, 1150, 4600, 73500},
       {0.101, 0.206, 0.677, 2.47, 9.75, 39.5, 229, 7130},
       0.517},
      {"grid:step=0.5",
       {3.62, 6.18, 20.8, 60.2, 240, 961, 3880, 63300},
       {0.847, 2.54, 9.57, 37.8, 152, 606, 2450, 39100},
       {0.0996, 0.208, 0.671, 2.47, 9.86, 39.3, 235, 7300},
       0.392},
      {"none",
       {0.142, 0.314, 1.08, 4.12, 16.3, 65.7, 337, 7790},
       {0.116, 0.347, 1.29, 5.04, 20.2, 80.7, 405, 10600},
       {},
       4},
      {"randomk:density=0.01",
       {0.42, 1.33, 5.15, 20.3, 81.5, 325, 1630, 30000},
       {0.343, 0.979, 3.68, 15.6, 60, 256, 1170, 18100},
       {},
       0.0399},
      {"sign",
       {0.177, 0.534, 1.95, 7.67, 30.7, 123, 621, 11500},
       {0.124, 0.338, 1.18, 4.5, 18, 71.7, 337, 8490},
       {},
       0.128},
      {"topk:density=0.01",
       {0.358, 1, 3.93, 15.5, 61.7, 286, 963, 15000},
       {0.0912, 0.191, 0.648, 2.41, 9.42, 37.8, 182, 5330},
       {11, 12.5, 17.5, 43.7, 161, 452, 1570, 25200},
       0.0503},
      {"topk:density=0.04",
       {0.774, 2.76, 10.8, 43.1, 171, 686, 2710, 43900},
       {0.24, 0.703, 2.58, 10, 40.5, 161, 1090, 19100},
       {11.6, 14.1, 23.5, 71.4, 269, 833, 2830, 45100},
       0.191},
      {"uniform:bits=4,bucket=128",
       {0.273, 0.645, 2.14, 8.11, 32.4, 130, 581, 11100},
       {0.15, 0.433, 1.51, 5.7, 23, 91.9, 407, 8880},
       {},
       0.532},
      {"uniform:bits=8,bucket=128",
       {0.273, 0.762, 2.6, 9.72, 39.2, 156, 719, 12100},
       {0.158, 0.454, 1.53, 5.83, 22.9, 92.7, 414, 9130},
       {},
       1.03},
  };
  Costs costs{.source =
                  "preset cpu: two ranks on two cores of an AMD EPYC, 10 Gbit/s between hosts; "
                  "measured by gradwire calibrate",
              .host = "",
              .isa = "avx3",
              .version = "0.1.0",
              .inside = {4e-06, 1.1e-10},
              .between = {2e-05, 8.5e-10},
              .delay = 0.007,
              .threads = 1,
              .interference = 1.2,
              .codecs = {}};
  for (const CpuCodec& each : codecs) {
    costs.codecs[Codec::parse(each.spec).spec()] = {.encode = measured_table(each.encode),
                                                    .decode = measured_table(each.decode),
                                                    .preparation = measured_table(each.preparation),
                                                    .bytes_per_element = each.bytes_per_element,
                                                    .other_encode = {},
                                                    .other_decode = {}};
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
