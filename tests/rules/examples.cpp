// SPDX-License-Identifier: Apache-2.0
// Above 400 lines: a table of ops, a few lines each.
#include "examples.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "shoal/aten/interpreter.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/ir/text.h"
#include "shoal/ps/worker.h"
#include "shoal/runtime/run.h"

namespace shoal {

using at::Tensor;

std::string Case::text() const {
  std::string shapes;
  for (const Tensor& tensor : in) shapes += concat(" ", tensor.sizes());
  std::string arguments;
  for (const ir::Argument& argument : node->arguments) {
    if (const auto* number = std::get_if<std::int64_t>(&argument.value))
      arguments += concat(" ", argument.name, "=", *number);
    if (const auto* flag = std::get_if<bool>(&argument.value))
      arguments += concat(" ", argument.name, "=", *flag);
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&argument.value))
      arguments += concat(" ", argument.name, "=", at::IntArrayRef(*list));
  }
  return node->op + shapes + arguments;
}

namespace {

struct Step {
  std::vector<Tensor> parameters, inputs;
  std::function<Tensor(const std::vector<Tensor>& parameters, at::ArrayRef<Tensor> inputs)> loss;
};

}  // namespace

static Tensor drawn(at::IntArrayRef shape) { return at::rand(shape, at::kDouble) + 0.5; }
static Tensor drawn_below(std::int64_t end, at::IntArrayRef shape) {
  return at::randint(end, shape, at::kLong);
}

