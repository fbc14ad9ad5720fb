// SPDX-License-Identifier: Apache-2.0
// Every op that can be cut: one line each, in alphabetical order. An op that is not here runs whole on every
// rank.
#include "shoal/sharding/ops.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::sharding {

// --- Where the dims depend on the op's arguments.

static std::int64_t num_dims(const ir::Graph& graph, const ir::Node& node, std::string_view argument) {
  const ir::Attribute& attribute = *ir::find(node, argument);
  if (const auto* list = std::get_if<ir::ValueList>(&attribute))
    return static_cast<std::int64_t>(graph.at(list->front().value()).type.shape.size());
  return static_cast<std::int64_t>(graph.at(std::get<ir::ValueId>(attribute)).type.shape.size());
}

static std::string letters(std::int64_t count) {
  SHOAL_CHECK(count <= 26, InvalidInput, "sharding: a tensor of ", count, " dims, more than 26");
  std::string text;
  for (char letter = 'a'; count > 0; --count) text += letter++;
  return text;
}

// Of an argument that is one dim or a list of them; an absent or empty list of dims means all.
static std::vector<std::size_t> dims_in(const ir::Node& node, std::string_view argument, std::int64_t count) {
  const ir::Attribute* attribute = ir::find(node, argument);
  std::vector<std::int64_t> dims;
  if (const auto* one = std::get_if<std::int64_t>(attribute))
    dims = {*one};
  else if (const auto* list = std::get_if<std::vector<std::int64_t>>(attribute))
    dims = *list;
  if (dims.empty())
    for (std::int64_t dim = 0; dim < count; ++dim) dims.push_back(dim);
  std::vector<std::size_t> result;
  for (const std::int64_t dim : dims) result.push_back(static_cast<std::size_t>(dim < 0 ? dim + count : dim));
  return result;
}

static bool is_true(const ir::Node& node, std::string_view argument) {
  const auto* value = std::get_if<bool>(ir::find(node, argument));
  return value != nullptr && *value;
}

static std::string elementwise(const ir::Graph&, const ir::Node& node) {
  std::string text;
  for (const ir::Argument& argument : node.arguments)
    if (std::holds_alternative<ir::ValueId>(argument.value)) text += argument.name + ":* ";
  return text + "-> *";
}

// All tensors have the dims of the first, and `dim` stays whole.
static std::string along_dim(const ir::Graph& graph, const ir::Node& node) {
  std::string text;
  std::string dims;
  for (const ir::Argument& argument : node.arguments) {
    const bool is_tensor = std::holds_alternative<ir::ValueId>(argument.value) ||
                           std::holds_alternative<ir::ValueList>(argument.value);
    if (!is_tensor) continue;
    if (dims.empty()) {
      const std::int64_t count = num_dims(graph, node, argument.name);
      dims = letters(count);
      for (const std::size_t dim : dims_in(node, "dim", count)) dims[dim] = '.';
    }
    text += argument.name + ":" + dims + " ";
  }
  return text + "-> " + dims;
}

// Dims go: as summands where the reduction is a sum, whole otherwise.
static std::string reduction(const ir::Graph& graph, const ir::Node& node, bool is_sum) {
  const std::int64_t count = num_dims(graph, node, "self");
  std::string in = letters(count), out;
  const auto reduced = dims_in(node, "dim", count);
  for (std::size_t dim = 0; dim < in.size(); ++dim) {
    const bool goes = std::ranges::find(reduced, dim) != reduced.end();
    if (!goes)
      out += in[dim];
    else if (is_true(node, "keepdim"))
      out += '.';
    if (goes && !is_sum) in[dim] = '.';
  }
  return "self:" + in + " -> " + out;
}
static std::string sum(const ir::Graph& graph, const ir::Node& node) { return reduction(graph, node, true); }
static std::string reduced_whole(const ir::Graph& graph, const ir::Node& node) {
  return reduction(graph, node, false);
}

