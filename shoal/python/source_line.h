// SPDX-License-Identifier: Apache-2.0
// Where in the user's Python the current operator was called.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "shoal/capture/capture.h"

namespace shoal::python {

// "train.py:12 (forward)": the innermost frame that is neither PyTorch's, nor the standard library's, nor
// Shoal's own; "" if there is none. Takes the interpreter's lock.
std::string source_line();
// The same for where an exception was raised.
std::string source_line_of(const py::error_already_set& error);

// Whether the innermost frame is code of PyTorch's that checks values and raises where they are bad (the
// checks of torch.distributions, gaussian_nll_loss), or BatchNorm's without a momentum. Takes the
// interpreter's lock.
capture::Reader reader();

}  // namespace shoal::python
