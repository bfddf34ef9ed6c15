// `gradwire bench codec`: how fast codecs are, beside what memory allows.
//
// One thread. Encoding is `encode_frame`; decoding makes a `FrameReader`, which verifies the
// checksum, and decodes: what a user gets, all included. Every round measures every codec once, and
// a read and a copy of 128 MiB stand between the measurements, so that whatever disturbs the
// machine disturbs all alike, and so that frames do not wait in the cache for their decoder.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/distortion.h"
#include "gradients/synthetic.h"
#include "gradwire/codec.h"
#include "gradwire/frame.h"
#include "gradwire/isa.h"
#include "machine/huge_buffer.h"
#include "machine/machine.h"
#include "machine/measure.h"
#include "machine/memory_speed.h"
#include "subcommands.h"
#include "terminal/byte_size.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr std::uint64_t kSeed = 1;

constexpr const char* kDefaultCodecs[] = {
    "none",
    "fp16",
    "bf16",
    "uniform:bits=4,bucket=128,rounding=stochastic",
    "uniform:bits=8,bucket=128,rounding=stochastic",
    "uniform:bits=2,bucket=128,rounding=stochastic",
    "exponential:bits=4",
    "sign",
    "grid:step=0.5",
    "grid:step=0.5,rounding=dither",
    "topk:density=0.001",
    "randomk:density=0.01",
};
// The default list also shows what sparse data gives. The text differs from "grid:step=0.5", which
// it means, so that a script that looks for a codec by its text finds one row.
constexpr const char* kSparseCodec = "grid";

struct Options {
  std::vector<std::string> codecs;
  std::vector<std::string> sizes = {"256K", "128M"};
  std::string data = "gaussian";
  std::string isa;
  unsigned repeat = 11;
  bool json = false;
};

/// One of encode, decode and decode_add.
struct Operation {
  std::size_t calls = 1;  // per sample
  Timings timings;
};

/// One row of the result.
struct Case {
  std::string text;  // as the user wrote it
  Codec codec;
  Distribution data;
  std::size_t bytes;  // of fp32 input

  Operation encode;
  Operation decode;
  Operation decode_add;
  Distortion distortion;
};

/// Memory that all cases share.
class Buffers {
 public:
  explicit Buffers(const std::vector<Case>& cases)
      : frame_(largest(cases, [](const Case& c) { return max_frame_bytes(c.codec, c.bytes / 4); })),
        output_(largest(cases, [](const Case& c) { return c.bytes; })) {
    for (const Case& c : cases) {
      if (inputs_.contains(c.data)) continue;
      const HugeBuffer& input = inputs_.try_emplace(c.data, output_.bytes().size()).first->second;
      fill(c.data, kSeed, input.floats());
    }
  }

  std::span<const float> input(const Case& c) const {
    return inputs_.at(c.data).floats().first(c.bytes / 4);
  }
  std::span<float> output(const Case& c) const { return output_.floats().first(c.bytes / 4); }
  std::span<std::byte> frame() const { return frame_.bytes(); }

 private:
  template <typename Size>
  static std::size_t largest(const std::vector<Case>& cases, Size size) {
    std::size_t most = 0;
    for (const Case& c : cases) most = std::max(most, size(c));
    return most;
  }

  std::map<Distribution, HugeBuffer> inputs_;
  HugeBuffer frame_;
  HugeBuffer output_;
};

/// The three operations of one case on the shared buffers. Decoding uses the frame that was encoded
/// last.
class Runner {
 public:
  Runner(const Case& c, const Buffers& buffers)
      : segment_{c.codec,
                 {buffers.input(c).data(), buffers.input(c).size(), Dtype::f32},
                 {.random = {.seed = kSeed}, .first_element = 0}},
        room_(buffers.frame()),
        output_{buffers.output(c).data(), buffers.output(c).size(), Dtype::f32} {}

  void encode() {
    const Encoded encoded = encode_frame({&segment_, 1}, room_);
    check(encoded.status);
    frame_ = room_.first(encoded.bytes);
  }
  void decode() { check(decode_frame(frame_, output_)); }
  void decode_add() { check(decode_add_frame(frame_, output_)); }

  std::size_t frame_bytes() const { return frame_.size(); }

 private:
  Segment segment_;
  std::span<std::byte> room_;
  std::span<const std::byte> frame_;
  TensorView output_;
};

