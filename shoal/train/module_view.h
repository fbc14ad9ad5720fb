// SPDX-License-Identifier: Apache-2.0
// Modes of a torch::nn::Module.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace shoal::train {

// The module first, then all below it; it may lie on the stack.
std::vector<std::shared_ptr<torch::nn::Module>> modules_of(const std::shared_ptr<torch::nn::Module>& module);

// Evaluation mode for a module and all below it; each gets its own mode back.
class EvaluationMode {
 public:
  explicit EvaluationMode(const std::shared_ptr<torch::nn::Module>& module) {  // null: the caller sees to it
    if (module == nullptr) return;
    for (const auto& each : modules_of(module)) was_training_.emplace_back(each, each->is_training());
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
