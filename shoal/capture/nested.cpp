// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/nested.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "shoal/base/error.h"
#include "shoal/capture/recorded_tensor.h"

namespace shoal::capture {

// [batch, length]: true where a position is a sequence's own.
static at::Tensor own_positions(const at::Tensor& tensor) {
  const auto* of = recorded(tensor);
  return of == nullptr ? at::Tensor() : of->own_positions;
}

static at::Tensor with_own(at::Tensor tensor, const at::Tensor& positions) {
  auto* of = recorded(tensor);
  SHOAL_CHECK(of != nullptr, InvalidInput,
              "capture: a nested tensor is made of what is neither batch nor parameter");
  of->own_positions = positions;
  return tensor;
}

static bool left_aligned(const at::Tensor&, const at::Tensor& mask) {
  const auto gap_before = mask.slice(1, 1).logical_and(mask.slice(1, 0, -1).logical_not());
  return !gap_before.any().item<bool>();
}

static at::Tensor from_mask(const at::Tensor& tensor, const at::Tensor& mask, bool) {
  return with_own(tensor.clone(), mask);
}

static at::Tensor to_padded(const at::Tensor& self, double padding, at::OptionalSymIntArrayRef) {
  const auto own = own_positions(self);
  SHOAL_CHECK(own.defined(), InvalidInput,
              "capture: to_padded_tensor() of a tensor that is not nested; nested tensors of one's own "
              "making cannot be "
              "captured: pad the batch");
  return self.masked_fill(own.logical_not().unsqueeze(-1), padding);
}

namespace {
// _transformer_encoder_layer_fwd's arguments.
struct Layer {
  std::int64_t heads;
  at::Tensor qkv_weight, qkv_bias, out_weight, out_bias;
  bool gelu, norm_first;
  double eps;
  at::Tensor norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2;
  at::Tensor weight_1, bias_1, weight_2, bias_2;

  explicit Layer(c10::ArrayRef<c10::IValue> in)
      : heads(in[2].toInt()),
        qkv_weight(in[3].toTensor()),
        qkv_bias(in[4].toTensor()),
        out_weight(in[5].toTensor()),
        out_bias(in[6].toTensor()),
        gelu(in[7].toBool()),
        norm_first(in[8].toBool()),
        eps(in[9].toDouble()),
        norm_weight_1(in[10].toTensor()),
        norm_bias_1(in[11].toTensor()),
        norm_weight_2(in[12].toTensor()),
        norm_bias_2(in[13].toTensor()),
        weight_1(in[14].toTensor()),
        bias_1(in[15].toTensor()),
        weight_2(in[16].toTensor()),
        bias_2(in[17].toTensor()) {}

  at::Tensor normed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
    return at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
  }
  at::Tensor attended(const at::Tensor& x, const at::Tensor& own) const {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto qkv = at::linear(x, qkv_weight, qkv_bias)
                         .view({batch, length, 3, heads, width / heads})
                         .permute({2, 0, 3, 1, 4});
    const auto seen = at::scaled_dot_product_attention(qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2),
                                                       own.unsqueeze(1).unsqueeze(1));
    return at::linear(seen.transpose(1, 2).reshape({batch, length, width}), out_weight, out_bias);
  }
  at::Tensor fed(const at::Tensor& x) const {
    const auto hidden = at::linear(x, weight_1, bias_1);
    return at::linear(gelu ? at::gelu(hidden) : at::relu(hidden), weight_2, bias_2);
  }
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& own) const {
    if (norm_first) {
      const auto mixed = x + attended(normed(x, norm_weight_1, norm_bias_1), own);
      return mixed + fed(normed(mixed, norm_weight_2, norm_bias_2));
    }
    const auto mixed = normed(x + attended(x, own), norm_weight_1, norm_bias_1);
    return normed(mixed + fed(mixed), norm_weight_2, norm_bias_2);
  }
};
}  // namespace

static void encoder_layer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  const auto in = torch::jit::last(*stack, count);
  const auto own = own_positions(in[0].toTensor());
  if (!own.defined()) {
    op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU).callBoxed(op, keys, stack);
    return;
  }
  auto result = with_own(Layer(in)(in[0].toTensor(), own), own);
  torch::jit::drop(*stack, count);
  stack->emplace_back(std::move(result));
}

void register_nested(torch::Library& library) {
  library.impl("_nested_tensor_from_mask_left_aligned", left_aligned);
  library.impl("_nested_tensor_from_mask", from_mask);
  library.impl("to_padded_tensor", to_padded);
  library.impl("_transformer_encoder_layer_fwd", torch::CppFunction::makeFromBoxedFunction<&encoder_layer>());
}

}  // namespace shoal::capture
