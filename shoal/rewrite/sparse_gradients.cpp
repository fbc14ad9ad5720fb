// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/sparse_gradients.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "shoal/rewrite/pinned.h"
#include "shoal/sharding/redistribute.h"

namespace shoal::rewrite {

using ir::ValueId;
using sharding::Layout;
using sharding::Partial;
using sharding::Replicate;

namespace {

// Messages of their own have to be worth it, and so has each rank's adding up the rows of all.
constexpr std::int64_t kLeastSaved = 1 << 20;  // bytes that a rank sends
constexpr std::int64_t kFewer = 2;             // rows are at most one part of so many of the vocabulary
constexpr std::int64_t kFewerBesideDense = 4;  // likewise; these bytes are on top of the dense summand's

class SparseGradients {
 public:
  explicit SparseGradients(Placed placed) : placed_(std::move(placed)), uses_(uses_of(placed_.graph)) {}

  Placed run() {
    for (std::size_t i = 0; i < placed_.graph.results.size(); ++i) {
      const auto& result = placed_.graph.results[i];
      if (result.role != ir::Role::Gradient) continue;
      const auto& uses = uses_.of[result.value.index];
      change(result.value,
             uses.empty() ? placed_.results[i] : placed_.nodes[uses.front().node].in[uses.front().input]);
    }
    return std::move(placed_);
  }

 private:
  struct Sum {
    std::vector<std::size_t> adds, lookups;  // nodes
    std::vector<ValueId> dense;
  };

  const ir::Graph& graph() const { return placed_.graph; }
  const ir::TensorType& type_of(ValueId value) const { return graph().at(value).type; }

  // Whether only one node reads it, and nobody else.
  bool has_one_use(ValueId value) const {
    return uses_.of[value.index].size() == 1 && !uses_.leaves.contains(value);
  }

  void take_apart(ValueId value, bool is_root, Sum& sum) const {
    const auto& producer = graph().at(value).producer;
    const auto is_plain = [&](const ir::Node& node) {
      const auto inputs = ir::inputs_of(node);
      return inputs.size() == 2 && *ir::find(node, "alpha") == ir::Attribute(std::int64_t{1}) &&
             std::ranges::all_of(inputs, [&](ValueId input) { return type_of(input) == type_of(value); });
    };
    if (producer && (is_root || has_one_use(value))) {
      const ir::Node& node = graph().at(*producer);
      if (node.op == "aten::embedding_dense_backward") return sum.lookups.push_back(producer->index);
      if (node.op == "aten::add.Tensor" && is_plain(node)) {
        sum.adds.push_back(producer->index);
        for (const ValueId input : ir::inputs_of(node)) take_apart(input, false, sum);
        return;
      }
    }
    sum.dense.push_back(value);
  }

  // Axes whose ranks have summands of it.
  std::vector<std::size_t> summed_over(const Layout& layout) const {
    std::vector<std::size_t> axes;
    for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
      if (std::holds_alternative<Partial>(layout.placements[axis])) axes.push_back(axis);
    return axes;
  }

  std::int64_t sent(ValueId value, const Layout& from, const Layout& to) const {
    const ir::TensorType& type = type_of(value);
    std::int64_t bytes = 0;
    for (const auto& step :
         sharding::redistribution(placed_.mesh, type.shape, ir::bytes_of({type.dtype, {1}, {1}}), from, to))
      bytes += step.bytes;
    return bytes;
  }

  void change(ValueId gradient, const Layout& wanted) {
    Sum sum;
    take_apart(gradient, true, sum);
    if (sum.lookups.empty() || sum.dense.size() > 1) return;
    const Layout& made = placed_.nodes[sum.lookups.front()].out[0];
    const auto axes = summed_over(made);
    if (axes.empty() || !summed_over(wanted).empty()) return;
    Layout elsewhere = made;  // as all of the sum is wanted; nothing but the sum over ranks is to change
    for (const std::size_t axis : axes) elsewhere.placements[axis] = wanted.placements[axis];
    if (elsewhere != wanted) return;
    for (const std::size_t add : sum.adds)
      if (placed_.nodes[add].out[0] != made) return;
    std::int64_t rows = 0;
    for (const std::size_t lookup : sum.lookups) {
      if (placed_.nodes[lookup].out[0] != made) return;
      const auto inputs = ir::inputs_of(graph().nodes[lookup]);
      for (std::size_t i = 0; i < inputs.size(); ++i)
        rows += sent(inputs[i], placed_.nodes[lookup].in[i], gathered(placed_.nodes[lookup].in[i], axes));
    }
    const std::int64_t all = sent(gradient, made, wanted);
    if (all - rows < kLeastSaved || rows * (sum.dense.empty() ? kFewer : kFewerBesideDense) > all) return;

    for (const std::size_t lookup : sum.lookups) {
      for (Layout& in : placed_.nodes[lookup].in) in = gathered(in, axes);
      placed_.nodes[lookup].out[0] = gathered(made, axes);
      placed_.values[graph().nodes[lookup].outputs[0]->index] = wanted;
    }
    for (const ValueId dense : sum.dense)
      if (graph().at(dense).producer && has_one_use(dense)) placed_.values[dense.index] = wanted;
    for (const std::size_t add : sum.adds) {
      placed_.nodes[add].in = {wanted, wanted};
      placed_.nodes[add].out[0] = wanted;
      placed_.values[graph().nodes[add].outputs[0]->index] = wanted;
    }
  }

  static Layout gathered(Layout layout, const std::vector<std::size_t>& axes) {
    for (const std::size_t axis : axes) layout.placements[axis] = Replicate{};
    return layout;
  }

  Placed placed_;
  const Uses uses_;
};

}  // namespace

Placed with_sparse_gradients(Placed placed) { return SparseGradients(std::move(placed)).run(); }

}  // namespace shoal::rewrite
