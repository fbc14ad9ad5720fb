// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/shape_functions.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/mul_meta_dispatch.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "shoal/capture/operands.h"

namespace shoal::capture {

using Stack = torch::jit::Stack;

static at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options());
}
static at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like, at::ScalarType type) {
  return at::empty(sizes, like.options().dtype(type));
}

// As at::empty_like: strides kept where the tensor is dense.
static at::Tensor same(const at::Tensor& like) { return at::empty_like(like); }
// In one of the orders that have a name.
static at::Tensor suggested(const at::Tensor& like) {
  return at::empty_like(like, like.options(), like.suggest_memory_format());
}
static at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// add, div, mul, sub (self, Scalar, …): as with a tensor of no dimensions, which ATen makes of the number.
static Metas with_scalar(const Stack& in) {
  return {at::meta::mul(in[0].toTensor(), at::native::wrapped_scalar_tensor(in[1].toScalar()))};
}
static Metas divided_by_scalar(const Stack& in) {
  return {at::meta::div(in[0].toTensor(), at::native::wrapped_scalar_tensor(in[1].toScalar()))};
}

// embedding(weight, indices, …) -> indices' shape × width
static Metas embedding(const Stack& in) {
  const auto weight = in[0].toTensor();
  auto sizes = in[1].toTensor().sizes().vec();
  sizes.push_back(weight.size(1));
  return {empty(sizes, weight)};
}

// _grouped_mm(self, mat2, offs?, …): matrices by matrices, of which one dim of one side, or what is summed
// over, is cut into groups. Its Meta kernel wants bfloat16, which the CPU's does not.
static Metas grouped_mm(const Stack& in) {
  const auto self = in[0].toTensor(), mat2 = in[1].toTensor();
  const auto rows = self.size(-2), columns = mat2.size(-1);
  const auto type = in[4].isNone() ? self.scalar_type() : in[4].toScalarType();
  if (self.dim() == 2 && mat2.dim() == 2)
    return {empty({in[2].toTensor().size(0), rows, columns}, self, type)};
  if (self.dim() == 3 && mat2.dim() == 3) return {empty({self.size(0), rows, columns}, self, type)};
  return {empty({rows, columns}, self, type)};
}

