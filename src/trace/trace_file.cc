#include "trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "base/byte_cursor.h"
#include "base/checksum.h"
#include "gradwire/error.h"

namespace gradwire::trace {
namespace {

constexpr char kMagic[8] = {'g', 'w', 't', 'r', 'a', 'c', 'e', '2'};
// 64 as in `ConnectOptions`, and as many that prepare tensors: one per thread.
constexpr std::uint32_t kMostLanes = 128;

// A time on the clock of rank 0 since 1970 is one of events, plus what the wall clock is ahead,
// plus or minus two offsets: at most 2^62 + 3 * 2^59, at least -2 * 2^59. Their difference fits 63
// bits.
constexpr std::int64_t kMostSteadyNs = std::int64_t{1} << 59;  // 18 years after a host's start
constexpr std::int64_t kMostUnixNs = std::int64_t{1} << 62;    // until 2116

struct Header {
  char magic[8];
  Origin origin;
  std::int64_t unix_minus_steady_ns;
  std::uint64_t overwritten;
  std::uint64_t text_bytes;  // a text: its length in 4 bytes, its letters
  std::uint64_t events;
};
static_assert(sizeof(Header) == 72);

std::int64_t unix_minus_steady_ns() {
  const auto unix = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(unix).count() - now_ns();
}

/// A file that is written front to back, with the checksum of all that stands in it at its end.
class SealedFile {
 public:
  explicit SealedFile(const std::string& path) : file_(path, std::ios::binary) {}
  void write(std::span<const std::byte> bytes) {
    checksum_.take(bytes);
    put(bytes);
  }
  /// Whether all of it was written.
  bool close() {
    const std::uint64_t checksum = checksum_.value();
    put(std::as_bytes(std::span(&checksum, 1)));
    file_.close();
    return file_.good();
  }

 private:
  void put(std::span<const std::byte> bytes) {
    file_.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
  }
  std::ofstream file_;
  RunningChecksum checksum_;
};

std::vector<std::byte> packed(std::span<const std::string> texts) {
  ByteWriter bytes;
  for (const std::string& text : texts) {
    bytes.write(static_cast<std::uint32_t>(text.size()));
    bytes.write_all(std::span(text.data(), text.size()));
  }
  return std::move(bytes).finish();
}

[[noreturn]] void refuse(const std::string& path, std::string_view what) {
  throw Error(ErrorCode::bad_frame,
              fmt::format("{} is no trace that this version of gradwire can read: {}", path, what));
}

std::string contents_of(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
    refuse(path, "it is no file");  // a folder, or a pipe, on which reading would wait
  }
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) {
    throw Error(ErrorCode::io, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  return bytes;
}

/// All but the checksum, which is right; at least a header.
std::span<const std::byte> checked(const std::string& path, std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Header) + sizeof(std::uint64_t)) refuse(path, "it is too short");
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) refuse(path, "it begins otherwise");
  const auto body = bytes.first(bytes.size() - sizeof(std::uint64_t));
  if (load<std::uint64_t>(body.data() + body.size()) != checksum(body)) {
    refuse(path, "it is damaged, or was not copied whole: its checksum is wrong");
  }
  return body;
}

std::vector<std::string> unpacked(const std::string& path, ByteReader bytes) {
  std::vector<std::string> texts;
  while (!bytes.empty()) {
    std::uint32_t length = 0;
    std::span<const std::byte> text;
    if (!bytes.read(length)) refuse(path, "a text has no length");
    if (!bytes.take(length, text)) refuse(path, "a text ends too early");
    texts.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
  }
  return texts;
}

bool is_possible(const Origin& origin, std::int64_t unix_minus_steady_ns) {
  return origin.clock_offset_ns > -kMostSteadyNs && origin.clock_offset_ns < kMostSteadyNs &&
         unix_minus_steady_ns >= 0 && unix_minus_steady_ns < kMostUnixNs;
}

