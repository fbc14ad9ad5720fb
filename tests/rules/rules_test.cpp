// SPDX-License-Identifier: Apache-2.0
// Every rule of sharding/ops.cpp, proved by execution: each example is run whole and, by each strategy of its
// rule, in parts on 2, 3, 4 and 7 ranks, with parts that are even, uneven and empty. The other way round,
// each way to cut its inputs that gives a right result has to be among its strategies.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "examples.h"
#include "shoal/base/error.h"
#include "shoal/sharding/ops.h"
#include "shoal/sharding/rules.h"

namespace rules_test {

using namespace shoal;
using namespace shoal::sharding;
using at::Tensor;

static Tensor part_of(Tensor whole, const Mesh& mesh, const Placement& placement, int rank) {
  const Box box = box_of(mesh, {{placement}}, whole.sizes().vec(), rank);
  for (std::size_t dim = 0; dim < box.dims.size(); ++dim) {
    std::vector<Tensor> pieces = {whole.narrow(static_cast<std::int64_t>(dim), 0, 0)};
    for (const Range& range : box.dims[dim])
      pieces.push_back(whole.narrow(static_cast<std::int64_t>(dim), range.begin, range.end - range.begin));
    whole = at::cat(pieces, static_cast<std::int64_t>(dim));
  }
  return whole.contiguous();
}

// What each rank has of a tensor.
static std::vector<Tensor> parts_of(const Tensor& whole, const Mesh& mesh, const Placement& placement) {
  std::vector<Tensor> parts;
  Tensor rest = whole;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (std::holds_alternative<Partial>(placement)) {
      const Tensor some = (at::rand(whole.sizes()) * 10).to(whole.scalar_type());
      parts.push_back(rank + 1 < mesh.size() ? some : rest);
      rest = rest - parts.back();
    } else {
      parts.push_back(part_of(whole, mesh, placement, rank));
    }
  }
  return parts;
}

static bool agree(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.numel() == 0) return true;
  const double scale = b.to(at::kDouble).abs().max().item<double>() + 1;
  const double rtol = b.scalar_type() == at::kFloat ? 1e-5 : 1e-10;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() <= rtol * scale;
}

// Memory that nobody has written, and what a library keeps for itself, are not compared.
static bool is_opaque(const Case& example, std::size_t output) {
  return example.node->op == "aten::empty_like" ||
         (example.node->op == "aten::mkldnn_rnn_layer" && output == 3);
}

// What is wrong with what the ranks made of an output; empty if nothing.
static std::string wrong(const Tensor& whole, const std::vector<Tensor>& made, const Mesh& mesh,
                         const Placement& placement) {
  if (const auto* partial = std::get_if<Partial>(&placement)) {
    Tensor all = made[0];
    for (std::size_t rank = 1; rank < made.size(); ++rank) {
      if (made[rank].sizes() != all.sizes()) return "parts to be combined differ in shape";
      all = partial->combine == Combine::Max   ? at::maximum(all, made[rank])
            : partial->combine == Combine::Min ? at::minimum(all, made[rank])
                                               : all + made[rank];
    }
    return agree(all, whole) ? "" : concat("combined by ", to_text(placement), " it is another");
  }
  for (int rank = 0; rank < mesh.size(); ++rank)
    if (const Tensor wanted = part_of(whole, mesh, placement, rank);
        !agree(made[static_cast<std::size_t>(rank)], wanted))
      return concat("rank ", rank, " made ", made[static_cast<std::size_t>(rank)].sizes(), ", wanted ",
                    wanted.sizes(), " or other numbers");
  return "";
}

