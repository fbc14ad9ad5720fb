// SPDX-License-Identifier: Apache-2.0
// Every rule of sharding/ops.cpp, proved by execution: each op of some captured steps is run whole and, by
// each strategy of its rule, in parts on 2, 3 and 4 ranks, with parts that are even, uneven and empty. The
// other way round, each way to cut its inputs that gives a right result has to be among its strategies.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shoal/aten/interpreter.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/ir/text.h"
#include "shoal/runtime/run.h"
#include "shoal/sharding/ops.h"
#include "shoal/sharding/rules.h"

using namespace shoal;
using namespace shoal::sharding;
using at::Tensor;

namespace {

// One node of a captured step, with what it read.
struct Case {
  const ir::Graph* graph;
  const ir::Node* node;
  std::vector<Tensor> in;                  // as ir::inputs_of
  std::vector<std::optional<Tensor>> out;  // by output

  std::string text() const {
    std::string shapes;
    for (const Tensor& tensor : in) shapes += concat(" ", tensor.sizes());
    std::string arguments;
    for (const ir::Argument& argument : node->arguments) {
      if (const auto* number = std::get_if<std::int64_t>(&argument.value))
        arguments += concat(" ", argument.name, "=", *number);
      if (const auto* flag = std::get_if<bool>(&argument.value))
        arguments += concat(" ", argument.name, "=", *flag);
      if (const auto* list = std::get_if<std::vector<std::int64_t>>(&argument.value))
        arguments += concat(" ", argument.name, "=", at::IntArrayRef(*list));
    }
    return node->op + shapes + arguments;
  }
};

struct Step {
  std::vector<Tensor> parameters, inputs;
  std::function<Tensor(const std::vector<Tensor>& parameters, at::ArrayRef<Tensor> inputs)> loss;
};

}  // namespace

static Tensor drawn(at::IntArrayRef shape) { return at::rand(shape, at::kDouble) + 0.5; }
static Tensor drawn_below(std::int64_t end, at::IntArrayRef shape) {
  return at::randint(end, shape, at::kLong);
}

