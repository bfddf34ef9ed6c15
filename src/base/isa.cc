#include "gradwire/isa.h"

#include <hwy/targets.h>

#include <array>
#include <cstdint>

#include "gradwire/error.h"

namespace gradwire {
namespace {

struct Isa {
  const char* name;
  std::int64_t target;  // Highway's bit; the kernels are compiled once per bit
};

// Slowest first. Names are Highway's in lower case, "scalar" being its 128-bit emulation.
constexpr Isa kIsas[] = {
    {"scalar", HWY_EMU128},
#if HWY_ARCH_X86
    {"ssse3", HWY_SSSE3},   {"sse4", HWY_SSE4},       {"avx2", HWY_AVX2},
    {"avx3", HWY_AVX3},     {"avx3_dl", HWY_AVX3_DL},
#elif HWY_ARCH_ARM
    {"neon", HWY_NEON},
#endif
};

std::int64_t detected_targets() {
  static const std::int64_t kTargets = hwy::SupportedTargets() | HWY_EMU128;
  return kTargets;
}

bool available(const Isa& isa) { return (isa.target & detected_targets() & HWY_TARGETS) != 0; }

const Isa& best() {
  const Isa* found = &kIsas[0];
  for (const Isa& isa : kIsas) {
    if (available(isa)) found = &isa;
  }
  return *found;
}

const Isa*& chosen() {
  static const Isa* isa = &best();
  return isa;
}

void apply(const Isa& isa) {
  detected_targets();  // before the override hides what the CPU has
  chosen() = &isa;
  hwy::SetSupportedTargetsForTest(isa.target);
  hwy::GetChosenTarget().Update(isa.target);
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) {
    if (available(isa)) names.emplace_back(isa.name);
  }
  return names;
}

std::string current_isa() { return chosen()->name; }

void use_isa(std::string_view name) {
  if (name == "auto") return apply(best());
  std::string known = "auto";
  for (const Isa& isa : kIsas) {
    if (!available(isa)) continue;
    if (name == isa.name) return apply(isa);
    known += std::string(", ") + isa.name;
  }
  throw Error(ErrorCode::unavailable, "instruction set '" + std::string(name) +
                                          "' is not available here; choose one of: " + known);
}

}  // namespace gradwire
