// SPDX-License-Identifier: Apache-2.0
// Op name to kernel: what is called for an instruction, decided once. A name that is not here goes through
// the dispatcher's boxed call, which costs about a microsecond more and gives the same result.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_fused_rms_norm_backward_ops.h>
#include <ATen/ops/_fused_rms_norm_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_native_batch_norm_legit_no_training_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/any_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/bitwise_not_ops.h>
#include <ATen/ops/bitwise_or_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/constant_pad_nd_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/diagonal_backward_ops.h>
#include <ATen/ops/diagonal_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/elu_backward_ops.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_copy_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/eye_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/flip_ops.h>
#include <ATen/ops/full_like_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/glu_backward_ops.h>
#include <ATen/ops/glu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/hardswish_backward_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_backward_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/index_add_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_put_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/leaky_relu_backward_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/lift_fresh_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/log_sigmoid_backward_ops.h>
#include <ATen/ops/log_sigmoid_forward_ops.h>
#include <ATen/ops/logical_and_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/logical_or_ops.h>
#include <ATen/ops/logsumexp_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_group_norm_backward_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/new_zeros_ops.h>
#include <ATen/ops/nll_loss2d_backward_ops.h>
#include <ATen/ops/nll_loss2d_forward_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/prod_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/repeat_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/roll_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/rsub_ops.h>
#include <ATen/ops/scalar_tensor_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/scatter_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/sign_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/smooth_l1_loss_backward_ops.h>
#include <ATen/ops/smooth_l1_loss_ops.h>
#include <ATen/ops/softplus_backward_ops.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/sort_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/topk_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/tril_ops.h>
#include <ATen/ops/triu_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unfold_backward_ops.h>
#include <ATen/ops/unfold_ops.h>
#include <ATen/ops/unsafe_split_ops.h>
#include <ATen/ops/unsafe_split_with_sizes_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/upsample_nearest2d_backward_ops.h>
#include <ATen/ops/upsample_nearest2d_ops.h>
#include <ATen/ops/var_mean_ops.h>
#include <ATen/ops/var_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>
#include <algorithm>
#include <string_view>
#include <utility>

#include "shoal/aten/operators.h"
#include "shoal/base/error.h"
#include "shoal/ir/views.h"
#include "shoal/runtime/accumulate_kernel.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/host_copies.h"
#include "shoal/runtime/kernel.h"
#include "shoal/runtime/neutral_kernels.h"
#include "shoal/runtime/packing_kernels.h"
#include "shoal/runtime/part_kernels.h"
#include "shoal/runtime/product_kernels.h"
#include "shoal/runtime/typed_kernel.h"
#include "shoal/runtime/update_kernels.h"
#include "shoal/runtime/view_kernel.h"

namespace shoal::runtime {

namespace ops = at::_ops;
using program::Compute;
using program::Program;

using Maker = std::unique_ptr<Kernel> (*)(const Program&, const Compute&);

template <class Op>
static std::unique_ptr<Kernel> typed(const Program&, const Compute& compute) {
  return make_typed<Op>(compute);
}

namespace {
// A copy where the base lies in memory in another order than when it was recorded, and so has no such view.
struct ViewOrCopy : ops::view {
  static at::Tensor call(const at::Tensor& self, c10::SymIntArrayRef size) {
    return ops::reshape::call(self, size);
  }
};
}  // namespace

// oneDNN's LSTM keeps what its backward pass reads only where gradients are being recorded, as they were in
// capture.
static std::unique_ptr<Kernel> make_training_rnn(const Program&, const Compute& compute) {
  class TrainingKernel final : public Kernel {
   public:
    explicit TrainingKernel(std::unique_ptr<Kernel> kernel) : kernel_(std::move(kernel)) {}
    void run(Slots& slots) override {
      const at::AutoGradMode recording(true);
      kernel_->run(slots);
    }

   private:
    std::unique_ptr<Kernel> kernel_;
  };
  return std::make_unique<TrainingKernel>(make_typed<ops::mkldnn_rnn_layer>(compute));
}

// It gives the gradient of both biases as one tensor, but a later step may write over one of them.
static std::unique_ptr<Kernel> make_rnn_backward(const Program&, const Compute& compute) {
  class ApartKernel final : public Kernel {
   public:
    ApartKernel(std::unique_ptr<Kernel> kernel, const Compute& of) : kernel_(std::move(kernel)) {
      for (const auto& output : of.outputs)
        if (output) outputs_.push_back(output->index);
    }
    void run(Slots& slots) override {
      kernel_->run(slots);
      for (std::size_t i = 1; i < outputs_.size(); ++i) {
        at::Tensor& tensor = slots[outputs_[i]];
        if (tensor.defined() && tensor.is_same(slots[outputs_[i - 1]])) tensor = tensor.clone();
      }
    }

   private:
    std::unique_ptr<Kernel> kernel_;
    std::vector<std::uint32_t> outputs_;
  };
  return std::make_unique<ApartKernel>(make_typed<ops::mkldnn_rnn_layer_backward>(compute), compute);
}

namespace {
namespace {

// ATen's divides by the number of samples, and ends the process where a rank has none.
class BatchNormBackward final : public Kernel {
 public:
  explicit BatchNormBackward(const Compute& compute)
      : kernel_(make_typed<ops::native_batch_norm_backward>(compute)),
        input_(slot_of(compute, "input")),
        outputs_(compute) {}