// What the rules are proved on: sizes differ, so that one dim is not taken for another, and are even, odd
// and 1.
static std::vector<Step> steps() {
  std::vector<Step> all;
  const auto add = [&](std::vector<Tensor> parameters, std::vector<Tensor> inputs, auto loss) {
    all.push_back({std::move(parameters), std::move(inputs), loss});
  };
  // Transformer parts.
  add({drawn({10, 6}), drawn({6, 4}), drawn({4}), drawn({6}), drawn({6})}, {drawn_below(10, {4, 8})},
      [](const auto& p, auto in) {
        const Tensor x = at::layer_norm(at::embedding(p[0], in[0]), {6}, p[3], p[4]);
        const Tensor y = at::addmm(p[2], x.view({-1, 6}), p[1]).view({4, 8, 4});
        const Tensor logits = at::linear(at::gelu(y, "tanh").sigmoid(), p[1]).matmul(p[0].t());
        return at::nll_loss(at::log_softmax(logits.view({-1, 10}), 1), in[0].reshape({-1}), {},
                            at::Reduction::Sum);
      });
  for (const bool causal : {false, true})
    add({drawn({12, 36})}, {drawn({4, 8, 12})}, [causal](const auto& p, auto in) {
      auto parts = at::matmul(in[0], p[0]).split(12, 2);
      for (Tensor& part : parts) part = part.view({4, 8, 2, 6}).transpose(1, 2);
      const Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, causal);
      return y.transpose(1, 2).contiguous().view({4, 8, 12}).pow(2).sum();
    });
  // Attention written out, rotary embedding, RMS norm, gated units.
  add({drawn({4, 4, 6}), drawn({6})}, {drawn({4, 6, 4}), drawn({4, 4}), drawn({4, 6})},
      [](const auto& p, auto in) {
        const Tensor scores = at::bmm(p[0], in[0]) / 2.0 + in[1].triu(1).unsqueeze(0);
        const Tensor x = at::softmax(scores.masked_fill(in[1] > 1.4, -2.0), -1).bmm(in[0].transpose(1, 2));
        const Tensor half = at::cat({-x.slice(2, 3, 6), x.slice(2, 0, 3)}, -1);
        const Tensor turned = x * in[2].cos() + half * in[2].sin();
        const Tensor normed = turned * at::rsqrt(turned.pow(2).mean({-1}, true) + 1e-6) * p[1];
        return (at::silu(normed) * normed.tanh() - normed.neg().exp()).sum();
      });
  // Convolutions and pooling.
  add({drawn({6, 4, 3, 3}), drawn({6}), drawn({6}), drawn({6, 1, 3, 3})}, {drawn({4, 4, 8, 8})},
      [](const auto& p, auto in) {
        Tensor y = at::conv2d(in[0], p[0], p[1], 1, 1);
        y = at::batch_norm(y, p[2], p[1], {}, {}, true, 0.1, 1e-5, false);
        y = at::conv2d(at::relu(y), p[3], {}, 1, 1, 1, 6);
        return at::max_pool2d(y, 3, 2, 1).mean({-1, -2}).square().sum();
      });
  add({drawn({4, 6, 3}), drawn({6})}, {drawn({4, 4, 7})},
      [](const auto& p, auto in) { return at::conv_transpose1d(in[0], p[0], p[1]).sigmoid().sum(); });
  // Elementwise, broadcasting, reductions, choosing.
  add({drawn({4, 6}), drawn({6}), drawn({4, 1})}, {drawn({4, 6})}, [](const auto& p, auto in) {
    Tensor x = at::where(in[0] > 1.0, p[0] * p[1], p[0] - p[2]) / (in[0] + 2.0);
    x = at::maximum(x, p[1]) + at::minimum(x, p[0]) + x.clamp(0.1, 0.9) + x.abs().sqrt() + x.erf() +
        (2.0 - x);
    x = x + x.amax({1}, true) + x.amin({0}, true) + x.cumsum(1) + x.log1p().reciprocal().log();
    return x.select(1, 2).sum() + x.sum({0}).mul(2.0).sum() +
           at::constant_pad_nd(x, {0, 0, 1, 1}).pow(3).sum() +
           x.permute({1, 0}).expand({2, 6, 4}).sum({0, 2}).sum() +
           at::logical_not(in[0] == 1.0).to(at::kDouble).sum();
  });
  // What models use less, and what only other devices' backward passes ask for.
  add({drawn({4, 6}), drawn({4, 6, 4})}, {drawn({4, 6}), drawn({4, 4, 6}), drawn({4, 6, 4, 4}), drawn({6})},
      [](const auto& p, auto in) {
        const Tensor a = in[0] >= p[0].detach(), b = p[0].detach() <= in[0], c = in[0] < 1.1,
                     d = in[0] != 1.0;
        const Tensor any = at::logical_or(at::bitwise_or(at::bitwise_and(a, b), c), d).bitwise_not();
        Tensor x =
            at::masked_fill(p[0] * any.to(at::kDouble), at::ne(in[0], p[0].detach()), p[0].sum().detach());
        x = x.clamp_min(0.7) + at::rsub(x, 2.0) - 1.0 + x.clone();
        const Tensor y = at::baddbmm(in[1].narrow(2, 0, 4), in[1], p[1]).tril();
        const auto normed =
            at::_native_batch_norm_legit_functional(in[2], in[3], in[3], in[3], in[3], true, 0.1, 1e-5);
        Tensor sum = y.unsqueeze(1).squeeze(1).sum() + std::get<0>(normed).sum();
        for (const Tensor& part : x.unbind(0)) sum = sum + part.pow(2).sum();
        for (const Tensor& part : x.split_with_sizes({2, 4}, 1)) sum = sum + part.pow(2).sum();
        const std::vector<std::int64_t> ones = {0, 2};
        return sum + x.unsqueeze(0).unsqueeze(2).squeeze(ones).sum();
      });
  return all;
}

// What no model's capture on a CPU keeps: constants there, or written out.
static const char* const kAlone[] = {
    "aten::full_like(self=%0, fill_value=2, dtype=none, layout=none, device=none, pin_memory=none, "
    "memory_format=none)",
    "aten::ones_like(self=%0, dtype=none, layout=none, device=none, pin_memory=none, memory_format=none)",
    "aten::silu_backward(grad_output=%0, self=%0)",
    "aten::zeros_like(self=%0, dtype=none, layout=none, device=none, pin_memory=none, memory_format=none)",
};