/// Finds how many calls make a sample, and what the codec costs in bits and error.
void warm_up(Case& c, const Buffers& buffers) {
  Runner runner(c, buffers);
  c.encode.calls = calls_per_sample([&] { runner.encode(); });
  c.decode_add.calls = calls_per_sample([&] { runner.decode_add(); });
  c.decode.calls = calls_per_sample([&] { runner.decode(); });
  c.distortion.elements = buffers.input(c).size();
  c.distortion.bytes = runner.frame_bytes();
  add_error(buffers.input(c), buffers.output(c), c.distortion);
}

/// A large buffer is always cold, a small one is warm after one call that does not count.
template <typename Work>
void sample(Operation& operation, Work&& work) {
  if (operation.calls > 1) work();
  operation.timings.add(seconds_per_call(operation.calls, work));
}

void measure_once(Case& c, const Buffers& buffers, MemorySpeed& memory) {
  Runner runner(c, buffers);
  memory.sample_read();
  sample(c.encode, [&] { runner.encode(); });
  memory.sample_copy();
  sample(c.decode, [&] { runner.decode(); });
  memory.sample_read();
  sample(c.decode_add, [&] { runner.decode_add(); });
  memory.sample_copy();
}

std::string describe(const Case& c) {
  return fmt::format("{} {}", format_byte_size(c.bytes), c.text);
}

/// Returns the share of a CPU that the rounds had.
double measure_all(std::vector<Case>& cases, const Buffers& buffers, MemorySpeed& memory,
                   unsigned rounds) {
  Progress progress(cases.size() * (rounds + 1));
  for (Case& c : cases) {
    progress.begin_step("warm-up " + describe(c));
    warm_up(c, buffers);
  }
  const CpuShare cpu;
  for (unsigned round = 0; round < rounds; ++round) {
    for (Case& c : cases) {
      progress.begin_step(describe(c));
      measure_once(c, buffers, memory);
    }
  }
  return cpu.share();
}

std::size_t parse_input_bytes(const std::string& text) {
  const std::size_t bytes = parse_byte_size(text);
  if (bytes == 0 || bytes % sizeof(float) != 0) {
    throw Error(ErrorCode::invalid_argument,
                "--bytes " + text + " is not a whole number of fp32 values; use a multiple of 4");
  }
  return bytes;
}

std::vector<Case> make_cases(const Options& options) {
  const Distribution data = parse_distribution(options.data);
  std::vector<std::string> texts = options.codecs;
  if (texts.empty()) texts.assign(std::begin(kDefaultCodecs), std::end(kDefaultCodecs));
  std::vector<Case> cases;
  for (const std::string& size : options.sizes) {
    const std::size_t bytes = parse_input_bytes(size);
    for (const std::string& text : texts) {
      cases.push_back({text, Codec::parse(text), data, bytes, {}, {}, {}, {}});
    }
    if (options.codecs.empty() && data != Distribution::sparse) {
      cases.push_back(
          {kSparseCodec, Codec::parse(kSparseCodec), Distribution::sparse, bytes, {}, {}, {}, {}});
    }
  }
  return cases;
}

double speed(std::size_t bytes, const Timings& timings) {
  return gigabytes_per_second(bytes, timings.median());
}

void add_speed(Json& object, const std::string& name, std::size_t bytes, const Timings& timings) {
  object[name + "_gbps"] = measured(speed(bytes, timings));
  object[name + "_gbps_min"] = measured(gigabytes_per_second(bytes, timings.slowest()));
  object[name + "_gbps_max"] = measured(gigabytes_per_second(bytes, timings.fastest()));
}

Json row_as_json(const Case& c) {
  Json row;
  row["codec"] = c.text;
  row["bytes"] = c.bytes;
  row["data"] = name_of(c.data);
  add_speed(row, "encode", c.bytes, c.encode.timings);
  add_speed(row, "decode", c.bytes, c.decode.timings);
  add_speed(row, "decode_add", c.bytes, c.decode_add.timings);
  row["bits_per_element"] = measured(c.distortion.bits_per_element());
  row["nmse"] = measured(c.distortion.nmse());
  return row;
}

void show_as_json(const std::vector<Case>& cases, const MemorySpeed& memory, unsigned rounds,
                  double cpu_share) {
  Json object;
  object["cpu"] = cpu_name();
  object["isa"] = current_isa();
  object["threads"] = 1;
  object["rounds"] = rounds;
  object["cpu_share"] = measured(cpu_share);
  object["memory_bytes"] = MemorySpeed::kBytes;
  add_speed(object, "memcpy", MemorySpeed::kBytes, memory.copy());
  add_speed(object, "read", MemorySpeed::kBytes, memory.read());
  object["rows"] = Json::array();
  for (const Case& c : cases) object["rows"].push_back(row_as_json(c));
  print_json(object);
}

