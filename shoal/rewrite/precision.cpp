// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/precision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ir/rebuild.h"
#include "shoal/ir/views.h"
#include "shoal/rewrite/loss_scale.h"
#include "shoal/rewrite/raised.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Argument;
using ir::Graph;
using ir::Mapped;
using ir::Node;
using ir::Outputs;
using ir::TensorType;
using ir::ValueId;

static constexpr std::array kLower = std::to_array<std::string_view>({
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::addmm",
    "aten::baddbmm",
    "aten::bmm",
    "aten::convolution",
    "aten::convolution_backward",
    "aten::mm",
    "shoal::attention",
    "shoal::attention_backward",
});
static_assert(std::ranges::is_sorted(kLower), "kLower: keep it in alphabetical order");

// Views are the same too.
static constexpr std::array kSame = std::to_array<std::string_view>({
    "aten::_to_copy",
    "aten::abs",
    "aten::add.Scalar",
    "aten::add.Tensor",
    "aten::amax",
    "aten::amin",
    "aten::cat",
    "aten::clamp",
    "aten::clamp_min",
    "aten::clone",
    "aten::constant_pad_nd",
    "aten::div.Scalar",
    "aten::div.Tensor",
    "aten::elu",
    "aten::elu_backward",
    "aten::empty_like",
    "aten::eq.Scalar",
    "aten::eq.Tensor",
    "aten::flip",
    "aten::full_like",
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
    "aten::index.Tensor",
    "aten::index_select",
    "aten::le.Scalar",
    "aten::le.Tensor",
    "aten::leaky_relu",
    "aten::leaky_relu_backward",
    "aten::lt.Scalar",
    "aten::lt.Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::max_pool2d_with_indices",
    "aten::max_pool2d_with_indices_backward",
    "aten::maximum",
    "aten::minimum",
    "aten::mul.Scalar",
    "aten::mul.Tensor",
    "aten::native_dropout_backward",
    "aten::ne.Scalar",
    "aten::ne.Tensor",
    "aten::neg",
    "aten::ones_like",
    "aten::relu",
    "aten::repeat",
    "aten::roll",
    "aten::rsub.Scalar",
    "aten::select_backward",
    "aten::select_scatter",
    "aten::sigmoid",
    "aten::sigmoid_backward",
    "aten::silu",
    "aten::silu_backward",
    "aten::slice_backward",
    "aten::slice_scatter",
    "aten::stack",
    "aten::sub.Scalar",
    "aten::sub.Tensor",
    "aten::tanh",
    "aten::tanh_backward",
    "aten::threshold_backward",
    "aten::tril",
    "aten::triu",
    "aten::where.ScalarOther",
    "aten::where.ScalarSelf",
    "aten::where.self",
    "aten::zeros_like",
});
static_assert(std::ranges::is_sorted(kSame), "kSame: keep it in alphabetical order");

// Views of all elements: one of what is converted is a view of the conversion.
static constexpr std::array kOfAll =
    std::to_array<std::string_view>({"aten::_unsafe_view", "aten::alias", "aten::detach", "aten::expand",
                                     "aten::permute", "aten::squeeze.dim", "aten::squeeze.dims", "aten::t",
                                     "aten::transpose.int", "aten::unsqueeze", "aten::view"});

// Attention's masks and statistics, its outputs after the first, are float32 whatever queries are.
static constexpr std::string_view kExact[] = {"attn_mask", "logsumexp"};
static bool has_statistics(std::string_view op) {
  return op == "shoal::attention" || op == "aten::_scaled_dot_product_flash_attention_for_cpu";
}

// Whether a number becomes neither infinite nor nothing.
static bool has_range_for(DType dtype, double number) {
  const auto [smallest, largest] = dtype == DType::Float16 ? std::pair(0x1p-24, 65504.0)  // above zero
                                                           : std::pair(0x1p-133, 0x1.FEp127);
  const double size = std::abs(number);
  return !std::isfinite(number) || size == 0 || (size >= smallest && size <= largest);
}

namespace {

class Lowered {
 public:
  Lowered(const Graph& graph, const Precision& precision, bool emulates)
      : graph_(graph), precision_(precision), emulates_(emulates), is_result_(graph.values.size()) {
    for (const auto& result : graph.results) is_result_[result.value.index] = true;
  }