static std::string permuted(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  const std::string in = letters(count);
  std::string out;
  for (const std::size_t dim : dims_in(node, "dims", count)) out += in[dim];
  return "self:" + in + " -> " + out;
}

static std::string swapped(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  const std::string in = letters(count);
  std::string out = in;
  if (ir::find(node, "dim0") != nullptr)
    std::swap(out[dims_in(node, "dim0", count)[0]], out[dims_in(node, "dim1", count)[0]]);
  else if (count == 2)  // aten::t
    std::swap(out[0], out[1]);
  return "self:" + in + " -> " + out;
}

static std::string expanded(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  const auto wanted = static_cast<std::int64_t>(graph.at(*node.outputs[0]).type.shape.size());
  const std::string out = letters(wanted);
  return "self:" + out.substr(static_cast<std::size_t>(wanted - count)) + " -> " + out;
}

static std::string selected(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  std::string in = letters(count), out = in;
  const std::size_t dim = dims_in(node, "dim", count)[0];
  in[dim] = '.';
  out.erase(dim, 1);
  return "self:" + in + " -> " + out;
}

// The gradients of slice and select: `dim` is of the output.
static std::string into_whole(const ir::Graph& graph, const ir::Node& node) {
  const auto count = static_cast<std::int64_t>(graph.at(*node.outputs[0]).type.shape.size());
  std::string out = letters(count), in = out;
  const std::size_t dim = dims_in(node, "dim", count)[0];
  out[dim] = '.';
  if (num_dims(graph, node, "grad_output") < count)
    in.erase(dim, 1);
  else
    in[dim] = '.';
  return "grad_output:" + in + " -> " + out;
}

static std::string padded(const ir::Graph& graph, const ir::Node& node) {
  std::string dims = letters(num_dims(graph, node, "self"));
  const auto& pad = std::get<std::vector<std::int64_t>>(*ir::find(node, "pad"));
  for (std::size_t i = 0; i < pad.size(); ++i)
    if (pad[i] != 0) dims[dims.size() - 1 - i / 2] = '.';
  return "self:" + dims + " -> " + dims;
}

static std::string whole_dims(const ir::Node& node) {
  return std::string(std::get<std::vector<std::int64_t>>(*ir::find(node, "normalized_shape")).size(), '.');
}
static std::string layer_norm(const ir::Graph&, const ir::Node& node) {
  const std::string k = whole_dims(node);
  return "input:*" + k + " weight:" + k + " bias:" + k + " -> *" + k + ", *" + k + ", *" + k;
}
static std::string layer_norm_backward(const ir::Graph&, const ir::Node& node) {
  const std::string k = whole_dims(node);
  return "grad_out:*" + k + " input:*" + k + " mean:*" + k + " rstd:*" + k + " weight:" + k + " bias:" + k +
         " -> *" + k + ", " + k + ", " + k;
}

static std::string convolution(const ir::Graph&, const ir::Node& node) {
  if (std::get<std::int64_t>(*ir::find(node, "groups")) != 1) return "input:b.~ weight:..~ bias:. -> b.~";
  return is_true(node, "transposed") ? "input:bI~ weight:IO~ bias:+O -> bO~"
                                     : "input:bI~ weight:OI~ bias:+O -> bO~";
}
static std::string convolution_backward(const ir::Graph&, const ir::Node& node) {
  if (std::get<std::int64_t>(*ir::find(node, "groups")) != 1)
    return "grad_output:b.~ input:b.~ weight:..~ -> b.~, ..~, .";
  return is_true(node, "transposed") ? "grad_output:bO~ input:bI~ weight:IO~ -> bI~, IO~, O/I"
                                     : "grad_output:bO~ input:bI~ weight:OI~ -> bI~, OI~, O/I";
}

static std::string embedding_backward(const ir::Graph&, const ir::Node& node) {
  if (is_true(node, "scale_grad_by_freq"))
    return "grad_output:~e indices:~ -> .e";  // counts over all indices
  return "grad_output:*e indices:* -> .e";
}

constexpr std::int64_t kNone = 0, kMean = 1;  // at::Reduction

