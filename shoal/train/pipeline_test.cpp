// SPDX-License-Identifier: Apache-2.0
// What stages of small nets do on ranks that are threads. Above 400 lines: all cases have the same nets and ranks.
#include "shoal/train/pipeline.h"

#include <doctest/doctest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/capture/scopes.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/skipping_test.h"
#include "shoal/train/trainer.h"

namespace pipeline_test {

using namespace shoal;
namespace nn = torch::nn;

static nn::Sequential mlp() {
  torch::manual_seed(5);
  nn::Sequential net(nn::Linear(6, 8), nn::Tanh(), nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 3));
  net->to(at::kDouble);
  return net;
}
static at::Tensor loss_of(nn::Sequential& net, const Batch& batch) {
  return nn::functional::mse_loss(net->forward(batch[0].tensor()), batch[1].tensor());
}
static Batch batch_of(int samples) {
  const at::Tensor x = at::linspace(-2, 2, samples * 6, at::kDouble).view({samples, 6});
  return Batch{x.sin(), x.narrow(1, 0, 3).cos()};
}

// On each of so many ranks, with a stage each, or a part of one.
template <class Net>
static void on_stages(int stages, const std::function<Net()>& make, int shards,
                      const std::function<void(Net, TrainerOptions&)>& body) {
  std::vector<Net> nets;
  for (int rank = 0; rank < stages * shards; ++rank) nets.push_back(make());
  comm::run_as_threads(comm::inproc(stages * shards), [&](comm::Communicator& world) {
    Parallelism parallelism;
    parallelism.mesh = mesh_of(stages * shards, 1, shards, 1, stages);
    parallelism.world = &world;
    TrainerOptions options;
    options.parallelism = parallelism;
    body(nets[static_cast<std::size_t>(world.rank())], options);
  });
}
static void on_stages(int stages, const std::function<void(nn::Sequential, const TrainerOptions&)>& body) {
  on_stages<nn::Sequential>(stages, mlp, 1, body);
}

TEST_CASE("backward and evaluate of stages give what one device gives") {
  nn::Sequential alone = mlp();
  Trainer one(alone, loss_of);
  const double wanted = one.backward(batch_of(6)), evaluated = one.evaluate(batch_of(4));
  on_stages(3, [&](nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss_of, options);
    CHECK(trainer.evaluate(batch_of(4)) == doctest::Approx(evaluated).epsilon(1e-12));
    CHECK(trainer.backward(batch_of(6)) == doctest::Approx(wanted).epsilon(1e-12));
    const auto ours = net->parameters(), theirs = alone->parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CHECK(at::allclose(ours[i], theirs[i]));
      CHECK(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-12));
    }
  });
}

TEST_CASE("two stages a rank give what one device gives, with one micro-batch and with several") {
  nn::Sequential alone = mlp();
  Trainer one(alone, loss_of);
  const double wanted = one.backward(batch_of(6)), evaluated = one.evaluate(batch_of(4));
  nn::Sequential stepping = mlp();
  Trainer steps(stepping, loss_of, SGD{.lr = 0.1});
  const auto parts = train::microbatches_of(batch_of(8), 4, {});
  const double first = steps.step_over(parts).loss, second = steps.step_over(parts).loss;
  for (const char* schedule : {"looped_bfs", "interleaved_1f1b", "zbv", "dualpipev"}) {
    CAPTURE(schedule);
    on_stages<nn::Sequential>(2, mlp, 1, [&](nn::Sequential net, TrainerOptions& options) {
      options.parallelism->plan.schedule = schedule;
      options.parallelism->plan.stages = {"0+1", "2", "4"};
      {
        Trainer trainer(net, loss_of, options);
        CHECK(trainer.evaluate(batch_of(4)) == doctest::Approx(evaluated).epsilon(1e-12));
        CHECK(trainer.backward(batch_of(6)) == doctest::Approx(wanted).epsilon(1e-12));
        for (std::size_t i = 0; i < alone->parameters().size(); ++i)
          CHECK(at::allclose(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12));
      }
      Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
      // Cut into a micro-batch a stage.
      CHECK(trainer.step(batch_of(8)).loss == doctest::Approx(first).epsilon(1e-12));
      CHECK(trainer.step(batch_of(8)).loss == doctest::Approx(second).epsilon(1e-12));
      trainer.materialize();
      for (std::size_t i = 0; i < stepping->parameters().size(); ++i)
        CHECK(at::allclose(net->parameters()[i], stepping->parameters()[i], 1e-12));
    });
  }
}

