// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/flops.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shoal/ir/own_ops.h"
#include "shoal/ir/views.h"

namespace shoal::ir {

using Shape = std::vector<std::int64_t>;

static const Shape* shape_of(const Node& node, const TypeOf& type_of, std::string_view argument) {
  const auto* attribute = find(node, argument);
  const auto* value = attribute == nullptr ? nullptr : std::get_if<ValueId>(attribute);
  return value == nullptr ? nullptr : &type_of(*value).shape;
}

static double product(const Shape& shape) {
  double elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<double>(size);
  return elements;
}

// [..., m, k] x [..., k, n]: each element of the result is k products.
static double of_matrices(const Node& node, const TypeOf& type_of) {
  for (const char* left : {"mat1", "batch1", "self"})
    if (const Shape* shape = shape_of(node, type_of, left))
      return 2 * product(type_of(*node.outputs[0]).shape) * static_cast<double>(shape->back());
  return 0;
}

// Queries times keys, weights times values.
static double of_attention(const Node& node, const TypeOf& type_of) {
  const Shape* query = shape_of(node, type_of, "query");
  const Shape* key = shape_of(node, type_of, "key");
  const Shape* value = shape_of(node, type_of, "value");
  if (query == nullptr || key == nullptr || value == nullptr || key->size() < 2) return 0;
  const auto widths = static_cast<double>(query->back() + value->back());
  const double rows = product(*query) / static_cast<double>(std::max<std::int64_t>(query->back(), 1));
  return 2 * rows * static_cast<double>((*key)[key->size() - 2]) * widths;
}

// The weights again, and the gradients of values, weights, queries and keys.
static constexpr double kAttentionBackward = 2.5;

static double of_attention_backward(const Node& node, const TypeOf& type_of) {
  return kAttentionBackward * of_attention(node, type_of);
}

// Substitution: half of a product with the matrix.
static double of_triangular_solve(const Node& node, const TypeOf& type_of) {
  const Shape* matrix = shape_of(node, type_of, "self");
  return matrix == nullptr ? 0
                           : product(type_of(*node.outputs[0]).shape) * static_cast<double>(matrix->back());
}

static double of_each_place(const Shape& weight) {
  return 2 * product(weight) / static_cast<double>(weight[0]);
}

static double of_convolution(const Node& node, const TypeOf& type_of) {
  const Shape* weight = shape_of(node, type_of, "weight");
  return weight == nullptr ? 0 : of_each_place(*weight) * product(type_of(*node.outputs[0]).shape);
}

static double of_convolution_backward(const Node& node, const TypeOf& type_of) {
  const Shape* weight = shape_of(node, type_of, "weight");
  const Shape* gradient = shape_of(node, type_of, "grad_output");
  if (weight == nullptr || gradient == nullptr) return 0;
  const auto made = std::count_if(node.outputs.begin(), node.outputs.begin() + 2,
                                  [](const auto& output) { return output.has_value(); });
  return static_cast<double>(made) * of_each_place(*weight) * product(*gradient);
}

// Both matrices at each place of the sequence; `names`: of the input's and of the state's.
static double of_lstm(const Node& node, const TypeOf& type_of, std::array<const char*, 2> names) {
  const Shape* input = shape_of(node, type_of, "input");
  if (input == nullptr || input->empty()) return 0;
  double flops = 0;
  for (const char* name : names)
    if (const Shape* weight = shape_of(node, type_of, name))
      flops += 2 * product(*weight) * product(*input) / static_cast<double>(input->back());
  return flops;
}
static double of_lstm_forward(const Node& node, const TypeOf& type_of) {
  return of_lstm(node, type_of, {"weight0", "weight1"});
}
static double of_lstm_backward(const Node& node, const TypeOf& type_of) {
  return 2 * of_lstm(node, type_of, {"weight1", "weight2"});
}

namespace {
struct Work {
  std::string_view op;
  double (*flops)(const Node&, const TypeOf&);
};
}  // namespace

static constexpr std::array kWork = {
    Work{"aten::_scaled_dot_product_flash_attention_for_cpu", of_attention},
    Work{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", of_attention_backward},
    Work{"aten::addmm", of_matrices},
    Work{"aten::baddbmm", of_matrices},
    Work{"aten::bmm", of_matrices},
    Work{"aten::convolution", of_convolution},
    Work{"aten::convolution_backward", of_convolution_backward},
    Work{"aten::linalg_solve_triangular", of_triangular_solve},
    Work{"aten::mkldnn_rnn_layer", of_lstm_forward},
    Work{"aten::mkldnn_rnn_layer_backward", of_lstm_backward},
    Work{"aten::mm", of_matrices},
    Work{"shoal::attention", of_attention},
    Work{"shoal::attention_backward", of_attention_backward},
};
static_assert(std::ranges::is_sorted(kWork, {}, &Work::op), "kWork: keep it in alphabetical order");

// Ops that go over their elements a few times, make them, or move them: no products of matrices.
static constexpr std::string_view kNone[] = {
    "aten::_adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool2d_backward",
    "aten::_ctc_loss",
    "aten::_ctc_loss_backward",
    "aten::_index_put_impl",
    "aten::_log_softmax",
    "aten::_log_softmax_backward_data",
    "aten::_native_batch_norm_legit_functional",
    "aten::_native_batch_norm_legit_no_training",
    "aten::_safe_softmax",
    "aten::_softmax",
    "aten::_softmax_backward_data",
    "aten::_to_copy",
    "aten::_weight_norm_interface",
    "aten::_weight_norm_interface_backward",
    "aten::abs",
    "aten::add.Scalar",
    "aten::add.Tensor",
    "aten::amax",
    "aten::amin",
    "aten::any.dim",
    "aten::argmax",
    "aten::as_strided_scatter",
    "aten::avg_pool2d",
    "aten::avg_pool2d_backward",
    "aten::binary_cross_entropy",
    "aten::binary_cross_entropy_backward",
    "aten::binary_cross_entropy_with_logits",
    "aten::bitwise_and.Tensor",
    "aten::bitwise_not",
    "aten::bitwise_or.Tensor",
    "aten::cat",
    "aten::ceil",
    "aten::clamp",
    "aten::clamp_min",
    "aten::clone",
    "aten::constant_pad_nd",
    "aten::copy",
    "aten::cos",
    "aten::cumsum",
    "aten::div.Scalar",
    "aten::div.Tensor",
    "aten::elu",
    "aten::elu_backward",
    "aten::embedding",
    "aten::embedding_dense_backward",
    "aten::empty_like",
    "aten::eq.Scalar",
    "aten::eq.Tensor",
    "aten::erf",
    "aten::exp",
    "aten::fill.Scalar",
    "aten::fill.Tensor",
    "aten::flip",
    "aten::floor",
    "aten::full",
    "aten::full_like",
    "aten::gather",
    "aten::ge.Scalar",
    "aten::ge.Tensor",
    "aten::gelu",
    "aten::gelu_backward",
    "aten::gt.Scalar",
    "aten::gt.Tensor",
    "aten::hardswish",
    "aten::hardswish_backward",
    "aten::hardtanh",
    "aten::hardtanh_backward",
    "aten::huber_loss",
    "aten::huber_loss_backward",
    "aten::index.Tensor",
    "aten::index_add",
    "aten::index_put",
    "aten::index_select",
    "aten::le.Scalar",
    "aten::le.Tensor",
    "aten::leaky_relu",
    "aten::leaky_relu_backward",
    "aten::log",
    "aten::log1p",
    "aten::logical_and",
    "aten::logical_not",
    "aten::logical_or",
    "aten::logsumexp",
    "aten::lt.Scalar",
    "aten::lt.Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::masked_select",
    "aten::max.dim",
    "aten::max_pool2d_with_indices",
    "aten::max_pool2d_with_indices_backward",
    "aten::maximum",
    "aten::mean",
    "aten::mean.dim",
    "aten::min.dim",
    "aten::minimum",
    "aten::mse_loss",
    "aten::mse_loss_backward",
    "aten::mul.Scalar",
    "aten::mul.Tensor",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::native_dropout_backward",
    "aten::native_group_norm",
    "aten::native_group_norm_backward",
    "aten::native_layer_norm",
    "aten::native_layer_norm_backward",
    "aten::ne.Scalar",
    "aten::ne.Tensor",
    "aten::neg",
    "aten::new_empty_strided",
    "aten::new_zeros",
    "aten::nll_loss2d_backward",
    "aten::nll_loss2d_forward",
    "aten::nll_loss_backward",
    "aten::nll_loss_forward",
    "aten::ones_like",
    "aten::pow.Scalar",
    "aten::pow.Tensor_Scalar",
    "aten::pow.Tensor_Tensor",
    "aten::reciprocal",
    "aten::relu",
    "aten::repeat",
    "aten::roll",
    "aten::rsqrt",
    "aten::rsub.Scalar",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::scatter_add",
    "aten::select_backward",
    "aten::select_scatter",
    "aten::sigmoid",
    "aten::sigmoid_backward",
    "aten::sign",
    "aten::silu",
    "aten::silu_backward",
    "aten::sin",
    "aten::slice_backward",
    "aten::slice_scatter",
    "aten::smooth_l1_loss",
    "aten::smooth_l1_loss_backward",
    "aten::soft_margin_loss",
    "aten::soft_margin_loss_backward",
    "aten::softplus",
    "aten::softplus_backward",
    "aten::sort",
    "aten::sqrt",
    "aten::stack",
    "aten::std.correction",
    "aten::sub.Scalar",
    "aten::sub.Tensor",
    "aten::sum",
    "aten::sum.dim_IntList",
    "aten::tan",
    "aten::tanh",
    "aten::tanh_backward",
    "aten::threshold_backward",
    "aten::topk",
    "aten::tril",
    "aten::triu",
    "aten::upsample_bilinear2d",
    "aten::upsample_bilinear2d_backward",
    "aten::upsample_nearest2d",
    "aten::upsample_nearest2d_backward",
    "aten::var.correction",
    "aten::var_mean.correction",
    "aten::where.ScalarOther",
    "aten::where.ScalarSelf",
    "aten::where.self",
    "aten::zeros",
    "aten::zeros_like",
};
static_assert(std::ranges::is_sorted(kNone), "kNone: keep it in alphabetical order");

std::optional<double> work_of(const Node& node, const TypeOf& type_of) {
  const std::string_view op = node.op;
  const auto row = std::ranges::lower_bound(kWork, op, {}, &Work::op);
  if (row != kWork.end() && row->op == op) return row->flops(node, type_of);
  if (const OwnOp* own = find_own_op(op); own != nullptr && !own->has_flops) return 0;
  if ((op.starts_with("aten::") && is_view(op)) || std::ranges::binary_search(kNone, op)) return 0;
  return std::nullopt;
}

std::optional<double> work_of(const Graph& graph, const Node& node) {
  return work_of(node, [&](ValueId value) -> const TensorType& { return graph.at(value).type; });
}

double heads_of(const Node& node, const TypeOf& type_of) {
  const auto row = std::ranges::lower_bound(kWork, std::string_view(node.op), {}, &Work::op);
  if (row == kWork.end() || row->op != node.op) return 0;
  const double times = row->flops == of_attention            ? 1
                       : row->flops == of_attention_backward ? kAttentionBackward
                                                             : 0;
  const Shape* query = times > 0 ? shape_of(node, type_of, "query") : nullptr;  // [..., positions, width]
  if (query == nullptr || query->size() < 2) return 0;
  return times * product(Shape(query->begin(), query->end() - 2));
}

double flops_of(const Graph& graph, const Node& node) { return work_of(graph, node).value_or(0); }

}  // namespace shoal::ir