// What the rules are proved on: sizes differ, so that one dim is not taken for another, and are even, odd
// and 1.
static std::vector<Step> steps() {
  std::vector<Step> all;
  const auto add = [&](std::vector<Tensor> parameters, std::vector<Tensor> inputs, auto loss) {
    all.push_back({std::move(parameters), std::move(inputs), loss});
  };
  // Transformer parts.
  add({drawn({10, 6}), drawn({6, 4}), drawn({4}), drawn({6}), drawn({6})}, {drawn_below(10, {4, 8})},
      [](const auto& p, auto in) {
        const Tensor x = at::layer_norm(at::embedding(p[0], in[0]), {6}, p[3], p[4]);
        const Tensor y = at::addmm(p[2], x.view({-1, 6}), p[1]).view({4, 8, 4});
        const Tensor logits = at::linear(at::gelu(y, "tanh").sigmoid(), p[1]).matmul(p[0].t());
        return at::nll_loss(at::log_softmax(logits.view({-1, 10}), 1), in[0].reshape({-1}), {},
                            at::Reduction::Sum);
      });
  for (const bool causal : {false, true})
    add({drawn({12, 36}) * 0.1}, {drawn({4, 8, 12})}, [causal](const auto& p, auto in) {
      auto parts = at::matmul(in[0], p[0]).split(12, 2);
      for (Tensor& part : parts) part = part.view({4, 8, 2, 6}).transpose(1, 2);
      const Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, causal);
      return y.transpose(1, 2).contiguous().view({4, 8, 12}).pow(2).sum();
    });
  // Attention written out, rotary embedding, RMS norm, gated units.
  add({drawn({4, 4, 6}), drawn({6})}, {drawn({4, 6, 4}), drawn({4, 4}), drawn({4, 6})},
      [](const auto& p, auto in) {
        const Tensor scores = at::bmm(p[0], in[0]) / 2.0 + in[1].triu(1).unsqueeze(0);
        const Tensor x = at::softmax(scores.masked_fill(in[1] > 1.4, -2.0), -1).bmm(in[0].transpose(1, 2));
        const Tensor half = at::cat({-x.slice(2, 3, 6), x.slice(2, 0, 3)}, -1);
        const Tensor turned = x * in[2].cos() + half * in[2].sin();
        const Tensor normed = turned * at::rsqrt(turned.pow(2).mean({-1}, true) + 1e-6) * p[1];
        return (at::silu(normed) * normed.tanh() - normed.neg().exp()).sum();
      });
  // Convolutions and pooling.
  add({drawn({6, 4, 3, 3}), drawn({6}), drawn({6}), drawn({6, 1, 3, 3})}, {drawn({4, 4, 8, 8})},
      [](const auto& p, auto in) {
        Tensor y = at::conv2d(in[0], p[0], p[1], 1, 1);
        y = at::batch_norm(y, p[2], p[1], {}, {}, true, 0.1, 1e-5, false);
        y = at::conv2d(at::relu(y), p[3], {}, 1, 1, 1, 6);
        return at::max_pool2d(y, 3, 2, 1).mean({-1, -2}).square().sum();
      });
  add({drawn({4, 6, 3}), drawn({6})}, {drawn({4, 4, 7})},
      [](const auto& p, auto in) { return at::conv_transpose1d(in[0], p[0], p[1]).sigmoid().sum(); });
  add({drawn({8, 3, 3, 3}), drawn({8}), drawn({8, 3, 3})}, {drawn({4, 12, 6, 6})},
      [](const auto& p, auto in) {
        const Tensor y = at::conv2d(in[0], p[0], p[1], 1, 1, 1, 4).flatten(2);
        return at::conv_transpose1d(y, p[2], {}, 1, 0, 0, 4).sigmoid().sum();
      });
  // Elementwise, broadcasting, reductions, choosing.
  add({drawn({4, 6}), drawn({6}), drawn({4, 1})}, {drawn({4, 6})}, [](const auto& p, auto in) {
    Tensor x = at::where(in[0] > 1.0, p[0] * p[1], p[0] - p[2]) / (in[0] + 2.0);
    x = at::maximum(x, p[1]) + at::minimum(x, p[0]) + x.clamp(0.1, 0.9) + x.abs().sqrt() + x.erf() +
        (2.0 - x);
    x = x + x.amax({1}, true) + x.amin({0}, true) + x.cumsum(1) + x.log1p().reciprocal().log();
    return x.select(1, 2).sum() + x.sum({0}).mul(2.0).sum() +
           at::constant_pad_nd(x, {0, 0, 1, 1}).pow(3).sum() +
           x.permute({1, 0}).expand({2, 6, 4}).sum(at::IntArrayRef({0, 2})).sum() +
           at::logical_not(in[0] == 1.0).to(at::kDouble).sum();
  });
  // What models use less, and what only other devices' backward passes ask for.
  add({drawn({4, 6}), drawn({4, 6, 4})}, {drawn({4, 6}), drawn({4, 4, 6}), drawn({4, 6, 4, 4}), drawn({6})},
      [](const auto& p, auto in) {
        const Tensor a = in[0] >= p[0].detach(), b = p[0].detach() <= in[0], c = in[0] < 1.1,
                     d = in[0] != 1.0;
        const Tensor any = at::logical_or(at::bitwise_or(at::bitwise_and(a, b), c), d).bitwise_not();
        Tensor x = at::masked_fill(p[0] * any.to(at::kDouble),
                                   at::logical_and(at::ne(in[0], p[0].detach()), c), p[0].sum().detach());
        x = x.clamp_min(0.7) + at::rsub(x, 2.0) - 1.0 + x.clone();
        const Tensor y = at::baddbmm(in[1].narrow(2, 0, 4), in[1], p[1]).tril();
        const auto normed =
            at::_native_batch_norm_legit_functional(in[2], in[3], in[3], in[3], in[3], true, 0.1, 1e-5);
        Tensor sum = y.unsqueeze(1).squeeze(1).sum() + std::get<0>(normed).sum();
        for (const Tensor& part : x.unbind(0)) sum = sum + part.pow(2).sum();
        for (const Tensor& part : x.split_with_sizes({2, 4}, 1)) sum = sum + part.pow(2).sum();
        const std::vector<std::int64_t> ones = {0, 2};
        return sum + x.unsqueeze(0).unsqueeze(2).squeeze(ones).sum();
      });
  // Losses, and averages of several kinds.
  add({drawn({6, 5}), drawn({6, 5}), drawn({4, 5, 2, 6})}, {drawn({6, 5}), drawn_below(5, {4, 2, 6})},
      [](const auto& p, auto in) {
        Tensor sum = at::nll_loss2d(at::log_softmax(p[2], 1), in[1], {}, at::Reduction::Sum);
        sum = sum + at::nll_loss2d(at::log_softmax(p[2], 1), in[1], {}, at::Reduction::None).sum();
        sum = sum + at::nll_loss2d(at::log_softmax(p[2], 1), in[1]);
        for (const auto reduction : {at::Reduction::None, at::Reduction::Sum, at::Reduction::Mean}) {
          const Tensor chances = p[1].sigmoid(), classes = in[0] - 0.5;
          sum = sum + at::mse_loss(p[0], in[0], reduction).sum() +
                at::smooth_l1_loss(p[0], in[0], reduction, 0.3).sum() +
                at::huber_loss(p[0], in[0], reduction, 0.3).sum() +
                at::soft_margin_loss(p[0], in[0], reduction).sum() +
                at::binary_cross_entropy(chances, classes, p[0].detach(), reduction).sum() +
                at::binary_cross_entropy_with_logits(p[1], classes, {}, p[0].detach(), reduction).sum();
        }
        return sum + p[0].mean() + p[0].var(0).sum() + p[0].std(1).sum();
      });
  // Norms in evaluation, over groups, by root mean square; pooling and resizing.
  add({drawn({4, 6, 3, 4}), drawn({6}), drawn({4})}, {drawn({6})}, [](const auto& p, auto in) {
    const Tensor y = at::batch_norm(p[0], p[1], p[1], in[0], in[0], false, 0.1, 1e-5, false);
    const Tensor z = at::group_norm(y, 2, p[1], p[1]).pow(2);
    return z.sum() + at::adaptive_avg_pool2d(y, {2, 2}).pow(2).sum() +
           at::avg_pool2d(y, {2, 2}).pow(2).sum() + at::upsample_nearest2d(y, {6, 8}).pow(2).sum() +
           at::upsample_bilinear2d(y, {6, 8}, false).pow(2).sum();
  });
  // Heads of the query that share those of the keys.
  for (const bool causal : {false, true})
    add({drawn({4, 8, 5, 6}), drawn({4, 4, 5, 6})}, {drawn({4, 1, 5, 5})}, [causal](const auto& p, auto in) {
      const auto mask = causal ? std::nullopt : std::optional<Tensor>(in[0]);
      return at::scaled_dot_product_attention(p[0], p[1], p[1], mask, 0, causal, std::nullopt, true)
          .pow(2)
          .sum();
    });
  // Recurrent, in float32: the library that does it knows no double.
  const auto small = [](at::IntArrayRef shape) { return drawn(shape).to(at::kFloat) * 0.3; };
  add({small({24, 5}), small({24, 6}), small({24}), small({24})},
      {small({7, 4, 5}), small({1, 4, 6}), small({1, 4, 6})}, [](const auto& p, auto in) {
        const std::vector<Tensor> state = {in[1], in[2]};
        return std::get<0>(at::lstm(in[0], state, p, true, 1, 0.0, true, false, false)).pow(2).sum();
      });
  return all;
}

