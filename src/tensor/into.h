// Whether numbers replace or join what an output holds.
#pragma once

namespace gradwire {

enum class Into : bool { assign, add };

}  // namespace gradwire
