// SPDX-License-Identifier: Apache-2.0
// On CUDA, whose kernels give other shapes or strides than the CPU's here and there, those are asked: on zeros,
// which takes the memory of one call. Else three ways, in this order:
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
#include "shoal/capture/with_cudnn.h"

namespace shoal::capture {

using Stack = torch::jit::Stack;

// Their Meta kernels say other shapes or strides than the CPU's kernels give.
static constexpr std::string_view kWrongMeta[] = {"aten::_embedding_bag", "aten::_embedding_bag_forward_only",
                                                  "aten::_fft_r2c", "aten::_linalg_svd", "aten::linalg_eig"};

static constexpr std::string_view kOwnOnCuda[] = {"aten::_ctc_loss",
                                                  "aten::_native_batch_norm_legit_functional",
                                                  "aten::convolution",
                                                  "aten::convolution_backward",
                                                  "aten::log_sigmoid_forward",
                                                  "aten::native_batch_norm",
                                                  "aten::native_batch_norm_backward",
                                                  "aten::native_dropout_backward"};

template <class Names>
static bool has(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

static Metas flattened(Stack stack) {
  Metas flat;
  for (const auto& value : stack) {
    if (value.isTensor()) flat.push_back(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) flat.push_back(tensor);
  }
  return flat;
}

static at::Tensor stand_in(const at::Tensor& meta, c10::Device device) {
  if (meta.unsafeGetTensorImpl()->is_wrapped_number()) return meta;
  if (device.is_cuda())
    return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(device)).zero_();
  static constexpr std::int64_t kSmall = 1
                                         << 16;  // elements; below this the true strides are worth the memory
  const auto options = meta.options().device(at::kCPU);
  if (meta.numel() <= kSmall && meta.is_non_overlapping_and_dense())
    return at::empty_strided(meta.sizes(), meta.strides(), options).zero_();
  return at::zeros({}, options).expand(meta.sizes());
}

static c10::IValue on(c10::Device device, const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? c10::IValue(stand_in(value.toTensor(), device)) : value;
  if (value.isDevice()) return device;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(stand_in(tensor, device));
    return list;
  }
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toListRef())
      list.push_back(item.isTensor() ? std::optional(stand_in(item.toTensor(), device)) : std::nullopt);
    return list;
  }
  return value;
}

static Metas run_on(c10::Device device, const c10::OperatorHandle& op, const Stack& arguments) {
  Stack stack;
  for (const auto& value : arguments) stack.push_back(on(device, value));
  op.callBoxed(stack);
  Metas metas;
  for (const auto& tensor : flattened(std::move(stack)))
    metas.push_back(tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                                         tensor.options().device(at::kMeta))
                                     : at::Tensor());
  return metas;
}

Metas ShapeInference::results(const c10::OperatorHandle& op, const Stack& arguments, c10::Device device) {
  const auto name = aten::name_of(op.schema());
  if (device.is_cuda()) {
    if (const ShapeFunction function = shape_function_on_cuda(name)) return function(arguments);
    if (has(kOwnOnCuda, name) || has(kWrongMeta, name)) {
      const WithCudnn as_in_a_step(cudnn_);
      return run_on(device, op, arguments);
    }
  }
  if (const ShapeFunction function = shape_function_of(name)) return function(arguments);
  if (!without_meta_.contains(name) && !has(kWrongMeta, name)) {
    try {
      Stack stack = arguments;
      if (!call_meta(op, name, stack)) op.callBoxed(stack);
      return flattened(std::move(stack));
    } catch (const c10::NotImplementedError&) {
      without_meta_.insert(name);
    }
  }
  return run_on(at::kCPU, op, arguments);
}

}  // namespace shoal::capture