/// How far apart the fastest and the slowest sample of the worst operation lie, in per cent of its
/// median.
double spread_percent(const Case& c) {
  double worst = 0;
  for (const Operation* operation : {&c.encode, &c.decode, &c.decode_add}) {
    const Timings& t = operation->timings;
    worst = std::max(worst, (t.slowest() - t.fastest()) / t.median());
  }
  return 100 * worst;
}

std::vector<std::string> row_as_text(const Case& c, double read, double copy) {
  const double encode = speed(c.bytes, c.encode.timings);
  const double decode = speed(c.bytes, c.decode.timings);
  const double add = speed(c.bytes, c.decode_add.timings);
  return {c.text,
          fmt::format("{:.2f}", encode),
          fmt::format("{:.2f}", decode),
          fmt::format("{:.2f}", add),
          fmt::format("{:.0f}", spread_percent(c)),
          fmt::format("{:.2f}", c.distortion.bits_per_element()),
          fmt::format("{:.2e}", c.distortion.nmse()),
          fmt::format("{:.2f}", encode / read),
          fmt::format("{:.2f}", add / read),
          fmt::format("{:.2f}", encode / copy),
          fmt::format("{:.2f}", add / copy)};
}

std::string section_title(const Case& c) {
  return fmt::format("{} of fp32, {}", format_byte_size(c.bytes), name_of(c.data));
}

void show_as_table(const std::vector<Case>& cases, const MemorySpeed& memory, unsigned rounds,
                   double cpu_share) {
  const double read = speed(MemorySpeed::kBytes, memory.read());
  const double copy = speed(MemorySpeed::kBytes, memory.copy());
  TextTable table({{"codec", "", Align::left},
                   {"encode", "GB/s"},
                   {"decode", "GB/s"},
                   {"decode_add", "GB/s"},
                   {"spread", "%"},
                   {"size", "bit/elem"},
                   {"NMSE", ""},
                   {"encode", "x read"},
                   {"add", "x read"},
                   {"encode", "x memcpy"},
                   {"add", "x memcpy"}});
  std::string section;
  for (const Case& c : cases) {
    if (section_title(c) != section) table.add_section(section = section_title(c));
    table.add_row(row_as_text(c, read, copy));
  }
  print_note(fmt::format("{}, {}, one thread; memory: read {:.2f} GB/s, memcpy {:.2f} GB/s",
                         cpu_name(), current_isa(), read, copy));
  print(table);
  print_note(
      fmt::format("\nGB/s of fp32 bytes, median of {} rounds after an untimed one; spread from "
                  "fastest to slowest.",
                  rounds));
  if (const std::string note = disturbance_note(cpu_share); !note.empty()) print_note(note);
}

void run(const Options& options) {
  if (!options.isa.empty()) use_isa(options.isa);
  std::vector<Case> cases = make_cases(options);
  const Buffers buffers(cases);
  MemorySpeed memory;
  const double cpu_share = measure_all(cases, buffers, memory, options.repeat);
  (options.json ? show_as_json : show_as_table)(cases, memory, options.repeat, cpu_share);
}

}  // namespace

void add_bench_codec(CLI::App& bench) {
  CLI::App& command =
      *bench.add_subcommand("codec", "Speed of the codecs beside memcpy and memory read");
  const auto options = std::make_shared<Options>();
  command
      .add_option("--codec", options->codecs,
                  "A codec to measure; repeat for several (default: a list)")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command.add_option("--bytes", options->sizes, "Sizes of the fp32 input (default: 256K,128M)")
      ->type_name("SIZE[,SIZE]")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--repeat", options->repeat, "Rounds; the median is shown (default: 11)")
      ->type_name("N")
      ->check(CLI::Range(1U, 100000U));
  command
      .add_option("--data", options->data,
                  "gaussian, laplace, student or sparse (default: gaussian)")
      ->type_name("NAME");
  command
      .add_option("--isa", options->isa,
                  "Vector instructions to use: scalar, avx2, ... (default: best)")
      ->type_name("NAME");
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire bench codec\n"
      "  gradwire bench codec --codec grid:step=0.5 --codec uniform:bits=4 --bytes 64K,1M,16M\n"
      "  gradwire bench codec --codec grid --data sparse --isa scalar --repeat 3 --json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
