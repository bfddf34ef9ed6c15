#include "collective/schedule.h"

#include <fmt/format.h>

#include <array>

namespace gradwire {

const char* name_of(Collective collective) noexcept {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    case Collective::barrier:
      return "barrier";
  }
  return "?";
}

const char* name_of(Op op) noexcept {
  constexpr std::array<const char*, kOps> kNames{
      "measure", "take", "fit",    "load", "add",        "finish", "store",  "keep_rounding",
      "encode",  "keep", "decode", "echo", "decode_add", "send",   "receive"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string describe(const Step& step) {
  if (step.op == Op::send) return fmt::format("send slot {} -> rank {}", step.slot, step.peer);
  if (step.op == Op::receive)
    return fmt::format("receive slot {} <- rank {}", step.slot, step.peer);
  const std::string chunks =
      step.count == 1 ? fmt::format("chunk {}", step.first)
                      : fmt::format("chunks {}..{}", step.first, step.first + step.count - 1);
  const char* place = step.place == Place::input ? "input"
                      : step.place == Place::sum ? "sum"
                                                 : "output";
  switch (step.op) {
    case Op::encode:
      return fmt::format("encode {} of {}{}{} -> slot {}", chunks, place,
                         step.exact ? " exactly" : "", step.replicated ? ", as others do" : "",
                         step.slot);
    case Op::keep:
      return fmt::format("keep what slot {} lacks of {} of {}", step.slot, chunks, place);
    case Op::echo:
      return fmt::format("echo slot {} of {} -> {} of output", step.slot, place, chunks);
    case Op::decode:
      return fmt::format("decode slot {} -> {} of {}", step.slot, chunks, place);
    case Op::decode_add:
      return fmt::format("decode_add slot {} -> {} of sum", step.slot, chunks);
    default:
      return fmt::format("{} {}", name_of(step.op), chunks);
  }
}

}  // namespace gradwire
