// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/operands.h"

#include <ATen/ATen.h>

#include <iterator>
#include <optional>

namespace shoal::capture {

static const NeutralForm kNeutralForms[] = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu",
     "shoal::attention",
     {{"query", "query"},
      {"key", "key"},
      {"value", "value"},
      {"attn_mask", "attn_mask"},
      {"is_causal", "is_causal"},
      {"scale", "scale"}}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
     "shoal::attention_backward",
     {{"grad_out", "grad_output"},
      {"query", "query"},
      {"key", "key"},
      {"value", "value"},
      {"out", "output"},
      {"logsumexp", "logsumexp"},
      {"attn_mask", "attn_mask"},
      {"is_causal", "is_causal"},
      {"scale", "scale"}}},
};

const NeutralForm* neutral_form(std::string_view op) {
  for (const auto& form : kNeutralForms)
    if (form.op == op) return &form;
  return nullptr;
}

torch::jit::Stack popped(torch::jit::Stack& stack, std::size_t count) {
  torch::jit::Stack in(std::make_move_iterator(stack.end() - static_cast<std::ptrdiff_t>(count)),
                       std::make_move_iterator(stack.end()));
  torch::jit::drop(stack, count);
  return in;
}

at::Tensor meta_of(const at::Tensor& tensor) {
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  // A number of Python's, `x * 2`: Meta kernels that are written in Python ask for its value.
  auto number = at::zeros({}, tensor.options().device(at::kCPU));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

c10::Device device_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in) {
  std::optional<c10::Device> device;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i].isDevice() && schema.arguments()[i].name() == "device") return in[i].toDevice();
    for_each_tensor(in[i], [&](const at::Tensor& tensor) {
      // A 0-dim tensor of the CPU may meet tensors of any device.
      if (!device || (tensor.dim() > 0 && device->is_cpu())) device = tensor.device();
    });
  }
  return device.value_or(c10::Device(at::kCPU));
}

}  // namespace shoal::capture
