#include "plan/calibration.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "gradwire/error.h"
#include "gradwire/isa.h"

namespace gradwire {

MachineIdentity this_machine() {
  std::array<char, 256> name{};  // of at most 64 bytes, by Linux
  gethostname(name.data(), name.size() - 1);
  return {.host = name.data(), .isa = current_isa(), .version = GRADWIRE_VERSION};
}

std::string calibration_file_name(const MachineIdentity& machine) {
  return fmt::format("costs-{}-{}.json", machine.host, machine.isa);
}

void check_machine(const Costs& costs, const MachineIdentity& machine) {
  const MachineIdentity measured{costs.host, costs.isa, costs.version};
  if (costs.host.empty() || measured == machine) return;
  const auto text = [](const MachineIdentity& m) {
    return fmt::format("{} with {} and gradwire {}", m.host, m.isa, m.version);
  };
  throw Error(ErrorCode::invalid_argument,
              fmt::format("these costs were measured on {}, and this is {}: measure here, by "
                          "gradwire calibrate",
                          text(measured), text(machine)));
}

Costs load_costs(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();  // of a folder nothing comes
  if (!file || text.bad()) {
    throw Error(ErrorCode::io, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  try {
    Costs costs = parse_costs(text.str());
    check_machine(costs, this_machine());
    return costs;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace gradwire
