// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/executor.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <filesystem>

#include "shoal/aten/interpreter.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/ir/own_ops.h"
#include "shoal/runtime/collective_kernels.h"
#include "shoal/runtime/host_copies.h"
#include "shoal/runtime/kernel.h"
#include "shoal/runtime/run.h"

namespace executor_test {

using namespace shoal;
using namespace shoal::runtime;
using ir::Argument;
using ir::Graph;
using ir::Phase;
using ir::Role;
using ir::ValueId;

static ir::TensorType f32(std::vector<std::int64_t> shape) {
  return ir::contiguous(DType::Float32, std::move(shape));
}

static std::vector<ValueId> add(Graph& graph, const std::string& op, std::vector<Argument> arguments,
                                const std::vector<std::optional<ir::TensorType>>& types,
                                const std::string& module = "") {
  const auto node = graph.add_node(
      {.op = op, .arguments = std::move(arguments), .outputs = {}, .phase = Phase::Forward, .module = module},
      types);
  std::vector<ValueId> outputs;
  for (const auto& output : graph.at(node).outputs) outputs.push_back(output.value_or(ValueId{}));
  return outputs;
}

static ValueId one(Graph& graph, const std::string& op, std::vector<Argument> arguments,
                   const ir::TensorType& type, const std::string& module = "") {
  return add(graph, op, std::move(arguments), {type}, module)[0];
}

TEST_CASE("every kind of argument reaches its kernel") {
  Graph graph;
  const auto x = graph.add_source(Role::Input, "x", f32({2, 3}));
  const auto i = graph.add_source(Role::Input, "i", ir::contiguous(DType::Int64, {2}));
  const auto view =
      one(graph, "aten::view", {{"self", x}, {"size", std::vector<std::int64_t>{3, 2}}}, f32({3, 2}));
  const auto sum = one(
      graph, "aten::sum.dim_IntList",
      {{"self", view}, {"dim", std::vector<std::int64_t>{1}}, {"keepdim", true}, {"dtype", DType::Float64}},
      ir::contiguous(DType::Float64, {3, 1}));
  const auto cast = one(graph, "aten::_to_copy",
                        {{"self", sum},
                         {"dtype", DType::Float32},
                         {"layout", {}},
                         {"device", ir::Symbol{"cpu"}},
                         {"pin_memory", {}},
                         {"non_blocking", false},
                         {"memory_format", ir::Symbol{"preserve_format"}}},
                        f32({3, 1}));
  const auto cat = one(graph, "aten::cat", {{"tensors", ir::ValueList{cast, view}}, {"dim", std::int64_t{1}}},
                       f32({3, 3}));
  const auto picked = one(graph, "aten::index.Tensor",
                          {{"self", cat}, {"indices", ir::ValueList{std::nullopt, i}}}, f32({3, 2}));
  const auto gelu =
      one(graph, "aten::gelu", {{"self", picked}, {"approximate", std::string("tanh")}}, f32({3, 2}));
  const auto split = add(graph, "aten::split.Tensor",
                         {{"self", gelu}, {"split_size", std::int64_t{2}}, {"dim", std::int64_t{0}}},
                         {f32({2, 2}), f32({1, 2})});
  const auto scaled = one(graph, "aten::mul.Scalar", {{"self", split[0]}, {"other", 2.5}}, f32({2, 2}));
  const auto norm = add(graph, "aten::native_layer_norm",
                        {{"input", scaled},
                         {"normalized_shape", std::vector<std::int64_t>{2}},
                         {"weight", {}},
                         {"bias", {}},
                         {"eps", 1e-5}},
                        {f32({2, 2}), f32({2, 1}), f32({2, 1})});
  graph.add_result(Role::Output, "y", norm[0]);
  graph.add_result(Role::Output, "tail", split[1]);
  // Names that the table lacks go through the dispatcher.
  graph.add_result(Role::Output, "erf", one(graph, "aten::erf", {{"self", split[1]}}, f32({1, 2})));
  const auto pieces = add(graph, "aten::tensor_split.sections",
                          {{"self", x}, {"sections", std::int64_t{3}}, {"dim", std::int64_t{1}}},
                          {f32({2, 1}), f32({2, 1}), f32({2, 1})});
  graph.add_result(Role::Output, "piece", pieces[2]);

  const auto a = at::randn({2, 3});
  const auto index = at::tensor({2, 0}, at::kLong);
  const auto results = run(graph, {{{Role::Input, "x"}, a}, {{Role::Input, "i"}, index}});

  const auto v = a.view({3, 2});
  const auto g =
      at::gelu(at::cat({v.sum({1}, true, at::kDouble).to(at::kFloat), v}, 1).index_select(1, index), "tanh");
  const auto y = at::layer_norm(g.slice(0, 0, 2) * 2.5, {2});
  CHECK(at::equal(results.at({Role::Output, "y"}), y));
  CHECK(at::equal(results.at({Role::Output, "tail"}), g.slice(0, 2, 3)));
  CHECK(at::equal(results.at({Role::Output, "erf"}), at::erf(g.slice(0, 2, 3))));
  CHECK(at::equal(results.at({Role::Output, "piece"}), a.slice(1, 2, 3)));
}

TEST_CASE("the gradient of log softmax is written over the one that comes in, along any dim") {
  for (const auto& [shape, dim] : std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>{
           {{7, 5, 33}, 0}, {{7, 5, 33}, 1}, {{7, 5, 33}, 2}, {{3, 9000}, 1}, {{9000, 3}, 0}}) {
    CAPTURE(dim);
    Graph graph;
    const auto x = graph.add_source(Role::Input, "x", f32(shape));
    const auto y = graph.add_source(Role::Input, "y", f32(shape));
    const auto copy = one(graph, "aten::clone", {{"self", x}, {"memory_format", {}}}, f32(shape));
    graph.add_result(
        Role::Output, "z",
        one(graph, "aten::_log_softmax_backward_data",
            {{"grad_output", copy}, {"output", y}, {"dim", dim}, {"input_dtype", DType::Float32}},
            f32(shape)));
    CHECK(std::get<program::Compute>(program::lower(graph).segments[0].instructions[1]).over == copy);
    const auto a = at::randn(shape), b = at::randn(shape).log_softmax(dim);
    CHECK(at::equal(run(graph, {{{Role::Input, "x"}, a}, {{Role::Input, "y"}, b}}).at({Role::Output, "z"}),
                    at::_log_softmax_backward_data(a, b, dim, at::kFloat)));
  }
}

TEST_CASE("ops that write over their input give what they give without") {
  struct Op {
    const char* name;
    std::vector<Argument> rest;
  };
  const Argument no_alpha{"alpha", std::int64_t{2}};
  for (const auto& [name, rest] :
       std::vector<Op>{{"aten::relu", {}},
                       {"aten::neg", {}},
                       {"aten::tanh", {}},
                       {"aten::sigmoid", {}},
                       {"aten::silu", {}},
                       {"aten::exp", {}},
                       {"aten::cos", {}},
                       {"aten::sin", {}},
                       {"aten::gelu", {{"approximate", std::string("none")}}},
                       {"aten::mul.Scalar", {{"other", 3.0}}},
                       {"aten::add.Scalar", {{"other", 3.0}, no_alpha}},
                       {"aten::div.Scalar", {{"other", 3.0}}},
                       {"aten::pow.Tensor_Scalar", {{"exponent", std::int64_t{2}}}},
                       {"aten::clamp", {{"min", -0.5}, {"max", {}}}}}) {
    CAPTURE(name);
    Graph graph;
    const auto x = graph.add_source(Role::Input, "x", f32({64}));
    const auto copy = one(graph, "aten::clone", {{"self", x}, {"memory_format", {}}}, f32({64}));
    std::vector<Argument> arguments = {{"self", copy}};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    graph.add_result(Role::Output, "y", one(graph, name, arguments, f32({64})));
    const auto lowered = program::lower(graph);
    CHECK(std::get<program::Compute>(lowered.segments[0].instructions[1]).over == copy);
    const auto a = at::randn({64});
    aten::Interpreter interpreter(graph);
    interpreter.bind(x, a);
    CHECK(at::equal(run(graph, {{{Role::Input, "x"}, a}}).at({Role::Output, "y"}),
                    interpreter.value(graph.results[0].value)));
  }
  for (const auto& [name, first, second, rest] :
       std::vector<std::tuple<const char*, const char*, const char*, std::vector<Argument>>>{
           {"aten::add.Tensor", "self", "other", {no_alpha}},
           {"aten::sub.Tensor", "self", "other", {no_alpha}},
           {"aten::mul.Tensor", "self", "other", {}},
           {"aten::div.Tensor", "self", "other", {}},
           {"aten::gelu_backward", "grad_output", "self", {{"approximate", std::string("tanh")}}},
           {"aten::threshold_backward", "grad_output", "self", {{"threshold", std::int64_t{0}}}},
           {"aten::tanh_backward", "grad_output", "output", {}},
           {"aten::sigmoid_backward", "grad_output", "output", {}},
           {"aten::silu_backward", "grad_output", "self", {}}}) {
    for (const bool over_first : {true, false}) {
      CAPTURE(name);
      CAPTURE(over_first);
      Graph graph;
      const auto x = graph.add_source(Role::Input, "x", f32({64}));
      const auto y = graph.add_source(Role::Input, "y", f32({64}));
      const auto copy = one(graph, "aten::clone", {{"self", x}, {"memory_format", {}}}, f32({64}));
      std::vector<Argument> arguments = {{first, over_first ? copy : y}, {second, over_first ? y : copy}};
      arguments.insert(arguments.end(), rest.begin(), rest.end());
      graph.add_result(Role::Output, "z", one(graph, name, arguments, f32({64})));
      CHECK(std::get<program::Compute>(program::lower(graph).segments[0].instructions[1]).over == copy);
      const auto a = at::randn({64});
      const auto b = at::randn({64});
      aten::Interpreter interpreter(graph);
      interpreter.bind(x, a);
      interpreter.bind(y, b);
      CHECK(at::equal(run(graph, {{{Role::Input, "x"}, a}, {{Role::Input, "y"}, b}}).at({Role::Output, "z"}),
                      interpreter.value(graph.results[0].value)));
    }
  }
}

TEST_CASE("attention is scaled dot-product attention, forward and backward") {
  const auto type = f32({1, 2, 5, 8});
  for (const bool masked : {false, true}) {
    Graph graph;
    const auto q = graph.add_source(Role::Input, "q", type);
    const auto k = graph.add_source(Role::Input, "k", type);
    const auto v = graph.add_source(Role::Input, "v", type);
    const auto mask = graph.add_source(Role::Input, "mask", f32({5, 5}));
    const auto grad = graph.add_source(Role::Input, "grad", type);
    const ir::Attribute mask_argument = masked ? ir::Attribute(mask) : ir::Attribute();
    const auto made = add(graph, "shoal::attention",
                          {{"query", q},
                           {"key", k},
                           {"value", v},
                           {"attn_mask", mask_argument},
                           {"is_causal", !masked},
                           {"scale", 0.4}},
                          {type, f32({1, 2, 5})});
    const auto grads = add(graph, "shoal::attention_backward",
                           {{"grad_output", grad},
                            {"query", q},
                            {"key", k},
                            {"value", v},
                            {"output", made[0]},
                            {"logsumexp", made[1]},
                            {"attn_mask", mask_argument},
                            {"is_causal", !masked},
                            {"scale", 0.4}},
                           {type, type, type});
    graph.add_result(Role::Output, "y", made[0]);
    for (std::size_t i = 0; i < 3; ++i) graph.add_result(Role::Gradient, std::to_string(i), grads[i]);
    NamedTensors sources;
    for (const char* name : {"q", "k", "v", "grad"}) sources[{Role::Input, name}] = at::randn({1, 2, 5, 8});
    const auto bias = at::randn({5, 5});
    sources[{Role::Input, "mask"}] = bias;
    const auto results = run(graph, sources);

    std::vector<at::Tensor> leaves;
    for (const char* name : {"q", "k", "v"})
      leaves.push_back(sources.at({Role::Input, name}).detach().clone().requires_grad_());
    const auto y = at::scaled_dot_product_attention(
        leaves[0], leaves[1], leaves[2], masked ? std::optional(bias) : std::nullopt, 0.0, !masked, 0.4);
    y.backward(sources.at({Role::Input, "grad"}));
    CHECK(at::equal(results.at({Role::Output, "y"}), y));
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(at::equal(results.at({Role::Gradient, std::to_string(i)}), leaves[i].grad()));
  }
}

TEST_CASE("batch norm is eager's, and running statistics change with the update alone") {
  Graph graph;
  const auto x = graph.add_source(Role::Input, "x", f32({4, 3, 5, 5}));
  const auto mean = graph.add_source(Role::Buffer, "mean", f32({3}));
  const auto variance = graph.add_source(Role::Buffer, "variance", f32({3}));
  const auto made = add(graph, "aten::_native_batch_norm_legit_functional",
                        {{"input", x},
                         {"weight", {}},
                         {"bias", {}},
                         {"running_mean", mean},
                         {"running_var", variance},
                         {"training", true},
                         {"momentum", 0.1},
                         {"eps", 1e-5}},
                        {f32({4, 3, 5, 5}), f32({3}), f32({3}), f32({3}), f32({3})});
  graph.add_result(Role::Output, "y", made[0]);
  graph.add_result(Role::Buffer, "mean", made[3]);
  graph.add_result(Role::Buffer, "variance", made[4]);
  const auto a = at::randn({4, 3, 5, 5});
  const auto running_mean = at::zeros({3});
  const auto running_variance = at::ones({3});
  Executor executor(program::lower(graph));
  executor.bind(Role::Input, "x", a);
  executor.bind(Role::Buffer, "mean", running_mean);
  executor.bind(Role::Buffer, "variance", running_variance);
  executor.run_gradients();
  CHECK(at::equal(running_mean, at::zeros({3})));
  executor.run_update();
  const auto eager_mean = at::zeros({3});
  const auto eager_variance = at::ones({3});
  const auto y = at::batch_norm(a, {}, {}, eager_mean, eager_variance, true, 0.1, 1e-5, false);
  CHECK(at::equal(executor.result(Role::Output, "y"), y));
  CHECK(at::equal(running_mean, eager_mean));
  CHECK(at::equal(running_variance, eager_variance));
}

TEST_CASE("random ops take seed and step as inputs") {
  Graph graph;
  const auto seed = graph.add_source(Role::Scalar, "seed", ir::contiguous(DType::Int64, {}));
  const auto step = graph.add_source(Role::Scalar, "step", ir::contiguous(DType::Int64, {}));
  const auto x = graph.add_source(Role::Input, "x", f32({4}));
  const std::vector<std::int64_t> shape = {1000};
  const std::vector<Argument> rest = {{"shape", shape},
                                      {"dtype", DType::Float32},
                                      {"seed", seed},
                                      {"step", step},
                                      {"ordinal", std::int64_t{3}}};
  const auto random = [&](const char* op, std::vector<Argument> arguments) {
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    graph.add_result(Role::Output, op, one(graph, op, arguments, f32(shape)));
  };
  random("shoal::bernoulli", {{"p", 0.5}});
  random("shoal::uniform", {{"from", 0.0}, {"to", 1.0}});
  random("shoal::normal", {{"mean", 0.0}, {"std", 1.0}});
  random("shoal::randint", {{"low", std::int64_t{0}}, {"high", std::int64_t{9}}});
  random("shoal::exponential", {{"lambda", 1.0}});
  graph.add_result(
      Role::Output, "chances",
      one(graph, "shoal::bernoulli_tensor",
          {{"p", x}, {"dtype", DType::Float32}, {"seed", seed}, {"step", step}, {"ordinal", std::int64_t{4}}},
          f32({4})));
  const auto at_step = [&](std::int64_t number) {
    return run(graph, {{{Role::Scalar, "seed"}, at::scalar_tensor(5, at::kLong)},
                       {{Role::Scalar, "step"}, at::scalar_tensor(number, at::kLong)},
                       {{Role::Input, "x"}, at::tensor({0.0F, 1.0F, 0.0F, 1.0F})}});
  };
  const auto first = at_step(1);
  const auto again = at_step(1);
  const auto second = at_step(2);
  for (const auto& [name, tensor] : first) {
    CAPTURE(name.second);
    CHECK(at::equal(tensor, again.at(name)));
    if (name.second != "chances") CHECK_FALSE(at::equal(tensor, second.at(name)));
  }
  CHECK(at::equal(first.at({Role::Output, "chances"}), at::tensor({0.0F, 1.0F, 0.0F, 1.0F})));
}

TEST_CASE("a step keeps nothing alive but its results") {
  Graph graph;
  const auto x = graph.add_source(Role::Input, "x", f32({8}));
  const auto a = one(graph, "aten::cumsum", {{"self", x}, {"dim", std::int64_t{0}}, {"dtype", {}}}, f32({8}));
  const auto b = one(graph, "aten::cumsum", {{"self", a}, {"dim", std::int64_t{0}}, {"dtype", {}}}, f32({8}));
  graph.add_result(Role::Output, "y", b);
  Executor executor(program::lower(graph));
  executor.bind(Role::Input, "x", at::ones({8}));
  executor.run_gradients();
  CHECK_FALSE(executor.at(a).defined());
  CHECK(executor.result(Role::Output, "y").defined());
  executor.release();
  CHECK_FALSE(executor.at(b).defined());
  CHECK(executor.at(x).defined());
  executor.release_inputs();
  CHECK_FALSE(executor.at(x).defined());
}

TEST_CASE("results can be used in autograd, and parameters that require grad can be updated") {
  Graph graph;
  const auto w = graph.add_source(Role::Parameter, "w", f32({2}));
  graph.add_result(
      Role::Output, "y",
      one(graph, "aten::cumsum", {{"self", w}, {"dim", std::int64_t{0}}, {"dtype", {}}}, f32({2})));
  Executor executor(program::lower(graph));
  executor.bind(Role::Parameter, "w", at::ones({2}).requires_grad_());
  executor.run_gradients();
  const auto y = executor.result(Role::Output, "y");
  CHECK_FALSE(y.requires_grad());
  const auto leaf = at::ones({2}).requires_grad_();
  (leaf * y).sum().backward();
  CHECK(at::equal(leaf.grad(), y));
}

TEST_CASE("what does not fit is told by name") {
  Graph graph;
  const auto x = graph.add_source(Role::Input, "x", f32({2, 3}));
  const auto w = graph.add_source(Role::Parameter, "w", f32({3, 2}));
  graph.add_result(Role::Output, "y", one(graph, "aten::mm", {{"self", x}, {"mat2", w}}, f32({2, 2}), "fc"));
  Executor executor(program::lower(graph));
  CHECK_THROWS_WITH_AS(executor.run_gradients(), "executor: input \"x\" is not bound", Error);
  CHECK_THROWS_WITH_AS(executor.bind(Role::Input, "z", at::ones({2})),
                       "executor: the program has no input \"z\"", Error);
  CHECK_THROWS_WITH_AS(executor.bind(Role::Input, "x", at::ones({3, 2})),
                       "executor: input \"x\" is f32[2, 3], got f32[3, 2]", Error);
  CHECK_THROWS_WITH_AS(executor.bind(Role::Parameter, "w", at::ones({2, 3}).t()),
                       "executor: parameter \"w\" is f32[3, 2], got f32[3, 2]{1,3}: its strides have changed",
                       Error);
  executor.bind(Role::Input, "x", at::ones({3, 2}).t());
  CHECK(executor.at(x).is_contiguous());
  CHECK_THROWS_WITH_AS(Executor(program::from_text("forward:\n%0 : f32[2] = other::op()\nupdate:\nreturn")),
                       "operator other::op is not loaded: load the library that registers it", Error);
  CHECK_THROWS_WITH_AS(Executor(program::from_text("forward:\n%0 : f32[2] = aten::relu()\nupdate:\nreturn")),
                       "aten::relu: argument self is missing", Error);
}

TEST_CASE("views show what their base holds now, step after step") {
  Graph graph;
  const auto x = graph.add_source(Role::Input, "x", f32({4, 6}));
  const auto w = graph.add_source(Role::Parameter, "w", f32({3, 2}));
  const auto made = one(graph, "aten::neg", {{"self", x}}, f32({4, 6}));
  const auto halves =
      add(graph, "aten::split.Tensor",
          {{"self", made}, {"split_size", std::int64_t{3}}, {"dim", std::int64_t{1}}},
          {ir::TensorType{DType::Float32, {4, 3}, {6, 1}}, ir::TensorType{DType::Float32, {4, 3}, {6, 1}}});
  const auto turned = one(graph, "aten::t", {{"self", w}}, {DType::Float32, {2, 3}, {1, 2}});
  graph.add_result(Role::Output, "left", halves[0]);
  graph.add_result(Role::Output, "right", halves[1]);
  graph.add_result(Role::Output, "turned", turned);
  Executor executor(program::lower(graph));
  const auto parameter = at::randn({3, 2});
  executor.bind(Role::Parameter, "w", parameter);
  for (int step = 0; step < 4; ++step) {
    const auto a = at::randn({4, 6});
    executor.bind(Role::Input, "x", a);
    if (step == 2) executor.bind(Role::Parameter, "w", at::randn({3, 2}));
    executor.at(w).mul_(2);
    executor.run_gradients();
    CHECK(at::equal(executor.result(Role::Output, "left"), -a.slice(1, 0, 3)));
    CHECK(at::equal(executor.result(Role::Output, "right"), -a.slice(1, 3, 6)));
    CHECK(at::equal(executor.result(Role::Output, "turned"), executor.at(w).t()));
    CHECK(executor.result(Role::Output, "turned").is_alias_of(executor.at(w)));
  }
}

TEST_CASE("an error of a kernel names op and module") {
  Executor executor(program::from_text(
      "source %0 input \"x\" : f32[2, 3]\n"
      "forward:\n%1 : f32[2, 3] = aten::mm(self=%0, mat2=%0) \"h.0.fc\"\nupdate:\nreturn"));
  executor.bind(Role::Input, "x", at::ones({2, 3}));
  CHECK_THROWS_WITH_AS(executor.run_gradients(),
                       "aten::mm in module h.0.fc: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
                       Error);
}

TEST_CASE("a kernel whose result is of another type than recorded is named, and a view of it still works") {
  Graph graph;
  const auto x = graph.add_source(Role::Input, "x", f32({2, 3}));
  const auto turned = one(graph, "aten::t", {{"self", x}}, {DType::Float32, {3, 2}, {1, 3}}, "fc");
  const auto wrong = one(graph, "aten::relu", {{"self", turned}}, f32({3, 2}), "fc");  // it keeps the strides
  const auto view =
      one(graph, "aten::view", {{"self", wrong}, {"size", std::vector<std::int64_t>{6}}}, f32({6}));
  graph.add_result(Role::Output, "view", view);
  Executor executor(program::lower(graph));
  const at::Tensor input = at::arange(6, at::kFloat).view({2, 3});
  executor.bind(Role::Input, "x", input);
  executor.run_gradients();
  CHECK(executor.result(Role::Output, "view").equal(input.t().reshape({6})));
  executor.check_types();
  const std::string why = error_of([&] { executor.run_gradients(); });
  CHECK(why.find("aten::relu in module fc was recorded as f32[3, 2] and gives f32[3, 2]{1,3}") !=
        std::string::npos);
}

TEST_CASE("micro-batches that are under way at once have values of their own, and sources in common") {
  const char* text =
      "source %0 parameter \"w\" : f32[2]\n"
      "source %1 input \"x\" : f32[2]\n"
      "forward:\n"
      "%2 : f32[2] = aten::mul.Tensor(self=%0, other=%1)\n"
      "forward 1:\n"
      "%3 : f32[2] = aten::exp(self=%2)\n"
      "backward 1:\n"
      "%4 : f32[2] = aten::mul.Tensor(self=%3, other=%2)\n"
      "free %2 %3\n"
      "backward:\n"
      "%5 : f32[2] = aten::mul.Tensor(self=%4, other=%1)\n"
      "free %4\n"
      "return gradient \"w\" %5\n";
  Executor executor(program::from_text(text));
  CHECK(program::to_text(executor.program()) == text);
  const at::Tensor w = at::tensor({0.5F, 2.0F});
  const std::array<at::Tensor, 2> x = {at::tensor({1.0F, 0.25F}), at::tensor({3.0F, -1.0F})};
  executor.bind(Role::Input, "x", x[0], 0);
  executor.bind(Role::Input, "x", x[1], 1);
  executor.bind(Role::Parameter, "w", w);  // of both
  for (const auto& [segment, microbatch] :
       {std::pair<std::size_t, std::size_t>{0, 0}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {3, 0}, {2, 1}, {3, 1}})
    executor.run(segment, microbatch);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(executor.result(Role::Gradient, "w", i).equal((w * x[i]).exp() * (w * x[i]) * x[i]));
    CHECK(!executor.at({2}, i).defined());
  }
  executor.bind(Role::Parameter, "w", w + 1);
  for (const std::size_t segment : {0, 1, 2, 3}) executor.run(segment, 1);
  CHECK(executor.result(Role::Gradient, "w", 1).equal(((w + 1) * x[1]).exp() * ((w + 1) * x[1]) * x[1]));
}