TEST_CASE("stages begin where the program's scopes do, called or made inside") {
  nn::Sequential alone = mlp();
  Trainer one(alone, loss_of, SGD{.lr = 0.1});
  const double first = one.step(batch_of(8)).loss, second = one.step(batch_of(8)).loss;
  const auto called = [](nn::Sequential& net, const Batch& batch) {
    at::Tensor x = batch[0].tensor();
    {
      const auto stage = replicate(1);
      x = net[1]->as<nn::Tanh>()->forward(net[0]->as<nn::Linear>()->forward(x));
      x = net[2]->as<nn::Linear>()->forward(x);
    }
    const auto stage = replicate(1);
    x = net[4]->as<nn::Linear>()->forward(net[3]->as<nn::Tanh>()->forward(x));
    return nn::functional::mse_loss(x, batch[1].tensor());
  };
  const auto made = [] {
    nn::Sequential net;
    {
      const auto stage = replicate(1);
      net->push_back(nn::Linear(6, 8));
      net->push_back(nn::Tanh());
      net->push_back(nn::Linear(8, 8));
    }
    const auto stage = replicate(1);
    net->push_back(nn::Tanh());
    net->push_back(nn::Linear(8, 3));
    net->to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
      net->parameters()[i].copy_(mlp()->parameters()[i]);
    return net;
  };
  const auto check = [&](const auto& loss, nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss, SGD{.lr = 0.1}, options);
    CHECK(trainer.evaluate(batch_of(8)) == doctest::Approx(first).epsilon(1e-12));
    CHECK(trainer.step(batch_of(8)).loss == doctest::Approx(first).epsilon(1e-12));
    CHECK(trainer.step(batch_of(8)).loss == doctest::Approx(second).epsilon(1e-12));
    trainer.materialize();
    for (std::size_t i = 0; i < alone->parameters().size(); ++i)
      CHECK(at::allclose(net->parameters()[i], alone->parameters()[i], 1e-12));
  };
  on_stages(2, [&](nn::Sequential net, const TrainerOptions& options) { check(called, net, options); });
  on_stages<nn::Sequential>(
      2, made, 1, [&](nn::Sequential net, TrainerOptions& options) { check(loss_of, net, options); });
  const auto check_begin = [&](const auto& loss, nn::Sequential net, TrainerOptions& options,
                               const char* begin) {
    options.parallelism->plan.stages = {"2"};
    Trainer trainer(net, loss, SGD{.lr = 0.1}, options);
    const std::string text = error_of([&] { trainer.step(batch_of(8)); });
    CHECK_MESSAGE(
        text == concat("plan: a stage is to begin at '2', and the program's own scopes begin it at '", begin,
                       "'. Remedy: leave one of them out"),
        text);
  };
  on_stages<nn::Sequential>(2, mlp, 1, [&](nn::Sequential net, TrainerOptions& options) {
    check_begin(called, net, options, "+1");  // a tanh has no parameter to be called by
  });
  on_stages<nn::Sequential>(2, made, 1, [&](nn::Sequential net, TrainerOptions& options) {
    check_begin(loss_of, net, options, "4");
  });
  Trainer unmoved(alone, called, SGD{.lr = 0.1});  // one device: they say nothing
  CHECK(unmoved.step(batch_of(8)).loss < second);
}

