// SPDX-License-Identifier: Apache-2.0
// LibTorch's own transformers train through a trainer as they do eagerly: their attention asks whether query, key and
// value are equal.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"

namespace transformer_test {

using namespace shoal;
using at::Tensor;
namespace nn = torch::nn;

// Three updates of both; `forward` is of (module, source, target).
template <class Module, class Forward>
static void check(Module model, const Forward& forward, std::int64_t length = 4) {
  model->to(at::kDouble);
  auto plain = std::dynamic_pointer_cast<typename Module::ContainedType>(model->clone());
  torch::optim::SGD optimizer(plain->parameters(), 0.1);
  Trainer trainer(
      model,
      [&](Module& net, const Batch& batch) {
        return forward(*net, batch["source"], batch["target"]).square().mean();
      },
      SGD{.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(step);
    const Tensor source = at::randn({5, 2, 16}, at::kDouble),
                 target = at::randn({length, 2, 16}, at::kDouble);
    optimizer.zero_grad();
    const Tensor loss = forward(*plain, source, target).square().mean();
    loss.backward();
    optimizer.step();
    CHECK(trainer.step(Batch{{"source", source}, {"target", target}}).loss ==
          doctest::Approx(loss.item<double>()).epsilon(1e-12));
  }
  const auto wanted = plain->named_parameters();
  for (const auto& parameter : model->named_parameters()) {
    CAPTURE(parameter.key());
    REQUIRE(at::allclose(parameter.value(), wanted[parameter.key()], 1e-10, 1e-12));
  }
}

TEST_CASE("nn::TransformerEncoder of two layers trains as eager LibTorch does") {
  torch::manual_seed(1);
  nn::TransformerEncoder encoder(nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0), 2));
  check(encoder, [](nn::TransformerEncoderImpl& net, const Tensor& source, const Tensor&) {
    return net.forward(source);
  });
}

TEST_CASE("nn::Transformer trains as eager LibTorch does, also with a mask") {
  torch::manual_seed(1);
  const nn::TransformerOptions options = nn::TransformerOptions(16, 4, 2, 2).dim_feedforward(32).dropout(0);
  check(nn::Transformer(options), [](nn::TransformerImpl& net, const Tensor& source, const Tensor& target) {
    return net.forward(source, target);
  });
  const auto same_length = [](nn::TransformerImpl& net, const Tensor& source, const Tensor& target) {
    return net.forward(source, target);
  };
  check(nn::Transformer(options), same_length, 5);
  check(nn::Transformer(options), [](nn::TransformerImpl& net, const Tensor& source, const Tensor& target) {
    const Tensor mask = nn::TransformerImpl::generate_square_subsequent_mask(target.size(0)).to(at::kDouble);
    return net.forward(source, target, {}, mask);
  });
}

namespace {

struct Twins : nn::Module {
  Tensor one = register_parameter("one", at::full({2}, 3.0, at::kDouble));
  Tensor other = register_parameter("other", at::full({2}, 4.0, at::kDouble));
  Tensor forward(const Tensor& x) {
    const Tensor a = one * x, b = other * x;
    return torch::equal(a, b) ? a.sum() : (a * b).sum();
  }
};

}  // namespace

TEST_CASE("two activations that have become equal end the step that finds them so") {
  const auto twins = std::make_shared<Twins>();
  Trainer trainer(
      twins, [](std::shared_ptr<Twins>& net, const Batch& batch) { return net->forward(batch["x"]); },
      SGD{.lr = 0.0});
  const Batch batch{{"x", at::ones({2}, at::kDouble)}};
  CHECK(trainer.step(batch).loss == 24);
  const at::NoGradGuard no_grad;
  twins->other.copy_(twins->one);
  CHECK(contains(
      error_of([&] { trainer.step(batch); }),
      "torch::equal() of two tensors that depend on parameters was recorded as false, and they are equal"));
  twins->other.fill_(5);
  CHECK(trainer.step(batch).loss == 30);
}

// Those of one rank may be equal, where those of all together are not.
TEST_CASE("activations of all ranks together are compared") {
  for (const bool differ : {true, false}) {
    std::vector<std::string> said(2);
    comm::run_as_threads(comm::inproc(2), [&](comm::Communicator& rank) {
      const auto twins = std::make_shared<Twins>();
      {
        const at::NoGradGuard no_grad;
        twins->one.copy_(at::tensor({3.0, 3.0}, at::kDouble));
        twins->other.copy_(twins->one);
      }
      Trainer trainer(twins,
                      [](std::shared_ptr<Twins>& net, const Batch& batch) {
                        const Tensor a = net->one * batch["x"].tensor(), b = net->other * batch["y"].tensor();
                        return (torch::equal(a, b) ? a : a * b).mean();
                      },
                      SGD{.lr = 0.1},
                      {.parallelism = Parallelism{.mesh = mesh_of(2, -1, 1, 1), .world = &rank}});
      const Tensor x = at::ones({1, 2}, at::kDouble);
      const Batch part{{"x", x}, {"y", rank.rank() == 1 && differ ? 2 * x : x}};
      said[static_cast<std::size_t>(rank.rank())] = error_of([&] { trainer.step(part); });
    });
    for (const std::string& each : said) CHECK_MESSAGE(each.empty() == differ, each);
  }
}

}  // namespace transformer_test
