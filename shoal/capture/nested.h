// SPDX-License-Identifier: Apache-2.0
// Nested tensors as nn.TransformerEncoder makes them in evaluation, for a batch with a padding mask: the
// padded batch, which remembers what of it is its own.
#pragma once

namespace torch {
class Library;
}

namespace shoal::capture {

// Registers their operators; the library is one for aten on AutogradPrivateUse1, the key of what is recorded.
void register_nested(torch::Library& library);

}  // namespace shoal::capture
