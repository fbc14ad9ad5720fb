// SPDX-License-Identifier: Apache-2.0
// One function for ops that are alike. Letters are given in the order of dims: "self:abc", and one that stays
// whole is a dot.
// Above 400 lines: a table, of which each row is a function of a few lines.
#include "shoal/sharding/op_dims.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/error.h"

namespace shoal::sharding {

using Shape = std::vector<std::int64_t>;

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

std::string dims::elementwise(const ir::Graph&, const ir::Node& node) {
  std::string text;
  for (const ir::Argument& argument : node.arguments)
    if (std::holds_alternative<ir::ValueId>(argument.value)) text += argument.name + ":* ";
  return text + "-> *";
}

// All tensors have the dims of the output, and the named ones stay whole.
static std::string along(const ir::Graph& graph, const ir::Node& node, std::string_view whole) {
  const auto count = static_cast<std::int64_t>(graph.at(node.outputs[0].value()).type.shape.size());
  std::string text;
  std::string dims = letters(count);
  if (count > 0)
    for (const std::size_t dim : dims_in(node, whole, count)) dims[dim] = '.';
  for (const ir::Argument& argument : node.arguments) {
    const bool is_tensor = std::holds_alternative<ir::ValueId>(argument.value) ||
                           std::holds_alternative<ir::ValueList>(argument.value);
    if (!is_tensor) continue;
    text += argument.name + ":" + dims + " ";
  }
  return text + "-> " + dims;
}

std::string dims::along_dim(const ir::Graph& graph, const ir::Node& node) {
  return along(graph, node, "dim");
}
std::string dims::along_dims(const ir::Graph& graph, const ir::Node& node) {
  return along(graph, node, "dims");
}

// Dims go; `reduced` says what becomes of the letter of one that does.
static std::string reduction(const ir::Graph& graph, const ir::Node& node, char (*reduced)(char)) {
  const std::int64_t count = num_dims(graph, node, "self");
  std::string in = letters(count), out;
  const auto dims = count > 0 ? dims_in(node, "dim", count) : std::vector<std::size_t>{};
  for (std::size_t dim = 0; dim < in.size(); ++dim) {
    const bool goes = std::ranges::find(dims, dim) != dims.end();
    if (!goes)
      out += in[dim];
    else if (is_true(node, "keepdim"))
      out += '.';
    if (goes) in[dim] = reduced(in[dim]);
  }
  return "self:" + in + " -> " + out;
}
std::string dims::sum(const ir::Graph& graph, const ir::Node& node) {
  return reduction(graph, node, [](char letter) { return letter; });
}
std::string dims::reduced_whole(const ir::Graph& graph, const ir::Node& node) {
  return reduction(graph, node, [](char) { return '.'; });
}
std::string dims::any(const ir::Graph& graph, const ir::Node& node) {
  return dims::sum(graph, node) + "@max";  // of truths
}
// Nothing has no largest element.
std::string dims::extremum(const ir::Graph& graph, const ir::Node& node) {
  const auto upper = [](char letter) { return static_cast<char>(letter - 'a' + 'A'); };
  return reduction(graph, node, upper) + (node.op == "aten::amax" ? "@max" : "@min");
}

std::string dims::permuted(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  const std::string in = letters(count);
  std::string out;
  for (const std::size_t dim : dims_in(node, "dims", count)) out += in[dim];
  return "self:" + in + " -> " + out;
}

std::string dims::swapped(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  const std::string in = letters(count);
  std::string out = in;
  if (ir::find(node, "dim0") != nullptr)
    std::swap(out[dims_in(node, "dim0", count)[0]], out[dims_in(node, "dim1", count)[0]]);
  else if (count == 2)  // aten::t
    std::swap(out[0], out[1]);
  return "self:" + in + " -> " + out;
}

std::string dims::expanded(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  const auto wanted = static_cast<std::int64_t>(graph.at(*node.outputs[0]).type.shape.size());
  const std::string out = letters(wanted);
  return "self:" + out.substr(static_cast<std::size_t>(wanted - count)) + " -> " + out;
}

std::string dims::selected(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  std::string in = letters(count), out = in;
  const std::size_t dim = dims_in(node, "dim", count)[0];
  in[dim] = '.';
  out.erase(dim, 1);
  return "self:" + in + " -> " + out;
}

std::string dims::stacked(const ir::Graph& graph, const ir::Node& node) {
  std::string dims = letters(num_dims(graph, node, "tensors"));
  const std::string in = dims;
  const std::size_t dim = dims_in(node, "dim", static_cast<std::int64_t>(dims.size()) + 1)[0];
  return "tensors:" + in + " -> " + dims.insert(dim, 1, '.');
}

// A row of zeros for each that the argument has, if they stand at the same dim; its values are not looked at.
std::string dims::zeros_beside(const ir::Graph& graph, const ir::Node& node) {
  const Shape& self = graph.at(ir::inputs_of(node).at(0)).type.shape;
  const Shape& made = graph.at(node.outputs[0].value()).type.shape;
  std::string all = letters(static_cast<std::int64_t>(self.size() + made.size()));
  const std::string in = all.substr(0, self.size());
  std::string out = all.substr(self.size()), other = in;
  for (std::size_t dim = 0; dim < std::min(self.size(), made.size()); ++dim)
    if (self[dim] == made[dim]) std::swap(out[dim], other[dim]);
  return "self:" + in + " -> " + out + "/" + other;
}

// Indices may be fewer than what they choose from: then that dim stays whole.
static std::string gathered(const ir::Graph& graph, const ir::Node& node, bool adds) {
  const std::int64_t count = num_dims(graph, node, "self");
  std::string self = letters(count), index = self;
  const std::size_t at = count > 0 ? dims_in(node, "dim", count)[0] : 0;
  const auto inputs = ir::inputs_of(node);
  const auto size = [&](ir::ValueId value, std::size_t dim) { return graph.at(value).type.shape[dim]; };
  for (std::size_t dim = 0; dim < self.size(); ++dim) {
    const bool is_source_alike = inputs.size() < 3 || size(inputs[2], dim) == size(inputs[1], dim);
    const bool is_alike = size(inputs[0], dim) == size(inputs[1], dim) && is_source_alike;
    if (dim == at || !is_alike) self[dim] = '.';
    if (dim == at ? !adds || !is_source_alike : !is_alike) index[dim] = '.';
  }
  if (node.op == "aten::gather") return "self:" + self + " index:" + index + " -> " + index;
  return "self:+" + self + " index:" + index + " src:" + index + " -> " + self;
}
std::string dims::gather(const ir::Graph& graph, const ir::Node& node) { return gathered(graph, node, true); }
std::string dims::scatter(const ir::Graph& graph, const ir::Node& node) {
  return gathered(graph, node, node.op == "aten::scatter_add");
}

// index_select and index_add: the indices take the place of `dim`.
std::string dims::index_along(const ir::Graph& graph, const ir::Node& node) {
  const std::int64_t count = num_dims(graph, node, "self");
  std::string self = letters(count + 1), chosen = self.substr(0, static_cast<std::size_t>(count));
  const char index = self.back();
  self.pop_back();
  const std::size_t dim = dims_in(node, "dim", count)[0];
  self[dim] = '.';
  chosen[dim] = index;
  if (node.op == "aten::index_select") return "self:" + self + " index:" + index + " -> " + chosen;
  return "self:+" + self + " index:" + index + " source:" + chosen + " -> " + self;
}

// Tensors of indices, broadcast together, take the place of the dims that they choose from, or come first if
// these do not stand together.
std::string dims::indexed(const ir::Graph& graph, const ir::Node& node) {
  const auto& indices = std::get<ir::ValueList>(*ir::find(node, "indices"));
  const std::int64_t count = num_dims(graph, node, "self");
  std::size_t num_index_dims = 0;
  for (const auto& index : indices) {
    if (index && graph.at(*index).type.dtype == DType::Bool) return "self:~ indices:~ values:~ -> ~";
    if (index) num_index_dims = std::max(num_index_dims, graph.at(*index).type.shape.size());
  }
  std::string self = letters(count + static_cast<std::int64_t>(num_index_dims));
  std::string index = self.substr(static_cast<std::size_t>(count));
  self.resize(static_cast<std::size_t>(count));
  const bool is_put = node.op != "aten::index.Tensor";
  const bool adds = is_put && is_true(node, "accumulate");
  if (is_put && !adds) index.assign(num_index_dims, '.');
  std::string chosen;
  std::optional<std::size_t> place, last;  // in `chosen`; the last dim that is indexed
  for (std::size_t dim = 0; dim < self.size(); ++dim) {
    if (dim >= indices.size() || !indices[dim]) {
      chosen += self[dim];
      continue;
    }
    self[dim] = '.';
    place = !place ? chosen.size() : *last + 1 == dim ? *place : 0;
    last = dim;
  }
  chosen.insert(place.value_or(0), index);
  if (!is_put) return "self:" + self + " indices:" + index + " -> " + chosen;
  return "self:" + std::string(adds ? "+" : "") + self + " indices:" + index + " values:" + chosen + " -> " +
         self;
}

std::string dims::repeated(const ir::Graph& graph, const ir::Node& node) {
  std::string in = letters(num_dims(graph, node, "self"));
  const auto& repeats = std::get<std::vector<std::int64_t>>(*ir::find(node, "repeats"));
  std::string out(repeats.size() - in.size(), '.');
  for (std::size_t dim = 0; dim < in.size(); ++dim) {
    if (repeats[repeats.size() - in.size() + dim] != 1) in[dim] = '.';
    out += in[dim];
  }
  return "self:" + in + " -> " + out;
}

// The gradients of slice and select: `dim` is of the output.
std::string dims::into_whole(const ir::Graph& graph, const ir::Node& node) {
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

// And select_scatter, which is given the whole as well.
std::string dims::selected_into(const ir::Graph& graph, const ir::Node& node) {
  std::string self = letters(num_dims(graph, node, "self")), src = self;
  const std::size_t dim = dims_in(node, "dim", static_cast<std::int64_t>(self.size()))[0];
  self[dim] = '.';
  src.erase(dim, 1);
  return "self:" + self + " src:" + src + " -> " + self;
}

std::string dims::padded(const ir::Graph& graph, const ir::Node& node) {
  std::string dims = letters(num_dims(graph, node, "self"));
  const auto& pad = std::get<std::vector<std::int64_t>>(*ir::find(node, "pad"));
  for (std::size_t i = 0; i < pad.size(); ++i)
    if (pad[i] != 0) dims[dims.size() - 1 - i / 2] = '.';
  return "self:" + dims + " -> " + dims;
}

static std::string whole_dims(const ir::Node& node) {
  return std::string(std::get<std::vector<std::int64_t>>(*ir::find(node, "normalized_shape")).size(), '.');
}
std::string dims::layer_norm(const ir::Graph&, const ir::Node& node) {
  const std::string k = whole_dims(node);
  return "input:*" + k + " weight:" + k + " bias:" + k + " -> *" + k + ", *" + k + ", *" + k;
}
std::string dims::layer_norm_backward(const ir::Graph&, const ir::Node& node) {
  const std::string k = whole_dims(node);
  return "grad_out:*" + k + " input:*" + k + " mean:*" + k + " rstd:*" + k + " weight:" + k + " bias:" + k +
         " -> *" + k + ", " + k + ", " + k;
}

// In training the statistics are over batch and space; in evaluation they are given, and not saved.
std::string dims::batch_norm(const ir::Graph&, const ir::Node& node) {
  const bool is_training = is_true(node, "training");
  std::string text = is_training ? "input:.C~ " : "input:bC* ";
  text += "weight:C bias:C running_mean:C running_var:C -> ";
  text += is_training ? ".C~, C, C" : "bC*, ./bC*, ./bC*";
  if (node.outputs.size() == 3) return text;
  return text + (is_training ? ", C, C" : ", C/b*, C/b*");  // the running statistics, too
}
std::string dims::batch_norm_backward(const ir::Graph&, const ir::Node& node) {
  const std::string statistics = " weight:C running_mean:C running_var:C save_mean:";
  if (is_true(node, "train")) return "grad_out:.C~ input:.C~" + statistics + "C save_invstd:C -> .C~, C, C";
  return "grad_out:bC* input:bC*" + statistics + ". save_invstd:. -> bC*, C, C";
}

static std::int64_t channels_of(const ir::Graph& graph, const ir::Node& node, std::string_view argument) {
  return graph.at(std::get<ir::ValueId>(*ir::find(node, argument))).type.shape.at(1);
}
// Each group has so many of a tensor's channels: 3G, or G where there is one.
static std::string in_groups(std::int64_t channels, std::int64_t groups) {
  return concat(channels == groups ? "" : concat(channels / groups), 'G');
}
std::string dims::convolution(const ir::Graph& graph, const ir::Node& node) {
  const auto groups = std::get<std::int64_t>(*ir::find(node, "groups"));
  if (groups == 1)
    return is_true(node, "transposed") ? "input:bI~ weight:IO~ bias:+O -> bO~"
                                       : "input:bI~ weight:OI~ bias:+O -> bO~";
  const std::string in = in_groups(channels_of(graph, node, "input"), groups),
                    out = in_groups(graph.at(node.outputs.at(0).value()).type.shape.at(1), groups);
  return concat("input:b", in, "~ weight:", is_true(node, "transposed") ? in : out, ".~ bias:", out, " -> b",
                out, "~");
}
std::string dims::convolution_backward(const ir::Graph& graph, const ir::Node& node) {
  const auto groups = std::get<std::int64_t>(*ir::find(node, "groups"));
  if (groups == 1)
    return is_true(node, "transposed") ? "grad_output:bO~ input:bI~ weight:IO~ -> bI~, IO~, O/I"
                                       : "grad_output:bO~ input:bI~ weight:OI~ -> bI~, OI~, O/I";
  const std::string in = in_groups(channels_of(graph, node, "input"), groups),
                    out = in_groups(channels_of(graph, node, "grad_output"), groups),
                    first = is_true(node, "transposed") ? in : out;
  return concat("grad_output:b", out, "~ input:b", in, "~ weight:", first, ".~ -> b", in, "~, ", first,
                ".~, ", out);
}

std::string dims::embedding_backward(const ir::Graph&, const ir::Node& node) {
  if (is_true(node, "scale_grad_by_freq"))
    return "grad_output:~e indices:~ -> .e";  // counts over all indices
  return "grad_output:*e indices:* -> .e";
}

constexpr std::int64_t kNone = 0, kMean = 1;  // at::Reduction

// A mean is no sum of means.
std::string dims::loss(const ir::Graph&, const ir::Node& node) {
  const auto reduction = std::get<std::int64_t>(*ir::find(node, "reduction"));
  if (reduction == kMean) return "self:~ target:~ weight:~ pos_weight:~ -> ";
  return std::string("self:* target:* weight:* pos_weight:* -> ") + (reduction == kNone ? "*" : "");
}
std::string dims::loss_backward(const ir::Graph&, const ir::Node& node) {
  if (std::get<std::int64_t>(*ir::find(node, "reduction")) == kMean)
    return "grad_output:~ self:~ target:~ weight:~ -> ~";
  return "grad_output:* self:* target:* weight:* -> *";
}
std::string dims::nll_loss2d(const ir::Graph&, const ir::Node& node) {
  const auto reduction = std::get<std::int64_t>(*ir::find(node, "reduction"));
  if (reduction == kMean) return "self:.... target:... weight:. -> , ";
  return std::string("self:b.hw target:bhw weight:. -> ") + (reduction == kNone ? "bhw, " : ", ");
}
std::string dims::nll_loss2d_backward(const ir::Graph&, const ir::Node& node) {
  const auto reduction = std::get<std::int64_t>(*ir::find(node, "reduction"));
  if (reduction == kMean) return "grad_output: self:.... target:... weight:. total_weight: -> ....";
  return std::string("grad_output:") + (reduction == kNone ? "bhw" : "") +
         " self:b.hw target:bhw weight:. total_weight: -> b.hw";
}

std::string dims::nll_loss(const ir::Graph&, const ir::Node& node) {
  const auto reduction = std::get<std::int64_t>(*ir::find(node, "reduction"));
  if (reduction == kMean) return "self:.. target:. weight:. -> , ";
  return reduction == kNone ? "self:b. target:b weight:. -> b, " : "self:b. target:b weight:. -> , ";
}
std::string dims::nll_loss_backward(const ir::Graph&, const ir::Node& node) {
  if (std::get<std::int64_t>(*ir::find(node, "reduction")) == kMean)
    return "grad_output: self:.. target:. weight:. total_weight: -> ..";
  const bool each = std::get<std::int64_t>(*ir::find(node, "reduction")) == kNone;
  return std::string(each ? "grad_output:b" : "grad_output:") +
         " self:b. target:b weight:. total_weight: -> b.";
}

// In parts: along the vocabulary and the classes. The factor `v` is the only one.
std::string dims::embedding_parts(const ir::Graph&, const ir::Node&) { return "weight:v. indices:~ -> ~"; }
std::string dims::embedding_backward_parts(const ir::Graph&, const ir::Node& node) {
  return is_true(node, "scale_grad_by_freq") ? "" : "grad_output:~ indices:~ -> v.";
}
static bool is_mean_or_weighted(const ir::Node& node) {
  return std::get<std::int64_t>(*ir::find(node, "reduction")) == kMean ||
         std::holds_alternative<ir::ValueId>(*ir::find(node, "weight"));
}
std::string dims::nll_loss_parts(const ir::Graph&, const ir::Node& node) {
  if (is_mean_or_weighted(node)) return "";
  return "self:.v target:. -> ~, /v";
}
std::string dims::nll_loss_backward_parts(const ir::Graph&, const ir::Node& node) {
  if (is_mean_or_weighted(node)) return "";
  return "grad_output:~ self:.v target:. total_weight: -> .v";
}

// A causal mask says by position which keys a query sees, so its queries stay together, and keys. Several heads of
// the query may share one of the keys; they stay together too.
struct AttentionDims {
  std::string query;  // its dims but the last
  std::string key = "bh..";
  std::string mask;
};
static AttentionDims attention_dims(const ir::Graph& graph, const ir::Node& node) {
  const auto heads_of = [&](std::string_view argument) {
    return graph.at(std::get<ir::ValueId>(*ir::find(node, argument))).type.shape.at(1);
  };
  const std::int64_t shared = heads_of("key") == 0 ? 1 : heads_of("query") / heads_of("key");
  const std::string query =
      (shared == 1 ? "bh" : concat("b", shared, "h")) + std::string(is_true(node, "is_causal") ? "." : "s");
  const auto* mask = std::get_if<ir::ValueId>(ir::find(node, "attn_mask"));
  const bool is_of_all_heads =
      mask == nullptr || graph.at(*mask).type.shape.size() < 3 || graph.at(*mask).type.shape.rbegin()[2] == 1;
  return {.query = query, .mask = (is_of_all_heads ? std::string("b.") + query.back() : query) + "."};
}
std::string dims::attention(const ir::Graph& graph, const ir::Node& node) {
  const auto [query, key, mask] = attention_dims(graph, node);
  return concat("query:", query, ". key:", key, " value:", key, " attn_mask:", mask, " -> ", query, "., ",
                query);
}
std::string dims::attention_backward(const ir::Graph& graph, const ir::Node& node) {
  auto [query, key, mask] = attention_dims(graph, node);
  // By logsumexp each part of the keys knows its share: of the query's gradient every part makes a summand.
  if (!is_true(node, "is_causal")) {
    key = "bhk.";
    mask.back() = 'k';
  }
  return concat("grad_output:", query, ". query:", query, ". key:", key, " value:", key, " output:", query,
                ". logsumexp:", query, " attn_mask:", mask, " -> ", query, "., ", key, ", ", key);
}

}  // namespace shoal::sharding