static std::string nll_loss(const ir::Graph&, const ir::Node& node) {
  const auto reduction = std::get<std::int64_t>(*ir::find(node, "reduction"));
  if (reduction == kMean) return "self:.. target:. weight:. -> , ";  // a mean is no sum of means
  return reduction == kNone ? "self:b. target:b weight:. -> b, " : "self:b. target:b weight:. -> , ";
}
static std::string nll_loss_backward(const ir::Graph&, const ir::Node& node) {
  const bool each = std::get<std::int64_t>(*ir::find(node, "reduction")) == kNone;
  return std::string(each ? "grad_output:b" : "grad_output:") +
         " self:b. target:b weight:. total_weight: -> b.";
}

// In parts: along the vocabulary and the classes. The factor `v` is the only one.
static std::string embedding_parts(const ir::Graph&, const ir::Node&) { return "weight:v. indices:~ -> ~"; }
static std::string embedding_backward_parts(const ir::Graph&, const ir::Node& node) {
  return is_true(node, "scale_grad_by_freq") ? "" : "grad_output:~ indices:~ -> v.";
}
static bool is_mean_or_weighted(const ir::Node& node) {
  return std::get<std::int64_t>(*ir::find(node, "reduction")) == kMean ||
         std::holds_alternative<ir::ValueId>(*ir::find(node, "weight"));
}
static std::string nll_loss_parts(const ir::Graph&, const ir::Node& node) {
  if (is_mean_or_weighted(node)) return "";
  return "self:.v target:. -> ~, /v";
}
static std::string nll_loss_backward_parts(const ir::Graph&, const ir::Node& node) {
  if (is_mean_or_weighted(node)) return "";
  return "grad_output:~ self:.v target:. total_weight: -> .v";
}

// A causal mask says by position which keys a query sees, so its queries stay together.
static std::string attention(const ir::Graph&, const ir::Node& node) {
  return is_true(node, "is_causal") ? "query:bh.. key:bh.. value:bh.. attn_mask:bh.. -> bh.., bh."
                                    : "query:bhs. key:bh.. value:bh.. attn_mask:bhs. -> bhs., bhs";
}
static std::string attention_backward(const ir::Graph&, const ir::Node& node) {
  return is_true(node, "is_causal")
             ? "grad_output:bh.. query:bh.. key:bh.. value:bh.. output:bh.. logsumexp:bh. attn_mask:bh.. -> "
               "bh.., bh.., bh.."
             : "grad_output:bhs. query:bhs. key:bh.. value:bh.. output:bhs. logsumexp:bhs attn_mask:bhs. -> "
               "bhs., bh.., bh..";
}

// --- The table.

