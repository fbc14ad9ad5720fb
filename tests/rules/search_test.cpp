// SPDX-License-Identifier: Apache-2.0
// The rules from the other side: every way to cut the inputs of an example, or to have them as summands, is tried
// on 2 and 3 ranks, with parts that are even and uneven. Where what the ranks make is right, the way has to be
// among the strategies of the op's rule.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "examples.h"
#include "parts.h"
#include "room.h"
#include "shoal/base/error.h"
#include "shoal/sharding/ops.h"
#include "shoal/sharding/rules.h"

namespace search_test {

using namespace shoal;
using namespace shoal::sharding;
using at::Tensor;

using Choice = std::vector<Placement>;  // by input
using Ways = std::vector<Choice>;

// Right ways that are no strategies, and why; of an op, all.
struct Known {
  std::string_view op, way, why;
};
static constexpr std::string_view kByWords =
    "the loss of a mean is cut by its words, which sends less: rows would be gathered for it";
static constexpr Known kKnown[] = {
    {"aten::avg_pool2d", "S(3) -> S(3)", "windows end where the part ends, by their sizes"},
    {"aten::mkldnn_rnn_layer_backward", "", "14 tensors that go together have 95,968 ways: not searched"},
    {"aten::nll_loss2d_backward", "R, S(0), S(0), R -> S(0)", kByWords},
    {"aten::nll_loss2d_backward", "R, S(3), S(2), R -> S(3)", kByWords},
    {"aten::nll_loss_backward", "R, S(0), S(0), R -> S(0)", kByWords},
};
static bool is_known(std::string_view op, std::string_view way) {
  return std::ranges::any_of(kKnown, [&](const Known& known) { return known.op == op && known.way == way; });
}

// The example with other numbers: negative ones and zeros too, many of them equal. Nothing where the op takes no such
// numbers, or what it takes goes together.
static std::optional<Case> redrawn(const Case& example) {
  if (example.node->op.starts_with("shoal::") || example.node->op.starts_with("aten::mkldnn"))
    return std::nullopt;
  Case other = example;
  for (Tensor& tensor : other.in)
    if (tensor.is_floating_point()) tensor = at::randn_like(tensor).mul(2).round().div(2);
  const auto made = run(*example.graph, *example.node, other.in);
  if (!made || made->size() != example.out.size()) return std::nullopt;
  other.out = *made;
  for (const auto& tensor : other.out)
    if (tensor && !tensor->isfinite().all().item<bool>()) return std::nullopt;
  return other;
}

// Whether the op makes the same of any numbers in the i-th input.
static bool is_ignored(const Case& example, std::size_t i) {
  std::vector<Tensor> in = example.in;
  in[i] = in[i] * 1.25 + 0.5;
  const auto made = run(*example.graph, *example.node, in);
  if (!made) return false;
  for (std::size_t out = 0; out < made->size(); ++out)
    if (example.out[out] && !is_opaque(example, out) &&
        !at::allclose(*example.out[out], *(*made)[out], 1e-9, 1e-12, true))
      return false;
  return true;
}

// No part is empty, and not all are of one element, which would be broadcast.
static bool can_be_cut(std::int64_t size, int ranks) {
  const std::int64_t part = (size + ranks - 1) / ranks;
  return part > 1 && part * (ranks - 1) < size;
}

// What the inputs may be: whole, a summand, cut along a dim; of one size, unless `of` is 0.
static Ways ways_of(const Case& example, const std::vector<bool>& ignored, int ranks, std::int64_t of) {
  Ways all;
  for (std::size_t i = 0; i < example.in.size(); ++i) {
    const Tensor& tensor = example.in[i];
    Choice& ways = all.emplace_back(1, Replicate{});
    if (tensor.is_floating_point() && tensor.numel() > 0 && !ignored[i]) ways.emplace_back(Partial{});
    for (int dim = 0; dim < tensor.dim(); ++dim)
      if (can_be_cut(tensor.size(dim), ranks) && (of == 0 || tensor.size(dim) == of))
        ways.emplace_back(Shard{.dim = dim});
  }
  return all;
}

static std::size_t num_choices(const Ways& ways) {
  std::size_t num = 1;
  for (const Choice& each : ways) num *= each.size();
  return num;
}

static void add_choices(const Ways& ways, std::vector<Choice>& choices) {
  for (std::size_t which = 1; which < num_choices(ways); ++which) {  // 0: all are whole
    Choice& choice = choices.emplace_back();
    std::size_t rest = which;
    for (const Choice& each : ways) {
      choice.push_back(each[rest % each.size()]);
      rest /= each.size();
    }
  }
}

// Of every input any way; where these are too many together, dims of one size at a time.
static std::vector<Choice> all_choices(const Case& example, const std::vector<bool>& ignored, int ranks) {
  static constexpr std::size_t kMost = 3000;
  std::vector<Choice> choices;
  if (const Ways ways = ways_of(example, ignored, ranks, 0); num_choices(ways) <= kMost) {
    add_choices(ways, choices);
    return choices;
  }
  std::set<std::int64_t> sizes;
  for (const Tensor& tensor : example.in)
    for (const std::int64_t size : tensor.sizes())
      if (can_be_cut(size, ranks)) sizes.insert(size);
  for (const std::int64_t size : sizes) add_choices(ways_of(example, ignored, ranks, size), choices);
  return choices;
}

// Fewer heads of queries than of keys: the kernel divides by their ratio, and the process ends.
static bool divides_by_zero(const ir::Node& node, const std::vector<Tensor>& in) {
  if (node.op != "shoal::attention" && node.op != "shoal::attention_backward") return false;
  const std::size_t query = node.op == "shoal::attention" ? 0 : 1;
  return in[query].size(1) < in[query + 1].size(1);
}

// What the ranks make, by output and rank; `follow`: sizes among the arguments are those of such outputs.
static std::optional<std::vector<std::vector<Tensor>>> made_by(const Case& example, const Choice& choice,
                                                               const std::optional<Choice>& follow,
                                                               const Mesh& mesh) {
  std::vector<std::vector<Tensor>> in, out(example.out.size());
  for (std::size_t i = 0; i < choice.size(); ++i) in.push_back(parts_of(example.in[i], mesh, choice[i]));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::vector<Tensor> local;
    for (const auto& parts : in) local.push_back(parts[static_cast<std::size_t>(rank)]);
    const ir::Node node =
        follow ? local_node(example, {.in = choice, .out = *follow}, mesh, rank) : *example.node;
    if (divides_by_zero(node, local)) return std::nullopt;
    const auto made = run(*example.graph, node, local);
    if (!made || made->size() != out.size()) return std::nullopt;
    for (std::size_t i = 0; i < out.size(); ++i) {
      if ((*made)[i].has_value() != example.out[i].has_value()) return std::nullopt;
      if (example.out[i]) out[i].push_back(*(*made)[i]);
    }
  }
  return out;
}