// embedding_dense_backward(grad_output, indices, num_weights, …)
static Metas embedding_dense_backward(const Stack& in) {
  const auto grad = in[0].toTensor();
  return {empty({in[2].toInt(), grad.size(-1)}, grad)};
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (output, mean, rstd)
static Metas native_layer_norm(const Stack& in) {
  const auto input = in[0].toTensor();
  const auto outer = input.dim() - static_cast<std::int64_t>(in[1].toIntVector().size());
  auto sizes = input.sizes().vec();
  for (std::size_t dim = static_cast<std::size_t>(outer); dim < sizes.size(); ++dim) sizes[dim] = 1;
  const auto weight = tensor_or_none(in[2]);
  const bool mixed = weight.defined() && weight.scalar_type() != input.scalar_type();
  const auto type = mixed ? weight.scalar_type() : input.scalar_type();
  return {at::empty_like(input, input.options(), at::MemoryFormat::Contiguous), empty(sizes, input, type),
          empty(sizes, input, type)};
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
static Metas native_layer_norm_backward(const Stack& in) {
  const auto input = in[1].toTensor();
  const auto mask = in[7].toBoolList();
  const auto weight = tensor_or_none(in[5]);
  const auto bias = tensor_or_none(in[6]);
  const auto contiguous = [](const at::Tensor& like) {
    return at::empty_like(like, like.options(), at::MemoryFormat::Contiguous);
  };
  return {mask[0] ? contiguous(input) : at::Tensor(),
          mask[1] && weight.defined() ? contiguous(weight) : at::Tensor(),
          mask[2] && bias.defined() ? contiguous(bias) : at::Tensor()};
}

// index_select(self, dim, index)
static Metas index_select(const Stack& in) {
  const auto self = in[0].toTensor();
  auto sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<std::size_t>(c10::maybe_wrap_dim(in[1].toInt(), self.dim()))] =
        in[2].toTensor().numel();
  return {empty(sizes, self)};
}

// _scaled_dot_product_flash_attention_for_cpu(query BHLK, key, value, …) -> (output BHLK, as the query lies
// in memory, logsumexp BHL, a transposed B L H).
static Metas attention(const Stack& in) {
  const auto query = in[0].toTensor();
  const auto value = in[2].toTensor();
  const auto batch = query.size(0), heads = query.size(1), length = query.size(2);
  const auto type = at::toOpMathType(query.scalar_type());
  return {value.size(3) == query.size(3)
              ? same(query)
              : empty({batch, length, heads, value.size(3)}, query).transpose(1, 2),
          empty({batch, length, heads}, query, type).transpose(1, 2)};
}

// On CUDA both lie as its kernels make them: an output BLHK transposed, and BHL.
static Metas attention_on_cuda(const Stack& in) {
  const auto query = in[0].toTensor();
  const auto batch = query.size(0), heads = query.size(1), length = query.size(2);
  return {empty({batch, length, heads, in[2].toTensor().size(3)}, query).transpose(1, 2),
          empty({batch, heads, length}, query, at::toOpMathType(query.scalar_type()))};
}

// …_backward(grad_out, query, key, value, …) -> (grad_query, grad_key, grad_value)
static Metas attention_backward(const Stack& in) {
  Metas grads;
  for (const std::size_t i : {1U, 2U, 3U}) {
    const auto like = in[i].toTensor().transpose(1, 2);
    grads.push_back(empty(like.sizes(), like).transpose(1, 2));
  }
  return grads;
}

// In which order convolutions lay out what they give.
static at::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  // slow_conv3d, which double falls to, knows one order
  const bool has_one = input.dim() < 4 || (input.dim() == 5 && input.scalar_type() == at::kDouble);
  if (has_one) return at::MemoryFormat::Contiguous;
  const auto format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

// convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)
static Metas convolution(const Stack& in) {
  const auto input = in[0].toTensor();
  const auto weight = in[1].toTensor();
  const auto stride = in[3].toIntVector(), padding = in[4].toIntVector(), dilation = in[5].toIntVector(),
             output_padding = in[7].toIntVector();
  const auto per_dim = [](const std::vector<std::int64_t>& values, std::size_t dim) {
    return values.size() == 1 ? values[0] : values.at(dim);
  };
  const bool transposed = in[6].toBool();
  std::vector<std::int64_t> sizes = {input.size(0),
                                     transposed ? weight.size(1) * in[8].toInt() : weight.size(0)};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) {
    const auto i = static_cast<std::size_t>(dim - 2);
    const auto reach = per_dim(dilation, i) * (weight.size(dim) - 1);
    sizes.push_back(transposed
                        ? (input.size(dim) - 1) * per_dim(stride, i) - 2 * per_dim(padding, i) + reach +
                              per_dim(output_padding, i) + 1
                        : (input.size(dim) + 2 * per_dim(padding, i) - reach - 1) / per_dim(stride, i) + 1);
  }
  return {at::empty(sizes, input.options(), convolution_format(input, weight))};
}

// convolution_backward(grad_output, input, weight, bias_sizes?, …, output_mask) -> (grad_input, grad_weight,
// grad_bias)
static Metas convolution_backward(const Stack& in) {
  const auto input = in[1].toTensor();
  const auto weight = in[2].toTensor();
  const auto mask = in[10].toBoolList();
  const auto format = convolution_format(input, weight);
  const auto gradient = [&](const at::Tensor& like) {
    return at::empty(like.sizes(), like.options(), format);
  };
  return {mask[0] ? gradient(input) : at::Tensor(), mask[1] ? gradient(weight) : at::Tensor(),
          mask[2] ? empty({in[0].toTensor().size(1)}, input) : at::Tensor()};
}

// native_batch_norm(input, weight?, bias?, running_mean?, running_var?, training, momentum, eps)
static Metas native_batch_norm(const Stack& in) {
  const auto input = in[0].toTensor();
  const bool training = in[5].toBool();
  const auto weight = tensor_or_none(in[1]);
  const auto type = weight.defined() ? weight.scalar_type() : at::toOpMathType(input.scalar_type());
  const std::vector<std::int64_t> statistics = {training ? input.size(1) : 0};
  return {suggested(input), empty(statistics, input, type), empty(statistics, input, type)};
}

