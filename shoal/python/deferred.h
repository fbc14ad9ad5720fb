// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace shoal::python {

// Tensors made under deferred_init that are neither parameters nor buffers, but attributes of its modules.
void materialize_attributes(pybind11::handle module);

}  // namespace shoal::python
