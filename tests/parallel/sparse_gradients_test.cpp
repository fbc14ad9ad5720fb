// SPDX-License-Identifier: Apache-2.0
// Gradients of embeddings whose rows ranks exchange (rewrite/sparse_gradients.h): the steps of one device, in fewer
// bytes, counted at the communicator.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"
#include "tests/parallel/counted.h"

namespace sparse_gradients_test {

using namespace shoal;
using at::Tensor;

namespace {

constexpr std::int64_t kWords = 16384, kWidth = 64, kSamples = 8, kLength = 6;
constexpr std::int64_t kTable = kWords * kWidth * 8;  // bytes

// How often rows of the table are looked up, and whether it makes the logits too.
struct Kind {
  std::string name;
  int lookups;
  bool is_tied;
};
const std::vector<Kind> kKinds = {{"looked up", 1, false},
                                  {"looked up twice", 2, false},
                                  {"tied", 1, true},
                                  {"tied, looked up twice", 2, true}};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Kind& of)
      : kind(of),
        table(register_parameter("table", at::randn({kWords, kWidth}, at::kDouble) / 8)),
        between(register_module("between", torch::nn::Linear(kWidth, kWidth))) {
    between->to(at::kDouble);
  }
  Kind kind;
  Tensor table;
  torch::nn::Linear between;
};
TORCH_MODULE(Net);
Tensor loss_of(Net& net, const Batch& batch) {
  const Tensor first = at::embedding(net->table, batch["first"].tensor(), 0);  // 0 is padding
  Tensor value = at::tanh(net->between(first));
  if (net->kind.lookups == 2) value = value + at::embedding(net->table, batch["second"].tensor(), 0);
  if (!net->kind.is_tied) return (value * value).mean();
  const Tensor logits = at::matmul(value, net->table.t());
  return at::cross_entropy_loss(logits.view({-1, kWords}), batch["second"].tensor().view({-1}));
}

constexpr int kSteps = 2;
std::vector<Batch> batches() {
  at::manual_seed(7);
  std::vector<Batch> all;
  for (int step = 0; step < kSteps; ++step)
    all.push_back(
        {{"first", at::randint(0, 40, {kSamples, kLength}, at::kLong)},  // ranks look up the same rows
         {"second", at::randint(0, kWords, {kSamples, kLength}, at::kLong)}});
  return all;
}

struct Way {
  std::string name;
  int replicate, shard, tensor, stage;
  int microbatches = 1;
};

struct Ran {
  std::map<std::string, Tensor> parameters;
  std::int64_t bytes = 0;          // of all ranks, in the last step
  std::vector<std::string> calls;  // likewise, of the first rank
};

Ran ran(const Kind& kind, const Way& way) {
  const int ranks = way.replicate * way.shard * way.tensor;
  std::vector<Net> nets;
  for (int rank = 0; rank < ranks; ++rank) {
    at::manual_seed(3);
    nets.emplace_back(kind);
  }
  const std::vector<Batch> wholes = batches();
  Ran all;
  std::mutex mutex;  // guards it
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  comm::run_as_threads(comm::inproc(ranks), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    matrix::Sent sent;
    auto counting = matrix::counted(world.subgroup(members), sent);
    Parallelism parallelism{.mesh = mesh_of(ranks, way.replicate, way.shard, way.tensor),
                            .world = counting.get()};
    parallelism.plan.zero_stage = way.stage;
    Net& net = nets[static_cast<std::size_t>(world.rank())];
    Trainer trainer(net, loss_of, AdamW{.lr = 0.01}, {.clip_norm = 0.1, .parallelism = parallelism});
    const int of_batch = way.replicate * way.shard, own = world.rank() / way.tensor;
    for (int step = 0; step < kSteps; ++step) {
      sent = {.step = step};
      const Batch& whole = wholes[static_cast<std::size_t>(step)];
      std::vector<Batch> microbatches;
      const std::int64_t parts = of_batch * way.microbatches,
                         rest = kSamples % parts;  // the first have one more
      for (int i = 0; i < way.microbatches; ++i)
        microbatches.push_back(map_tensors(whole, [&](const std::string&, const Tensor& tensor) {
          const std::int64_t part = i * of_batch + own, samples = kSamples / parts + (part < rest ? 1 : 0);
          return tensor.narrow(0, part * (kSamples / parts) + std::min(part, rest), samples).clone();
        }));
      if (way.microbatches == 1)
        trainer.step(microbatches[0]);
      else
        trainer.step_over(microbatches);
    }
    matrix::Sent said;
    said.step = kSteps - 1;
    for (const auto* program : trainer.ran()) add_said(*program, parallelism.mesh, world.rank(), said);
    if (way.microbatches == 1) CHECK(sent == said);
    trainer.materialize();
    const std::lock_guard lock(mutex);
    all.bytes += sent.bytes;
    if (world.rank() != 0) return;
    for (const auto& item : net->named_parameters()) all.parameters[item.key()] = item.value().detach();
    for (const auto& [group, calls] : sent.calls)
      all.calls.insert(all.calls.end(), calls.begin(), calls.end());
  });
  return all;
}

const std::vector<Way> kWays = {{"data parallel", 4, 1, 1, 0},   {"of three", 3, 1, 1, 0},
                                {"ZeRO-3 of three", 1, 3, 1, 3}, {"ZeRO-1", 1, 4, 1, 1},
                                {"ZeRO-2", 1, 4, 1, 2},          {"ZeRO-3", 1, 4, 1, 3},
                                {"hybrid", 2, 2, 1, 3},          {"tensor", 2, 1, 2, 0},
                                {"tensor x ZeRO-3", 1, 2, 2, 3}, {"micro-batches", 2, 2, 1, 2, 2}};

}  // namespace

TEST_CASE("embeddings whose ranks exchange rows train as on one device") {
  for (const Kind& kind : kKinds) {
    const Ran alone = ran(kind, {"alone", 1, 1, 1, 0});
    for (const Way& way : kWays) {
      CAPTURE(kind.name);
      CAPTURE(way.name);
      const Ran found = ran(kind, way);
      for (const auto& [name, value] : alone.parameters) {
        CAPTURE(name);
        CHECK((found.parameters.at(name) - value).abs().max().item<double>() < 1e-12);
      }
    }
  }
}

TEST_CASE("what is looked up alone crosses in place of the table's gradient") {
  const Ran found = ran(kKinds[0], {"data parallel", 2, 1, 1, 0});
  CHECK(found.bytes < kTable / 8);
  // The parameters are gathered, whole gradients are not sent.
  const Ran in_parts = ran(kKinds[1], {"ZeRO-2", 1, 2, 1, 2});
  CHECK(in_parts.bytes < kTable + kTable / 8);
}

TEST_CASE("of a tied table the dense gradient crosses first, and the rows are on top of it") {
  const Ran found = ran(kKinds[2], {"data parallel", 2, 1, 1, 0});
  CHECK(found.bytes > 2 * kTable);
  CHECK(found.bytes < 2 * kTable + kTable / 8);
  const auto call = [&](const std::string& kind) {
    return std::ranges::find_if(
        found.calls, [&](const std::string& each) { return each.find(kind) != std::string::npos; });
  };
  REQUIRE(call("all_gather") != found.calls.end());
  CHECK(call("all_reduce") < call("all_gather"));
}

}  // namespace sparse_gradients_test
