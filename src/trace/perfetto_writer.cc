#include "trace/perfetto_writer.h"

#include <ostream>
#include <protozero/pbf_writer.hpp>
#include <string>

namespace gradwire::trace {
namespace {

using protozero::pbf_writer;

// Numbers of fields, from perfetto's protos/perfetto/trace.
constexpr protozero::pbf_tag_type kTracePacket = 1;
namespace packet {
constexpr protozero::pbf_tag_type kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kTrack = 60;
}
namespace track {
constexpr protozero::pbf_tag_type kUuid = 1, kName = 2, kParent = 5, kOrdering = 11, kPlace = 12;
constexpr int kByPlace = 3;
}  // namespace track
namespace slice {
constexpr protozero::pbf_tag_type kAnnotation = 4, kType = 9, kTrack = 11, kName = 23, kFlow = 47,
                                  kLastOfFlow = 48;
constexpr int kBegin = 1, kEnd = 2;
}  // namespace slice
namespace annotation {
constexpr protozero::pbf_tag_type kNumber = 3, kName = 10;
}

constexpr std::uint32_t kSequence = 1;  // any one: all packets are one writer's

class Writer {
 public:
  explicit Writer(std::ostream& out) : out_(out) {}

  void rank(const RankRows& rank) {
    const std::uint64_t parent = group(rank.name, 0, 0);
    for (std::size_t i = 0; i < rank.communicators.size(); ++i) {
      const CommunicatorRows& each = rank.communicators[i];
      rows(each, each.name.empty() ? parent : group(each.name, parent, i));
    }
  }

 private:
  /// Appends one packet, which `fill` fills.
  template <class Fill>
  void packet(Fill fill) {
    buffer_.clear();
    pbf_writer trace(buffer_);
    {
      pbf_writer packet(trace, kTracePacket);
      packet.add_uint32(packet::kSequence, kSequence);
      fill(packet);
    }
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  }

  /// A track with this place in its parent; without a parent (0), at the top. Returns its number.
  std::uint64_t track(const std::string& name, std::uint64_t parent, std::size_t place,
                      bool of_tracks) {
    const std::uint64_t uuid = ++tracks_;
    packet([&](pbf_writer& packet) {
      pbf_writer descriptor(packet, packet::kTrack);
      descriptor.add_uint64(track::kUuid, uuid);
      descriptor.add_string(track::kName, name);
      if (parent != 0) {
        descriptor.add_uint64(track::kParent, parent);
        descriptor.add_int32(track::kPlace, static_cast<std::int32_t>(place));
      }
      if (of_tracks) descriptor.add_enum(track::kOrdering, track::kByPlace);
    });
    return uuid;
  }

  /// A track of tracks. A process would be natural, but Perfetto orders its tracks by their names.
  std::uint64_t group(const std::string& name, std::uint64_t parent, std::size_t place) {
    return track(name, parent, place, true);
  }

  void rows(const CommunicatorRows& rank, std::uint64_t parent) {
    for (std::size_t i = 0; i < rank.rows.size(); ++i) {
      const std::uint64_t uuid = track(rank.rows[i].name, parent, i, false);
      for (const Span& span : rank.rows[i].spans) write(*rank.trace, uuid, span);
    }
  }

  static void annotate(pbf_writer& event, const char* name, std::uint64_t number) {
    pbf_writer annotation(event, slice::kAnnotation);
    annotation.add_string(annotation::kName, name);
    annotation.add_uint64(annotation::kNumber, number);
  }

  void write(const RankTrace& trace, std::uint64_t uuid, const Span& span) {
    const Event& event = *span.event;
    packet([&](pbf_writer& packet) {
      packet.add_uint64(packet::kTimestamp, static_cast<std::uint64_t>(span.begin_ns));
      pbf_writer begin(packet, packet::kTrackEvent);
      begin.add_enum(slice::kType, slice::kBegin);
      begin.add_uint64(slice::kTrack, uuid);
      begin.add_string(slice::kName, title_of(trace, event));
      annotate(begin, "bytes", event.bytes);
      if (event.kind != Kind::step) annotate(begin, "step", event.number);
      if (event.kind == Kind::step && event.number != kNoPiece) {
        annotate(begin, "piece", event.number);
      }
      if (event.message != Message::none) annotate(begin, "peer", event.peer);
      if (event.message == Message::sent && span.message > 0) {
        begin.add_fixed64(slice::kFlow, span.message);
      }
    });
    packet([&](pbf_writer& packet) {
      packet.add_uint64(packet::kTimestamp, static_cast<std::uint64_t>(span.end_ns));
      pbf_writer end(packet, packet::kTrackEvent);
      end.add_enum(slice::kType, slice::kEnd);
      end.add_uint64(slice::kTrack, uuid);
      // Receiving begins with waiting, before the message is sent: the arrow goes to its end.
      if (event.message == Message::received && span.message > 0) {
        end.add_fixed64(slice::kLastOfFlow, span.message);
      }
    });
  }

  std::ostream& out_;
  std::string buffer_;
  std::uint64_t tracks_ = 0;
};

}  // namespace

void write_perfetto(std::ostream& out, const Timeline& timeline) {
  Writer writer(out);
  for (const RankRows& rank : timeline.ranks) writer.rank(rank);
}

}  // namespace gradwire::trace