namespace {

// What is drawn for an argument: below a bound if it is an index, else about 1.
struct Given {
  std::vector<std::int64_t> shape;
  std::int64_t below = 0;
  DType dtype = DType::Float64;
};

// A node of its own. Its outputs are as ATen makes them, or as `out` says for an op of the runtime.
struct Alone {
  std::string_view node;
  std::vector<Given> in;
  std::vector<ir::TensorType> out = {};
};

}  // namespace

static const Given kX = {{4, 6}}, kTruths = {{4, 6}, 2, DType::Bool}, kSeed = {{}, 1000, DType::Int64};
static Given below(std::int64_t end, std::vector<std::int64_t> shape) {
  return {std::move(shape), end, DType::Int64};
}

// What no model's capture on a CPU keeps: constants there, or written out, or asked for by few.
static std::vector<Alone> alone() {
  const Given x4 = {{4, 6, 2, 4}}, x6 = {{6}};
  const ir::TensorType drawn_type = ir::contiguous(DType::Float32, {4, 6});
  const std::string_view options = "dtype=none, layout=none, device=none, pin_memory=none";
  static std::vector<std::string> texts;  // that the list below looks at
  texts.reserve(32);
  const auto with_options = [&](std::string_view begin, std::string_view end) {
    return std::string_view(texts.emplace_back(concat(begin, options, end)));
  };
  return {
      {with_options("aten::full_like(self=%0, fill_value=2, ", ", memory_format=none)"), {kX}},
      {with_options("aten::ones_like(self=%0, ", ", memory_format=none)"), {kX}},
      {with_options("aten::zeros_like(self=%0, ", ", memory_format=none)"), {kX}},
      {with_options("aten::empty_like(self=%0, ", ", memory_format=none)"), {kX}},
      {with_options("aten::full(size=[4, 6], fill_value=2.0, ", ")"), {}},
      {with_options("aten::zeros(size=[4, 6], ", ")"), {}},
      {with_options("aten::new_zeros(self=%0, size=[4, 5], ", ")"), {kX}},
      {with_options("aten::new_zeros(self=%0, size=[8], ", ")"), {kX}},
      {"aten::silu_backward(grad_output=%0, self=%1)", {kX, kX}},
      // Elementwise.
      {"aten::copy(self=%0, src=%1, non_blocking=false)", {kX, x6}},
      {"aten::elu(self=%0, alpha=1, scale=1, input_scale=1)", {kX}},
      {"aten::elu_backward(grad_output=%0, alpha=1, scale=1, input_scale=1, is_result=false, "
       "self_or_result=%1)",
       {kX, kX}},
      {"aten::fill.Scalar(self=%0, value=2)", {kX}},
      {"aten::fill.Tensor(self=%0, value=%1)", {kX, {{}}}},
      {"aten::floor(self=%0)", {kX}},
      {"aten::hardswish(self=%0)", {kX}},
      {"aten::hardswish_backward(grad_output=%0, self=%1)", {kX, kX}},
      {"aten::hardtanh(self=%0, min_val=-1, max_val=1)", {kX}},
      {"aten::hardtanh_backward(grad_output=%0, self=%1, min_val=-1, max_val=1)", {kX, kX}},
      {"aten::leaky_relu(self=%0, negative_slope=0.1)", {kX}},
      {"aten::leaky_relu_backward(grad_output=%0, self=%1, negative_slope=0.1, self_is_result=false)",
       {kX, kX}},
      {"aten::log1p(self=%0)", {kX}},
      {"aten::native_dropout_backward(grad_output=%0, mask=%1, scale=2.0)", {kX, kTruths}},
      {"aten::pow.Scalar(self=2, exponent=%0)", {kX}},
      {"aten::pow.Tensor_Tensor(self=%0, exponent=%1)", {kX, x6}},
      {"aten::sign(self=%0)", {kX}},
      {"aten::softplus(self=%0, beta=1, threshold=20)", {kX}},
      {"aten::softplus_backward(grad_output=%0, self=%1, beta=1, threshold=20)", {kX, kX}},
      {"aten::where.ScalarOther(condition=%0, self=%1, other=2)", {kTruths, kX}},
      {"aten::where.ScalarSelf(condition=%0, self=2, other=%1)", {kTruths, kX}},
      // Choosing and placing.
      {"aten::_index_put_impl(self=%0, indices=[%1], values=%2, accumulate=true, unsafe=false)",
       {kX, below(4, {8}), {{8, 6}}}},
      {"aten::gather(self=%0, dim=1, index=%1, sparse_grad=false)", {kX, below(6, {4, 8})}},
      {"aten::gather(self=%0, dim=1, index=%1, sparse_grad=false)", {kX, below(6, {4, 6})}},
      {"aten::scatter_add(self=%0, dim=1, index=%1, src=%2)", {kX, below(6, {4, 6}), kX}},
      {"aten::gather(self=%0, dim=0, index=%1, sparse_grad=false)", {kX, below(4, {8, 2})}},
      {"aten::index.Tensor(self=%0, indices=[%1])", {kX, below(4, {8})}},
      {"aten::index.Tensor(self=%0, indices=[none, %1, %2])", {x4, below(6, {8, 1}), below(2, {5})}},
      {"aten::index.Tensor(self=%0, indices=[%1, none, %2])", {x4, below(4, {8}), below(2, {8})}},
      {"aten::index_add(self=%0, dim=1, index=%1, source=%2, alpha=1)", {kX, below(6, {8}), {{4, 8}}}},
      {"aten::index_put(self=%0, indices=[none, %1], values=%2, accumulate=false)",
       {kX, {{}, 6, DType::Int64}, {{4}}}},
      {"aten::index_put(self=%0, indices=[none, %1], values=%2, accumulate=true)",
       {kX, below(6, {8}), {{8}}}},
      {"aten::index_select(self=%0, dim=1, index=%1)", {kX, below(6, {8})}},
      {"aten::repeat(self=%0, repeats=[3, 2, 1])", {kX}},
      {"aten::scatter.src(self=%0, dim=1, index=%1, src=%2)", {kX, below(6, {4, 1}), {{4, 1}}}},
      {"aten::scatter.value(self=%0, dim=1, index=%1, value=2)", {kX, below(6, {4, 2})}},
      {"aten::scatter_add(self=%0, dim=1, index=%1, src=%2)", {kX, below(6, {4, 8}), {{4, 8}}}},
      {"aten::scatter_add(self=%0, dim=0, index=%1, src=%2)", {kX, below(4, {8, 2}), {{8, 2}}}},
      {"aten::select_scatter(self=%0, src=%1, dim=1, index=2)", {kX, {{4}}}},
      {"aten::slice_scatter(self=%0, src=%1, dim=1, start=1, end=3, step=1)", {kX, {{4, 2}}}},
      {"aten::stack(tensors=[%0, %1], dim=1)", {kX, kX}},
      {"aten::stack(tensors=[%0, %1], dim=-1)", {kX, kX}},
      {"aten::_reshape_alias(self=%0, size=[2, 2, 6], stride=[12, 6, 1])", {kX}},
      {"aten::_safe_softmax(self=%0, dim=-1, dtype=none)", {kX}},
      {"aten::cat(tensors=[%0, %1], dim=-2)", {{{0}}, x4}},
      {"aten::flip(self=%0, dims=[1])", {kX}},
      {"aten::roll(self=%0, shifts=[1], dims=[0])", {kX}},
      {"aten::roll(self=%0, shifts=[1], dims=[])", {kX}},
      // Reductions, and orders.
      {"aten::any.dim(self=%0, dim=1, keepdim=false)", {{{16, 6}, 2, DType::Bool}}},
      {"aten::argmax(self=%0, dim=1, keepdim=false)", {kX}},
      {"aten::argmax(self=%0, dim=none, keepdim=false)", {kX}},
      {"aten::logsumexp(self=%0, dim=[1], keepdim=true)", {kX}},
      {"aten::max.dim(self=%0, dim=0, keepdim=false)", {kX}},
      {"aten::min.dim(self=%0, dim=0, keepdim=true)", {kX}},
      {"aten::sort(self=%0, dim=1, descending=false)", {kX}},
      {"aten::topk(self=%0, k=2, dim=1, largest=true, sorted=true)", {kX}},
      {"aten::var_mean.correction(self=%0, dim=[1], correction=1, keepdim=false)", {kX}},
      // Norms.
      {"aten::_native_batch_norm_legit_functional(input=%0, weight=%1, bias=%1, running_mean=%1, "
       "running_var=%1, training=false, momentum=0.1, eps=1e-05)",
       {x4, x6}},
      {"aten::_native_batch_norm_legit_no_training(input=%0, weight=%1, bias=%1, running_mean=%1, "
       "running_var=%1, momentum=0.1, eps=1e-05)",
       {x4, x6}},
      // Losses by class, with one that is ignored.
      {"aten::nll_loss_forward(self=%0, target=%1, weight=none, reduction=0, ignore_index=3)",
       {kX, below(6, {4})}},
      {"aten::nll_loss_forward(self=%0, target=%1, weight=none, reduction=2, ignore_index=3)",
       {kX, below(6, {4})}},
      {"aten::nll_loss_forward(self=%0, target=%1, weight=%2, reduction=2, ignore_index=3)",
       {kX, below(6, {4}), x6}},
      {"aten::nll_loss_forward(self=%0, target=%1, weight=none, reduction=1, ignore_index=3)",
       {kX, below(6, {4})}},
      {"aten::nll_loss_backward(grad_output=%0, self=%1, target=%2, weight=none, reduction=0, "
       "ignore_index=3, "
       "total_weight=%3)",
       {{{4}}, kX, below(6, {4}), {{}}}},
      {"aten::nll_loss_backward(grad_output=%0, self=%1, target=%2, weight=none, reduction=1, "
       "ignore_index=3, "
       "total_weight=%3)",
       {{{}}, kX, below(6, {4}), {{}}}},
      {"aten::embedding(weight=%0, indices=%1, padding_idx=2, scale_grad_by_freq=false, sparse=false)",
       {kX, below(4, {5, 3})}},
      {"aten::embedding_dense_backward(grad_output=%0, indices=%1, num_weights=9, padding_idx=2, "
       "scale_grad_by_freq=false)",
       {{{5, 3, 4}}, below(9, {5, 3})}},
      {"shoal::pull_rows(table=%0, ids=%1, padding_idx=2)",
       {{{0}}, below(9, {5, 3})},
       {ir::contiguous(DType::Float64, {5, 3, 4}), ir::contiguous(DType::Int32, {5, 3})}},
      // Random numbers.
      {"shoal::bernoulli(p=0.5, shape=[4, 6], dtype=f32, seed=%0, step=%1, ordinal=3)",
       {kSeed, kSeed},
       {drawn_type}},
      {"shoal::bernoulli_tensor(p=%0, dtype=f32, seed=%1, step=%2, ordinal=3)",
       {{{4, 6}, 2}, kSeed, kSeed},
       {drawn_type}},
      {"shoal::exponential(lambda=2.0, shape=[4, 6], dtype=f32, seed=%0, step=%1, ordinal=3)",
       {kSeed, kSeed},
       {drawn_type}},
      {"shoal::normal(mean=0.0, std=1.0, shape=[4, 6], dtype=f32, seed=%0, step=%1, ordinal=3)",
       {kSeed, kSeed},
       {drawn_type}},
      {"shoal::randint(low=0, high=1000, shape=[4, 6], dtype=f32, seed=%0, step=%1, ordinal=3)",
       {kSeed, kSeed},
       {drawn_type}},
      {"shoal::uniform(from=0.0, to=1.0, shape=[4, 6], dtype=f32, seed=%0, step=%1, ordinal=3)",
       {kSeed, kSeed},
       {drawn_type}},
      // What cauchy_ and geometric_ are made of.
      {"aten::ceil(self=%0)", {kX}},
      {"aten::tan(self=%0)", {kX}},
  };
}

