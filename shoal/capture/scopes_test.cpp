// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/scopes.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/deferred.h"

namespace scopes_test {

using namespace shoal;
using at::Tensor;

namespace {

using Body = std::function<Tensor(const Tensor&)>;

capture::Captured captured(const torch::nn::Module& module, const Body& body) {
  capture::Request request;
  for (const auto& item : module.named_parameters()) request.parameters.push_back({item.key(), item.value()});
  request.inputs = {{"x", torch::ones({2, 4})}};
  request.loss = [&](std::span<const Tensor> inputs) { return body(inputs[0]).sum(); };
  return capture::capture(request);
}

// "addmm 0, relu 1": forward's operators and their stages.
std::string stages_of(const ir::Graph& graph) {
  std::string text;
  for (const ir::Node& node : graph.nodes)
    if (node.phase == ir::Phase::Forward && node.op != "aten::t")
      text += (text.empty() ? "" : ", ") + node.op.substr(6) + ' ' + std::to_string(node.stage);
  return text;
}

struct Two : torch::nn::Module {
  Two() : Two([](int) { return 0; }) {}
  // `around` gives what lives while each of the two is made.
  template <class Around>
  explicit Two(const Around& around) {
    {
      [[maybe_unused]] const auto scope = around(0);
      first = register_module("first", torch::nn::Linear(4, 4));
    }
    [[maybe_unused]] const auto scope = around(1);
    second = register_module("second", torch::nn::Linear(4, 4));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

constexpr const char* kTwoStages = "addmm 0, relu 0, addmm 1, sum 1";

}  // namespace

TEST_CASE("what is called inside is a stage") {
  Two two;
  const auto [graph, constants, guards, scopes] = captured(two, [&](const Tensor& x) {
    Tensor hidden;
    {
      const auto stage = replicate(2);
      hidden = two.first(x).relu();
    }
    const auto stage = replicate();
    return two.second(hidden);
  });
  CHECK(stages_of(graph) == kTwoStages);
  REQUIRE(scopes.stages.size() == 2);
  CHECK(scopes.stages[0].devices == 2);
  CHECK(scopes.stages[1].devices == 0);
  CHECK_MESSAGE(contains(scopes.stages[1].where, "scopes_test.cpp"), scopes.stages[1].where);
  CHECK(scopes.splits.empty());
}

TEST_CASE("so is what is made inside, on any thread, and after a change of type") {
  const auto check = [](Two& two, bool is_called_again) {
    const auto made = captured(two, [&](const Tensor& x) {
      Tensor y = two.second(two.first(x).relu());
      return is_called_again ? two.first(y) : y;
    });
    CHECK(made.scopes.stages.size() == 2);
    CHECK(stages_of(made.graph) ==
          (is_called_again ? "addmm 0, relu 0, addmm 1, addmm 1, sum 1" : kTwoStages));
  };
  Two two([](int) { return replicate(1); });
  check(two, false);
  check(two, true);  // a later call is of the stage that it is in
  std::thread([&] { check(two, false); }).join();
  const auto called = captured(two, [&](const Tensor& x) {
    const auto stage = replicate();  // says more than what is around the making
    return two.second(two.first(x));
  });
  CHECK(called.scopes.stages.size() == 1);
  two.to(torch::kDouble);
  const auto of_doubles =
      captured(two, [&](const Tensor& x) { return two.second(two.first(x.to(torch::kDouble))); });
  CHECK(of_doubles.scopes.stages.size() == 2);
  const auto deferred = deferred_init([] { return std::make_shared<Two>([](int) { return replicate(1); }); });
  check(*deferred, false);
}

TEST_CASE("what is written or handed back inside was not made there") {
  Two two;
  {
    const auto stage = replicate();
    const torch::NoGradGuard no_grad;
    two.second->weight.fill_(1);
    at::mul_out(two.second->bias, two.second->bias.clone(), at::ones({4}));
    CHECK(two.first->weight.contiguous().is_same(two.first->weight));
    CHECK(two.first->bias.to(at::kFloat).is_same(two.first->bias));
  }
  CHECK(captured(two, [&](const Tensor& x) { return two.second(two.first(x)); }).scopes == ir::Scopes{});
}

TEST_CASE("stages stand in the order in which forward comes to them") {
  Two two([](int) { return replicate(1); });
  const auto made = captured(two, [&](const Tensor& x) { return two.first(two.second(x)); });
  CHECK(stages_of(made.graph) == "addmm 0, addmm 1, sum 1");
}

TEST_CASE("a program without scopes, or outside of them, has none") {
  Two two;
  {
    const auto ended = replicate();
  }
  const auto made = captured(two, [&](const Tensor& x) { return two.second(two.first(x)); });
  CHECK(made.scopes == ir::Scopes{});
  CHECK(stages_of(made.graph) == "addmm 0, addmm 0, sum 0");
}

TEST_CASE("what a split scope is around, called or made") {
  const auto parameters = [](const capture::Captured& made) {
    REQUIRE(made.scopes.splits.size() == 1);
    CHECK(made.scopes.splits[0].devices == 4);
    return made.scopes.splits[0].parameters;
  };
  const std::vector<std::string> of_second = {"second.weight", "second.bias"};
  Two called;
  CHECK(parameters(captured(called, [&](const Tensor& x) {
          const auto stage = replicate();
          const Tensor hidden = called.first(x);
          const auto split = shoal::split(4);
          return called.second(hidden);
        })) == of_second);
  struct Split : torch::nn::Module {
    Split() {
      first = register_module("first", torch::nn::Linear(4, 4));
      const auto split = shoal::split(4);
      second = register_module("second", torch::nn::Linear(4, 4));
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
  } split;
  CHECK(parameters(captured(split, [&](const Tensor& x) { return split.second(split.first(x)); })) ==
        of_second);
}

TEST_CASE("scopes that make no sense are refused") {
  CHECK(contains(error_of([] { const auto stage = replicate(-1); }),
                 "replicate(-1): a scope has a number of devices"));
  const auto outer = replicate(2);
  CHECK(contains(
      error_of([] { const auto inner = replicate(1); }),
      "replicate(1) inside replicate(2): a stage has no stages in it. Remedy: end the outer scope first"));
  const auto split = shoal::split(2);
  CHECK(contains(error_of([] { const auto inner = shoal::split(4); }),
                 "split(4) inside split(2): what is split is split once"));
  CHECK(contains(error_of([] { const auto inner = replicate(1); }), "replicate(1) inside replicate(2)"));
}

}  // namespace scopes_test
