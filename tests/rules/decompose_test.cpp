// SPDX-License-Identifier: Apache-2.0
// Every decomposition, proved by execution: the examples that have one are run as they are and decomposed.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "batch.h"
#include "examples.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/ir/verify.h"
#include "shoal/rewrite/decompose.h"
#include "shoal/rewrite/shared_heads.h"
#include "shoal/runtime/run.h"

namespace decompose_test {

using namespace shoal;
using at::Tensor;

namespace {

// An example as a graph of its own, in another dtype.
struct Alone {
  ir::Graph graph;
  runtime::NamedTensors sources;
};

}  // namespace

static ir::TensorType in_dtype(ir::TensorType type, DType dtype) {
  if (type.dtype == DType::Float64) type.dtype = dtype;
  return type;
}

static Alone alone(const Case& example, DType dtype) {
  Alone made;
  std::vector<ir::ValueId> ids;
  for (const Tensor& tensor : example.in) {
    const std::string name = concat("x", ids.size());
    const Tensor given = tensor.scalar_type() == at::kDouble ? tensor.to(aten::to_torch(dtype)) : tensor;
    ids.push_back(made.graph.add_source(ir::Role::Input, name, aten::type_of(given)));
    made.sources[{ir::Role::Input, name}] = given;
  }
  ir::Node node = *example.node;
  for (ir::Argument& argument : node.arguments)
    if (argument.value == ir::Attribute(DType::Float64)) argument.value = dtype;
  std::vector<std::optional<ir::TensorType>> types;
  for (const auto& output : node.outputs)
    types.push_back(output ? std::optional(in_dtype(example.graph->at(*output).type, dtype)) : std::nullopt);
  std::size_t next = 0;
  const ir::NodeId id =
      made.graph.add_node(ir::with_inputs(node, [&](ir::ValueId) { return ids[next++]; }), types);
  const auto outputs = made.graph.at(id).outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i]) made.graph.add_result(ir::Role::Output, concat("y", i), *outputs[i]);
  return made;
}

// The largest difference of any result, by the largest number of that result.
static double difference(const runtime::NamedTensors& a, const runtime::NamedTensors& b) {
  double largest = 0;
  for (const auto& [name, tensor] : a) {
    const Tensor x = tensor.to(at::kDouble), y = b.at(name).to(at::kDouble);
    REQUIRE(x.sizes() == y.sizes());
    REQUIRE((tensor.scalar_type() == b.at(name).scalar_type()));
    if (x.numel() > 0)
      largest = std::max(largest, ((x - y).abs().max() / (y.abs().max() + 1e-3)).item<double>());
  }
  return largest;
}

TEST_CASE("what is decomposed gives what its op gives, in every dtype") {
  std::set<std::string> proved;
  for (const auto& [dtype, bound] :
       {std::pair(DType::Float64, 1e-12), {DType::Float32, 2e-5}, {DType::BFloat16, 5e-2}})
    for (const Case& example : examples()) {
      if (!rewrite::can_decompose(*example.graph, *example.node)) continue;
      CAPTURE(example.text());
      CAPTURE(name_of(dtype));
      const Alone one = alone(example, dtype);
      const ir::Graph simpler = rewrite::decompose(one.graph, {ir::NodeId{0}});
      ir::verify(simpler);
      CHECK(difference(runtime::run(simpler, one.sources), runtime::run(one.graph, one.sources)) < bound);
      proved.insert(example.node->op);
    }
  CHECK(proved == std::set<std::string>{"aten::_log_softmax",
                                        "aten::_log_softmax_backward_data",
                                        "aten::_native_batch_norm_legit_functional",
                                        "aten::_softmax",
                                        "aten::_softmax_backward_data",
                                        "aten::binary_cross_entropy",
                                        "aten::binary_cross_entropy_backward",
                                        "aten::binary_cross_entropy_with_logits",
                                        "aten::huber_loss",
                                        "aten::huber_loss_backward",
                                        "aten::mean",
                                        "aten::mean.dim",
                                        "aten::mse_loss",
                                        "aten::mse_loss_backward",
                                        "aten::native_batch_norm",
                                        "aten::native_batch_norm_backward",
                                        "aten::nll_loss2d_backward",
                                        "aten::nll_loss2d_forward",
                                        "aten::nll_loss_backward",
                                        "aten::nll_loss_forward",
                                        "aten::smooth_l1_loss",
                                        "aten::smooth_l1_loss_backward",
                                        "aten::soft_margin_loss",
                                        "aten::soft_margin_loss_backward",
                                        "aten::std.correction",
                                        "aten::var.correction",
                                        "aten::var_mean.correction"});
}

TEST_CASE("attention whose heads of keys and values are repeated gives what it gave") {
  std::set<std::string> proved;
  for (const auto& [dtype, bound] : {std::pair(DType::Float64, 1e-12), {DType::Float32, 2e-5}})
    for (const Case& example : examples())
      for (const std::int64_t ranks : {2, 4, 8}) {
        const std::int64_t heads = rewrite::heads_for(*example.graph, *example.node, ranks);
        if (heads == 0) continue;
        CAPTURE(example.text());
        CAPTURE(ranks);
        CAPTURE(name_of(dtype));
        const Alone one = alone(example, dtype);
        const ir::Graph more = rewrite::with_heads(one.graph, {{ir::NodeId{0}, heads}});
        ir::verify(more);
        CHECK(difference(runtime::run(more, one.sources), runtime::run(one.graph, one.sources)) < bound);
        proved.insert(concat(example.node->op, ' ', ranks));
      }
  CHECK(proved == std::set<std::string>{"shoal::attention 8", "shoal::attention_backward 8"});
}

TEST_CASE("what is decomposed runs on parts of its batch") {
  for (const Case& example : examples()) {
    if (!rewrite::can_decompose(*example.graph, *example.node)) continue;
    CAPTURE(example.text());
    const Alone one = alone(example, DType::Float64);
    for (const Tensor& tensor : example.in)
      if (tensor.dim() > 0 && tensor.scalar_type() == at::kDouble) {
        CHECK(nodes_that_gather(one.graph, tensor.size(0)) == std::vector<std::string>{});
        break;
      }
  }
}

}  // namespace decompose_test