static Tensor drawn(const Given& given) {
  if (given.below == 0) return drawn(given.shape);
  if (given.dtype == DType::Float64) return at::rand(given.shape, at::kDouble);  // chances
  return drawn_below(given.below, given.shape).to(aten::to_torch(given.dtype));
}

// Ops that only the runtime has, one that does in training what its caller does not ask for, and one whose
// ATen kernel ends the process where there are no samples: a graph of one node runs them.
static bool is_of_runtime(const std::string& op) {
  return op.starts_with("shoal::") || op.starts_with("aten::mkldnn_rnn") ||
         op == "aten::native_batch_norm_backward";
}

// Attention lies as its query does, and so do gradients as what they are of.
static ir::TensorType type_of_output(const ir::Graph& graph, const ir::Node& node, std::size_t index,
                                     const std::vector<Tensor>& in) {
  if (node.op == "shoal::attention_backward") return aten::type_of(at::empty_like(in.at(index + 1)));
  if (node.op == "shoal::attention")
    return aten::type_of(at::empty_like(index == 0 ? in[0] : in[0].select(-1, 0)));
  return graph.at(node.outputs[index].value()).type;
}

// The table that an example's first tensor is.
static const runtime::RowTables& rows() {
  static const auto tables = ps::tables_in_process();
  static ps::Worker worker(*tables, {});
  static const runtime::RowTables rows = {
      .worker = &worker,
      .numbers = {{"x0", worker.add({.name = "x0", .dtype = DType::Float64, .parts = {{.width = 4}}}, 9)}}};
  return rows;
}