TEST_CASE("what goes to the host's memory and comes back is the same, in memory of its own") {
  Executor executor(
      program::from_text("source %0 input \"x\" : f32[2, 3]{1,2}\n"
                         "forward:\n"
                         "%1 : f32[2, 3]{1,2} = shoal::to_host(self=%0)\n"
                         "%2 : f32[2, 3]{1,2} = shoal::to_device(self=%1, device=cpu)\n"
                         "return output \"host\" %1, output \"back\" %2"));
  const at::Tensor x = at::arange(6, at::kFloat).view({3, 2}).t();
  executor.bind(Role::Input, "x", x);
  executor.run_gradients();
  const at::Tensor host = executor.result(Role::Output, "host"), back = executor.result(Role::Output, "back");
  CHECK(host.equal(x));
  CHECK(back.equal(x));
  CHECK(back.strides() == x.strides());
  CHECK(host.data_ptr() != x.data_ptr());
  CHECK(back.data_ptr() != host.data_ptr());
}

TEST_CASE("the first instruction whose output is not finite is found") {
  const char* text =
      "source %0 input \"x\" : f32[2]\n"
      "forward:\n"
      "%1 : f32[2] = aten::exp(self=%0) \"a\"\n"
      "%2 : f32[2] = aten::log(self=%1) \"b\"\n"
      "%3 : f32[2] = aten::sub.Tensor(self=%2, other=%2, alpha=1) \"c\"\n"
      "update:\n"
      "return output \"y\" %3\n";
  Executor executor(program::from_text(text));
  executor.bind(Role::Input, "x", at::tensor({1.0F, 2.0F}));
  CHECK(executor.first_not_finite() == nullptr);
  executor.bind(Role::Input, "x", at::tensor({1.0F, 200.0F}));
  REQUIRE(executor.first_not_finite() != nullptr);
  CHECK(executor.first_not_finite()->module == "a");
  executor.bind(Role::Input, "x", at::tensor({1.0F, std::nanf("")}));
  CHECK(executor.first_not_finite()->module == "a");
}

