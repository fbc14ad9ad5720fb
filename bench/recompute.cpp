// SPDX-License-Identifier: Apache-2.0
// What recompute takes of memory and of time: a GPT-2 and ResNet-18, each trained by turns with nothing made
// again, with selective and full recompute, and with what fits in half of the activations of the first.
//
//   build/dev/bench/recompute [ROUNDS]
//
// A line each: activations at once, the most a step has in memory, as it was said and as the allocator counted
// it, and the median of a step's time over that of the first in the same round: time of the processor, on one
// thread, which others on the machine do not change much.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "models/models.h"
#include "shoal/base/error.h"
#include "shoal/program/memory.h"
#include "shoal/runtime/measure.h"
#include "shoal/train/trainer.h"

using namespace shoal;

namespace {

struct Subject {
  const char* name;
  models::Config config;
  Batch batch;
};

struct Run {
  std::string how;  // as a plan's line has it
  std::unique_ptr<Trainer> trainer;
  std::vector<double> seconds = {};
};

}  // namespace

static at::Tensor loss_of(torch::nn::AnyModule& model, const Batch& batch) {
  const at::Tensor out = model.forward<at::Tensor>(batch[0].tensor());
  return at::cross_entropy_loss(out.dim() == 3 ? out.flatten(0, 1) : out, batch[1].tensor().flatten());
}

static std::unique_ptr<Trainer> trainer_of(const Subject& subject, const std::string& how) {
  at::manual_seed(1);
  const compile::Plan plan = {.recompute = compile::recompute_from_text(how)};
  return std::make_unique<Trainer>(
      models::make(subject.config), loss_of, SGD{.lr = 1e-3, .momentum = 0.9},
      TrainerOptions{.spot_check_share = -1, .parallelism = Parallelism{.mesh = {}, .plan = plan}});
}

static void step(Run& run, const Batch& batch) {
  const std::clock_t begin = std::clock();
  run.trainer->step(batch);
  run.seconds.push_back(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
}

static std::int64_t activations_of(const program::Memory& memory) {
  std::int64_t most = 0;
  for (const auto& segment : memory.activations)
    for (const auto& use : segment) most = std::max(most, use.peak);
  return most;
}

static program::Memory said(const Run& run) { return program::memory_of(*run.trainer->ran().front(), 1); }

static double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

static double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

static void compare(const Subject& subject, int rounds) {
  std::vector<Run> runs;
  const auto begin = [&](const std::string& how) {
    runs.push_back({how, trainer_of(subject, how)});
    step(runs.back(), subject.batch);
  };
  begin("none");
  const std::int64_t half = activations_of(said(runs.front())) / 2;
  for (const std::string& how : {std::string("selective"), std::string("full"), concat("auto bytes=", half)})
    begin(how);
  for (Run& run : runs) {
    step(run, subject.batch);
    run.seconds.clear();
  }
  for (int round = 0; round < rounds; ++round)
    for (Run& run : runs) step(run, subject.batch);
  for (const Run& run : runs) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < run.seconds.size(); ++i)
      ratios.push_back(run.seconds[i] / runs.front().seconds[i]);
    const program::Memory memory = said(run);
    const auto measured = runtime::measure(*run.trainer->ran().front(), memory, {}, 0);
    std::printf("%-9s %-21s activations %6.1f MiB, step %6.1f MiB, was %6.1f; %7.1f ms, time %.3f\n",
                subject.name, run.how.c_str(), mebibytes(activations_of(memory)), mebibytes(measured.said),
                mebibytes(measured.was), 1e3 * median(run.seconds), median(ratios));
    std::fflush(stdout);
  }
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  at::set_num_threads(1);
  at::manual_seed(2);
  models::Gpt2Config gpt2{.vocab_size = 8192,
                          .n_positions = 256,
                          .n_embd = 384,
                          .n_layer = 12,
                          .n_head = 6,
                          .embd_pdrop = 0,
                          .attn_pdrop = 0,
                          .resid_pdrop = 0};
  const at::Tensor ids = at::randint(8192, {2, 257}, at::kLong);
  compare({"GPT-2", gpt2, Batch{ids.slice(1, 0, 256).contiguous(), ids.slice(1, 1, 257).contiguous()}},
          rounds);
  compare({"ResNet-18", models::ResnetConfig{.layers = {2, 2, 2, 2}, .num_classes = 1000},
           Batch{at::randn({8, 3, 64, 64}), at::randint(1000, {8}, at::kLong)}},
          rounds);
}