// … -> (output, save_mean, save_invstd, running_mean, running_var)
static Metas native_batch_norm_functional(const Stack& in) {
  auto results = native_batch_norm(in);
  results.push_back(same(in[3].toTensor()));
  results.push_back(same(in[4].toTensor()));
  return results;
}

// native_batch_norm_backward(grad_out, input, weight?, …, output_mask)
static Metas native_batch_norm_backward(const Stack& in) {
  const auto input = in[1].toTensor();
  const auto weight = tensor_or_none(in[2]);
  const auto mask = in[9].toBoolList();
  const auto statistics = [&] {
    return empty({input.size(1)}, input,
                 weight.defined() ? weight.scalar_type() : at::toOpMathType(input.scalar_type()));
  };
  return {mask[0] ? suggested(input) : at::Tensor(), mask[1] ? statistics() : at::Tensor(),
          mask[2] ? statistics() : at::Tensor()};
}

// mkldnn_rnn_layer(input, weight0…3, hx, cx, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases,
// bidirectional, batch_first, train) -> (output, hy, cy, workspace). How large the workspace is only the
// library knows: it runs once, on zeros that lie as it wants them.
static Metas mkldnn_rnn_layer(const Stack& in) {
  // It takes as much memory as a layer does, so that what is known is not asked again: a spot check comes
  // when the gradients of a step are there.
  static std::mutex mutex;
  static std::map<std::string, Metas> known;
  std::ostringstream text;
  for (const c10::IValue& argument : in)
    if (argument.isTensor())
      text << argument.toTensor().sizes() << argument.toTensor().scalar_type() << ' ';
    else
      text << argument << ' ';
  const std::lock_guard lock(mutex);
  Metas& metas = known[text.str()];
  if (!metas.empty()) return metas;
  const auto zeros = [&](std::size_t i) {
    const auto meta = in[i].toTensor();
    return at::zeros(meta.sizes(), meta.options().device(at::kCPU));
  };
  const auto [output, hy, cy, workspace] =
      at::mkldnn_rnn_layer(zeros(0), zeros(1), zeros(2), zeros(3), zeros(4), zeros(5), zeros(6),
                           in[7].toBool(), in[8].toIntVector(), in[9].toInt(), in[10].toInt(), in[11].toInt(),
                           in[12].toBool(), in[13].toBool(), in[14].toBool(), in[15].toBool());
  for (const at::Tensor& tensor : {output, hy, cy, workspace})
    metas.push_back(tensor.defined() ? at::empty_strided(tensor.sizes(), tensor.strides(),
                                                         tensor.options().device(at::kMeta))
                                     : at::Tensor());
  return metas;
}

// mkldnn_rnn_layer_backward(input, weight1…4, hx, cx, output, …) -> the gradients of the first seven
static Metas mkldnn_rnn_layer_backward(const Stack& in) {
  Metas grads;
  for (std::size_t i = 0; i < 7; ++i) grads.push_back(empty(in[i].toTensor().sizes(), in[i].toTensor()));
  return grads;
}

// multinomial(weights, num_samples, …) -> indices. Zeros, which would stand in, are no weights.
static Metas multinomial(const Stack& in) {
  const auto weights = in[0].toTensor();
  auto sizes = weights.sizes().vec();
  sizes.back() = in[1].toInt();
  return {empty(sizes, weights, at::kLong)};
}

// randint_like(self, high, generator, dtype?, …) with a tensor as the limit, which has to be on the CPU
static Metas randint_like(const Stack& in) {
  const auto self = in[0].toTensor();
  return {empty(self.sizes(), self, in[3].isNone() ? self.scalar_type() : in[3].toScalarType())};
}

// linalg_lstsq(self, b, rcond?, driver?) -> (solution, residuals, rank, singular_values). Of a matrix of full
// rank, as one of zeros is refused by some drivers.
static Metas linalg_lstsq(const Stack& in) {
  const auto matrix = in[0].toTensor(), right = in[1].toTensor();
  const auto eye = at::eye(matrix.size(-2), matrix.size(-1), matrix.options().device(at::kCPU));
  const auto driver = in[3].toOptional<c10::string_view>();
  const auto [solution, residuals, rank, singular] =
      at::linalg_lstsq(eye.expand(matrix.sizes()), at::zeros(right.sizes(), right.options().device(at::kCPU)),
                       in[2].toOptional<double>(), driver);
  return {meta_of(solution), meta_of(residuals), meta_of(rank), meta_of(singular)};
}