// All that the parts of an output are of the whole.
static Choice placements_of(const Tensor& whole, const std::vector<Tensor>& made, const Mesh& mesh) {
  Choice could = {Replicate{}};
  if (whole.scalar_type() != at::kBool) could.emplace_back(Partial{});  // nothing is a sum of truths
  // The least of few numbers, and of some indices, is one by chance.
  if (whole.scalar_type() != at::kLong && whole.numel() > 4) {
    could.emplace_back(Partial{Combine::Max});
    could.emplace_back(Partial{Combine::Min});
  }
  for (int dim = 0; dim < whole.dim(); ++dim) could.emplace_back(Shard{.dim = dim});
  std::erase_if(could,
                [&](const Placement& placement) { return !wrong(whole, made, mesh, placement).empty(); });
  return could;
}

// Of each output all that it is, whichever numbers the example has; nothing where one is nothing.
static std::optional<Ways> outputs_of(const std::vector<Case>& draws, const Choice& choice,
                                      const std::optional<Choice>& follow, const Mesh& mesh) {
  Ways all(draws[0].out.size());
  for (const Case& example : draws) {
    const auto made = made_by(example, choice, follow, mesh);
    if (!made) return std::nullopt;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!example.out[i] || is_opaque(example, i)) continue;
      const Choice now = placements_of(*example.out[i], (*made)[i], mesh);
      if (&example == draws.data()) all[i] = now;
      std::erase_if(
          all[i], [&](const Placement& placement) { return std::ranges::find(now, placement) == now.end(); });
      if (all[i].empty()) return std::nullopt;
    }
  }
  return all;
}

