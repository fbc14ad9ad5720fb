// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/shared_heads.h"

#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Argument;
using ir::Graph;
using ir::Node;
using ir::Outputs;
using ir::TensorType;
using ir::ValueId;
using Sizes = std::vector<std::int64_t>;

static constexpr std::string_view kForward = "shoal::attention", kBackward = "shoal::attention_backward";

static std::int64_t heads_of(const Graph& graph, const Node& node, std::string_view name) {
  return graph.at(std::get<ValueId>(*ir::find(node, name))).type.shape.at(1);
}

std::int64_t heads_for(const Graph& graph, const Node& node, std::int64_t ranks) {
  if (node.op != kForward && node.op != kBackward) return 0;
  const std::int64_t queries = heads_of(graph, node, "query"), keys = heads_of(graph, node, "key");
  if (keys == 0 || keys % ranks == 0 || queries % keys != 0 || queries % ranks != 0) return 0;
  return std::lcm(keys, ranks);
}

namespace {

// One attention, which is written anew: tensors are [batch, heads, positions, width].
class Repeating {
 public:
  Repeating(const Graph& old, Graph& made, const Node& node, const ir::Mapped& in, std::int64_t heads)
      : old_(old),
        node_(node),
        mapped_(ir::with_inputs(node, [&](ValueId value) { return in(value); })),
        write_(made, node),
        heads_(heads),
        times_(heads / heads_of(old, node, "key")) {
    for (Argument& argument : mapped_.arguments)
      if (argument.name == "key" || argument.name == "value")
        argument.value = repeated(std::get<ValueId>(argument.value));
    for (const auto& output : node.outputs)
      types_.push_back(output ? std::optional(old.at(*output).type) : std::nullopt);
  }

  Outputs forward() { return attended(); }
  Outputs backward() {
    for (std::size_t i : {1, 2})
      if (types_.at(i)) types_[i] = of_all_heads(*types_[i]);
    Outputs outputs = attended();
    for (std::size_t i : {1, 2})
      if (outputs.at(i)) outputs[i] = summed(*outputs[i], old_.at(*node_.outputs.at(i)).type);
    return outputs;
  }

 private:
  Outputs attended() { return write_.graph().at(write_.node(node_.op, mapped_.arguments, types_)).outputs; }
  ValueId repeated(ValueId head) {
    TensorType type = write_.type(head);
    const Sizes whole = {type.shape.at(0), heads_, type.shape.at(2), type.shape.at(3)};
    type.shape.insert(type.shape.begin() + 2, 1);
    type.strides.insert(type.strides.begin() + 2, type.strides.at(2) * type.shape.at(3));
    const ValueId alone = write_.value("aten::unsqueeze", {{"self", head}, {"dim", std::int64_t{2}}}, type);
    type.shape.at(2) = times_;
    const ValueId many =
        write_.value("aten::repeat", {{"self", alone}, {"repeats", Sizes{1, 1, times_, 1, 1}}},
                     ir::contiguous(type.dtype, type.shape));
    return write_.view(many, whole);
  }

  // By position, then by head, as ATen's kernels lay gradients, or by head first.
  static bool is_by_position(const TensorType& type) { return type.strides.at(1) <= type.strides.at(2); }
  static TensorType swapped(TensorType type) {
    std::swap(type.shape.at(1), type.shape.at(2));
    std::swap(type.strides.at(1), type.strides.at(2));
    return type;
  }
  ValueId swapped(ValueId self) {
    return write_.value("aten::transpose.int",
                        {{"self", self}, {"dim0", std::int64_t{1}}, {"dim1", std::int64_t{2}}},
                        swapped(write_.type(self)));
  }
  TensorType of_all_heads(const TensorType& few) const {
    Sizes shape = few.shape;
    shape.at(1) = heads_;
    if (!is_by_position(few)) return ir::contiguous(few.dtype, shape);
    std::swap(shape.at(1), shape.at(2));
    return swapped(ir::contiguous(few.dtype, shape));
  }
  ValueId summed(ValueId gradient, const TensorType& wanted) {
    const std::int64_t batch = wanted.shape.at(0), heads = wanted.shape.at(1), positions = wanted.shape.at(2),
                       width = wanted.shape.at(3);
    if (!is_by_position(wanted))
      return write_.sum(write_.view(gradient, {batch, heads, times_, positions, width}), {2}, false);
    const ValueId many = write_.view(swapped(gradient), {batch, positions, heads, times_, width});
    return swapped(write_.sum(many, {3}, false));
  }

  const Graph& old_;
  const Node& node_;
  Node mapped_;
  Writer write_;
  const std::int64_t heads_, times_;  // of a head that many
  std::vector<std::optional<TensorType>> types_;
};

}  // namespace

Graph with_heads(Graph graph, const std::map<ir::NodeId, std::int64_t>& nodes) {
  return ir::rebuild(
      graph, [&](Graph& made, const Node& node, const ir::Mapped& in) -> std::optional<Outputs> {
        const auto found = nodes.find({static_cast<std::uint32_t>(&node - graph.nodes.data())});
        if (found == nodes.end()) return std::nullopt;
        SHOAL_CHECK(node.op == kForward || node.op == kBackward, Internal, "with_heads: ", node.op,
                    " is no attention");
        Repeating repeating(graph, made, node, in, found->second);
        Outputs outputs = node.op == kForward ? repeating.forward() : repeating.backward();
        for (std::size_t i = 0; i < outputs.size(); ++i)
          if (outputs[i]) made.values[outputs[i]->index].role = graph.at(*node.outputs[i]).role;
        return outputs;
      });
}

}  // namespace shoal::rewrite
