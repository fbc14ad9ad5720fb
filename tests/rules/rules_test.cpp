// SPDX-License-Identifier: Apache-2.0
// Every rule of sharding/ops.cpp, proved by execution: each example is run whole and, by each strategy of its
// rule, in parts on 2, 3, 4 and 7 ranks, with parts that are even, uneven and empty. The other way round:
// search_test.cpp.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "examples.h"
#include "parts.h"
#include "shoal/base/error.h"
#include "shoal/sharding/ops.h"
#include "shoal/sharding/rules.h"

namespace rules_test {

using namespace shoal;
using namespace shoal::sharding;
using at::Tensor;

static bool has_empty_part(const Case& example, const Strategy& strategy, const Mesh& mesh) {
  for (std::size_t i = 0; i < strategy.in.size(); ++i) {
    const auto shape = local_shape(mesh, {{strategy.in[i]}}, example.in[i].sizes().vec(), mesh.size() - 1);
    if (std::ranges::find(shape, 0) != shape.end()) return true;
  }
  return false;
}

// What a recurrent layer's forward pass on these inputs keeps for its backward pass, which begins with the
// same.
static Tensor workspace_of(const std::vector<Tensor>& in) {
  for (const Case& example : examples())
    if (example.node->op == "aten::mkldnn_rnn_layer")
      return run(*example.graph, *example.node, {in.begin(), in.begin() + 7}).value().at(3).value();
  FAIL("no example of a recurrent layer");
  return {};
}

// What is wrong with a strategy; empty if nothing.
static std::string fault(const Case& example, const Strategy& strategy, int ranks) {
  const Mesh mesh = {{{"x", ranks}}};
  for (std::size_t i = 0; i < strategy.in.size(); ++i)
    if (const auto why = misfit(mesh, {{strategy.in[i]}}, example.in[i].sizes().vec()); !why.empty())
      return why;
  std::vector<std::vector<Tensor>> in, out(example.out.size());
  if (!strategy.may_be_empty && has_empty_part(example, strategy, mesh)) return "";
  for (std::size_t i = 0; i < strategy.in.size(); ++i)
    in.push_back(parts_of(example.in[i], mesh, strategy.in[i]));
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Tensor> local;
    for (const auto& parts : in) local.push_back(parts[static_cast<std::size_t>(rank)]);
    if (example.node->op == "aten::mkldnn_rnn_layer_backward") local.back() = workspace_of(local);
    const ir::Node node = local_node(example, strategy, mesh, rank);
    const auto made = run(*example.graph, node, local);
    if (!made) return concat("rank ", rank, " of ", ranks, " cannot run it");
    for (std::size_t i = 0; i < out.size(); ++i)
      if (example.out[i]) {
        if (i >= made->size() || !(*made)[i]) return concat("output ", i, " is not there");
        out[i].push_back(*(*made)[i]);
      }
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    if (example.out[i] && !is_opaque(example, i))
      if (const std::string why = wrong(*example.out[i], out[i], mesh, strategy.out[i]); !why.empty())
        return concat("output ", i, ": ", why);
  return "";
}

TEST_CASE("every strategy gives, put together, what one rank gives") {
  at::set_num_threads(1);  // more have nothing to do
  std::map<std::string, int> proved;
  for (const Case& example : examples())
    for (Strategy strategy : strategies(*example.graph, *example.node)) {
      CAPTURE(example.text());
      for (const int ranks : {2, 3, 4, 7}) {
        CAPTURE(ranks);
        CAPTURE(to_text(strategy));
        const std::string why = fault(example, strategy, ranks);
        if (why.find("not a multiple") != std::string::npos) continue;
        CHECK(why == "");
        ++proved[example.node->op];
      }
      // A factor may be cut inside: the same on all its dims.
      if (find_rule(example.node->op)->is_reshape || strategy.in_parts) continue;
      bool divides = true, is_cut = false;
      const auto deepen = [&](std::vector<Placement>& placements, const auto& shape_of) {
        for (std::size_t i = 0; i < placements.size(); ++i)
          if (auto* shard = std::get_if<Shard>(&placements[i])) {
            shard->outer = 2;
            is_cut = true;
            divides = divides && shape_of(i)[static_cast<std::size_t>(shard->dim)] % (2 * shard->unit) == 0;
          }
      };
      deepen(strategy.in, [&](std::size_t i) { return example.in[i].sizes(); });
      deepen(strategy.out, [&](std::size_t i) { return example.out[i]->sizes(); });
      if (is_cut && divides) {
        CAPTURE(to_text(strategy));
        CHECK(fault(example, strategy, 2) == "");
      }
    }
  for (const OpRule& rule : all_rules()) {
    CAPTURE(rule.op);
    CHECK(proved.contains(std::string(rule.op)));  // there has to be an example of it
  }
}

}  // namespace rules_test
