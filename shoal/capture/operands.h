// SPDX-License-Identifier: Apache-2.0
// Small questions about tensors that several files of the recorder ask.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string_view>
#include <utility>
#include <vector>

namespace shoal::capture {

// A tensor without data on the Meta device, with the same sizes, strides and dtype; for a number that ATen
// wraps a tensor around, such a zero.
at::Tensor meta_of(const at::Tensor& tensor);

// The last `count` values of a stack, taken off it.
torch::jit::Stack popped(torch::jit::Stack& stack, std::size_t count);

// Calls visit for every defined tensor in an argument: a tensor, a list of them, a list with holes.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const auto& item : value.toListRef())
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
  }
}

// Where a call's results are: the device that it names, or that of its tensors.
c10::Device device_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in);

// What an attention operator of one device is written down as, null for other operators. The executor chooses
// again.
struct NeutralForm {
  std::string_view op;
  const char* neutral;
  std::vector<std::pair<const char*, const char*>> arguments;  // ATen's name, ours
};
const NeutralForm* neutral_form(std::string_view op);

}  // namespace shoal::capture
