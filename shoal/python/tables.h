// SPDX-License-Identifier: Apache-2.0
// Which parameters of a Python model are tables, as a script says it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "shoal/train/tables.h"

namespace shoal::python {

// What a Trainer was given: None, Table, several of them, or Tables. Throws InvalidInput for anything else.
TableOptions tables_in(const py::object& given);

}  // namespace shoal::python
