// SPDX-License-Identifier: Apache-2.0
// Three ways, in this order:
//   1. a shape function, for operators that matter and have no C++ Meta kernel (shape_functions.h)
//   2. the operator itself on Meta tensors: no memory, no work
//   3. the operator on CPU stand-ins, zeros of the same shape: for everything else. Large ones are one zero
//      expanded (stride 0), so that they take no memory.
#include "shoal/capture/shapes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "shoal/aten/operators.h"
#include "shoal/base/error.h"
#include "shoal/capture/meta_kernels.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/shape_functions.h"

namespace shoal::capture {

using Stack = torch::jit::Stack;

// Their Meta kernels say other shapes or strides than the CPU's kernels give.
static constexpr std::string_view kWrongMeta[] = {"aten::_embedding_bag", "aten::_embedding_bag_forward_only",
                                                  "aten::_fft_r2c", "aten::_linalg_svd", "aten::linalg_eig"};

static Metas flattened(Stack stack) {
  Metas flat;
  for (const auto& value : stack) {
    if (value.isTensor()) flat.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) flat.push_back(tensor);
  }
  return flat;
}

static at::Tensor stand_in(const at::Tensor& meta) {
  if (meta.unsafeGetTensorImpl()->is_wrapped_number()) return meta;
  static constexpr std::int64_t kSmall = 1
                                         << 16;  // elements; below this the true strides are worth the memory
  const auto options = meta.options().device(at::kCPU);
  if (meta.numel() <= kSmall && meta.is_non_overlapping_and_dense())
    return at::empty_strided(meta.sizes(), meta.strides(), options).zero_();
  return at::zeros({}, options).expand(meta.sizes());
}

static c10::IValue on_cpu(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(stand_in(value.toTensor())) : value;
  if (value.isDevice()) return c10::Device(at::kCPU);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(stand_in(tensor));
    return list;
  }
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toListRef())
      list.push_back(item.isTensor() ? std::optional(stand_in(item.toTensor())) : std::nullopt);
    return list;
  }
  return value;
}

Metas ShapeInference::results(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto name = aten::name_of(op.schema());
  if (const ShapeFunction function = shape_function_of(name)) return function(arguments);
  if (!without_meta_.contains(name) && std::ranges::find(kWrongMeta, name) == std::end(kWrongMeta)) {
    try {
      Stack stack = arguments;
      if (!call_meta(op, name, stack)) op.callBoxed(stack);
      return flattened(std::move(stack));
    } catch (const c10::NotImplementedError&) {
      without_meta_.insert(name);
    }
  }
  Stack stack;
  for (const auto& value : arguments) stack.push_back(on_cpu(value));
  op.callBoxed(stack);
  Metas metas;
  for (const auto& tensor : flattened(std::move(stack)))
    metas.push_back(tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                                         tensor.options().device(at::kMeta))
                                     : at::Tensor());
  return metas;
}

}  // namespace shoal::capture
