// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/not_finite.h"

#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>

#include <string_view>

namespace shoal::runtime {

// Masks write infinities on purpose, and softmax takes them away again.
static bool is_masking(std::string_view op) {
  return op.starts_with("aten::masked_fill") || op.starts_with("aten::where") ||
         op.starts_with("aten::full") || op.starts_with("aten::fill") || op == "shoal::attention";
}

void FirstNotFinite::look_at(const program::Compute& compute, const Slots& slots) {
  for (const auto& output : compute.outputs) {
    if (!output || !slots[output->index].is_floating_point()) continue;
    const auto& tensor = slots[output->index];
    if (found_ == nullptr && at::isnan(tensor).any().item<bool>())
      found_ = infinite_ != nullptr ? infinite_ : &compute;
    if (infinite_ == nullptr && !is_masking(compute.op) && at::isinf(tensor).any().item<bool>())
      infinite_ = &compute;
  }
}

}  // namespace shoal::runtime