  void run(Slots& slots) override {
    const at::Tensor& input = slots[input_];
    if (input.numel() > 0) return kernel_->run(slots);
    // Two tensors: sums over ranks are written over them.
    const auto none = [&] { return at::zeros({input.size(1)}, input.options()); };
    outputs_.put(slots, std::tuple(at::zeros_like(input), none(), none()));
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::uint32_t input_;
  Outputs outputs_;
};

}  // namespace

static std::unique_ptr<Kernel> make_batch_norm_backward(const Program&, const Compute& compute) {
  return std::make_unique<BatchNormBackward>(compute);
}

struct NamedKernel {
  std::string_view op;
  Maker make;
  Maker make_over = nullptr;  // the op that writes over one of its inputs
};
}  // namespace

// In alphabetical order.
static constexpr NamedKernel kKernels[] = {
    {"aten::_adaptive_avg_pool2d", typed<ops::_adaptive_avg_pool2d>},
    {"aten::_adaptive_avg_pool2d_backward", typed<ops::_adaptive_avg_pool2d_backward>},
    {"aten::_fused_rms_norm", typed<ops::_fused_rms_norm>},
    {"aten::_fused_rms_norm_backward", typed<ops::_fused_rms_norm_backward>},
    {"aten::_log_softmax", typed<ops::_log_softmax>},
    {"aten::_log_softmax_backward_data", typed<ops::_log_softmax_backward_data>,
     typed<ops::_log_softmax_backward_data_out>},
    {"aten::_native_batch_norm_legit_functional", make_batch_norm},
    {"aten::_native_batch_norm_legit_no_training", typed<ops::_native_batch_norm_legit_no_training>},
    {"aten::_softmax", typed<ops::_softmax>},
    {"aten::_softmax_backward_data", typed<ops::_softmax_backward_data>},
    {"aten::_to_copy", typed<ops::_to_copy>},
    {"aten::_unsafe_view", typed<ops::_unsafe_view>},
    {"aten::abs", typed<ops::abs>},
    {"aten::add.Scalar", typed<ops::add_Scalar>, typed<ops::add__Scalar>},
    {"aten::add.Tensor", typed<ops::add_Tensor>, typed<ops::add_out>},
    {"aten::addmm", make_addmm},
    {"aten::alias", typed<ops::alias>},
    {"aten::amax", typed<ops::amax>},
    {"aten::any.dim", typed<ops::any_dim>},
    {"aten::argmax", typed<ops::argmax>},
    {"aten::as_strided", typed<ops::as_strided>},
    {"aten::avg_pool2d", typed<ops::avg_pool2d>},
    {"aten::avg_pool2d_backward", typed<ops::avg_pool2d_backward>},
    {"aten::baddbmm", typed<ops::baddbmm>},
    {"aten::bitwise_and.Tensor", typed<ops::bitwise_and_Tensor>},
    {"aten::bitwise_not", typed<ops::bitwise_not>},
    {"aten::bitwise_or.Tensor", typed<ops::bitwise_or_Tensor>},
    {"aten::bmm", typed<ops::bmm>},
    {"aten::cat", typed<ops::cat>},
    {"aten::clamp", typed<ops::clamp>, typed<ops::clamp_out>},
    {"aten::clamp_min", typed<ops::clamp_min>},
    {"aten::clone", typed<ops::clone>},
    {"aten::constant_pad_nd", typed<ops::constant_pad_nd>},
    {"aten::convolution", typed<ops::convolution>},
    {"aten::convolution_backward", typed<ops::convolution_backward>},
    {"aten::copy", typed<ops::copy>},
    {"aten::cos", typed<ops::cos>, typed<ops::cos_out>},
    {"aten::cumsum", typed<ops::cumsum>},
    {"aten::detach", typed<ops::detach>},
    {"aten::diagonal", typed<ops::diagonal>},
    {"aten::diagonal_backward", typed<ops::diagonal_backward>},
    {"aten::div.Scalar", typed<ops::div_Scalar>, typed<ops::div__Scalar>},
    {"aten::div.Tensor", typed<ops::div_Tensor>, typed<ops::div_out>},
    {"aten::dot", typed<ops::dot>},
    {"aten::elu", typed<ops::elu>},
    {"aten::elu_backward", typed<ops::elu_backward>},
    {"aten::embedding", typed<ops::embedding>},
    {"aten::embedding_dense_backward", typed<ops::embedding_dense_backward>},
    {"aten::eq.Scalar", typed<ops::eq_Scalar>},
    {"aten::eq.Tensor", typed<ops::eq_Tensor>},
    {"aten::exp", typed<ops::exp>, typed<ops::exp_out>},
    {"aten::expand", typed<ops::expand>},
    {"aten::expand_copy", typed<ops::expand_copy>},
    {"aten::eye", typed<ops::eye>},
    {"aten::fill.Scalar", typed<ops::fill_Scalar>},
    {"aten::flip", typed<ops::flip>},
    {"aten::full", typed<ops::full>},
    {"aten::full_like", typed<ops::full_like>},
    {"aten::gather", typed<ops::gather>},
    {"aten::ge.Scalar", typed<ops::ge_Scalar>},
    {"aten::ge.Tensor", typed<ops::ge_Tensor>},
    {"aten::gelu", typed<ops::gelu>, typed<ops::gelu_out>},
    {"aten::gelu_backward", typed<ops::gelu_backward>, typed<ops::gelu_backward_grad_input>},
    {"aten::glu", typed<ops::glu>},
    {"aten::glu_backward", typed<ops::glu_backward>},
    {"aten::gt.Scalar", typed<ops::gt_Scalar>},
    {"aten::gt.Tensor", typed<ops::gt_Tensor>},
    {"aten::hardswish", typed<ops::hardswish>},
    {"aten::hardswish_backward", typed<ops::hardswish_backward>},
    {"aten::hardtanh", typed<ops::hardtanh>},
    {"aten::hardtanh_backward", typed<ops::hardtanh_backward>},
    {"aten::index.Tensor", typed<ops::index_Tensor>},
    {"aten::index_add", typed<ops::index_add>},
    {"aten::index_put", typed<ops::index_put>},
    {"aten::index_select", typed<ops::index_select>},
    {"aten::le.Scalar", typed<ops::le_Scalar>},
    {"aten::le.Tensor", typed<ops::le_Tensor>},
    {"aten::leaky_relu", typed<ops::leaky_relu>},
    {"aten::leaky_relu_backward", typed<ops::leaky_relu_backward>},
    {"aten::lift_fresh", typed<ops::lift_fresh>},
    {"aten::linalg_vector_norm", typed<ops::linalg_vector_norm>},
    {"aten::log", typed<ops::log>, typed<ops::log_out>},
    {"aten::log1p", typed<ops::log1p>},
    {"aten::log_sigmoid_backward", typed<ops::log_sigmoid_backward>},
    {"aten::log_sigmoid_forward", typed<ops::log_sigmoid_forward>},
    {"aten::logical_and", typed<ops::logical_and>},
    {"aten::logical_not", typed<ops::logical_not>},
    {"aten::logical_or", typed<ops::logical_or>},
    {"aten::logsumexp", typed<ops::logsumexp>},
    {"aten::lt.Scalar", typed<ops::lt_Scalar>},
    {"aten::lt.Tensor", typed<ops::lt_Tensor>},
    {"aten::masked_fill.Scalar", typed<ops::masked_fill_Scalar>, typed<ops::masked_fill__Scalar>},
    {"aten::masked_fill.Tensor", typed<ops::masked_fill_Tensor>},
    {"aten::max", typed<ops::max>},
    {"aten::max.dim", typed<ops::max_dim>},
    {"aten::max_pool2d_with_indices", typed<ops::max_pool2d_with_indices>},
    {"aten::max_pool2d_with_indices_backward", typed<ops::max_pool2d_with_indices_backward>},
    {"aten::maximum", typed<ops::maximum>},
    {"aten::mean", typed<ops::mean>},
    {"aten::mean.dim", typed<ops::mean_dim>},
    {"aten::min.dim", typed<ops::min_dim>},
    {"aten::minimum", typed<ops::minimum>},
    {"aten::mkldnn_rnn_layer", make_training_rnn},
    {"aten::mkldnn_rnn_layer_backward", make_rnn_backward},
    {"aten::mm", make_mm},
    {"aten::mse_loss", typed<ops::mse_loss>},
    {"aten::mse_loss_backward", typed<ops::mse_loss_backward>},
    {"aten::mul.Scalar", typed<ops::mul_Scalar>, typed<ops::mul__Scalar>},
    {"aten::mul.Tensor", typed<ops::mul_Tensor>, typed<ops::mul_out>},
    {"aten::mv", typed<ops::mv>},
    {"aten::native_batch_norm_backward", make_batch_norm_backward},
    {"aten::native_dropout_backward", typed<ops::native_dropout_backward>},
    {"aten::native_group_norm", typed<ops::native_group_norm>},
    {"aten::native_group_norm_backward", typed<ops::native_group_norm_backward>},
    {"aten::native_layer_norm", typed<ops::native_layer_norm>},
    {"aten::native_layer_norm_backward", typed<ops::native_layer_norm_backward>},
    {"aten::ne.Scalar", typed<ops::ne_Scalar>},
    {"aten::ne.Tensor", typed<ops::ne_Tensor>},
    {"aten::neg", typed<ops::neg>, typed<ops::neg_out>},
    {"aten::new_zeros", typed<ops::new_zeros>},
    {"aten::nll_loss2d_backward", typed<ops::nll_loss2d_backward>},
    {"aten::nll_loss2d_forward", typed<ops::nll_loss2d_forward>},
    {"aten::nll_loss_backward", typed<ops::nll_loss_backward>},
    {"aten::nll_loss_forward", typed<ops::nll_loss_forward>},
    {"aten::ones_like", typed<ops::ones_like>},
    {"aten::permute", typed<ops::permute>},
    {"aten::pow.Scalar", typed<ops::pow_Scalar>},
    {"aten::pow.Tensor_Scalar", typed<ops::pow_Tensor_Scalar>, typed<ops::pow_Tensor_Scalar_out>},
    {"aten::pow.Tensor_Tensor", typed<ops::pow_Tensor_Tensor>},
    {"aten::prod", typed<ops::prod>},
    {"aten::reciprocal", typed<ops::reciprocal>, typed<ops::reciprocal_out>},
    {"aten::relu", typed<ops::relu>, typed<ops::relu_>},
    {"aten::repeat", typed<ops::repeat>},
    {"aten::roll", typed<ops::roll>},
    {"aten::rsqrt", typed<ops::rsqrt>, typed<ops::rsqrt_out>},
    {"aten::rsub.Scalar", typed<ops::rsub_Scalar>},
    {"aten::scalar_tensor", typed<ops::scalar_tensor>},
    {"aten::scatter.src", typed<ops::scatter_src>},
    {"aten::scatter.value", typed<ops::scatter_value>},
    {"aten::scatter_add", typed<ops::scatter_add>},
    {"aten::select.int", typed<ops::select_int>},
    {"aten::select_backward", typed<ops::select_backward>},
    {"aten::sigmoid", typed<ops::sigmoid>, typed<ops::sigmoid_out>},
    {"aten::sigmoid_backward", typed<ops::sigmoid_backward>, typed<ops::sigmoid_backward_grad_input>},
    {"aten::sign", typed<ops::sign>},
    {"aten::silu", typed<ops::silu>, typed<ops::silu_out>},
    {"aten::silu_backward", typed<ops::silu_backward>, typed<ops::silu_backward_grad_input>},
    {"aten::sin", typed<ops::sin>, typed<ops::sin_out>},
    {"aten::slice.Tensor", typed<ops::slice_Tensor>},
    {"aten::slice_backward", typed<ops::slice_backward>},
    {"aten::smooth_l1_loss", typed<ops::smooth_l1_loss>},
    {"aten::smooth_l1_loss_backward", typed<ops::smooth_l1_loss_backward>},
    {"aten::softplus", typed<ops::softplus>},
    {"aten::softplus_backward", typed<ops::softplus_backward>},
    {"aten::sort", typed<ops::sort>},
    {"aten::split.Tensor", typed<ops::split_Tensor>},
    {"aten::split_with_sizes", typed<ops::split_with_sizes>},
    {"aten::sqrt", typed<ops::sqrt>, typed<ops::sqrt_out>},
    {"aten::squeeze", typed<ops::squeeze>},
    {"aten::squeeze.dim", typed<ops::squeeze_dim>},
    {"aten::squeeze.dims", typed<ops::squeeze_dims>},
    {"aten::stack", typed<ops::stack>},
    {"aten::sub.Scalar", typed<ops::sub_Scalar>},
    {"aten::sub.Tensor", typed<ops::sub_Tensor>, typed<ops::sub_out>},
    {"aten::sum", typed<ops::sum>},
    {"aten::sum.dim_IntList", typed<ops::sum_dim_IntList>},
    {"aten::t", typed<ops::t>},
    {"aten::tanh", typed<ops::tanh>, typed<ops::tanh_out>},
    {"aten::tanh_backward", typed<ops::tanh_backward>, typed<ops::tanh_backward_grad_input>},
    {"aten::threshold_backward", typed<ops::threshold_backward>, typed<ops::threshold_backward_grad_input>},
    {"aten::topk", typed<ops::topk>},
    {"aten::transpose.int", typed<ops::transpose_int>},
    {"aten::tril", typed<ops::tril>},
    {"aten::triu", typed<ops::triu>},
    {"aten::unbind.int", typed<ops::unbind_int>},
    {"aten::unfold", typed<ops::unfold>},
    {"aten::unfold_backward", typed<ops::unfold_backward>},
    {"aten::unsafe_split.Tensor", typed<ops::unsafe_split_Tensor>},
    {"aten::unsafe_split_with_sizes", typed<ops::unsafe_split_with_sizes>},
    {"aten::unsqueeze", typed<ops::unsqueeze>},
    {"aten::upsample_nearest2d", typed<ops::upsample_nearest2d>},
    {"aten::upsample_nearest2d_backward", typed<ops::upsample_nearest2d_backward>},
    {"aten::var.correction", typed<ops::var_correction>},
    {"aten::var_mean.correction", typed<ops::var_mean_correction>},
    {"aten::view", typed<ViewOrCopy>},
    {"aten::where.ScalarOther", typed<ops::where_ScalarOther>},
    {"aten::where.ScalarSelf", typed<ops::where_ScalarSelf>},
    {"aten::where.self", typed<ops::where_self>},
    {"aten::zeros", typed<ops::zeros>},
    {"aten::zeros_like", typed<ops::zeros_like>},
    {"shoal::accumulate", make_accumulate},
    {"shoal::adadelta", make_adadelta},
    {"shoal::adafactor", make_adafactor},
    {"shoal::adagrad", make_adagrad},
    {"shoal::adam", make_adam},
    {"shoal::adamax", make_adamax},
    {"shoal::asgd", make_asgd},
    {"shoal::attention", make_attention},
    {"shoal::attention_backward", make_attention_backward},
    {"shoal::bernoulli", make_bernoulli},
    {"shoal::bernoulli_tensor", make_bernoulli_tensor},
    {"shoal::clip", make_clip},
    {"shoal::clip_by", make_clip_by},
    {"shoal::combine", make_combine},
    {"shoal::embedding_backward_part", make_embedding_backward_part},
    {"shoal::embedding_part", make_embedding_part},
    {"shoal::expect", make_expect},
    {"shoal::exponential", make_exponential},
    {"shoal::lamb", make_lamb},
    {"shoal::lamb_moments", make_lamb_moments},
    {"shoal::lamb_step", make_lamb_step},
    {"shoal::lion", make_lion},
    {"shoal::muon", make_muon},
    {"shoal::nadam", make_nadam},
    {"shoal::nll_loss_backward_part", make_nll_loss_backward_part},
    {"shoal::nll_loss_part", make_nll_loss_part},
    {"shoal::normal", make_normal},
    {"shoal::pack", make_pack},
    {"shoal::pack_parts", make_pack_parts},
    {"shoal::part", make_part},
    {"shoal::radam", make_radam},
    {"shoal::randint", make_randint},
    {"shoal::random", make_random},
    {"shoal::rmsprop", make_rmsprop},
    {"shoal::rprop", make_rprop},
    {"shoal::sgd", make_sgd},
    {"shoal::sparse_mm", make_sparse_mm},
    {"shoal::sum_of_squares", make_sum_of_squares},
    {"shoal::to_device", make_to_device},
    {"shoal::to_host", make_to_host},
    {"shoal::uniform", make_uniform},
    {"shoal::unpack", make_unpack},
    {"shoal::unpack_into", make_unpack_into},
    {"shoal::unpack_parts", make_unpack_parts},
};
static_assert(std::ranges::is_sorted(kKernels, {}, &NamedKernel::op),
              "kKernels: keep it in alphabetical order");

namespace {

// Any op that is loaded, through the dispatcher's stack of IValues.
class BoxedKernel final : public Kernel {
 public:
  BoxedKernel(const Compute& compute, const c10::OperatorHandle& op) : op_(op), outputs_(compute) {
    const auto& parameters = op.schema().arguments();
    for (const auto& parameter : parameters) arguments_.push_back(argument_for(compute, parameter));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& attribute = arguments_[i];
      const bool reads =
          std::holds_alternative<ir::ValueId>(attribute) || std::holds_alternative<ir::ValueList>(attribute);
      constants_.push_back(reads ? c10::IValue() : aten::ivalue_of(attribute, parameters[i], {}));
    }
  }

