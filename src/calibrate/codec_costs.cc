#include "calibrate/codec_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/sampling.h"
#include "codec/notes.h"
#include "codec/registry.h"

namespace gradwire {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::size_t kFresh = std::size_t{1} << 20;  // numbers over which small tensors take turns
constexpr double kLongestSeconds = 0.25;              // of one call

/// As plan/resources.h has them between two ranks of a host.
std::size_t piece_of(const Codec& codec) {
  return codec.traits().sparse ? kFresh : std::size_t{1} << 16U;
}

/// The work on tensors of one size. Small ones take turns, so that processors do not learn by heart
/// where the same numbers branch. Messages of as many pieces as have numbers of their own are kept:
/// as in the engine, they are written where earlier ones have been.
class Exchange {
 public:
  Exchange(const Codec& codec, std::size_t elements, const CodecInput& input)
      : codec_(codec), elements_(elements), piece_(std::min(piece_of(codec), elements)) {
    const std::size_t available = std::max(std::min(kFresh, input.numbers.size()), elements);
    for (std::size_t first = 0; first + elements <= available; first += elements) {
      Turn& turn = turns_.emplace_back(
          Turn{input.numbers.data() + first, input.room.data() + first, codec, {}, {}});
      turn.notes.resize(note_count(codec, elements));
      turn.messages.resize(std::max<std::size_t>(1, std::min(kFresh, elements) / piece_));
      for (Message& message : turn.messages) message.room.resize(max_frame_bytes(codec, piece_));
      prepare();
      encode();
    }
  }

  void prepare() {
    Turn& turn = next(prepared_);
    turn.fitted = fit(codec_, {turn.input, elements_, Dtype::f32}, turn.notes);
  }

  void encode() {
    Turn& turn = next(encoded_);
    for (std::size_t i = 0; i * piece_ < elements_; ++i) {
      Message& message = turn.messages[i % turn.messages.size()];
      const NotedSegment segment{
          {turn.fitted,
           {turn.input + i * piece_, piece_, Dtype::f32},
           {.random = {.seed = kSeed, .step = encoded_}, .first_element = i * piece_}},
          turn.notes};
      const Encoded encoded = encode_frame({&segment, 1}, message.room, Seal::none);
      check(encoded.status);
      message.bytes = encoded.bytes;
    }
  }

  void decode() {
    Turn& turn = next(decoded_);
    for (std::size_t i = 0; i * piece_ < elements_; ++i) {
      const Message& message = turn.messages[i % turn.messages.size()];
      FrameReader frame(std::span(message.room).first(message.bytes), Seal::none);
      check(frame.status());
      check(frame.decode_add(0, {turn.output + i * piece_, piece_, Dtype::f32}));
    }
  }

  double bytes_per_element() const {
    std::size_t bytes = 0;
    std::size_t messages = 0;
    for (const Turn& turn : turns_) {
      for (const Message& message : turn.messages) bytes += message.bytes;
      messages += turn.messages.size();
    }
    return static_cast<double>(bytes) / static_cast<double>(messages * piece_);
  }

 private:
  struct Message {
    std::vector<std::byte> room;
    std::size_t bytes = 0;
  };
  struct Turn {
    const float* input;
    float* output;
    Codec fitted;
    std::vector<double> notes;
    std::vector<Message> messages;
  };

  Turn& next(std::size_t& turn) { return turns_[turn++ % turns_.size()]; }

  Codec codec_;
  std::size_t elements_;
  std::size_t piece_;
  std::vector<Turn> turns_;
  std::size_t prepared_ = 0;
  std::size_t encoded_ = 0;
  std::size_t decoded_ = 0;
};

/// What the thread computed, whoever else wanted its core.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Operation {
  std::size_t calls = 0;        // per sample; 0: not known yet
  std::vector<double> seconds;  // per call, of each sample

  template <typename Work>
  void sample(Work&& work) {
    if (calls == 0) calls = calls_per_sample(work);
    const double begin = thread_seconds();
    for (std::size_t i = 0; i < calls; ++i) work();
    seconds.push_back((thread_seconds() - begin) / static_cast<double>(calls));
  }
};

/// A codec at one size.
struct Cell {
  std::size_t elements;
  Operation prepare, encode, decode;
};

struct Row {
  Codec codec;
  std::vector<Cell> cells;
  double bytes_per_element = 0;  // of the largest cell
};

/// Returns the longest of its calls, in seconds.
double sample(Row& row, Cell& cell, const CodecInput& input) {
  Exchange exchange(row.codec, cell.elements, input);
  if (is_fitted(row.codec)) cell.prepare.sample([&] { exchange.prepare(); });
  cell.encode.sample([&] { exchange.encode(); });
  cell.decode.sample([&] { exchange.decode(); });
  row.bytes_per_element = exchange.bytes_per_element();
  return std::max(median_of(cell.encode.seconds), median_of(cell.decode.seconds));
}

CostTable table_of(const std::vector<Cell>& cells, Operation Cell::*operation) {
  std::vector<std::pair<std::size_t, double>> points;
  for (const Cell& cell : cells) {
    points.emplace_back(cell.elements, median_of((cell.*operation).seconds));
  }
  // What took longer than more elements was disturbed.
  for (std::size_t i = points.size() - 1; i > 0; --i) {
    points[i - 1].second = std::min(points[i - 1].second, points[i].second);
  }
  return CostTable(std::move(points));
}

std::map<std::string, MeasuredCodec> tables_of(const std::vector<Row>& rows) {
  std::map<std::string, MeasuredCodec> tables;
  for (const Row& row : rows) {
    tables[row.codec.spec()] = {
        .encode = table_of(row.cells, &Cell::encode),
        .decode = table_of(row.cells, &Cell::decode),
        .preparation = is_fitted(row.codec) ? table_of(row.cells, &Cell::prepare) : CostTable(),
        .bytes_per_element = row.bytes_per_element};
  }
  return tables;
}

}  // namespace

std::map<std::string, MeasuredCodec> measure_codecs(
    std::span<const Codec> codecs, const CodecInput& input, const CodecEffort& effort,
    const std::function<void(std::string_view)>& on_step) {
  const auto until = std::chrono::steady_clock::now() + effort.most;
  std::vector<Row> rows;
  for (const Codec& codec : codecs) rows.push_back({codec, {}});
  for (unsigned round = 0; round < effort.rounds; ++round) {
    if (round > 0 && std::chrono::steady_clock::now() > until) break;
    for (Row& row : rows) {
      on_step(fmt::format("{}, round {} of {}", row.codec.spec(), round + 1, effort.rounds));
      if (round > 0) {
        for (Cell& cell : row.cells) sample(row, cell, input);
        continue;
      }
      for (const std::size_t elements : effort.sizes) {
        row.cells.push_back({elements, {}, {}, {}});
        if (sample(row, row.cells.back(), input) > kLongestSeconds) break;
      }
    }
  }
  return tables_of(rows);
}

}  // namespace gradwire
