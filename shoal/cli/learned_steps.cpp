// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/learned_steps.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/cli/played_step.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/recipe.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"
#include "shoal/observe/trace.h"
#include "shoal/simulate/play.h"
#include "shoal/world/world.h"

namespace shoal::cli {

namespace {

struct Reference {
  const char* name;
  models::Config config;
  DatasetName dataset;
  std::int64_t batch, seq_len;
};

std::vector<Reference> references() {
  return {
      {"gpt2",
       models::Gpt2Config{.vocab_size = 4096, .n_positions = 128, .n_embd = 256, .n_layer = 2, .n_head = 4},
       DatasetName::Text, 8, 128},
      {"llama",
       models::LlamaConfig{.vocab_size = 2048,
                           .hidden_size = 256,
                           .intermediate_size = 704,
                           .num_hidden_layers = 2,
                           .num_attention_heads = 4,
                           .num_key_value_heads = 2,
                           .max_position_embeddings = 128},
       DatasetName::Text, 8, 128},
      {"bert",
       models::BertConfig{.vocab_size = 512,
                          .hidden_size = 192,
                          .num_hidden_layers = 2,
                          .num_attention_heads = 6,
                          .intermediate_size = 768,
                          .max_position_embeddings = 64},
       DatasetName::MaskedText, 32, 64},
      {"lstm", models::LstmConfig{.vocab_size = 1024, .embedding_size = 192, .hidden_size = 256},
       DatasetName::Text, 16, 64},
      {"resnet", *models::find("resnet", "18"), DatasetName::RandomImages, 4, 0},
  };
}

// All that they work on lies in caches.
std::vector<Reference> small_references() {
  return {
      {"gpt2",
       models::Gpt2Config{.vocab_size = 256, .n_positions = 16, .n_embd = 64, .n_layer = 3, .n_head = 4},
       DatasetName::Text, 64, 16},
      {"bert",
       models::BertConfig{.vocab_size = 256,
                          .hidden_size = 64,
                          .num_hidden_layers = 3,
                          .num_attention_heads = 4,
                          .intermediate_size = 256,
                          .max_position_embeddings = 16},
       DatasetName::MaskedText, 64, 16},
  };
}

}  // namespace

static Recipe recipe_of(const Reference& reference) {
  Recipe recipe;
  recipe.model.name = reference.name;
  recipe.model.config = reference.config;
  recipe.dataset.name = reference.dataset;
  recipe.training.local_batch_size = reference.batch;
  if (reference.seq_len > 0) recipe.training.seq_len = reference.seq_len;
  return recipe;
}

// What the simulator says of a step, beside what a trainer takes for it.
static simulate::Comparison compared(const Recipe& recipe, Parallelism parallelism, const Peers& peers,
                                     const cost::Cluster& cluster) {
  constexpr int kLeftOut = 9, kSteps = 19;  // the first ones capture, and are checked
  const int ranks = parallelism.mesh.size();
  const PlayedStep step = play_step(recipe, cluster, ranks);
  const Batch batch = part_of(random_batch(recipe, step.sizes.microbatch, 1), parallelism);
  observe::Trace trace;
  Learner learner = make_learner(recipe, &trace, std::move(parallelism));
  peers.meet();
  for (int i = 0; i < kSteps; ++i) learner.trainer.step(batch);
  // A message takes what it does on the rank that comes last to it, each time: on others it is waiting before that.
  std::vector<double> least = simulate::message_times(trace);
  peers.least(least);
  trace = simulate::with_message_times(std::move(trace), least);
  auto comparison = simulate::compare(simulate::trace_of(step.tasks, step.spans), trace, kLeftOut);
  // What was not simulated others may not have.
  std::erase_if(comparison.ops, [](const simulate::OpTimes& op) { return op.calls == 0; });
  return comparison;
}

static simulate::Comparison sum_of(const std::vector<simulate::Comparison>& comparisons) {
  simulate::Comparison sum = {.programs = static_cast<int>(comparisons.size())};
  for (const simulate::Comparison& each : comparisons) {
    sum.steps += each.steps;
    sum.simulated += each.simulated;
    sum.measured += each.measured;
    sum.beside += each.beside;
    for (const simulate::OpTimes& op : each.ops) {
      auto found = std::ranges::find(sum.ops, op.op, &simulate::OpTimes::op);
      if (found == sum.ops.end()) found = sum.ops.insert(found, {.op = op.op, .is_message = op.is_message});
      found->calls += op.calls;
      found->simulated += op.simulated;
      found->measured += op.measured;
    }
  }
  return sum;
}

std::vector<simulate::Comparison> learned_alone(const Peers& peers, const cost::Cluster& cluster) {
  const auto sum_alone = [&](const std::vector<Reference>& of) {
    std::vector<simulate::Comparison> comparisons;
    for (const Reference& reference : of) {
      const Recipe recipe = recipe_of(reference);
      comparisons.push_back(compared(recipe, parallelism_of(recipe, 1), peers, cluster));
    }
    return sum_of(comparisons);
  };
  return {sum_alone(references()), sum_alone(small_references())};
}

std::vector<simulate::Comparison> learned_together(const Peers& peers, const cost::Cluster& cluster) {
  using Degrees = decltype(Recipe::parallelism);
  const auto sum_together = [&](std::span<const Reference> of) {
    std::vector<simulate::Comparison> comparisons;
    for (const Reference& reference : of) {
      for (auto degree : {&Degrees::data_parallel_replicate_degree, &Degrees::data_parallel_shard_degree,
                          &Degrees::tensor_parallel_degree}) {
        Recipe recipe = recipe_of(reference);
        recipe.training.local_batch_size = std::max<std::int64_t>(1, reference.batch / 2);
        recipe.parallelism.*degree = peers.size();
        Parallelism parallelism = parallelism_of(recipe, peers.size());
        parallelism.world = peers.world();
        parallelism.limit = peers.limit();
        comparisons.push_back(compared(recipe, std::move(parallelism), peers, cluster));
      }
    }
    return sum_of(comparisons);
  };
  const std::vector<Reference> large = references(), small = small_references();
  return {sum_together(std::span(large).first(2)), sum_together(std::span(small).first(1))};
}

}  // namespace shoal::cli
