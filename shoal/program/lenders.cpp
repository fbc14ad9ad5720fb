// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/lenders.h"

#include <algorithm>
#include <iterator>

#include "shoal/ir/own_ops.h"

namespace shoal::program {

// Ops that read each element where they write it, and not later: such an input may lend its memory. In
// alphabetical order.
struct Elementwise {
  std::string_view op;
  std::array<std::string_view, 2> lenders;
};
static constexpr Elementwise kElementwise[] = {
    {"aten::_log_softmax_backward_data", {"grad_output"}},  // a row is summed, and then written
    {"aten::add.Scalar", {"self"}},
    {"aten::add.Tensor", {"self", "other"}},
    {"aten::clamp", {"self"}},
    {"aten::cos", {"self"}},
    {"aten::div.Scalar", {"self"}},
    {"aten::div.Tensor", {"self", "other"}},
    {"aten::exp", {"self"}},
    {"aten::gelu", {"self"}},
    {"aten::gelu_backward", {"grad_output", "self"}},
    {"aten::log", {"self"}},
    {"aten::masked_fill.Scalar", {"self"}},
    {"aten::mul.Scalar", {"self"}},
    {"aten::mul.Tensor", {"self", "other"}},
    {"aten::neg", {"self"}},
    {"aten::pow.Tensor_Scalar", {"self"}},
    {"aten::reciprocal", {"self"}},
    {"aten::relu", {"self"}},
    {"aten::rsqrt", {"self"}},
    {"aten::sigmoid", {"self"}},
    {"aten::sigmoid_backward", {"grad_output", "output"}},
    {"aten::silu", {"self"}},
    {"aten::silu_backward", {"grad_output", "self"}},
    {"aten::sin", {"self"}},
    {"aten::sqrt", {"self"}},
    {"aten::sub.Tensor", {"self", "other"}},
    {"aten::tanh", {"self"}},
    {"aten::tanh_backward", {"grad_output", "output"}},
    {"aten::threshold_backward", {"grad_output", "self"}},
};
static_assert(std::ranges::is_sorted(kElementwise, {}, &Elementwise::op),
              "kElementwise: keep it in alphabetical order");

std::array<std::string_view, 2> lenders_of(std::string_view op) {
  if (const ir::OwnOp* own = ir::find_own_op(op)) return {own->lender};
  const auto* row = std::ranges::lower_bound(kElementwise, op, {}, &Elementwise::op);
  return row != std::end(kElementwise) && row->op == op ? row->lenders : std::array<std::string_view, 2>{};
}

}  // namespace shoal::program
