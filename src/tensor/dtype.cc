#include "gradwire/tensor.h"

namespace gradwire {

const char* name_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f32:
      return "f32";
    case Dtype::f16:
      return "f16";
    case Dtype::bf16:
      return "bf16";
  }
  return "unknown";
}

}  // namespace gradwire
