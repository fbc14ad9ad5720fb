// SPDX-License-Identifier: Apache-2.0
// Gradients that ranks reduce in fewer bytes (Precision::reduce): what each rank has is rounded, and what comes of
// a message once more; half of the bytes cross, counted at the communicator.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/train/trainer.h"
#include "tests/parallel/counted.h"

namespace reduce_test {

using namespace shoal;
using at::Tensor;

namespace {

// Parameters whose gradients are the mean of what the samples say. The matrix' dims do not divide among 4 ranks.
struct WeightsImpl : torch::nn::Module {
  WeightsImpl()
      : matrix(register_parameter("matrix", at::zeros({9, 70}))),
        row(register_parameter("row", at::zeros({8}))) {}
  Tensor matrix, row;
};
TORCH_MODULE(Weights);
Tensor loss_of(Weights& model, const Batch& batch) {
  const Tensor of_matrix = (model->matrix * batch["matrix"].tensor()).flatten(1).sum(1);
  return (of_matrix + (model->row * batch["row"].tensor()).sum(1)).mean();
}

Batch batch_of(double factor = 1) {
  at::manual_seed(4);
  return Batch{{"matrix", at::randn({4, 9, 70}) * factor}, {"row", at::randn({4, 8}) * factor}};
}

struct Ran {
  std::map<std::string, Tensor> gradients;  // as the update had them
  StepResult result;
  std::int64_t bytes = 0;  // of all ranks
  std::vector<std::string> calls;
};

struct Way {
  std::string name;
  int replicate, shard, stage;
  int microbatches = 1;
};

// Of four ranks, each with one sample, or with one of each micro-batch.
Ran ran(const Way& way, const std::string& precision, double factor = 1) {
  std::vector<Weights> models;
  for (int rank = 0; rank < 4; ++rank) models.emplace_back();
  const Batch batch = batch_of(factor);
  Ran all;
  int num_skipped = 0;
  std::mutex mutex;  // guards both
  comm::run_as_threads(comm::inproc(4), [&](comm::Communicator& world) {
    at::set_num_threads(1);
    matrix::Sent sent;
    auto counting = matrix::counted(world.subgroup(std::vector{0, 1, 2, 3}), sent);
    Parallelism parallelism{.mesh = mesh_of(4, way.replicate, way.shard, 1), .world = counting.get()};
    parallelism.plan.zero_stage = way.stage;
    parallelism.plan.precision = compile::precision_from_text(precision);
    auto& model = models[static_cast<std::size_t>(world.rank())];
    Trainer trainer(model, loss_of, SGD{.lr = 1}, {.clip_norm = 1e9, .parallelism = parallelism});
    sent.step = 1;
    const Batch own = map_tensors(batch, [&](const std::string&, const Tensor& tensor) {
      return tensor.narrow(0, world.rank(), 1).clone();
    });
    const StepResult result =
        way.microbatches == 1
            ? trainer.step(own)
            : trainer.step_over(std::vector<Batch>(static_cast<std::size_t>(way.microbatches), own));
    matrix::Sent said;
    said.step = 1;
    for (const auto* program : trainer.ran()) add_said(*program, parallelism.mesh, world.rank(), said);
    trainer.materialize();
    const std::lock_guard lock(mutex);
    if (way.microbatches == 1 && !result.skipped) CHECK(sent == said);
    all.bytes += sent.bytes;
    num_skipped += result.skipped;
    if (world.rank() != 0) return;
    all.result = result;
    for (const auto& item : model->named_parameters()) all.gradients[item.key()] = -item.value().detach();
    for (const auto& [group, calls] : sent.calls)
      all.calls.insert(all.calls.end(), calls.begin(), calls.end());
  });
  CHECK(num_skipped == (all.result.skipped ? 4 : 0));
  return all;
}

const std::vector<Way> kWays = {{"data parallel", 4, 1, 0}, {"ZeRO-1", 1, 4, 1}, {"ZeRO-2", 1, 4, 2},
                                {"ZeRO-3", 1, 4, 3},        {"hybrid", 2, 2, 3}, {"hybrid, ZeRO-1", 2, 2, 1}};

Tensor rounded(const Tensor& tensor, at::ScalarType type, double scale) {
  return (tensor * scale).to(type).to(at::kFloat) / scale;
}
// What ranks add, in their order.
Tensor added(const Tensor& ranks) {
  Tensor total = ranks[0].clone();
  for (std::int64_t rank = 1; rank < ranks.size(0); ++rank) total += ranks[rank];
  return total;
}

}  // namespace

TEST_CASE("gradients that are reduced in bfloat16 or float16 are rounded on each rank, and where they come") {
  for (const auto& [precision, type, scale] :
       {std::tuple("float32 reduce=bfloat16", at::kBFloat16, 1.0),
        std::tuple("bfloat16 reduce=bfloat16", at::kBFloat16, 1.0),
        std::tuple("float16 reduce=float16 scale=256", at::kHalf, 256.0),
        std::tuple("float16 scale=256 reduce=bfloat16", at::kBFloat16, 1.0)})
    for (const Way& way : kWays) {
      CAPTURE(precision);
      CAPTURE(way.name);
      const Batch batch = batch_of();
      const Ran found = ran(way, precision);
      for (const char* name : {"matrix", "row"}) {
        const Tensor own = rounded(batch[name].tensor() / 4, type, scale);
        // A hybrid's take two ways: among ranks that share parts and then among copies; but the other way where
        // ZeRO-1 hands a batch's gradient out as summands of the parts.
        const auto come = [&](bool by_parts_first) {
          if (way.replicate != 2) return rounded(added(own), type, scale);
          const Tensor by_rank = own.view({2, 2, -1});
          const std::int64_t first = by_parts_first ? 1 : 0;
          const Tensor pairs = rounded(by_rank.select(first, 0) + by_rank.select(first, 1), type, scale);
          return rounded(added(pairs).view(own[0].sizes()), type, scale);
        };
        CHECK(at::equal(found.gradients.at(name), come(way.stage != 1)));
        // Twice the same is the same: each micro-batch's are reduced, or their sum.
        Way twice = way;
        twice.microbatches = 2;
        CHECK(at::equal(ran(twice, precision).gradients.at(name), come(true)));
      }
    }
}

TEST_CASE("a sum that overflows in float16 skips the update on all ranks") {
  for (const Way& way : kWays)
    for (const int microbatches : {1, 2}) {
      CAPTURE(way.name);
      Way in = way;
      in.microbatches = microbatches;
      // Below 65504 on each rank, and above it together.
      const Ran found = ran(in, "float16 scale=256 reduce=float16", 250);
      CHECK(found.result.skipped);
      CHECK_FALSE(std::isfinite(found.result.grad_norm));
      CHECK(at::equal(found.gradients.at("row"), at::zeros({8})));
      CHECK_FALSE(ran(in, "float16 scale=256 reduce=bfloat16", 250).result.skipped);
    }
}

TEST_CASE("gradients that are reduced in bfloat16 take half of the bytes, and nothing else changes its own") {
  for (const Way& way : kWays) {
    CAPTURE(way.name);
    const Ran exact = ran(way, "float32"), half = ran(way, "float32 reduce=bfloat16");
    // A rank sends 2 (n - 1) / n of a tensor to have the sum, and half of that for its part of it.
    const std::int64_t elements = 9 * 70 + 8, ranks = 4;
    const std::int64_t crossed = way.replicate == 4 ? 2 * (ranks - 1) * elements : (ranks - 1) * elements;
    if (way.replicate != 2) CHECK(exact.bytes - half.bytes == 2 * crossed);
    CHECK(half.bytes < exact.bytes);
    for (const auto& call : half.calls)
      if (call.starts_with("all_reduce f32") || call.starts_with("reduce_scatter f32"))
        CHECK(call.ends_with(": 1 -> 1"));
  }
}

TEST_CASE("what gradients are reduced in is a word of a plan, and what cannot be is refused") {
  compile::Plan plan;
  plan.precision = compile::precision_from_text("bfloat16 master=kahan reduce=bfloat16");
  CHECK(plan.precision.reduce == DType::BFloat16);
  CHECK(to_text(plan) == "precision bfloat16 master=kahan reduce=bfloat16\n");
  plan.precision = compile::precision_from_text("float32 reduce=bfloat16");
  CHECK(to_text(plan) == "precision float32 reduce=bfloat16\n");
  for (const char* words : {"bfloat16 reduce=float16", "float32 reduce=float16"})
    CHECK(error_of([&] {
            compile::precision_from_text(words);
          }).find("reduce=float16 is for gradients of a loss that is scaled") != std::string::npos);
  CHECK(error_of([] {
          compile::precision_from_text("float32 reduce=int8");
        }).find("'int8' is none of bfloat16, float16 and float32") != std::string::npos);
}

}  // namespace reduce_test
