// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/module_view.h"

#include <string>

#include "shoal/base/error.h"
#include "shoal/train/model_view.h"

namespace shoal {

std::vector<std::shared_ptr<torch::nn::Module>> train::modules_of(
    const std::shared_ptr<torch::nn::Module>& module) {
  auto modules = module->modules(/*include_self=*/false);
  modules.insert(modules.begin(), module);
  return modules;
}

ModelView view_of(const std::shared_ptr<torch::nn::Module>& module, LossFunction loss) {
  SHOAL_CHECK(module != nullptr, InvalidInput, "trainer: the module is null; give one");
  ModelView view{.parameters = {}, .buffers = {}, .loss = {}, .mode = {}, .module = module};
  for (const auto& item : module->named_parameters()) view.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : module->named_buffers()) view.buffers.emplace_back(item.key(), item.value());
  const auto kept = std::make_shared<ModelView::NamedTensors>();
  view.loss = [loss = std::move(loss), kept](const Batch& batch) {
    LossAndOutputs run = loss(batch);
    SHOAL_CHECK(run.loss.defined(), InvalidInput,
                "trainer: the loss function returned an undefined tensor; return a scalar: a mean or a sum");
    kept->assign(run.outputs.begin(), run.outputs.end());
    for (const auto& [name, tensor] : *kept)
      SHOAL_CHECK(tensor.defined(), InvalidInput, "trainer: output ", name,
                  " of the loss function is undefined; leave it out");
    return run.loss;
  };
  view.outputs = [kept] { return std::exchange(*kept, {}); };
  view.mode = [modules = train::modules_of(module)] {
    std::string flags = "modules in training mode: ";
    for (const auto& each : modules) flags += each->is_training() ? '1' : '0';
    return flags;
  };
  return view;
}

}  // namespace shoal