// Whether two placements give the ranks of this mesh the same parts, however they are written.
static bool cut_alike(const Placement& one, const Placement& other, const Tensor& whole, const Mesh& mesh) {
  if (!std::holds_alternative<Shard>(one) || !std::holds_alternative<Shard>(other)) return one == other;
  const Shape shape = whole.sizes().vec();
  if (!misfit(mesh, {{other}}, shape).empty()) return false;
  for (int rank = 0; rank < mesh.size(); ++rank)
    if (box_of(mesh, {{one}}, shape, rank) != box_of(mesh, {{other}}, shape, rank)) return false;
  return true;
}

static bool is_strategy(const Case& example, const Choice& choice, const Ways& outputs, const Mesh& mesh,
                        const std::vector<Strategy>& known) {
  return std::ranges::any_of(known, [&](const Strategy& strategy) {
    for (std::size_t i = 0; i < choice.size(); ++i)
      if (example.in[i].numel() > 0 && !cut_alike(choice[i], strategy.in[i], example.in[i], mesh))
        return false;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const auto is_so = [&](const Placement& placement) {
        return cut_alike(placement, strategy.out[i], *example.out[i], mesh);
      };
      if (!outputs[i].empty() && !std::ranges::any_of(outputs[i], is_so)) return false;
    }
    return true;
  });
}

// The ways that sizes among the arguments may follow.
static std::vector<std::optional<Choice>> follows_of(const Case& example, const Mesh& mesh) {
  std::vector<std::optional<Choice>> follows = {std::nullopt};
  if (!example.out[0] || find_rule(example.node->op)->sizes.empty()) return follows;
  for (int dim = 0; dim < example.out[0]->dim(); ++dim) {
    if (!can_be_cut(example.out[0]->size(dim), mesh.size())) continue;
    Choice& out = follows.emplace_back(std::in_place, example.out.size(), Replicate{}).value();
    for (std::size_t i = 0; i < out.size(); ++i)
      if (example.out[i] && dim < example.out[i]->dim()) out[i] = Shard{.dim = dim};
  }
  return follows;
}

#if defined(__SANITIZE_ADDRESS__)
static constexpr bool kSkip = true;  // minutes, in LibTorch's kernels, which are not instrumented
#else
static constexpr bool kSkip = false;
#endif

TEST_CASE("every way to cut that is right is a strategy" * doctest::skip(kSkip)) {
  at::set_num_threads(1);
  const Room room;
  std::set<std::string> missing;
  for (const Case& example : examples()) {
    if (!has_rule(example.node->op) || is_known(example.node->op, "")) continue;
    std::vector<Case> draws = {example};
    if (auto other = redrawn(example)) draws.push_back(*other);
    std::vector<bool> ignored;
    for (std::size_t i = 0; i < example.in.size(); ++i)
      ignored.push_back(example.in[i].is_floating_point() && is_ignored(example, i));
    if (!ignored.empty() && std::ranges::all_of(ignored, std::identity{})) continue;  // any way is right
    const auto known = strategies(*example.graph, *example.node);
    for (const int ranks : {2, 3}) {
      const Mesh mesh = {{{"x", ranks}}};
      for (const Choice& choice : all_choices(example, ignored, ranks))
        for (const auto& follow : follows_of(example, mesh)) {
          const auto outputs = outputs_of(draws, choice, follow, mesh);
          if (!outputs || is_strategy(example, choice, *outputs, mesh, known)) continue;
          Strategy strategy = {.in = choice, .out = {}};
          for (const Choice& could : *outputs) strategy.out.push_back(could.empty() ? Replicate{} : could[0]);
          if (is_known(example.node->op, to_text(strategy))) continue;
          missing.insert(concat(example.text(), "    ", to_text(strategy), " on ", ranks, " ranks"));
        }
    }
  }
  for (const std::string& line : missing) FAIL_CHECK(line);
}

}  // namespace search_test
