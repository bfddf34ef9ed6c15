// By what calls are told apart: on one rank, and between ranks.
#pragma once

#include <cstdint>
#include <string>

#include "base/byte_cursor.h"
#include "collective/schedule.h"
#include "engine/operation.h"
#include "gradwire/tensor.h"
#include "gradwire/way.h"

namespace gradwire::engine {

/// What all ranks' calls must have in common, besides what their messages tell: a hash of it.
/// Random numbers that a rank draws alone may be any; those that several draw must be the same.
std::uint16_t call_of(const Operation& operation);

/// What operations are told apart by that do different things.
class RecipeKey {
 public:
  RecipeKey(Collective collective, std::uint32_t root);
  void add(const TensorView& view, const Way& way);
  std::string text() const;

 private:
  ByteWriter key_;
};

}  // namespace gradwire::engine
