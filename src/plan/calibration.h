// Costs that were measured on a machine hold there, until something of it changes.
#pragma once

#include <string>

#include "plan/costs.h"

namespace gradwire {

/// What measured costs depend on.
struct MachineIdentity {
  std::string host;
  std::string isa;      ///< the one in use
  std::string version;  ///< of gradwire

  friend bool operator==(const MachineIdentity&, const MachineIdentity&) = default;
};

MachineIdentity this_machine();

/// A name for the file that costs of a machine are kept in: "costs-node7-avx2.json".
std::string calibration_file_name(const MachineIdentity& machine);

/// Throws `Error(invalid_argument)` that says what differs, unless the costs hold on the machine.
/// Those without a host hold everywhere.
void check_machine(const Costs& costs, const MachineIdentity& machine);

/// Reads a file of costs that hold on this machine. Throws `Error(io)` when it cannot be read, and
/// as `parse_costs` and `check_machine` do; all messages begin with the path.
Costs load_costs(const std::string& path);

}  // namespace gradwire
