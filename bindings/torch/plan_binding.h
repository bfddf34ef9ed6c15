// Plans for Python: what a script asks for becomes one, layer by layer.
#pragma once

#include <pybind11/pybind11.h>

namespace gradwire::pytorch {

void add_plans(pybind11::module_& module);

}  // namespace gradwire::pytorch