constexpr OpRule kOps[] = {
    // op                          dims, linear in, …
    {"aten::_log_softmax", "", "", along_dim},
    {"aten::_log_softmax_backward_data", "", "grad_output", along_dim},
    {"aten::_native_batch_norm_legit_functional",  // statistics over the batch: the channels alone
     "input:.C~ weight:C bias:C running_mean:C running_var:C -> .C~, C, C, C, C", ""},
    {"aten::_softmax", "", "", along_dim},
    {"aten::_softmax_backward_data", "", "grad_output", along_dim},
    {"aten::_to_copy", "", "", elementwise},
    {"aten::_unsafe_view", "", "self", nullptr, true, "size"},
    {"aten::abs", "", "", elementwise},
    {"aten::add.Scalar", "", "", elementwise},
    {"aten::add.Tensor", "", "self+other", elementwise},
    {"aten::addmm", "self:+mn mat1:mk mat2:kn -> mn", "self+mat1 | self+mat2"},
    {"aten::amax", "", "", reduced_whole},
    {"aten::amin", "", "", reduced_whole},
    {"aten::baddbmm", "self:+bmn batch1:bmk batch2:bkn -> bmn", "self+batch1 | self+batch2"},
    {"aten::bitwise_and.Tensor", "", "", elementwise},
    {"aten::bitwise_not", "", "", elementwise},
    {"aten::bitwise_or.Tensor", "", "", elementwise},
    {"aten::bmm", "self:bmk mat2:bkn -> bmn", "self | mat2"},
    {"aten::cat", "", "tensors", along_dim},
    {"aten::clamp", "", "", elementwise},
    {"aten::clamp_min", "", "", elementwise},
    {"aten::clone", "", "self", elementwise},
    {"aten::constant_pad_nd", "", "", padded},
    {"aten::convolution", "", "input+bias | weight+bias", convolution},
    {"aten::convolution_backward", "", "grad_output", convolution_backward},
    {"aten::cos", "", "", elementwise},
    {"aten::cumsum", "", "self", along_dim},
    {"aten::detach", "", "self", elementwise},
    {"aten::div.Scalar", "", "self", elementwise},
    {"aten::div.Tensor", "", "self", elementwise},
    {"aten::embedding", "weight:.e indices:* -> *e", "weight"},
    {"aten::embedding_dense_backward", "", "grad_output", embedding_backward},
    {"aten::eq.Scalar", "", "", elementwise},
    {"aten::eq.Tensor", "", "", elementwise},
    {"aten::erf", "", "", elementwise},
    {"aten::exp", "", "", elementwise},
    {"aten::expand", "", "self", expanded, false, "size"},
    {"aten::full_like", "", "", elementwise},
    {"aten::ge.Scalar", "", "", elementwise},
    {"aten::ge.Tensor", "", "", elementwise},
    {"aten::gelu", "", "", elementwise},
    {"aten::gelu_backward", "", "grad_output", elementwise},
    {"aten::gt.Scalar", "", "", elementwise},
    {"aten::gt.Tensor", "", "", elementwise},
    {"aten::le.Scalar", "", "", elementwise},
    {"aten::le.Tensor", "", "", elementwise},
    {"aten::log", "", "", elementwise},
    {"aten::logical_and", "", "", elementwise},
    {"aten::logical_not", "", "", elementwise},
    {"aten::logical_or", "", "", elementwise},
    {"aten::lt.Scalar", "", "", elementwise},
    {"aten::lt.Tensor", "", "", elementwise},
    {"aten::masked_fill.Scalar", "", "", elementwise},
    {"aten::masked_fill.Tensor", "", "", elementwise},
    {"aten::max_pool2d_with_indices", "self:bC.. -> bC.., bC..", ""},
    {"aten::max_pool2d_with_indices_backward", "grad_output:bC.. self:bC.. indices:bC.. -> bC..",
     "grad_output"},
    {"aten::maximum", "", "", elementwise},
    {"aten::mean.dim", "", "self", reduced_whole},
    {"aten::minimum", "", "", elementwise},
    {"aten::mm", "self:mk mat2:kn -> mn", "self | mat2"},
    {"aten::mul.Scalar", "", "self", elementwise},
    {"aten::mul.Tensor", "", "self | other", elementwise},
    {"aten::native_batch_norm_backward",
     "grad_out:.C~ input:.C~ weight:C running_mean:C running_var:C save_mean:C save_invstd:C -> .C~, C, C",
     "grad_out"},
    {"aten::native_layer_norm", "", "", layer_norm},
    {"aten::native_layer_norm_backward", "", "grad_out", layer_norm_backward},
    {"aten::ne.Scalar", "", "", elementwise},
    {"aten::ne.Tensor", "", "", elementwise},
    {"aten::neg", "", "self", elementwise},
    {"aten::nll_loss_backward", "", "grad_output", nll_loss_backward},
    {"aten::nll_loss_forward", "", "", nll_loss},
    {"aten::ones_like", "", "", elementwise},
    {"aten::permute", "", "self", permuted},
    {"aten::pow.Tensor_Scalar", "", "", elementwise},
    {"aten::reciprocal", "", "", elementwise},
    {"aten::relu", "", "", elementwise},
    {"aten::rsqrt", "", "", elementwise},
    {"aten::rsub.Scalar", "", "", elementwise},
    {"aten::select.int", "", "self", selected},
    {"aten::select_backward", "", "grad_output", into_whole, false, "input_sizes"},
    {"aten::sigmoid", "", "", elementwise},
    {"aten::sigmoid_backward", "", "grad_output", elementwise},
    {"aten::silu", "", "", elementwise},
    {"aten::silu_backward", "", "grad_output", elementwise},
    {"aten::sin", "", "", elementwise},
    {"aten::slice.Tensor", "", "self", along_dim},
    {"aten::slice_backward", "", "grad_output", into_whole, false, "input_sizes"},
    {"aten::split.Tensor", "", "self", along_dim},
    {"aten::split_with_sizes", "", "self", along_dim},
    {"aten::sqrt", "", "", elementwise},
    {"aten::squeeze.dim", "", "self", nullptr, true},
    {"aten::squeeze.dims", "", "self", nullptr, true},
    {"aten::sub.Scalar", "", "", elementwise},
    {"aten::sub.Tensor", "", "self+other", elementwise},
    {"aten::sum", "self:* -> ", "self"},
    {"aten::sum.dim_IntList", "", "self", sum},
    {"aten::t", "", "self", swapped},
    {"aten::tanh", "", "", elementwise},
    {"aten::tanh_backward", "", "grad_output", elementwise},
    {"aten::threshold_backward", "", "grad_output", elementwise},
    {"aten::transpose.int", "", "self", swapped},
    {"aten::tril", "self:*.. -> *..", "self"},
    {"aten::triu", "self:*.. -> *..", "self"},
    {"aten::unbind.int", "", "self", selected},
    {"aten::unsqueeze", "", "self", nullptr, true},
    {"aten::view", "", "self", nullptr, true, "size"},
    {"aten::where.self", "", "self+other", elementwise},
    {"aten::zeros_like", "", "", elementwise},
    {"shoal::attention", "", "", attention},
    {"shoal::attention_backward", "", "grad_output", attention_backward},
    {"shoal::bernoulli", "-> *", "", nullptr, false, "shape", true},
    {"shoal::bernoulli_tensor", "p:* -> *", "", nullptr, false, "", true},
    {"shoal::exponential", "-> *", "", nullptr, false, "shape", true},
    {"shoal::normal", "-> *", "", nullptr, false, "shape", true},
    {"shoal::randint", "-> *", "", nullptr, false, "shape", true},
    {"shoal::uniform", "-> *", "", nullptr, false, "shape", true},
};