using Outputs = std::vector<std::optional<Tensor>>;

// Attention lies as its query does, and so do gradients as what they are of.
static ir::TensorType type_of_output(const std::string& op, std::size_t index,
                                     const std::vector<Tensor>& in) {
  if (op == "shoal::attention_backward") return aten::type_of(at::empty_like(in.at(index + 1)));
  REQUIRE(op == "shoal::attention");
  return aten::type_of(at::empty_like(index == 0 ? in[0] : in[0].select(-1, 0)));
}

// The runtime's own ops are in no library of ATen's: a graph of one node runs them.
static Outputs run_alone(const ir::Node& node, const std::vector<Tensor>& in) {
  ir::Graph alone;
  runtime::NamedTensors sources;
  std::vector<ir::ValueId> ids;
  for (const Tensor& tensor : in) {
    const std::string name = concat("x", ids.size());
    const ir::TensorType type = aten::type_of(tensor);
    ids.push_back(alone.add_source(ir::Role::Input, name, type));
    sources[{ir::Role::Input, name}] = tensor;
  }
  std::vector<std::optional<ir::TensorType>> types;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) types.push_back(type_of_output(node.op, i, in));
  std::size_t next = 0;
  const ir::NodeId id =
      alone.add_node(ir::with_inputs(node, [&](ir::ValueId) { return ids[next++]; }), types);
  const auto outputs = alone.at(id).outputs;
  for (const auto& output : outputs)
    if (output) alone.add_result(ir::Role::Output, concat(output->index), *output);
  const auto results = runtime::run(alone, sources);
  Outputs out;
  for (const auto& output : outputs)
    out.push_back(output ? std::optional(results.at({ir::Role::Output, concat(output->index)}))
                         : std::nullopt);
  return out;
}

