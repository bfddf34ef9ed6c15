// The algorithms, one file each.
#pragma once

#include "collective/schedule.h"

namespace gradwire {

extern const Algorithm kSra;
extern const Algorithm kRing;
extern const Algorithm kTree;
extern const Algorithm kAllgather;
extern const Algorithm kHierarchical;
extern const Algorithm kHierarchicalExact;

}  // namespace gradwire
