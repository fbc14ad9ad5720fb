// SPDX-License-Identifier: Apache-2.0
// What each bound module adds to the extension; module.cpp lists them.
#pragma once

#include <pybind11/pybind11.h>

namespace shoal::python {

void bind_base(pybind11::module_& module);
void bind_capture(pybind11::module_& module);
void bind_collectives(pybind11::module_& module);
void bind_deferred(pybind11::module_& module);
void bind_ir(pybind11::module_& module);
void bind_tables(pybind11::module_& module);
void bind_train(pybind11::module_& module);
void bind_world(pybind11::module_& module);

}  // namespace shoal::python
