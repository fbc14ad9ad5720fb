// SPDX-License-Identifier: Apache-2.0
// Where in the user's code the current operator was called.
#pragma once

#include <string>

namespace shoal::capture {

// "models/gpt2.cpp:84 (models::BlockImpl::forward)"; function alone without debug info; "" if nothing is
// known. Takes milliseconds: for errors.
std::string user_source_line();

}  // namespace shoal::capture