consteval bool sorted() {
  for (std::size_t i = 1; i < std::size(kOps); ++i)
    if (!(kOps[i - 1].op < kOps[i].op)) return false;
  return true;
}
static_assert(sorted(), "kOps: keep it in alphabetical order, each op once");

// The ops that are told where their part begins.
constexpr PartForm kPartForms[] = {
    {"aten::embedding", "shoal::embedding_part", "weight indices padding_idx", embedding_parts},
    {"aten::embedding_dense_backward", "shoal::embedding_backward_part",
     "grad_output indices num_weights padding_idx", embedding_backward_parts, true, false, "num_weights"},
    {"aten::nll_loss_backward", "shoal::nll_loss_backward_part",
     "grad_output self target reduction ignore_index total_weight", nll_loss_backward_parts, true, true},
    {"aten::nll_loss_forward", "shoal::nll_loss_part", "self target reduction ignore_index", nll_loss_parts,
     false, true},
};

std::span<const PartForm> all_part_forms() { return kPartForms; }

const PartForm* find_part_form(std::string_view op) {
  const auto* found = std::ranges::find(kPartForms, op, &PartForm::op);
  return found != std::end(kPartForms) ? found : nullptr;
}

std::span<const OpRule> all_rules() { return kOps; }

const OpRule* find_rule(std::string_view op) {
  const auto* found = std::ranges::lower_bound(kOps, op, {}, &OpRule::op);
  return found != std::end(kOps) && found->op == op ? found : nullptr;
}

}  // namespace shoal::sharding
