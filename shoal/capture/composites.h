// SPDX-License-Identifier: Apache-2.0
// Operators that ATen takes apart by looking into a tensor's memory, taken apart without.
#pragma once

namespace torch {
class Library;
}

namespace shoal::capture {

// Registers them; the library is one for aten on AutogradPrivateUse1, the key of what is recorded.
void register_composites(torch::Library& library);

}  // namespace shoal::capture