bool is_possible(const Event& event, const RankTrace& trace) {
  return event.begin_ns >= 0 && event.begin_ns <= event.end_ns && event.end_ns < kMostSteadyNs &&
         event.what < trace.texts.size() && event.layer < trace.texts.size() &&
         event.peer < trace.origin.size && event.lane < kMostLanes &&
         static_cast<std::uint8_t>(event.kind) < kKinds && event.message <= Message::received &&
         event.state <= State::unfinished;
}

/// Of all files that are traces by their names, in the order of letters.
std::vector<std::string> paths_in(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(directory, failure)) {
    if (entry.path().extension() == kTraceSuffix) paths.push_back(entry.path());
  }
  if (failure) {
    throw Error(ErrorCode::io, fmt::format("cannot read {}: {}", directory, failure.message()));
  }
  std::ranges::sort(paths);
  return paths;
}

/// Among the traces of a folder.
std::pair<std::uint64_t, std::uint32_t> place_of(const RankTrace& trace) {
  return {trace.origin.communicator, trace.origin.rank};
}

}  // namespace

void write_trace(const std::string& path, const Origin& origin, std::uint64_t overwritten,
                 std::span<const std::string> texts, std::span<const Event> events) {
  const std::vector<std::byte> names = packed(texts);
  Header header{{}, origin, unix_minus_steady_ns(), overwritten, names.size(), events.size()};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  const std::string part = path + ".part";
  SealedFile file(part);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(names);
  file.write(std::as_bytes(events));
  if (!file.close() || std::rename(part.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(part.c_str());  // or a full disk stays full
    errno = error;
    throw Error(ErrorCode::io,
                fmt::format("the trace {} cannot be written: {}", path, std::strerror(errno)));
  }
}

RankTrace read_trace(const std::string& path) {
  const std::string contents = contents_of(path);
  ByteReader bytes(checked(path, std::as_bytes(std::span(contents))));
  Header header;
  static_cast<void>(bytes.read(header));
  std::span<const std::byte> texts;
  if (!bytes.take(header.text_bytes, texts) ||
      header.events != bytes.rest().size() / sizeof(Event) ||
      bytes.rest().size() % sizeof(Event) != 0) {
    refuse(path, "it has not the length that it says");
  }
  if (header.origin.rank >= header.origin.size || header.origin.job_rank < -1)
    refuse(path, "it is of no rank");
  if (!is_possible(header.origin, header.unix_minus_steady_ns)) {
    refuse(path, "its clocks cannot be");
  }
  RankTrace trace{header.origin, header.unix_minus_steady_ns, header.overwritten, {}, {}};
  trace.texts = unpacked(path, ByteReader(texts));
  trace.events.resize(header.events);
  if (!bytes.read_all(std::span(trace.events)) ||
      !std::ranges::all_of(trace.events, [&](const Event& e) { return is_possible(e, trace); })) {
    refuse(path, "it has an event that cannot be");
  }
  return trace;
}

TraceFolder read_traces(const std::string& directory) {
  const std::vector<std::string> paths = paths_in(directory);
  if (paths.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no trace in {}; gradwire run --trace {} writes one per rank "
                            "when it ends",
                            directory, directory));
  }
  TraceFolder folder;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::string> known;  // paths
  for (const std::string& path : paths) {
    try {
      RankTrace trace = read_trace(path);
      const auto [first, is_new] = known.try_emplace(place_of(trace), path);
      if (is_new) {
        folder.traces.push_back(std::move(trace));
      } else {
        folder.left_out.push_back(
            fmt::format("{} and {} are of the same rank of the same job: the second is left out; "
                        "take the copy away",
                        first->second, path));
      }
    } catch (const Error& error) {
      folder.left_out.emplace_back(error.what());
    }
  }
  std::ranges::sort(folder.traces, {}, place_of);
  return folder;
}

}  // namespace gradwire::trace
