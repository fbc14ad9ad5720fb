// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/update_elsewhere.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/empty_like.h>

#include <map>
#include <utility>

#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

static at::ScalarType worked_in(at::ScalarType type, Halves halves) {
  const bool is_half = type == at::kHalf || type == at::kBFloat16;
  return is_half && halves == Halves::AsFloat ? at::kFloat : type;
}

static bool lies_as(const at::Tensor& tensor, const at::Tensor& layout) {
  return tensor.scalar_type() == layout.scalar_type() && tensor.strides() == layout.strides() &&
         tensor.is_non_overlapping_and_dense();
}

void update_elsewhere(const Slots& slots, const UpdateSlots& which, Halves halves,
                      const std::function<void(UpdateLists&)>& update) {
  std::map<at::ScalarType, UpdateLists> by_type;
  std::vector<std::pair<at::Tensor, at::Tensor>> carried;  // original, copy
  const auto like = [](const at::Tensor& tensor, const at::Tensor& layout) {
    return lies_as(tensor, layout) ? tensor : at::empty_like(layout).copy_(tensor);
  };
  const auto changed = [&](const at::Tensor& tensor, const at::Tensor& layout) {
    at::Tensor copy = like(tensor, layout);
    if (!copy.is_same(tensor)) carried.emplace_back(tensor, copy);
    return copy;
  };
  for (std::size_t i = 0; i < which.parameters.size(); ++i) {
    const at::Tensor& parameter = slots[which.parameters[i]];
    const at::ScalarType type = worked_in(parameter.scalar_type(), halves);
    UpdateLists& lists = by_type[type];
    const bool fits = parameter.is_non_overlapping_and_dense() && parameter.scalar_type() == type;
    const at::Tensor layout = fits ? parameter : at::empty_like(parameter, type);
    lists.parameters.push_back(changed(parameter, layout));
    lists.gradients.push_back(like(slots[which.gradients[i]], layout));
    lists.states.resize(which.states.size());
    for (std::size_t state = 0; state < which.states.size(); ++state)
      if (!which.states[state]->empty())
        lists.states[state].push_back(changed(slots[(*which.states[state])[i]], layout));
    parameter.unsafeGetTensorImpl()->bump_version();
  }
  for (auto& [type, lists] : by_type) {
    if (which.scale != kNoSlot) lists.gradients = at::_foreach_mul(lists.gradients, slots[which.scale]);
    update(lists);
  }
  for (const auto& [original, copy] : carried) original.copy_(copy);
}

std::vector<at::Tensor> decayed(const UpdateLists& lists, double weight_decay) {
  return weight_decay == 0 ? lists.gradients
                           : at::_foreach_add(lists.gradients, lists.parameters, weight_decay);
}

std::vector<at::Tensor> root(const std::vector<at::Tensor>& squares, double eps) {
  std::vector<at::Tensor> roots = at::_foreach_sqrt(squares);
  at::_foreach_add_(roots, eps);
  return roots;
}

}  // namespace shoal::runtime