TEST_CASE("a trace has a span for every instruction, with the bytes it made") {
  Executor executor(
      program::from_text("source %0 input \"x\" : f32[2]\nforward:\n%1 : f32[2] = "
                         "aten::exp(self=%0)\nupdate:\nreturn output \"y\" %1"));
  executor.bind(Role::Input, "x", at::ones({2}));
  observe::Trace trace;
  executor.run_gradients(&trace);
  REQUIRE(trace.events.size() == 1);
  CHECK(trace.events[0].name == "aten::exp");
  CHECK(trace.events[0].bytes == 8);
}

TEST_CASE("each op of Shoal's own has a kernel") {
  const auto ranks = comm::inproc(1);
  const Groups groups(sharding::mesh_from_text("tensor=1"), *ranks[0]);
  const program::Program program;
  FileMemory files(std::filesystem::current_path());
  for (const ir::OwnOp& own : ir::own_ops()) {
    const program::Compute compute{.op =
                                       std::string(own.name)};  // without arguments: no kernel is made of it
    const bool is_message = own.kind == ir::OwnOp::Kind::Message;
    std::string error;
    try {
      if (is_message)
        make_collective(program, compute, &groups);
      else if (compute.op == "shoal::to_file")
        make_to_file(compute, files);
      else if (is_of_rows(compute.op))
        make_of_rows(program, compute, nullptr);
      else
        make_kernel(program, compute);
    } catch (const std::exception& wrong) {  // an argument is missing
      error = wrong.what();
    }
    CAPTURE(compute.op);
    CAPTURE(error);
    const bool is_missing = error.find("is not loaded") != std::string::npos ||
                            error.find("is not a collective") != std::string::npos;
    CHECK(is_missing == (own.kind == ir::OwnOp::Kind::Plan));
  }
}

}  // namespace executor_test
