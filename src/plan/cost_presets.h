// Costs of machines that one does not have, for plans and simulations: each says in `source` where
// its figures are from. They hold wherever they are asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/costs.h"

namespace gradwire {

/// Names, for help texts.
std::vector<std::string> cost_preset_names();

/// Throws `Error(invalid_argument)` that lists the names.
///
/// "testbed-a" and "testbed-b" are those of ByteComp (Wang et al., "Espresso", EuroSys 2023): 8
/// hosts with 8 V100, by NVLink inside and 100 Gbit/s TCP between them, or by PCIe and 25 Gbit/s.
/// Links have the rates of the paper (between) and of its public code (inside: 0.02 and 0.4 us per
/// KiB), and a quarter of a hierarchical all_reduce's 2 x 150 us for each of its four hops, which
/// the seven messages of a hop share. Codecs have that code's times on a GPU: random-k, DGC and
/// EFSignSGD, under the names of codecs of ours that stand for them. They are the same for up to
/// 2^20 elements, and in proportion beyond. Decoding's are those of all messages from the 8 hosts,
/// which are decoded at once. Casting to fp16 takes no time there. The second device are the hosts'
/// processors, at the code's 20 Gbit/s for encoding and decoding the gradients of a host, half of
/// it each.
///
/// "cpu" is what `gradwire calibrate` found between two ranks on two cores of a server, with
/// 10 Gbit/s between hosts.
Costs preset_costs(std::string_view name);

}  // namespace gradwire
