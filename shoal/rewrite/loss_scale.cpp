// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/loss_scale.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/ir/views.h"
#include "shoal/rewrite/writer.h"
#include "shoal/sharding/rules.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::ValueId;

using Alternatives = std::vector<std::vector<std::string_view>>;

// Besides those that may be cut.
static Alternatives linear_in(const Node& node) {
  static const std::map<std::string_view, Alternatives> whole = {
      {"aten::_fft_c2c", {{"self"}}},
      {"aten::_fft_c2r", {{"self"}}},
      {"aten::_fft_r2c", {{"self"}}},
      {"aten::as_strided_scatter", {{"self", "src"}}},
      {"aten::cholesky_solve", {{"self"}}},
      {"aten::diagonal_scatter", {{"self", "src"}}},
      {"aten::dot", {{"self"}, {"tensor"}}},
      {"aten::index_copy", {{"self", "source"}}},
      {"aten::linalg_lu_solve", {{"B"}}},
      {"aten::linalg_solve_triangular", {{"B"}}},
      {"aten::masked_select", {{"self"}}},
      {"aten::mv", {{"self"}, {"vec"}}},
      {"aten::take", {{"self"}}},
      {"aten::trace", {{"self"}}},
  };
  if (const auto found = whole.find(node.op); found != whole.end()) return found->second;
  Alternatives all;
  for (const auto& linear : sharding::linear_in(node))
    if (std::ranges::all_of(linear.made, std::identity{})) all.push_back(linear.in);
  return all;
}

namespace {

// What is a multiple of what backward starts from, so that twice the one makes twice the other.
class Multiples {
 public:
  // No constant is taken for nothing: it may be memory of the user's own, and filled later.
  explicit Multiples(const Graph& graph) : is_multiple_(graph.values.size()), is_zero_(graph.values.size()) {}

  void add(ValueId value) { is_multiple_[value.index] = true; }
  bool contains(ValueId value) const { return is_multiple_[value.index]; }

  // Throws InvalidInput for a node that reads one and makes something else.
  void follow(const Node& node) {
    auto inputs = ir::inputs_of(node);
    if (node.op == "aten::copy") inputs.erase(inputs.begin());  // it is written over
    const auto is_in = [](const auto& flags) { return [&](ValueId value) { return flags[value.index]; }; };
    const bool reads = std::ranges::any_of(inputs, is_in(is_multiple_)) && !makes_other_numbers(node);
    SHOAL_CHECK(
        !reads || keeps_proportion(node), InvalidInput, "precision: float16 scales the loss, and ", node.op,
        " in backward of module \"", node.module,
        "\" makes of a gradient what is not in proportion to it. Remedy: bfloat16, which needs no scale, or "
        "a loss without the hook or the function that does so");
    const bool is_zero = !reads && (makes_zeros(node) || (copies(node) && is_zero_[inputs.front().index]));
    for (const auto& output : node.outputs)
      if (output) (reads ? is_multiple_ : is_zero_)[output->index] = reads || is_zero;
  }

 private:
  static bool is_said(const Node& node, std::string_view argument, double number) {
    const auto* found = ir::find(node, argument);
    if (found == nullptr) return false;
    if (const auto* whole = std::get_if<std::int64_t>(found)) return static_cast<double>(*whole) == number;
    const auto* real = std::get_if<double>(found);
    return real != nullptr && *real == number;
  }
  static bool copies(const Node& node) {
    return node.op == "aten::copy" || node.op == "aten::clone" || node.op == "aten::_to_copy" ||
           (node.op.starts_with("aten::") && ir::is_view(node.op));
  }
  static bool makes_zeros(const Node& node) {
    return node.op.starts_with("aten::zeros") || node.op == "aten::new_zeros" ||
           (node.op.starts_with("aten::full") && is_said(node, "fill_value", 0));
  }
  // Of a shape alone, or a sign.
  static bool makes_other_numbers(const Node& node) {
    return node.op.ends_with("_like") || node.op.starts_with("aten::new_") || node.op == "aten::sign";
  }