  void run(Slots& slots) override {
    torch::jit::Stack stack;
    const auto tensor_of = [&](ir::ValueId slot) { return slots[slot.index]; };
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const bool reads = std::holds_alternative<ir::ValueId>(arguments_[i]) ||
                         std::holds_alternative<ir::ValueList>(arguments_[i]);
      stack.push_back(reads ? aten::ivalue_of(arguments_[i], op_.schema().arguments()[i], tensor_of)
                            : constants_[i]);
    }
    op_.callBoxed(stack);
    std::vector<at::Tensor> tensors;
    for (auto& value : stack) {
      if (value.isTensor())
        tensors.push_back(std::move(value).toTensor());
      else if (value.isTensorList())
        for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
      else
        tensors.emplace_back();
    }
    outputs_.put(slots, std::move(tensors));
  }

 private:
  c10::OperatorHandle op_;
  std::vector<ir::Attribute> arguments_;
  std::vector<c10::IValue> constants_;  // none where the argument is a slot or a list of them
  Outputs outputs_;
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(const Program& program, const Compute& compute) {
  const auto row = std::ranges::lower_bound(kKernels, std::string_view(compute.op), {}, &NamedKernel::op);
  if (row != std::end(kKernels) && row->op == compute.op) {
    // An op without a form that writes over its input makes a new tensor instead.
    const bool over = compute.over && row->make_over != nullptr;
    auto kernel = (over ? row->make_over : row->make)(program, compute);
    return ir::is_view(compute.op) ? make_view(program, compute, std::move(kernel)) : std::move(kernel);
  }
  const auto op = aten::find_operator(compute.op);
  SHOAL_CHECK(op, InvalidInput, "operator ", compute.op,
              " is not loaded: load the library that registers it");
  return std::make_unique<BoxedKernel>(compute, *op);
}

}  // namespace shoal::runtime
