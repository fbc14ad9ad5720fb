// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/views.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "shoal/ir/own_ops.h"

namespace shoal::ir {

// Names without overload: each overload of these returns an alias of `self`, always or sometimes. From the
// alias annotations of ATen's schemas for dense tensors, and the _unsafe_ ones, which share memory without
// saying so.
static constexpr std::array kViews = std::to_array<std::string_view>({
    "_conj",
    "_neg_view",
    "_reshape_alias",
    "_unsafe_view",
    "adjoint",
    "alias",
    "as_strided",
    "broadcast_to",
    "chunk",
    "conj",
    "contiguous",
    "detach",
    "diagonal",
    "dsplit",
    "expand",
    "expand_as",
    "flatten",
    "hsplit",
    "imag",
    "lift",
    "lift_fresh",
    "linalg_diagonal",
    "mH",
    "mT",
    "matrix_H",
    "moveaxis",
    "movedim",
    "narrow",
    "numpy_T",
    "permute",
    "pin_memory",
    "positive",
    "ravel",
    "real",
    "reshape",
    "reshape_as",
    "resolve_conj",
    "resolve_neg",
    "select",
    "slice",
    "slice_inverse",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "swapdims",
    "t",
    "tensor_split",
    "to",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsqueeze",
    "view",
    "view_as",
    "view_as_complex",
    "view_as_real",
    "vsplit",
});
static_assert(std::ranges::is_sorted(kViews), "kViews: keep it in alphabetical order");

bool is_view(std::string_view op) {
  if (const OwnOp* own = find_own_op(op)) return own->is_view;
  if (op.starts_with("shoal::")) return false;
  if (!op.starts_with("aten::")) return true;
  op.remove_prefix(6);
  return std::ranges::binary_search(kViews, op.substr(0, op.find('.')));
}

std::vector<ValueId> memory_owners(const Graph& graph) {
  std::vector<ValueId> owners(graph.values.size());
  for (std::uint32_t value = 0; value < owners.size(); ++value) owners[value] = {value};
  for (const Node& node : graph.nodes) {
    if (!is_view(node.op)) continue;
    const auto inputs = inputs_of(node);
    if (inputs.empty()) continue;
    for (const auto& output : node.outputs)
      if (output) owners[output->index] = owners[inputs.front().index];
  }
  return owners;
}

}  // namespace shoal::ir
