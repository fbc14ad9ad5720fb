// SPDX-License-Identifier: Apache-2.0
// Where in the user's Python the current operator was called.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace shoal::python {

// "train.py:12 (forward)": the innermost frame that is neither PyTorch's, nor the standard library's, nor
// Shoal's own; "" if there is none. Takes the interpreter's lock.
std::string source_line();
// The same for where an exception was raised.
std::string source_line_of(const py::error_already_set& error);

}  // namespace shoal::python