TEST_CASE("a sum of gradients to which the last micro-batch adds nothing is divided as the others are") {
  const auto five_layers = [] {
    torch::manual_seed(5);
    nn::Sequential net(nn::Linear(6, 6), nn::Linear(6, 6), nn::Linear(6, 6), nn::Linear(6, 6),
                       nn::Linear(6, 3));
    net->to(at::kDouble);
    return net;
  };
  const auto loss = [](nn::Sequential& net, const Batch& batch) {
    at::Tensor y = batch[0].tensor();
    for (std::size_t i = 0; i < net->size(); ++i)
      if (i != 1 || y.size(0) > 2) y = net[i]->as<nn::Linear>()->forward(y).tanh();
    return nn::functional::mse_loss(y, batch[1].tensor());
  };
  const std::vector<Batch> parts = {batch_of(4), batch_of(2), batch_of(2)};
  nn::Sequential alone = five_layers();
  Trainer one(alone, loss, SGD{.lr = 0.1});
  for (int step = 0; step < 2; ++step) one.step_over(parts);
  const std::vector<std::string> begins = {"2", "3", "4"};
  for (const std::string schedule : {"1f1b", "looped_bfs", "zb_h1", "zbv"}) {
    CAPTURE(schedule);
    on_stages<nn::Sequential>(2, five_layers, 1, [&](nn::Sequential net, TrainerOptions& options) {
      options.parallelism->plan.schedule = schedule;
      options.parallelism->plan.stages =
          schedule == "1f1b" || schedule == "zb_h1" ? std::vector<std::string>{"3"} : begins;
      Trainer trainer(net, loss, SGD{.lr = 0.1}, options);
      for (int step = 0; step < 2; ++step) trainer.step_over(parts);
      trainer.materialize();
      for (std::size_t i = 0; i < alone->parameters().size(); ++i)
        CHECK(at::allclose(net->parameters()[i], alone->parameters()[i], 1e-12));
    });
  }
}

TEST_CASE("a rank has the parameters of its stage, and the model has all of them at the end") {
  on_stages(2, [&](nn::Sequential net, const TrainerOptions& options) {
    const auto before = net->parameters()[0].clone();
    {
      Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
      trainer.step(batch_of(4));
      CHECK_THROWS_AS(net->parameters()[0].sum(), c10::Error);  // in parts, as those of ZeRO-3
    }
    CHECK_FALSE(at::equal(net->parameters()[0], before));
  });
}

TEST_CASE("what a pipeline cannot do is told") {
  compile::Plan plan;
  CHECK(train::most_microbatches(batch_of(3), 4, plan) == 3);
  CHECK(train::microbatches_of(batch_of(5), 2, plan)[0][0].tensor().size(0) == 3);
  CHECK_THROWS_AS(train::microbatches_of(batch_of(3), 4, plan), Error);
  on_stages(2, [&](nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
    CHECK_THROWS_AS(trainer.step_with({.loss = 1}), Error);
  });
}

TEST_CASE("a loss that is not finite is told when all micro-batches have run, and nothing has changed") {
  on_stages(2, [&](nn::Sequential net, const TrainerOptions& options) {
    Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
    trainer.step(batch_of(4));
    const auto before = trainer.state().model;
    Batch bad = batch_of(4);
    bad[0].tensor()[0][0] = std::numeric_limits<double>::quiet_NaN();
    CHECK_THROWS_AS(trainer.step(bad), Error);
    for (const auto& [name, tensor] : trainer.state().model) CHECK(at::equal(tensor, before.at(name)));
    CHECK(trainer.step(batch_of(4)).step == 2);
  });
}

// What each rank of two ends with when one of them leaves out the send of this number.
static std::vector<std::string> errors_without(const char* schedule, int rank, int send) {
  std::vector<std::string> errors(2);
  std::vector<nn::Sequential> nets = {mlp(), mlp()};
  auto ranks = comm::inproc(2);
  auto& skips = ranks[static_cast<std::size_t>(rank)];
  skips = std::make_unique<comm::Skipping>(std::move(skips), std::make_shared<int>(send));
  comm::run_as_threads(std::move(ranks), [&](comm::Communicator& world) {
    TrainerOptions options;
    options.parallelism =
        Parallelism{.mesh = mesh_of(2, 1, 1, 1, 2), .world = &world, .limit = std::chrono::seconds(30)};
    options.parallelism->plan.schedule = schedule;
    options.parallelism->plan.stages = {"2"};
    options.parallelism->plan.microbatches = 4;
    const auto place = static_cast<std::size_t>(world.rank());
    Trainer trainer(nets[place], loss_of, SGD{.lr = 0.1}, options);
    errors[place] = error_of([&] {
      for (int step = 0; step < 2; ++step) trainer.step(batch_of(8));
    });
  });
  return errors;
}