static Outputs run_alone(const ir::Graph& graph, const ir::Node& node, const std::vector<Tensor>& in) {
  ir::Graph alone;
  runtime::NamedTensors sources;
  std::vector<ir::ValueId> ids;
  for (const Tensor& tensor : in) {
    const std::string name = concat("x", ids.size());
    const ir::TensorType type = aten::type_of(tensor);
    ids.push_back(alone.add_source(ir::Role::Input, name, type));
    sources[{ir::Role::Input, name}] = tensor;
  }
  std::vector<std::optional<ir::TensorType>> types;
  for (std::size_t i = 0; i < node.outputs.size(); ++i)
    types.push_back(node.outputs[i] ? std::optional(type_of_output(graph, node, i, in)) : std::nullopt);
  std::size_t next = 0;
  const ir::NodeId id =
      alone.add_node(ir::with_inputs(node, [&](ir::ValueId) { return ids[next++]; }), types);
  const auto outputs = alone.at(id).outputs;
  for (const auto& output : outputs)
    if (output) alone.add_result(ir::Role::Output, concat(output->index), *output);
  const auto results = runtime::run(alone, sources, &rows());
  Outputs out;
  for (const auto& output : outputs)
    out.push_back(output ? std::optional(results.at({ir::Role::Output, concat(output->index)}))
                         : std::nullopt);
  return out;
}