// Nothing where the op refuses.
static std::optional<Outputs> run(const ir::Node& node, const std::vector<Tensor>& in) {
  try {
    if (node.op.starts_with("shoal::")) return run_alone(node, in);
    // Arguments ask for their tensors in order, as ir::inputs_of lists them.
    std::size_t next = 0;
    Outputs out;
    for (const auto& value : aten::call(node, [&](ir::ValueId) { return in[next++]; }))
      out.push_back(value.isTensor() && value.toTensor().defined() ? std::optional(value.toTensor())
                                                                   : std::nullopt);
    return out;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

namespace {

class Corpus {
 public:
  Corpus() {
    at::manual_seed(7);
    for (const Step& step : steps()) add(step);
    for (const char* const node : kAlone) {
      graphs_.push_back(std::make_unique<ir::Graph>(
          ir::from_text(concat("graph captured\n%0 = input \"x\" : f64[4, 6]\n%1 : f64[4, 6] = ", node,
                               " @forward \"\"\nreturn\n"))));
      const ir::Graph& graph = *graphs_.back();
      const std::vector<Tensor> in(ir::inputs_of(graph.nodes[0]).size(), drawn({4, 6}));
      cases_.push_back({&graph, &graph.nodes[0], in, run(graph.nodes[0], in).value()});
    }
  }
  const std::vector<Case>& cases() const { return cases_; }

 private:
  void add(const Step& step) {
    std::vector<Tensor> parameters;
    capture::Request request;
    for (const Tensor& tensor : step.parameters) {
      parameters.push_back(tensor.clone().requires_grad_());
      request.parameters.push_back({concat("p", parameters.size()), parameters.back()});
    }
    for (const Tensor& tensor : step.inputs)
      request.inputs.push_back({concat("x", request.inputs.size()), tensor});
    request.loss = [&](std::span<const Tensor> inputs) {
      return step.loss(parameters, at::ArrayRef<Tensor>(inputs.data(), inputs.size()));
    };
    const auto captured = capture::capture(request);
    graphs_.push_back(std::make_unique<ir::Graph>(captured.graph));
    const ir::Graph& graph = *graphs_.back();
    std::map<ir::ValueId, Tensor> values;
    std::size_t constant = 0;
    for (const ir::Source& source : graph.sources) {
      const auto find = [&](const std::vector<capture::NamedTensor>& list) {
        return std::ranges::find(list, source.name, &capture::NamedTensor::name)->tensor.detach();
      };
      const ir::Role role = graph.at(source.value).role;
      values[source.value] = role == ir::Role::Parameter ? find(request.parameters)
                             : role == ir::Role::Input   ? find(request.inputs)
                                                         : captured.constants.at(constant++);
    }
    for (const ir::Node& node : graph.nodes) {
      Case made = {.graph = &graph, .node = &node, .in = {}, .out = {}};
      for (const ir::ValueId id : ir::inputs_of(node)) made.in.push_back(values.at(id));
      made.out = run(node, made.in).value();
      for (std::size_t i = 0; i < node.outputs.size(); ++i)
        if (node.outputs[i]) values[*node.outputs[i]] = made.out.at(i).value();
      if (!known_.insert(made.text()).second) continue;
      // Other numbers: the step's own are often all the same, and then a wrong cut gives them too. What
      // attention takes back goes together, and stays.
      if (!node.op.starts_with("shoal::")) {
        for (Tensor& tensor : made.in)
          if (tensor.is_floating_point()) tensor = drawn(tensor.sizes());
        made.out = run(node, made.in).value();
      }
      cases_.push_back(std::move(made));
    }
  }

  std::vector<std::unique_ptr<ir::Graph>> graphs_;
  std::vector<Case> cases_;
  std::set<std::string> known_;
};

}  // namespace

static const Corpus& corpus() {
  static const Corpus corpus;
  return corpus;
}

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
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() <= 1e-10 * scale;
}

// What is wrong with what the ranks made of an output; empty if nothing.
static std::string wrong(const Tensor& whole, const std::vector<Tensor>& made, const Mesh& mesh,
                         const Placement& placement) {
  if (std::holds_alternative<Partial>(placement)) {
    Tensor sum = made[0];
    for (std::size_t rank = 1; rank < made.size(); ++rank) {
      if (made[rank].sizes() != sum.sizes()) return "summands differ in shape";
      sum = sum + made[rank];
    }
    return agree(sum, whole) ? "" : "the sum is another";
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
    const ir::Node node = local_node(example, strategy, mesh, rank);
    const auto made = run(node, local);
    if (!made) return concat("rank ", rank, " of ", ranks, " cannot run it");
    for (std::size_t i = 0; i < out.size(); ++i)
      if (example.out[i]) {
        if (i >= made->size() || !(*made)[i]) return concat("output ", i, " is not there");
        out[i].push_back(*(*made)[i]);
      }
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    if (example.out[i])
      if (const std::string why = wrong(*example.out[i], out[i], mesh, strategy.out[i]); !why.empty())
        return concat("output ", i, ": ", why);
  return "";
}

TEST_CASE("every strategy gives, put together, what one rank gives") {
  std::map<std::string, int> proved;
  for (const Case& example : corpus().cases())
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
      if (find_rule(example.node->op)->is_reshape) continue;
      bool divides = true, is_cut = false;
      const auto deepen = [&](std::vector<Placement>& placements, const auto& shape_of) {
        for (std::size_t i = 0; i < placements.size(); ++i)
          if (auto* shard = std::get_if<Shard>(&placements[i])) {
            shard->outer = 2;
            is_cut = true;
            divides = divides && shape_of(i)[static_cast<std::size_t>(shard->dim)] % 2 == 0;
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
    CHECK(proved.contains(std::string(rule.op)));  // an example in steps() has to use it
  }
}

// Kernels that do not check their arguments: shapes that do not go together are read and written past their
// ends.
static bool trusts_its_caller(const std::string& op) {
  for (const char* const part : {"attention", "norm", "pool", "convolution_backward",
                                 "embedding_dense_backward", "nll_loss_backward", "_backward_data"})
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
  for (const Case& example : corpus().cases()) {
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
            const auto made = run(node, local);
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
            std::vector<Placement> could = {Replicate{}, Partial{}};
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
