#include "collective/algorithms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "gradwire/error.h"

namespace gradwire {

const std::vector<const Algorithm*>& algorithms() {
  static const std::vector<const Algorithm*> kAll(kAlgorithms.begin(), kAlgorithms.end());
  return kAll;
}

const Algorithm& find_algorithm(std::string_view name, Collective collective, const Ranks& ranks) {
  std::vector<std::string_view> usable;
  for (const Algorithm* algorithm : algorithms()) {
    const std::string_view refusal = algorithm->refusal(collective, ranks);
    if (refusal.empty()) usable.push_back(algorithm->name);
    if (algorithm->name != name) continue;
    if (refusal.empty()) return *algorithm;
    throw Error(ErrorCode::invalid_argument, std::string(refusal));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no algorithm '{}'; for {} take one of: {}", name,
                          name_of(collective), fmt::join(usable, ", ")));
}

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
      return fmt::format("encode {} of {}{} -> slot {}", chunks, place,
                         step.exact ? " exactly" : "", step.slot);
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
