// SPDX-License-Identifier: Apache-2.0
// Same op, same arguments to the bit (0.0 is not -0.0), same types: the same values.
//
//   common subexpression
//   %2 : f32[2, 3] = aten::exp(self=%0) @forward             | %2 : f32[2, 3] = aten::exp(self=%0) @forward
//   %3 : f32[2, 3] = aten::exp(self=%0) @forward             | %3 : f32[2, 3] = aten::add.Tensor(self=%2,
//   %4 : f32[2, 3] = aten::add.Tensor(self=%2, other=%3)     |     other=%2) @forward
//       @forward                                             | return output "y" %3
//   return output "y" %4                                     |
//
// Two are kept apart where one would hold memory that two do not:
//
// Between phases only views merge. A forward node that is repeated in backward is a checkpoint: memory was to
// be freed in between. A view that backward repeats holds nothing that is not held anyway.
//
// Within a phase, the first output may have died before the duplicate computes it again. Merging would keep
// it alive in between, and lets the inputs that were waiting for the duplicate alone die earlier. If the
// inputs are not worth the output (zeros, embedding, a broadcast), the duplicate stays. Below kSmallBytes
// nobody counts.
#include "shoal/rewrite/common_subexpressions.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/ir/views.h"

namespace shoal::rewrite {

using ir::Attribute;
using ir::Graph;
using ir::Node;
using ir::ValueId;

static constexpr std::int64_t kSmallBytes = 4096;  // a page: about what a kernel launch costs to fill

namespace {
struct HashAttribute {
  std::size_t operator()(std::monostate) const { return 0; }
  std::size_t operator()(ValueId id) const { return id.index; }
  std::size_t operator()(bool value) const { return value; }
  std::size_t operator()(std::int64_t value) const { return static_cast<std::size_t>(value); }
  std::size_t operator()(double value) const { return std::bit_cast<std::uint64_t>(value); }
  std::size_t operator()(DType value) const { return static_cast<std::size_t>(value); }
  std::size_t operator()(const std::string& value) const { return std::hash<std::string>()(value); }
  std::size_t operator()(const ir::Symbol& value) const { return (*this)(value.name); }
  std::size_t operator()(const std::optional<ValueId>& id) const {
    return id ? id->index + std::size_t{1} : 0;
  }
  template <class Item>
  std::size_t operator()(const std::vector<Item>& list) const {
    std::size_t hash = list.size();
    for (const Item& item : list) hash = hash * 31 + (*this)(item);
    return hash;
  }
};
}  // namespace

static bool same_bits(const Attribute& a, const Attribute& b) {
  const auto same = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  if (a.index() != b.index()) return false;
  if (const auto* x = std::get_if<double>(&a)) return same(*x, std::get<double>(b));
  if (const auto* x = std::get_if<std::vector<double>>(&a))
    return std::ranges::equal(*x, std::get<std::vector<double>>(b), same);
  return a == b;
}

static bool same_type(const Graph& graph, const std::optional<ValueId>& a, const std::optional<ValueId>& b) {
  return a.has_value() == b.has_value() && (!a || graph.at(*a).type == graph.at(*b).type);
}

static bool computes_the_same(const Graph& graph, const Node& a, const Node& b) {
  return a.op == b.op &&
         std::ranges::equal(
             a.arguments, b.arguments,
             [](const auto& x, const auto& y) { return x.name == y.name && same_bits(x.value, y.value); }) &&
         std::ranges::equal(a.outputs, b.outputs,
                            [&](const auto& x, const auto& y) { return same_type(graph, x, y); });
}

namespace {

class Merging {
 public:
  explicit Merging(Graph graph)
      : graph_(std::move(graph)), owners_(ir::memory_owners(graph_)), last_use_(graph_.values.size(), 0) {
    for (std::uint32_t value = 0; value < graph_.values.size(); ++value) stands_in_.push_back({value});
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
      for (const ValueId input : inputs_of(graph_.nodes[i])) last_use_[owner(input)] = i;
    for (const auto& result : graph_.results) last_use_[owner(result.value)] = kForever;
    for (const auto& source : graph_.sources) last_use_[source.value.index] = kForever;
  }

  Graph run(Counts& counts) {
    int num_merged = 0;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
      node = ir::with_inputs(std::move(node), [this](ValueId value) { return stands_in_[value.index]; });
      if (node.outputs.empty()) continue;
      const auto [entry, is_first] = latest_.try_emplace(key_of(node), i);
      if (is_first) continue;
      const std::size_t first = std::exchange(entry->second, i);
      if (!computes_the_same(graph_, graph_.nodes[first], node) || !costs_no_memory(first, i)) continue;
      entry->second = first;
      stand_in(graph_.nodes[first], node);
      ++num_merged;
    }
    for (auto& result : graph_.results) result.value = stands_in_[result.value.index];
    if (num_merged > 0) counts["common subexpression"] += num_merged;
    return std::move(graph_);
  }

 private:
  static constexpr std::size_t kForever = std::numeric_limits<std::size_t>::max();

  std::uint32_t owner(ValueId value) const { return owners_[value.index].index; }

  // Views look the same in every phase.
  static std::size_t key_of(const Node& node) {
    std::size_t key = std::hash<std::string>()(node.op);
    for (const auto& argument : node.arguments)
      key = key * 1000003 + std::visit(HashAttribute{}, argument.value);
    return ir::is_view(node.op) ? key : key * 3 + static_cast<std::size_t>(node.phase);
  }

  bool costs_no_memory(std::size_t first, std::size_t duplicate) const {
    const Node& a = graph_.nodes[first];
    const Node& b = graph_.nodes[duplicate];
    if (ir::is_view(a.op)) return a.phase <= b.phase;
    if (a.phase != b.phase) return false;
    std::int64_t held = 0;  // bytes that would stay alive in between
    for (const auto& output : a.outputs)
      if (output && last_use_[owner(*output)] < duplicate) held += bytes_of(graph_.at(*output).type);
    if (held <= kSmallBytes) return true;
    auto inputs = inputs_of(b);
    for (auto& input : inputs) input = owners_[input.index];
    std::ranges::sort(inputs);
    const auto repeats = std::ranges::unique(inputs);
    inputs.erase(repeats.begin(), repeats.end());
    for (const ValueId input : inputs)
      if (last_use_[input.index] == duplicate) held -= bytes_of(graph_.at(input).type);
    return held <= 0;
  }

  void stand_in(const Node& first, const Node& duplicate) {
    for (std::size_t i = 0; i < first.outputs.size(); ++i) {
      if (!first.outputs[i]) continue;
      const ValueId kept = *first.outputs[i];
      const ValueId gone = *duplicate.outputs[i];
      stands_in_[gone.index] = kept;
      last_use_[owner(kept)] = std::max(last_use_[owner(kept)], last_use_[owner(gone)]);
      const ir::Role role = graph_.at(gone).role;
      if (role == ir::Role::Loss || role == ir::Role::Output) graph_.values[kept.index].role = role;
    }
  }

  Graph graph_;
  std::vector<ValueId> owners_;        // by value: whose memory it shares
  std::vector<std::size_t> last_use_;  // by owner: the last node that reads its memory
  std::vector<ValueId> stands_in_;     // by value
  std::unordered_map<std::size_t, std::size_t>
      latest_;  // key → the latest node of that key; a collision only loses a merge
};

}  // namespace

Graph merge_common_subexpressions(Graph graph, Counts& counts) {
  return Merging(std::move(graph)).run(counts);
}

}  // namespace shoal::rewrite