  Graph run() {
    Graph made = ir::rebuild(graph_, [&](Graph& out, const Node& node, const Mapped& in) {
      made_ = &out;
      return written(node, in);
    });
    for (std::size_t i = 0; i < made.results.size(); ++i)
      if (const auto whole = results_.find(graph_.results[i].value.index); whole != results_.end())
        made.results[i].value = whole->second;
    return made;
  }

 private:
  enum class Runs { Lower, Same, Full };

  Runs runs(const Node& node) const {
    const auto says = [&](const auto& ops) { return std::ranges::find(ops, node.op) != ops.end(); };
    if (says(precision_.full)) return Runs::Full;
    if (says(precision_.lower)) return Runs::Lower;
    for (const Argument& argument : node.arguments) {
      if (std::holds_alternative<DType>(argument.value)) return Runs::Full;  // it says itself
      const auto* number = std::get_if<double>(&argument.value);
      if (number != nullptr && !has_range_for(precision_.compute, *number)) return Runs::Full;
    }
    if (std::ranges::binary_search(kLower, std::string_view(node.op))) return Runs::Lower;
    if (node.op == "aten::add.Tensor" && node.phase == ir::Phase::Backward) return Runs::Full;
    // One that is seen as another type, a complex one, is exact.
    const bool is_view =
        node.op.starts_with("aten::") && ir::is_view(node.op) &&
        std::ranges::all_of(node.outputs, [&](const auto& output) { return !output || is_exact(*output); });
    return is_view || std::ranges::binary_search(kSame, std::string_view(node.op)) ? Runs::Same : Runs::Full;
  }

  bool is_exact(ValueId old) const { return graph_.at(old).type.dtype == DType::Float32; }
  bool is_low(ValueId made) const { return made_->at(made).type.dtype == precision_.compute; }

  std::optional<Outputs> written(const Node& node, const Mapped& in) {
    const Runs how = runs(node);
    bool any_low = false, all_low = true;
    for (const ValueId old : ir::inputs_of(node)) {
      if (!is_exact(old)) continue;
      (is_low(in(old)) ? any_low : all_low) = is_low(in(old));
    }
    const bool lower = how == Runs::Lower || (how == Runs::Same && any_low && all_low);
    if (!lower && !any_low) return std::nullopt;
    const bool rounds = how == Runs::Lower && emulates_;
    const auto read = [&](ValueId old, std::string_view argument) {
      if (!is_exact(old)) return in(old);
      const bool exact = !lower || std::ranges::find(kExact, argument) != std::end(kExact);
      if (exact) return converted(in(old), DType::Float32, node);
      const ValueId low = converted(in(old), precision_.compute, node);
      return rounds ? converted(low, DType::Float32, node) : low;
    };
    Node now = node;
    for (Argument& argument : now.arguments) {
      if (auto* value = std::get_if<ValueId>(&argument.value)) *value = read(*value, argument.name);
      if (auto* list = std::get_if<ir::ValueList>(&argument.value))
        for (auto& value : *list)
          if (value) value = read(*value, argument.name);
    }
    const auto is_lowered = [&](std::size_t i) {
      return lower && is_exact(*node.outputs[i]) && (i == 0 || !has_statistics(node.op));
    };
    std::vector<std::optional<TensorType>> types;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      types.push_back(node.outputs[i] ? std::optional(graph_.at(*node.outputs[i]).type) : std::nullopt);
      if (types.back() && is_lowered(i) && !rounds) types.back()->dtype = precision_.compute;
    }
    Outputs outputs = made_->at(made_->add_node(std::move(now), types)).outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i]) continue;
      const ir::Role role = graph_.at(*node.outputs[i]).role;
      made_->values[outputs[i]->index].role = role;
      if (rounds && is_lowered(i)) outputs[i] = converted(*outputs[i], precision_.compute, node);
      if (is_result_[node.outputs[i]->index] && is_exact(*node.outputs[i])) {
        const ValueId whole = converted(*outputs[i], DType::Float32, node);
        made_->values[whole.index].role = role;
        results_.emplace(node.outputs[i]->index, whole);
      }
    }
    return outputs;
  }

  // Once for all that read it so.
  ValueId converted(ValueId value, DType dtype, const Node& reader) {
    if (made_->at(value).type.dtype == dtype) return value;
    const auto key = std::pair(value.index, dtype);
    if (const auto known = converted_.find(key); known != converted_.end()) return known->second;
    ValueId made;
    if (const auto before = before_conversion(value, dtype)) {
      made = *before;
    } else if (is_view_of_dense(value)) {
      Node view = made_->at(*made_->at(value).producer);
      const ValueId base = converted(ir::inputs_of(view).front(), dtype, reader);
      TensorType type = made_->at(value).type;
      type.dtype = dtype;
      view = ir::with_inputs(std::move(view), [&](ValueId) { return base; });
      view.phase = reader.phase;
      view.outputs.clear();
      made = *made_->at(made_->add_node(std::move(view), {type})).outputs[0];
    } else {
      made = Writer(*made_, reader).converted(value, dtype);
    }
    converted_.emplace(key, made);
    return made;
  }
  // Of a weight that is kept in that type, and was raised.
  std::optional<ValueId> before_conversion(ValueId value, DType dtype) const {
    const auto& producer = made_->at(value).producer;
    if (!producer || made_->at(*producer).op != "aten::_to_copy") return std::nullopt;
    const ValueId before = ir::inputs_of(made_->at(*producer))[0];
    TensorType type = made_->at(value).type;
    if (made_->at(before).producer || type.dtype != DType::Float32) return std::nullopt;
    type.dtype = dtype;
    return made_->at(before).type == type ? std::optional(before) : std::nullopt;
  }
  bool is_view_of_dense(ValueId value) const {
    bool is_view = false;
    for (auto producer = made_->at(value).producer;
         producer && std::ranges::find(kOfAll, made_->at(*producer).op) != kOfAll.end();
         producer = made_->at(value).producer) {
      value = ir::inputs_of(made_->at(*producer)).front();
      is_view = true;
    }
    return is_view && ir::is_contiguous(made_->at(value).type);
  }

  const Graph& graph_;
  const Precision& precision_;
  const bool emulates_;
  Graph* made_ = nullptr;
  std::vector<bool> is_result_;                                   // by old ValueId
  std::map<std::uint32_t, ValueId> results_;                      // by old ValueId
  std::map<std::pair<std::uint32_t, DType>, ValueId> converted_;  // by new ValueId
};

}  // namespace

