// The algorithms, one file each, and their list.
#pragma once

#include <array>

#include "collective/schedule.h"

namespace gradwire {

extern const Algorithm kSra;
extern const Algorithm kRing;
extern const Algorithm kTree;
extern const Algorithm kAllgather;
extern const Algorithm kHierarchical;
extern const Algorithm kHierarchicalExact;

/// In the order in which messages name them.
inline constexpr std::array kAlgorithms = {&kSra,       &kRing,         &kTree,
                                           &kAllgather, &kHierarchical, &kHierarchicalExact};

}  // namespace gradwire
