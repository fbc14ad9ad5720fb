// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/module_view.h"

#include <string>

namespace shoal::train {

ModelView view_of(const std::shared_ptr<torch::nn::Module>& module,
                  std::function<at::Tensor(const Batch&)> loss) {
  ModelView view{.parameters = {}, .buffers = {}, .loss = std::move(loss), .mode = {}};
  for (const auto& item : module->named_parameters()) view.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : module->named_buffers()) view.buffers.emplace_back(item.key(), item.value());
  view.mode = [modules = module->modules()] {
    std::string flags;
    for (const auto& each : modules) flags += each->is_training() ? '1' : '0';
    return flags;
  };
  return view;
}

}  // namespace shoal::train
