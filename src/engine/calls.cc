#include "engine/calls.h"

#include <span>

#include "base/checksum.h"
#include "codec/registry.h"

namespace gradwire::engine {

std::uint16_t call_of(const Operation& operation) {
  if (operation.collective == Collective::barrier) return 0;
  ByteWriter call;
  call.write(operation.collective);
  call.write(operation.divisor);
  call.write(operation.seed);
  for (const Line& line : operation.recipe->lines) {
    call.write_all(std::span(line.routine->algorithm));
    call.write(line.routine->root);
    if (line.routine->replicates) call.write(operation.step);
  }
  for (const Source& source : operation.sources) {
    call.write_all(std::span(CodecAccess::kind(source.codec).name));
    call.write(CodecAccess::params(source.codec));
  }
  if (has_sums(operation.collective)) {  // by names they find what was held back
    for (const Item& item : operation.items) call.write(item.name);
  }
  return static_cast<std::uint16_t>(checksum(call.bytes()));
}

RecipeKey::RecipeKey(Collective collective, std::uint32_t root) {
  key_.write(collective);
  key_.write(root);
}

void RecipeKey::add(const TensorView& view, const Way& way) {
  key_.write(view.count);
  key_.write(view.dtype);
  key_.write(CodecAccess::kind(way.codec).id);
  key_.write(CodecAccess::params(way.codec));
  key_.write(way.route.size());
  key_.write_all(std::span(way.route));
}

std::string RecipeKey::text() const {
  const auto bytes = key_.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace gradwire::engine