  bool keeps_proportion(const Node& node) const {
    if (copies(node)) return true;
    constexpr std::string_view kOfSize[] = {"aten::abs",           "aten::amax",    "aten::amin",
                                            "aten::diagonal_copy", "aten::max",     "aten::max.dim",
                                            "aten::min",           "aten::min.dim", "aten::relu"};
    if (std::ranges::find(kOfSize, node.op) != std::end(kOfSize)) return true;
    if (node.op == "aten::where.ScalarOther") return is_said(node, "other", 0);
    if (node.op == "aten::where.ScalarSelf") return is_said(node, "self", 0);
    if (const auto linear = linear_in(node); !linear.empty()) return fits(node, linear);
    // What PyTorch's own ops make of gradients.
    return node.op.starts_with("aten::") && node.op.find("_backward") != std::string::npos &&
           reads_them_in(node, [](std::string_view name) { return name.starts_with("grad"); });
  }

  // Where several arguments are summands, what is no multiple has to be nothing.
  bool fits(const Node& node, const Alternatives& linear) const {
    for (const auto& names : linear) {
      const auto is_one = [&](std::string_view name) {
        return std::ranges::find(names, name) != names.end();
      };
      if (reads_them_in(node, is_one) && (names.size() == 1 || adds_nothing_else(node, is_one))) return true;
    }
    return false;
  }
  template <class Is>
  bool reads_them_in(const Node& node, const Is& is) const {
    return all_of(node, [&](std::string_view name, ValueId value) { return is(name) || !contains(value); });
  }
  template <class Is>
  bool adds_nothing_else(const Node& node, const Is& is) const {
    return all_of(node, [&](std::string_view name, ValueId value) {
      return !is(name) || contains(value) || is_zero_[value.index];
    });
  }
  template <class Holds>
  static bool all_of(const Node& node, const Holds& holds) {
    bool all = true;
    for (const auto& argument : node.arguments) {
      if (const auto* value = std::get_if<ValueId>(&argument.value)) all &= holds(argument.name, *value);
      if (const auto* list = std::get_if<ir::ValueList>(&argument.value))
        for (const auto& value : *list) all &= !value || holds(argument.name, *value);
    }
    return all;
  }

  std::vector<bool> is_multiple_, is_zero_;  // by ValueId
};

}  // namespace

static bool starts_backward(const Graph& graph, const Node& node) {
  const auto loss = std::ranges::find(graph.results, ir::Role::Loss, &ir::Result::role);
  return loss != graph.results.end() && node.phase == ir::Phase::Backward && node.op == "aten::ones_like" &&
         ir::inputs_of(node).front() == loss->value;
}

Graph with_scaled_loss(const Graph& graph) {
  const auto begin = std::ranges::find(graph.nodes, ir::Phase::Backward, &Node::phase);
  if (begin == graph.nodes.end()) return graph;
  SHOAL_CHECK(starts_backward(graph, *begin), Internal, "precision: backward begins with ", begin->op,
              ", and not with a one for the loss");
  Multiples multiples(graph);
  multiples.add(*begin->outputs[0]);
  for (const Node& node : graph.nodes)
    if (&node != &*begin) multiples.follow(node);

  std::optional<ValueId> scale;
  Graph made = ir::rebuild(graph, [&](Graph& out, const Node& node, const ir::Mapped& in) {
    if (&node != &*begin) return std::optional<ir::Outputs>();
    const ValueId one = *ir::copy(graph, node, in, out)[0];
    scale = out.add_source(ir::Role::Scalar, std::string(kLossScale), ir::contiguous(DType::Float32, {}));
    Writer write(out, node);
    return std::optional(ir::Outputs{write.mul(one, write.converted(*scale, write.type(one).dtype))});
  });
  std::map<std::uint32_t, ValueId> unscaled;  // by value
  for (std::size_t i = 0; i < graph.results.size(); ++i) {
    if (!multiples.contains(graph.results[i].value)) continue;
    ir::Result& result = made.results[i];
    auto [found, is_new] = unscaled.try_emplace(result.value.index);
    if (is_new) {
      const ir::Role role = made.at(result.value).role;
      const Node producer = made.at(*made.at(result.value).producer);
      Writer write(made, producer);
      found->second = write.div(result.value, write.converted(*scale, write.type(result.value).dtype));
      made.values[found->second.index].role = role;
    }
    result.value = found->second;
  }
  return made;
}

}  // namespace shoal::rewrite
