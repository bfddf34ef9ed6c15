// Holding a test host's link to a rate.
#pragma once

#include <string>

#include "plan/link_rate.h"

namespace gradwire::cli {

/// The queueing discipline that holds one direction of a link to a limited rate: the arguments that
/// `tc` wants behind "root".
std::string shaper_arguments(LinkRate rate);

}  // namespace gradwire::cli