TEST_CASE("a send that a rank leaves out is told on both ranks where its next one comes") {
  // Of each micro-batch rank 0 sends 2 samples of 8 numbers, rank 1 the loss and their gradient. After the last
  // message of a step no other comes: the limit ends that wait.
  for (const char* schedule : {"1f1b", "gpipe"})
    for (const int rank : {0, 1}) {
      const int messages = rank == 0 ? 1 : 2;
      const auto call = [&](comm::Op op, int send) {
        return describe(comm::Call{.op = op,
                                   .dtype = DType::Float64,
                                   .count = send % messages == messages - 1 ? 16 : 1,
                                   .peer = op == comm::Op::Send ? 1 - rank : rank,
                                   .tag = {static_cast<std::uint16_t>(send / messages),
                                           static_cast<std::uint16_t>(1 + send % messages)}});
      };
      for (int send = 0; send < 4 * messages - 1; ++send) {
        const std::string wanted = concat("rank ", rank, " ", call(comm::Op::Send, send + 1), ", rank ",
                                          1 - rank, " ", call(comm::Op::Receive, send));
        CAPTURE(wanted);
        const auto begin = std::chrono::steady_clock::now();
        for (const std::string& error : errors_without(schedule, rank, send)) {
          CAPTURE(error);
          CHECK(error.find(wanted) != std::string::npos);
          CHECK(error.starts_with("trainer: in step() two ranks are at different messages (comm: call "));
          CHECK(error.find("Remedy: the same program, plan and version") != std::string::npos);
        }
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(15));  // the limit is 30
      }
    }
}

TEST_CASE("gradients that ZeRO-2 cuts in another dim than the first come back from stages") {
  nn::Sequential alone = mlp();
  const double wanted = Trainer(alone, loss_of).backward(batch_of(6));
  on_stages<nn::Sequential>(2, mlp, 2, [&](nn::Sequential net, TrainerOptions& options) {
    options.parallelism->plan.zero_stage = 2;
    const Batch batch = map_tensors(batch_of(6), [&](const std::string&, const at::Tensor& tensor) {
      const auto [begin, end] =
          samples_of(options.parallelism->mesh, options.parallelism->world->rank(), tensor.size(0));
      return tensor.narrow(0, begin, end - begin);
    });
    CHECK(Trainer(net, loss_of, options).backward(batch) == doctest::Approx(wanted).epsilon(1e-12));
    for (std::size_t i = 0; i < alone->parameters().size(); ++i)
      CHECK(at::allclose(net->parameters()[i].grad(), alone->parameters()[i].grad(), 1e-12));
  });
}

TEST_CASE("a part of the batch with too few samples is told on every rank") {
  on_stages<nn::Sequential>(2, mlp, 2, [&](nn::Sequential net, TrainerOptions& options) {
    options.parallelism->plan.microbatches = 4;
    options.parallelism->limit = std::chrono::seconds(20);
    const bool has_fewer = options.parallelism->world->rank() % 2 == 1;
    Trainer trainer(net, loss_of, SGD{.lr = 0.1}, options);
    const std::string said = has_fewer ? "has 3 samples, and they are to be 4 micro-batches"
                                       : "another rank's part of the batch has samples for 3 of 4";
    CHECK(error_of([&] { trainer.step(batch_of(has_fewer ? 3 : 4)); }).find(said) != std::string::npos);
  });
}

namespace {

// Reads and writes buffers in forward as `how` says, in training and in evaluation.
struct BuffersImpl : nn::Module {
  explicit BuffersImpl(std::string kind) : how(std::move(kind)) {
    torch::manual_seed(5);
    first = register_module("first", nn::Linear(6, 8));
    second = register_module("second", nn::Linear(8, 3));
    now = register_buffer("now", at::zeros({}, at::kDouble));
    before = register_buffer("before", at::zeros({}, at::kDouble));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = first->forward(how == "reads early" ? x + now : x).tanh();
    const at::Tensor y = second->forward(hidden);
    if (how == "hands on") before.copy_(now);
    now.copy_(y.detach().mean() + (how == "hands on" ? now : at::zeros({}, at::kDouble)));
    return y;
  }
  std::string how;
  nn::Linear first = nullptr, second = nullptr;
  at::Tensor now, before;
};
TORCH_MODULE(Buffers);

}  // namespace

static at::Tensor loss_with_buffers(Buffers& net, const Batch& batch) {
  return nn::functional::mse_loss(net->forward(batch[0].tensor()), batch[1].tensor());
}