static ir::Node local_node(const Case& example, const Strategy& strategy, const Mesh& mesh, int rank) {
  std::vector<Box> in;
  for (std::size_t i = 0; i < strategy.in.size(); ++i)
    in.push_back(box_of(mesh, {{strategy.in[i]}}, example.in[i].sizes().vec(), rank));
  std::vector<std::optional<Box>> out(example.out.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    if (example.out[i]) out[i] = box_of(mesh, {{strategy.out[i]}}, example.out[i]->sizes().vec(), rank);
  return localized(*example.graph, *example.node, in, out, strategy.in_parts);
}

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

// Kernels that do not check their arguments, so that shapes that do not go together are read and written past
// their ends; and ops that look at no value of theirs, so that any cut is right.
static bool trusts_its_caller(const std::string& op) {
  for (const char* const part :
       {"attention", "norm", "pool", "convolution_backward", "embedding_dense_backward", "nll_loss",
        "_backward_data", "rnn", "upsample", "empty_like", "new_zeros"})
    if (op.find(part) != std::string::npos) return true;
  return false;
}

// Whether two strategies give the ranks of this mesh the same parts, however they are written.
static bool cut_alike(const Case& example, const Strategy& a, const Strategy& b, const Mesh& mesh) {
  const auto same = [&](const Placement& one, const Placement& other, const Tensor& whole) {
    if (!std::holds_alternative<Shard>(one) || !std::holds_alternative<Shard>(other)) return one == other;
    const Shape shape = whole.sizes().vec();
    for (int rank = 0; rank < mesh.size(); ++rank)
      if (!misfit(mesh, {{other}}, shape).empty() ||
          box_of(mesh, {{one}}, shape, rank) != box_of(mesh, {{other}}, shape, rank))
        return false;
    return true;
  };
  for (std::size_t i = 0; i < a.in.size(); ++i)
    if (!same(a.in[i], b.in[i], example.in[i])) return false;
  for (std::size_t i = 0; i < a.out.size(); ++i)
    if (example.out[i] && !same(a.out[i], b.out[i], *example.out[i])) return false;
  return true;
}

TEST_CASE("every way to cut that is right is a strategy") {
  const Mesh mesh = {{{"x", 2}}};
  std::set<std::string> missing;
  for (const Case& example : examples()) {
    if (!has_rule(example.node->op) || trusts_its_caller(example.node->op)) continue;
    const auto known = strategies(*example.graph, *example.node);
    // All choices of at most one dim of each input, dims of one size that two ranks share evenly.
    std::set<std::int64_t> sizes;
    for (const Tensor& tensor : example.in)
      for (const std::int64_t size : tensor.sizes())
        if (size % 2 == 0 && size > 2) sizes.insert(size);  // half of 2 would be broadcast
    for (const std::int64_t size : sizes) {
      std::vector<std::vector<Placement>> choices = {{}};
      for (const Tensor& tensor : example.in) {
        std::vector<std::vector<Placement>> longer;
        for (const auto& choice : choices) {
          longer.push_back(choice);
          longer.back().push_back(Replicate{});
          for (int dim = 0; dim < tensor.dim(); ++dim)
            if (tensor.size(dim) == size) {
              longer.push_back(choice);
              longer.back().push_back(Shard{.dim = dim});
            }
        }
        choices = std::move(longer);
      }
      for (const auto& choice : choices) {
        if (std::ranges::all_of(choice, [](const auto& p) { return std::holds_alternative<Replicate>(p); }))
          continue;
        // For each way its sizes may follow: run, and see what each output could be.
        std::vector<ir::Node> nodes = {*example.node};
        if (example.out[0])
          for (int dim = 0; dim < example.out[0]->dim(); ++dim)
            if (example.out[0]->size(dim) % 2 == 0 && !find_rule(example.node->op)->sizes.empty())
              nodes.push_back(local_node(
                  example, {.in = choice, .out = {example.out.size(), Shard{.dim = dim}}}, mesh, 0));
        for (const ir::Node& node : nodes) {
          std::vector<std::vector<Tensor>> out(example.out.size());
          bool runs = true;
          for (int rank = 0; rank < 2 && runs; ++rank) {
            std::vector<Tensor> local;
            for (std::size_t i = 0; i < choice.size(); ++i)
              local.push_back(part_of(example.in[i], mesh, choice[i], rank));
            const auto made = run(*example.graph, node, local);
            runs = made && made->size() == out.size();
            for (std::size_t i = 0; runs && i < out.size(); ++i) {
              runs = (*made)[i].has_value() == example.out[i].has_value();
              if (runs && example.out[i]) out[i].push_back(*(*made)[i]);
            }
          }
          if (!runs) continue;
          Strategy strategy = {.in = choice, .out = {}};
          for (std::size_t i = 0; i < out.size(); ++i) {
            std::optional<Placement> found =
                example.out[i] ? std::nullopt : std::optional<Placement>(Replicate{});
            // Nothing is a sum of truths, and the least of some indices is one by chance.
            const auto type = example.out[i] ? example.out[i]->scalar_type() : at::kDouble;
            std::vector<Placement> could = {Replicate{}};
            if (type != at::kBool) could.push_back(Partial{});
            if (type != at::kLong) could.insert(could.end(), {Partial{Combine::Max}, Partial{Combine::Min}});
            for (int dim = 0; example.out[i] && dim < example.out[i]->dim(); ++dim)
              could.push_back(Shard{.dim = dim});
            for (const Placement& placement : could)
              if (!found && wrong(*example.out[i], out[i], mesh, placement).empty()) found = placement;
            if (!found) break;
            strategy.out.push_back(*found);
          }
          if (strategy.out.size() != out.size()) continue;
          const bool in_table = std::ranges::any_of(
              known, [&](const Strategy& other) { return cut_alike(example, strategy, other, mesh); });
          if (!in_table) missing.insert(concat(example.text(), "    ", to_text(strategy)));
        }
      }
    }
  }
  for (const std::string& line : missing) FAIL_CHECK(line);
}

}  // namespace rules_test
