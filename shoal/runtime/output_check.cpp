// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/output_check.h"

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/ir/text.h"

namespace shoal::runtime {

// Strides of dims with one element mean nothing.
static bool same_order(const ir::TensorType& a, const ir::TensorType& b) {
  for (std::size_t dim = 0; dim < a.shape.size(); ++dim)
    if (a.shape[dim] != 1 && a.strides[dim] != b.strides[dim]) return false;
  return true;
}

void check_outputs(const program::Program& program, const program::Compute& compute, const Slots& slots) {
  if (!compute.op.starts_with("aten::")) return;
  for (const auto& output : compute.outputs) {
    if (!output) continue;
    const auto& wanted = program.types[output->index];
    const auto& got = slots[output->index];
    if (!got.defined()) continue;  // a gradient that nobody wants
    const auto type = aten::type_of(got);
    const bool same = type == wanted || (type.dtype == wanted.dtype && type.shape == wanted.shape &&
                                         (got.numel() == 0 || same_order(type, wanted)));
    SHOAL_CHECK(same, Internal, compute.op, " in module ", compute.module, " was recorded as ",
                ir::to_text(wanted), " and gives ", ir::to_text(type));
  }
}

}  // namespace shoal::runtime
