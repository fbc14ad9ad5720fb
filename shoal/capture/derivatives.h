// SPDX-License-Identifier: Apache-2.0
// Operators whose backward pass LibTorch writes by reading values (is there a zero in it? where is the
// largest?), with one that reads none.
#pragma once

namespace torch {
class Library;
}

namespace shoal::capture {

// Registers them; the library is one for aten on AutogradPrivateUse1, the key of what is recorded.
void register_derivatives(torch::Library& library);

}  // namespace shoal::capture
