// SPDX-License-Identifier: Apache-2.0
// A torch::nn::Module as a Trainer sees a model.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shoal/train/model_view.h"

namespace shoal::train {

ModelView view_of(const std::shared_ptr<torch::nn::Module>& module,
                  std::function<at::Tensor(const Batch&)> loss);

// Evaluation mode for a module and all below it; each gets its own mode back.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module* module) {  // null: the model's language sees to it
    if (module == nullptr) return;
    for (const auto& each : module->modules()) was_training_.emplace_back(each, each->is_training());
    module->eval();
  }
  ~EvaluationMode() {
    // Outermost last to first: train() reaches down, so what is deeper is set after.
    for (const auto& [module, training] : was_training_) module->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
};

}  // namespace shoal::train