// The fused cells of recurrent networks, which CUDA alone has. What backward reads again is the workspace.
//
// _thnn_fused_lstm_cell(input_gates, hidden_gates, cx, …) -> (hy, cy, workspace)
static Metas lstm_cell(const Stack& in) {
  const auto gates = in[0].toTensor(), cx = in[2].toTensor();
  return {empty(cx.sizes(), cx), empty(cx.sizes(), cx), empty(gates.sizes(), gates)};
}

// _thnn_fused_lstm_cell_backward_impl(grad_hy?, grad_cy?, cx, cy, workspace, has_bias) -> (grad_gates,
// grad_cx, grad_bias)
static Metas lstm_cell_backward(const Stack& in) {
  const auto cx = in[2].toTensor(), workspace = in[4].toTensor();
  return {empty(workspace.sizes(), workspace), empty(cx.sizes(), cx),
          in[5].toBool() ? empty({workspace.size(1)}, workspace) : at::Tensor()};
}

// _thnn_fused_gru_cell(input_gates, hidden_gates, hx, …) -> (hy, workspace)
static Metas gru_cell(const Stack& in) {
  const auto hx = in[2].toTensor();
  return {empty(hx.sizes(), hx), empty({hx.size(0), 5 * hx.size(1)}, hx)};
}

// _thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias) -> (grad_input_gates, grad_hidden_gates,
// grad_hx, grad_input_bias, grad_hidden_bias)
static Metas gru_cell_backward(const Stack& in) {
  const auto grad = in[0].toTensor();
  const std::vector<std::int64_t> gates = {grad.size(0), 3 * grad.size(1)};
  const auto bias = [&] { return in[2].toBool() ? empty({gates[1]}, grad) : at::Tensor(); };
  return {empty(gates, grad), empty(gates, grad), empty(grad.sizes(), grad), bias(), bias()};
}

namespace {
struct NamedShapeFunction {
  std::string_view op;
  ShapeFunction results;
};
}  // namespace

static constexpr NamedShapeFunction kShapeFunctions[] = {
    {"aten::_grouped_mm", grouped_mm},
    {"aten::_native_batch_norm_legit_functional", native_batch_norm_functional},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
    {"aten::_thnn_fused_gru_cell", gru_cell},
    {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
    {"aten::_thnn_fused_lstm_cell", lstm_cell},
    {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
    {"aten::add.Scalar", with_scalar},
    {"aten::convolution", convolution},
    {"aten::convolution_backward", convolution_backward},
    {"aten::div.Scalar", divided_by_scalar},
    {"aten::embedding", embedding},
    {"aten::embedding_dense_backward", embedding_dense_backward},
    {"aten::index_select", index_select},
    {"aten::linalg_lstsq", linalg_lstsq},
    {"aten::mkldnn_rnn_layer", mkldnn_rnn_layer},
    {"aten::mkldnn_rnn_layer_backward", mkldnn_rnn_layer_backward},
    {"aten::mul.Scalar", with_scalar},
    {"aten::multinomial", multinomial},
    {"aten::native_batch_norm", native_batch_norm},
    {"aten::native_batch_norm_backward", native_batch_norm_backward},
    {"aten::native_layer_norm", native_layer_norm},
    {"aten::native_layer_norm_backward", native_layer_norm_backward},
    {"aten::randint_like.Tensor_generator", randint_like},
    {"aten::sub.Scalar", with_scalar},
};

ShapeFunction shape_function_of(std::string_view op) {
  const auto* row = std::ranges::find(kShapeFunctions, op, &NamedShapeFunction::op);
  return row == std::end(kShapeFunctions) ? nullptr : row->results;
}

ShapeFunction shape_function_on_cuda(std::string_view op) {
  return op == "aten::_scaled_dot_product_flash_attention_for_cpu" ? attention_on_cuda : nullptr;
}

}  // namespace shoal::capture
