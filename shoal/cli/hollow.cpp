// SPDX-License-Identifier: Apache-2.0
// What the model's constructor asks ATen for is run on the Meta device, which knows shapes alone, and comes
// back as tensors that say they are on the CPU, as those of a model that is trained do:
//
//   torch::empty({50257, 12288})     [50257, 12288] f32 on the CPU, of 0 bytes
//   weight.normal_(0, 0.02)          nothing
#include "shoal/cli/hollow.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/dispatch.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/task.h"
#include "shoal/cli/verbs.h"

namespace shoal::cli {

namespace {

class Hollow : public capture::Interceptor {
 public:
  bool wants_factory(const c10::OperatorHandle& op) override {
    return op.schema().argumentIndexWithName("device").has_value();
  }

  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const c10::FunctionSchema& schema = op.schema();
    const std::size_t first = stack.size() - schema.arguments().size();
    if (const auto* alias = schema.arguments().empty() ? nullptr : schema.arguments()[0].alias_info();
        alias != nullptr && alias->isWrite()) {
      const c10::IValue written = stack[first];
      stack.resize(first);
      stack.push_back(written);
      return;
    }
    for (std::size_t i = first; i < stack.size(); ++i) stack[i] = on_meta(stack[i]);
    if (const auto device = schema.argumentIndexWithName("device"))
      stack[first + static_cast<std::size_t>(*device)] = c10::Device(c10::kMeta);
    op.callBoxed(stack);
    for (std::size_t i = first; i < stack.size(); ++i)
      if (stack[i].isTensor() && stack[i].toTensor().defined())
        stack[i] = without_memory(stack[i].toTensor());
  }

 private:
  static c10::IValue on_meta(const c10::IValue& value) {
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(meta_like(tensor));
      return tensors;
    }
    return value.isTensor() && value.toTensor().defined() ? c10::IValue(meta_like(value.toTensor())) : value;
  }
  static at::Tensor meta_like(const at::Tensor& tensor) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  }
  // Small ones get memory: a capture may copy them.
  static at::Tensor without_memory(const at::Tensor& meta) {
    constexpr std::int64_t kSmall = 1024;
    const auto options = meta.options().device(c10::kCPU);
    if (meta.numel() <= kSmall) return at::zeros(meta.sizes(), options);
    at::Tensor tensor = at::empty({0}, options);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
    return tensor;
  }
};

}  // namespace

torch::nn::AnyModule hollow_model(const Recipe& recipe) {
  Hollow hollow;
  const capture::Interception interception(hollow);
  return make_model(recipe);
}

std::map<std::string, sharding::Shape> shapes_of(const torch::nn::AnyModule& model) {
  std::map<std::string, sharding::Shape> shapes;
  for (const auto& item : model.ptr()->named_parameters())
    shapes.emplace(item.key(), item.value().sizes().vec());
  return shapes;
}

ir::Graph captured_step(const Recipe& recipe, const torch::nn::AnyModule& model, std::int64_t samples) {
  capture::Request request;
  for (const auto& item : model.ptr()->named_parameters())
    request.parameters.push_back({item.key(), item.value()});
  for (const auto& item : model.ptr()->named_buffers()) request.buffers.push_back({item.key(), item.value()});
  const Batch batch = example_batch(recipe, samples);
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    request.inputs.push_back({path, leaf.tensor()});
  });
  torch::nn::AnyModule runs = model;
  request.loss = [&](std::span<const at::Tensor> inputs) {
    std::size_t next = 0;
    return loss_of(runs,
                   map_tensors(batch, [&](const std::string&, const at::Tensor&) { return inputs[next++]; }));
  };
  return capture::capture(request).graph;
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
