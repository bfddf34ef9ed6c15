// `gradwire bench coder`: our entropy coder beside the best public one, on the same symbols in the
// same run.
//
// The symbols are what the `grid` codec makes of Gaussian data at step 0.5. Both coders count the
// symbols of a block, make their table and code them. Their rounds alternate, so that whatever
// disturbs the machine disturbs both.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/symbol_coder.h"
#include "gradients/synthetic.h"
#include "gradwire/error.h"
#include "gradwire/isa.h"
#include "gradwire/random.h"
#include "machine/huge_buffer.h"
#include "machine/machine.h"
#include "machine/measure.h"
#include "subcommands.h"
#include "terminal/byte_size.h"
#include "terminal/json_output.h"
#include "terminal/progress.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr const char* kMissing =
    "built without htscodecs; install libhtscodecs-dev and build again";
constexpr std::uint64_t kSeed = 1;
constexpr float kStep = 0.5F;

struct Options {
  std::string symbols = "16M";
  unsigned repeat = 21;
  bool json = false;
};

using Symbols = std::span<const std::uint8_t>;

/// The integers -7..7 as 1..15, and 0 for those beyond, which `grid` escapes.
std::uint8_t symbol_of(float value, std::uint64_t index) {
  const float noise = static_cast<float>(random_bits({.seed = kSeed}, index)) * 0x1p-16F;
  const float integer = std::floor(value / kStep + noise);
  return std::abs(integer) > 7 ? 0 : static_cast<std::uint8_t>(static_cast<int>(integer) + 8);
}

void make_symbols(std::span<std::uint8_t> out) {
  std::vector<float> values(out.size());
  fill(Distribution::gaussian, kSeed, values);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = symbol_of(values[i], i);
}

/// Bits per symbol that no order-0 coder can beat on these symbols.
double entropy_of(Symbols symbols) {
  double counts[kSymbolCount] = {};
  for (const std::uint8_t symbol : symbols) ++counts[symbol];
  double bits = 0;
  for (const double n : counts) {
    const double p = n / static_cast<double>(symbols.size());
    if (p > 0) bits -= p * std::log2(p);
  }
  return bits;
}

/// One coder's run over all symbols. Each block is encoded and at once decoded, in buffers that
/// stay in cache: the coders are compared, not their traffic with memory.
class Run {
 public:
  Run(std::unique_ptr<SymbolCoder> coder, Symbols symbols)
      : coder_(std::move(coder)),
        symbols_(symbols),
        encoded_(coder_->max_bytes()),
        decoded_(kBlockSymbols) {}

  /// A round that is checked instead of timed: the warm-up.
  void check_round_trip() {
    encoded_bytes_ = 0;
    for_each_block([&](Symbols block) {
      const std::span<std::byte> bytes = encode(block);
      const Symbols decoded = decode(bytes, block.size());
      if (!std::equal(block.begin(), block.end(), decoded.begin())) {
        throw Error(ErrorCode::bad_frame, "a coder decodes other symbols than it encoded");
      }
      encoded_bytes_ += bytes.size();
    });
  }

  void sample() {
    double encode_seconds = 0;
    double decode_seconds = 0;
    for_each_block([&](Symbols block) {
      std::span<std::byte> bytes;
      encode_seconds += seconds_per_call(1, [&] { bytes = encode(block); });
      decode_seconds += seconds_per_call(1, [&] { decode(bytes, block.size()); });
    });
    encode_.add(encode_seconds);
    decode_.add(decode_seconds);
  }

  double bits() const {
    return 8 * static_cast<double>(encoded_bytes_) / static_cast<double>(symbols_.size());
  }
  double encode_rate() const { return rate(encode_); }
  double decode_rate() const { return rate(decode_); }

 private:
  template <typename Work>
  void for_each_block(Work&& work) {
    Symbols rest = symbols_;
    while (!rest.empty()) {
      const std::size_t length = std::min(kBlockSymbols, rest.size());
      work(rest.first(length));
      rest = rest.subspan(length);
    }
  }

  std::span<std::byte> encode(Symbols block) {
    return encoded_.bytes().first(coder_->encode(block, encoded_.bytes()));
  }

  Symbols decode(std::span<const std::byte> bytes, std::size_t symbols) {
    const std::span<std::uint8_t> out(reinterpret_cast<std::uint8_t*>(decoded_.bytes().data()),
                                      symbols);
    if (!coder_->decode(bytes, out)) {
      throw Error(ErrorCode::bad_frame, "a coder cannot decode what it encoded");
    }
    return out;
  }

  /// Millions of symbols per second.
  double rate(const Timings& timings) const {
    return static_cast<double>(symbols_.size()) / 1e6 / timings.median();
  }

  std::unique_ptr<SymbolCoder> coder_;
  Symbols symbols_;
  HugeBuffer encoded_;
  HugeBuffer decoded_;
  std::size_t encoded_bytes_ = 0;
  Timings encode_;
  Timings decode_;
};

/// The coders that take part: ours, and htscodecs twice, to see that it uses vector instructions.
struct Contest {
  explicit Contest(Symbols all) : symbols(all.size()), entropy_bits(entropy_of(all)) {
    ours.emplace(make_our_coder(), all);
    if (auto coder = make_htscodecs_coder(/*vectorised=*/true)) {
      rival.emplace(std::move(coder), all);
    }
    if (auto coder = make_htscodecs_coder(/*vectorised=*/false)) {
      rival_scalar.emplace(std::move(coder), all);
    }
  }

