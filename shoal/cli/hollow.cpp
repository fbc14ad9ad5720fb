// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/hollow.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/capture/deferred.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"
#include "shoal/runtime/allocator.h"

namespace shoal::cli {

torch::nn::AnyModule hollow_model(const Recipe& recipe) {
  const capture::Deferral deferral(capture::Deferral::For::Shapes);
  return make_model_now(recipe);
}

std::map<std::string, sharding::Shape> shapes_of(const torch::nn::AnyModule& model) {
  std::map<std::string, sharding::Shape> shapes;
  for (const auto& item : model.ptr()->named_parameters())
    shapes.emplace(item.key(), item.value().sizes().vec());
  return shapes;
}

static capture::Request request_of(const torch::nn::AnyModule& model, const Batch& batch,
                                   at::Tensor (*run)(torch::nn::AnyModule& model, const Batch& batch)) {
  capture::Request request;
  for (const auto& item : model.ptr()->named_parameters())
    request.parameters.push_back({item.key(), item.value()});
  for (const auto& item : model.ptr()->named_buffers()) request.buffers.push_back({item.key(), item.value()});
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    request.inputs.push_back({path, leaf.tensor()});
  });
  request.loss = [runs = model, batch, run](std::span<const at::Tensor> inputs) mutable {
    std::size_t next = 0;
    return run(runs,
               map_tensors(batch, [&](const std::string&, const at::Tensor&) { return inputs[next++]; }));
  };
  return request;
}

HollowStep captured_step(const Recipe& recipe, const torch::nn::AnyModule& model, std::int64_t samples) {
  capture::Request request = request_of(model, example_batch(recipe, samples), loss_of);
  request.has_lstms_by_step = recipe.parallelism.tensor_parallel_degree > 1;
  runtime::install_allocator();
  const std::int64_t before = runtime::memory_counts().live_bytes;
  runtime::reset_peak();
  HollowStep made{.graph = capture::capture(request).graph};
  if (std::ranges::any_of(made.graph.nodes,
                          [](const ir::Node& node) { return node.op == "aten::mkldnn_rnn_layer"; })) {
    runtime::reset_peak();
    capture::record(request);
  }
  made.bytes = runtime::memory_counts().peak_bytes - before;
  return made;
}

capture::Captured captured_logits(const Recipe& recipe, const torch::nn::AnyModule& model,
                                  std::int64_t samples) {
  model.ptr()->eval();
  capture::Request request = request_of(model, example_batch(recipe, samples), logits_of);
  request.mode = capture::Mode::Evaluate;
  at::Tensor logits;
  request.loss = [&, run = request.loss](std::span<const at::Tensor> inputs) {
    logits = run(inputs);
    return at::Tensor();
  };
  request.outputs = [&] { return std::vector<capture::NamedTensor>{{"logits", std::exchange(logits, {})}}; };
  capture::Captured captured = capture::capture(request);
  SHOAL_CHECK(captured.guards.list.empty(), Infeasible, "the model ", recipe.model.name, " reads ",
              captured.guards.list.size(),
              " values and does what they say, which its graph for others would not");
  return captured;
}

compile::Settings settings_of(const Recipe& recipe, const OptimizerPart& part,
                              const std::string& print_after) {
  compile::Settings settings{.then = compile::Then::Update,
                             .update = {.parts = {&part, 1}, .clip_norm = recipe.training.max_norm},
                             .print_after = print_after};
  if (!print_after.empty())
    settings.print = [](std::string_view move, const std::string& text) {
      say(concat("--- after ", move, '\n', text.substr(0, text.size() - 1)));
    };
  return settings;
}

}  // namespace shoal::cli