std::string_view name_of(Master master) {
  switch (master) {
    case Master::Float32: return "float32";
    case Master::None: return "none";
    case Master::Kahan: return "kahan";
  }
  fail(ErrorKind::Internal, "precision: there is no such master");
}

// A training step has all the ops that a table may be about.
static void check_names(const Graph& graph, const std::vector<std::string>& named) {
  if (std::ranges::find(graph.nodes, ir::Phase::Backward, &Node::phase) == graph.nodes.end()) return;
  std::set<std::string_view> there;
  for (const Node& node : graph.nodes) there.insert(node.op);
  const std::vector<std::string_view> ops(there.begin(), there.end());
  for (const std::string& op : named)
    SHOAL_CHECK(there.contains(op), InvalidInput, "precision: the step has no op '", op, "'; did you mean '",
                nearest(op, ops), "'?");
}

static bool has_narrow(const Graph& graph, Master master, bool is_any) {
  return std::ranges::any_of(graph.sources, [&](const ir::Source& source) {
    const auto& value = graph.at(source.value);
    return value.role == ir::Role::Parameter && (is_any || is_narrow(value.type.dtype, master));
  });
}

static Graph in_bfloat16(const Graph& graph, const Precision& precision, bool emulates) {
  SHOAL_CHECK(
      has_narrow(graph, precision.master, false) || !has_narrow(graph, precision.master, true), InvalidInput,
      "precision: master=", name_of(precision.master),
      " keeps weights in bfloat16, and no parameter of this model is. Remedy: "
      "model.to(torch.bfloat16), in C++ model->to(at::kBFloat16), before the trainer; or leave master "
      "out");
  const Graph whole = raised(graph);
  return Lowered(whole, precision, emulates).run();
}

Graph in_precision(const Graph& graph, const Precision& precision, bool emulates) {
  if (precision.compute == DType::Float32) return graph;
  for (const auto* named : {&precision.lower, &precision.full}) check_names(graph, *named);
  if (precision.master != Master::Float32) return in_bfloat16(graph, precision, emulates);
  if (precision.compute != DType::Float16) return Lowered(graph, precision, emulates).run();
  return Lowered(with_scaled_loss(graph), precision, emulates).run();
}

}  // namespace shoal::rewrite
