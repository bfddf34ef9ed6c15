// `gradwire inspect`: what a frame or a plan holds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "gradwire/frame.h"
#include "gradwire/plan.h"
#include "subcommands.h"
#include "terminal/json_output.h"
#include "terminal/text_table.h"

namespace gradwire::cli {
namespace {

constexpr std::size_t kVersionAt = 4;  // of the frame header, docs/format.md

struct Options {
  std::string path;
  bool json = false;
};

[[noreturn]] void fail_reading(const std::string& path, int error) {
  throw Error(ErrorCode::io, "cannot read " + path + ": " + std::strerror(error));
}

std::vector<std::byte> read_all(std::FILE* file, const std::string& path) {
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  std::vector<std::byte> bytes;
  std::size_t size = 0;
  do {
    bytes.resize(size + kChunk);
    size += std::fread(bytes.data() + size, 1, kChunk, file);
  } while (size == bytes.size());
  if (std::ferror(file) != 0) fail_reading(path, errno);
  bytes.resize(size);
  return bytes;
}

std::vector<std::byte> read_file(const std::string& path) {
  if (path == "-") return read_all(stdin, "the standard input");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) fail_reading(path, errno);
  return read_all(file.get(), path);
}

double bits_per_element(std::size_t bytes, std::size_t count) {
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(count);
}

std::string format_bits(std::size_t bytes, std::size_t count) {
  return count == 0 ? "-" : fmt::format("{:.3f}", bits_per_element(bytes, count));
}

/// A damaged frame in JSON: still one object, so that a script sees why.
void show_damage_as_json(const Options& options, std::size_t file_bytes, Status status) {
  Json object;
  object["file"] = options.path;
  object["ok"] = false;
  object["file_bytes"] = file_bytes;
  object["error"] = describe(status);
  print_json(object);
}

struct Contents {
  std::uint16_t version;
  std::size_t frame_bytes;
  std::size_t trailing_bytes;
  std::vector<SegmentView> segments;

  std::size_t elements() const {
    std::size_t sum = 0;
    for (const SegmentView& segment : segments) sum += segment.count;
    return sum;
  }
};

Contents take_apart(FrameReader& frame, std::span<const std::byte> bytes) {
  Contents contents{.version = load<std::uint16_t>(bytes.data() + kVersionAt),
                    .frame_bytes = frame.size(),
                    .trailing_bytes = bytes.size() - frame.size(),
                    .segments = {}};
  for (std::size_t i = 0; i < frame.segment_count(); ++i) {
    contents.segments.push_back(frame.segment(i));
  }
  return contents;
}

void show_as_json(const Options& options, const Contents& contents) {
  Json object;
  object["file"] = options.path;
  object["ok"] = true;
  object["version"] = contents.version;
  object["checksum"] = "ok";
  object["bytes"] = contents.frame_bytes;
  object["trailing_bytes"] = contents.trailing_bytes;
  object["elements"] = contents.elements();
  object["bits_per_element"] =
      measured(bits_per_element(contents.frame_bytes, contents.elements()));
  object["segments"] = Json::array();
  for (const SegmentView& segment : contents.segments) {
    Json entry;
    entry["codec"] = segment.codec.spec();
    entry["dtype"] = name_of(segment.dtype);
    entry["count"] = segment.count;
    entry["bytes"] = segment.payload.size();
    entry["bits_per_element"] = measured(bits_per_element(segment.payload.size(), segment.count));
    object["segments"].push_back(std::move(entry));
  }
  print_json(object);
}

void show_as_table(const Options& options, const Contents& contents) {
  std::fputs(
      fmt::format("{}: frame version {}, {} bytes, checksum ok, {} segment{}, {} elements, {} "
                  "bit/elem with headers\n",
                  options.path, contents.version, contents.frame_bytes, contents.segments.size(),
                  contents.segments.size() == 1 ? "" : "s", contents.elements(),
                  format_bits(contents.frame_bytes, contents.elements()))
          .c_str(),
      stdout);
  if (contents.trailing_bytes > 0) {
    print_note(fmt::format("{} more bytes follow the frame.", contents.trailing_bytes));
  }
  if (contents.segments.empty()) return;
  TextTable table({{"segment"},
                   {"codec", "", Align::left},
                   {"dtype", "", Align::left},
                   {"count", "elements"},
                   {"payload", "bytes"},
                   {"size", "bit/elem"}});
  for (std::size_t i = 0; i < contents.segments.size(); ++i) {
    const SegmentView& segment = contents.segments[i];
    table.add_row({std::to_string(i), segment.codec.spec(), name_of(segment.dtype),
                   std::to_string(segment.count), std::to_string(segment.payload.size()),
                   format_bits(segment.payload.size(), segment.count)});
  }
  std::fputs("\n", stdout);
  print(table);
}

// -------------------------------------------------------------------------------------------------
// Plans

/// Or means to be one: frames begin with letters of their own.
bool is_plan(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) return true;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
}

void add_rows(TextTable& table, const std::string& layers, const std::vector<Stage>& stages) {
  for (const Stage& stage : stages) {
    table.add_row({&stage == stages.data() ? layers : "", std::to_string(stage.from_step),
                   stage.way.text(), stage.reason});
  }
}

void show_plan(const Options& options, std::string_view text) {
  Plan plan;
  try {
    plan = Plan::parse(text);
  } catch (const Error& error) {
    throw Error(error.code(), options.path + ", " + error.what());
  }
  if (options.json) {
    std::fputs(plan.json().c_str(), stdout);
    return;
  }
  TextTable table({{"layers", "", Align::left},
                   {"from", "step"},
                   {"way", "", Align::left},
                   {"reason", "", Align::left}});
  for (const LayerPlan& entry : plan.layers) add_rows(table, entry.layers, entry.stages);
  add_rows(table, plan.layers.empty() ? "(all)" : "(all others)", plan.otherwise);
  print(table);
}

// -------------------------------------------------------------------------------------------------

void run(const Options& options) {
  const std::vector<std::byte> bytes = read_file(options.path);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (is_plan(text)) {
    show_plan(options, text);
    return;
  }
  FrameReader frame(bytes);
  if (frame.status() != Status::ok) {
    if (options.json) show_damage_as_json(options, bytes.size(), frame.status());
    const std::string why =
        bytes.empty() ? "it is empty: neither a frame nor a plan" : describe(frame.status());
    throw Error(ErrorCode::bad_frame, options.path + ": " + why);
  }
  const Contents contents = take_apart(frame, bytes);
  (options.json ? show_as_json : show_as_table)(options, contents);
}

}  // namespace

void add_inspect(CLI::App& gradwire) {
  CLI::App& command = *gradwire.add_subcommand("inspect", "Show what a frame or a plan holds");
  const auto options = std::make_shared<Options>();
  command
      .add_option("FILE", options->path,
                  "A file with a frame or a plan, or - for the standard input")
      ->required();
  command.add_flag("--json", options->json, "Print one JSON object");
  command.footer(
      "Examples:\n"
      "  gradwire inspect frame.bin\n"
      "  gradwire inspect --json - < frame.bin\n"
      "  gradwire inspect plan.json\n"
      "\n"
      "What is wrong in a plan is named with its line; --json prints a plan with all keys written\n"
      "out. docs/plan.md has the format. A damaged frame is reported in one sentence; the exit "
      "code is then 1.");
  command.callback([options] { run(*options); });
}

}  // namespace gradwire::cli