  std::size_t symbols;
  double entropy_bits;
  double cpu_share = 1;
  std::optional<Run> ours;
  std::optional<Run> rival;  // empty without htscodecs, and so is the next
  std::optional<Run> rival_scalar;
};

template <typename Work>
void for_each_run(Contest& contest, Work&& work) {
  for (auto* run : {&contest.ours, &contest.rival, &contest.rival_scalar}) {
    if (*run) work(**run);
  }
}

Contest hold_contest(Symbols symbols, unsigned rounds) {
  Contest contest(symbols);
  Progress progress(rounds + 1);
  progress.begin_step("warm-up");
  for_each_run(contest, [](Run& run) { run.check_round_trip(); });
  const CpuShare cpu;
  for (unsigned round = 0; round < rounds; ++round) {
    progress.begin_step("coding");
    for_each_run(contest, [](Run& run) { run.sample(); });
  }
  contest.cpu_share = cpu.share();
  return contest;
}

void show_as_json(const Contest& contest) {
  const Run& ours = *contest.ours;
  const Run* rival = contest.rival ? &*contest.rival : nullptr;
  const auto of_rival = [&](auto&& value) {
    return rival == nullptr ? Json() : measured(value(*rival));
  };
  Json object;
  object["cpu"] = cpu_name();
  object["isa"] = current_isa();
  object["cpu_share"] = measured(contest.cpu_share);
  object["symbols"] = contest.symbols;
  object["block_symbols"] = kBlockSymbols;
  object["entropy_bits"] = measured(contest.entropy_bits);
  object["ours_bits"] = measured(ours.bits());
  object["ours_encode_msym"] = measured(ours.encode_rate());
  object["ours_decode_msym"] = measured(ours.decode_rate());
  object["htscodecs_bits"] = of_rival([](const Run& r) { return r.bits(); });
  object["htscodecs_encode_msym"] = of_rival([](const Run& r) { return r.encode_rate(); });
  object["htscodecs_decode_msym"] = of_rival([](const Run& r) { return r.decode_rate(); });
  object["htscodecs_gain_by_vectors"] =
      of_rival([&](const Run& r) { return r.decode_rate() / contest.rival_scalar->decode_rate(); });
  object["encode_ratio"] =
      of_rival([&](const Run& r) { return ours.encode_rate() / r.encode_rate(); });
  object["decode_ratio"] =
      of_rival([&](const Run& r) { return ours.decode_rate() / r.decode_rate(); });
  object["note"] = rival == nullptr ? Json(kMissing) : Json();
  print_json(object);
}

void add_row(TextTable& table, const std::string& name, const std::optional<Run>& run,
             const Contest& contest, Emphasis emphasis = Emphasis::none) {
  if (!run) return;
  table.add_row({name, fmt::format("{:.0f}", run->encode_rate()),
                 fmt::format("{:.0f}", run->decode_rate()), fmt::format("{:.4f}", run->bits()),
                 fmt::format("{:+.4f}", run->bits() - contest.entropy_bits)},
                emphasis);
}

void show_as_table(const Contest& contest) {
  print_note(fmt::format(
      "{}, {}, one thread; {} symbols, grid step 0.5 of Gaussian data, entropy {:.4f} bit",
      cpu_name(), current_isa(), contest.symbols, contest.entropy_bits));
  TextTable table({{"coder", "", Align::left},
                   {"encode", "Msym/s"},
                   {"decode", "Msym/s"},
                   {"size", "bit/sym"},
                   {"over entropy", "bit/sym"}});
  add_row(table, "gradwire, 32 states, 16 symbols", contest.ours, contest);
  add_row(table, "htscodecs, 32 states, bytes", contest.rival, contest);
  add_row(table, "htscodecs without vector code", contest.rival_scalar, contest, Emphasis::faint);
  print(table);
  if (const std::string note = disturbance_note(contest.cpu_share); !note.empty()) {
    print_note("\n" + note);
  }
  if (!contest.rival) return print_note(fmt::format("\nNo comparison: {}.", kMissing));
  print_note(fmt::format(
      "\nOurs over htscodecs: encode {:.2f}, decode {:.2f}. Counting and tables included.",
      contest.ours->encode_rate() / contest.rival->encode_rate(),
      contest.ours->decode_rate() / contest.rival->decode_rate()));
}

std::size_t parse_symbol_count(const std::string& text) {
  const std::size_t count = parse_byte_size(text);
  if (count == 0 || count % 32 != 0) {
    throw Error(ErrorCode::invalid_argument, "--symbols " + text + " is not a multiple of 32");
  }
  return count;
}

void run(const Options& options) {
  const HugeBuffer buffer(parse_symbol_count(options.symbols));
  const std::span<std::uint8_t> symbols(reinterpret_cast<std::uint8_t*>(buffer.bytes().data()),
                                        buffer.bytes().size());
  make_symbols(symbols);
  const Contest contest = hold_contest(symbols, options.repeat);
  (options.json ? show_as_json : show_as_table)(contest);
}

}  // namespace

void add_bench_coder(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand("coder", "Our entropy coder beside htscodecs'");
  const auto options = std::make_shared<Options>();
  command.add_option("--symbols", options->symbols, "How many symbols to code (default: 16M)")
      ->type_name("COUNT");
  command.add_option("--repeat", options->repeat, "Rounds; the median is shown (default: 21)")
      ->type_name("N")
      ->check(CLI::Range(1U, 100000U));
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire bench coder\n"
      "  gradwire bench coder --symbols 1M --json");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