// Throws what the op throws.
static Outputs made_by(const ir::Graph& graph, const ir::Node& node, const std::vector<Tensor>& in) {
  if (is_of_runtime(node.op)) return run_alone(graph, node, in);
  // Arguments ask for their tensors in order, as ir::inputs_of lists them.
  std::size_t next = 0;
  Outputs out;
  for (const auto& value : aten::call(node, [&](ir::ValueId) { return in[next++]; }))
    out.push_back(value.isTensor() && value.toTensor().defined() ? std::optional(value.toTensor())
                                                                 : std::nullopt);
  return out;
}

std::optional<Outputs> run(const ir::Graph& graph, const ir::Node& node, const std::vector<Tensor>& in) {
  try {
    return made_by(graph, node, in);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

namespace {

class Corpus {
 public:
  Corpus() {
    at::manual_seed(7);
    for (const Step& step : steps()) add(step);
    for (const Alone& one : alone()) add(one);
  }
  const std::vector<Case>& cases() const { return cases_; }

 private:
  void add(const Alone& one) {
    Case made = {.graph = nullptr, .node = nullptr, .in = {}, .out = {}};
    std::string text = "graph captured\n";
    std::vector<Tensor> sources;
    for (const Given& given : one.in) {
      text += concat("%", sources.size(), " = input \"x", sources.size(),
                     "\" : ", ir::to_text(ir::contiguous(given.dtype, given.shape)), "\n");
      sources.push_back(drawn(given));
    }
    graphs_.push_back(std::make_unique<ir::Graph>(
        ir::from_text(concat(text, "() = ", one.node, " @forward \"\"\nreturn\n"))));
    ir::Graph& graph = *graphs_.back();
    ir::Node node = std::exchange(graph.nodes, {}).at(0);
    for (const ir::ValueId input : ir::inputs_of(node)) made.in.push_back(sources.at(input.index));
    std::vector<std::optional<ir::TensorType>> types;
    if (!one.out.empty()) {
      types.assign(one.out.begin(), one.out.end());
    } else {
      const Outputs outputs = made_by(graph, node, made.in);
      for (const auto& output : outputs)
        types.push_back(output ? std::optional(aten::type_of(*output)) : std::nullopt);
    }
    made.node = &graph.at(graph.add_node(std::move(node), types));
    made.graph = &graph;
    made.out = made_by(graph, *made.node, made.in);
    cases_.push_back(std::move(made));
  }
  void add(const Step& step) {
    std::vector<Tensor> parameters;
    capture::Request request;
    for (const Tensor& tensor : step.parameters) {
      parameters.push_back(tensor.clone().requires_grad_());
      request.parameters.push_back({concat("p", parameters.size()), parameters.back()});
    }
    for (const Tensor& tensor : step.inputs)
      request.inputs.push_back({concat("x", request.inputs.size()), tensor});
    request.loss = [&](std::span<const Tensor> inputs) {
      return step.loss(parameters, at::ArrayRef<Tensor>(inputs.data(), inputs.size()));
    };
    const auto captured = capture::capture(request);
    graphs_.push_back(std::make_unique<ir::Graph>(captured.graph));
    const ir::Graph& graph = *graphs_.back();
    std::map<ir::ValueId, Tensor> values;
    std::size_t constant = 0;
    for (const ir::Source& source : graph.sources) {
      const auto find = [&](const std::vector<capture::NamedTensor>& list) {
        return std::ranges::find(list, source.name, &capture::NamedTensor::name)->tensor.detach();
      };
      const ir::Role role = graph.at(source.value).role;
      values[source.value] = role == ir::Role::Parameter ? find(request.parameters)
                             : role == ir::Role::Input   ? find(request.inputs)
                                                         : captured.constants.at(constant++);
    }
    for (const ir::Node& node : graph.nodes) {
      Case made = {.graph = &graph, .node = &node, .in = {}, .out = {}};
      for (const ir::ValueId id : ir::inputs_of(node)) made.in.push_back(values.at(id));
      made.out = made_by(graph, node, made.in);
      for (std::size_t i = 0; i < node.outputs.size(); ++i)
        if (node.outputs[i]) values[*node.outputs[i]] = made.out.at(i).value();
      if (!known_.insert(made.text()).second) continue;
      // Other numbers: the step's own are often all the same, and then a wrong cut gives them too. What
      // attention and recurrent layers take back goes together, and stays.
      if (!is_of_runtime(node.op) || node.op == "aten::native_batch_norm_backward") {
        const double shift = node.op.starts_with("aten::binary_cross_entropy") ? 0.5 : 0;  // chances
        for (Tensor& tensor : made.in)
          if (tensor.is_floating_point()) tensor = drawn(tensor.sizes()) - shift;
        made.out = made_by(graph, node, made.in);
      }
      cases_.push_back(std::move(made));
    }
  }

  std::vector<std::unique_ptr<ir::Graph>> graphs_;
  std::vector<Case> cases_;
  std::set<std::string> known_;
};

}  // namespace

const std::vector<Case>& examples() {
  static const Corpus corpus;
  return corpus.cases();
}

}  // namespace shoal
