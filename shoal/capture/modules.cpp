// SPDX-License-Identifier: Apache-2.0
// LibTorch's modules have no hooks, so paths follow from the parameters that a node reads:
//
//   node                 reads                    module
//   layer_norm           h.0.ln_1.weight          h.0.ln_1
//   addmm                h.0.attn.c_attn.weight   h.0.attn.c_attn
//   attention            –                        h.0.attn         what its neighbours in order have in
//   common addmm                h.0.attn.c_proj.weight   h.0.attn.c_proj
//
// A node that reads no parameter, not even through a view or cast of one, gets the longest common path of the
// nearest nodes before and after it that do. A backward node belongs to the forward node that made it run.
#include "shoal/capture/modules.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>

namespace shoal::capture {

std::string owner_of(std::string_view parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string_view::npos ? "" : std::string(parameter.substr(0, dot));
}

static std::string common_path(std::string_view a, std::string_view b) {
  std::size_t end = 0;  // of the last whole component that both have
  for (std::size_t i = 0;; ++i) {
    const bool a_ends = i == a.size() || a[i] == '.';
    const bool b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return std::string(a.substr(0, end));
}

void name_modules(ir::Graph& graph, const std::vector<std::uint64_t>& sequence) {
  // Values that parameters and buffers alone make: views of them, casts.
  std::vector<std::optional<std::string>> owner(graph.values.size());
  for (const auto& source : graph.sources) {
    const auto role = graph.at(source.value).role;
    if (role == ir::Role::Parameter || role == ir::Role::Buffer)
      owner[source.value.index] = owner_of(source.name);
  }
  std::vector<std::optional<std::string>> own(graph.nodes.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase != ir::Phase::Forward) continue;
    const auto inputs = ir::inputs_of(node);
    bool all = !inputs.empty();
    for (const auto input : inputs) {
      const auto& of = owner[input.index];
      all = all && of.has_value();
      if (of) own[n] = own[n] ? common_path(*own[n], *of) : *of;
    }
    if (all)
      for (const auto output : node.outputs)
        if (output) owner[output->index] = own[n];
  }

  const auto count = graph.nodes.size();
  std::vector<std::string> before(count), after(count);
  std::string nearest;
  for (std::size_t n = 0; n < count; ++n) before[n] = nearest = own[n] ? *own[n] : nearest;
  nearest.clear();
  for (std::size_t n = count; n-- > 0;) after[n] = nearest = own[n] ? *own[n] : nearest;

  std::unordered_map<std::uint64_t, std::string> by_sequence;
  std::string previous;  // sums of gradients run between two of autograd's nodes and belong to the one before
  for (std::size_t n = 0; n < count; ++n) {
    auto& node = graph.nodes[n];
    if (node.phase == ir::Phase::Forward) {
      node.module = own[n] ? *own[n] : common_path(before[n], after[n]);
      // The first node recorded for a number is its owner. Before a thread's first number it is the largest
      // one, which is also that of autograd's nodes for parameters: those own nothing.
      if (sequence[n] != std::numeric_limits<std::uint64_t>::max())
        by_sequence.emplace(sequence[n], node.module);
    } else if (const auto found = by_sequence.find(sequence[n]); found != by_sequence.end()) {
      node.module = previous = found->second;
    } else {
      node.module = previous;
    }
  }
}

}  // namespace shoal::capture