TEST_CASE("a buffer that hands on its value to another does so before it changes") {
  Buffers alone("hands on");
  Trainer one(alone, loss_with_buffers, SGD{.lr = 0.1});
  const auto parts = train::microbatches_of(batch_of(4), 2, {});
  for (int step = 0; step < 2; ++step) one.step_over(parts);
  CHECK(alone->before.item<double>() != alone->now.item<double>());
  on_stages<Buffers>(
      2, [] { return Buffers("hands on"); }, 1,
      [&](Buffers net, TrainerOptions& options) {
        Trainer trainer(net, loss_with_buffers, SGD{.lr = 0.1}, options);
        for (int step = 0; step < 2; ++step) trainer.step(batch_of(4));
        CHECK(net->before.item<double>() == doctest::Approx(alone->before.item<double>()).epsilon(1e-12));
        CHECK(net->now.item<double>() == doctest::Approx(alone->now.item<double>()).epsilon(1e-12));
      });
}

TEST_CASE("evaluation changes no buffer, on no rank") {
  on_stages<Buffers>(
      2, [] { return Buffers(""); }, 1,
      [&](Buffers net, TrainerOptions& options) {
        Trainer trainer(net, loss_with_buffers, SGD{.lr = 0.1}, options);
        trainer.evaluate(batch_of(4));
        CHECK(net->now.item<double>() == 0);
        trainer.step(batch_of(4));
        const double now = net->now.item<double>();
        CHECK(now != 0);
        trainer.evaluate(batch_of(4));
        CHECK(net->now.item<double>() == now);
      });
}

TEST_CASE("a buffer that an early stage reads and a later one writes is refused, on every rank") {
  on_stages<Buffers>(
      2, [] { return Buffers("reads early"); }, 1,
      [&](Buffers net, TrainerOptions& options) {
        options.parallelism->plan.stages = {"second"};
        Trainer trainer(net, loss_with_buffers, SGD{.lr = 0.1}, options);
        CHECK(error_of([&] { trainer.step(batch_of(4)); }).find("a later stage changes buffer now") !=
              std::string::npos);
      });
}

TEST_CASE("what all micro-batches have cannot be written to") {
  const auto loss = [](nn::Sequential& net, const Batch& batch) {
    const at::Tensor made = nn::functional::mse_loss(net->forward(batch[0].tensor()), batch[1].tensor());
    batch[2].tensor().copy_(made.detach());
    return made;
  };
  on_stages<nn::Sequential>(2, mlp, 1, [&](nn::Sequential net, TrainerOptions& options) {
    Trainer trainer(net, loss, SGD{.lr = 0.1}, options);
    const Batch batch{batch_of(4)[0].tensor(), batch_of(4)[1].tensor(), at::zeros({}, at::kDouble)};
    CHECK(error_of([&] { trainer.step(batch); }).find("which each micro-batch reads") != std::string::npos);
  });
}

namespace {

// As many nodes as the input is long.
struct LoopImpl : nn::Module {
  LoopImpl() {
    torch::manual_seed(5);
    cell = register_module("cell", nn::Linear(2, 2));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor state = at::zeros({x.size(0), 2}, at::kDouble);
    for (std::int64_t t = 0; t < x.size(1); ++t) state = cell->forward(state + x.select(1, t)).tanh();
    return state;
  }
  nn::Linear cell = nullptr;
};
TORCH_MODULE(Loop);

}  // namespace

TEST_CASE("a graph that has no place where the one before was cut is cut at its own") {
  const auto loss = [](Loop& net, const Batch& batch) {
    return net->forward(batch[0].tensor()).square().mean();
  };
  const auto of_length = [](std::int64_t length) {
    return Batch{at::linspace(-2, 2, 4 * length * 2, at::kDouble).view({4, length, 2})};
  };
  Loop alone;
  Trainer one(alone, loss, SGD{.lr = 0.1});
  std::vector<double> wanted;
  for (const int length : {12, 2, 12}) wanted.push_back(one.step(of_length(length)).loss);
  on_stages<Loop>(
      2, [] { return Loop(); }, 1,
      [&](Loop net, TrainerOptions& options) {
        Trainer trainer(net, loss, SGD{.lr = 0.1}, options);
        std::vector<double> found;
        for (const int length : {12, 2, 12}) found.push_back(trainer.step(of_length(length)).loss);
        for (std::size_t i = 0; i < 3; ++i) CHECK(found[i] == doctest::Approx(wanted[i]).epsilon(1e-12));
      });
}

}  // namespace pipeline_test
