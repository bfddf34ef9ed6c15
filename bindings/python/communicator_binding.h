// gradwire._gradwire.Communicator and Work.
#pragma once

#include <nanobind/nanobind.h>

namespace gradwire::python {

void add_communicator(nanobind::module_& module);

}  // namespace gradwire::python
