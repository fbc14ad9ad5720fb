// SPDX-License-Identifier: Apache-2.0
// What a program writes into a model between the calls of its trainer: ranks have to write it alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "shoal/capture/capture.h"
#include "shoal/train/model_tensors.h"

namespace shoal::train {

class Changes {
 public:
  using NamedTensors = ModelTensors::NamedTensors;

  // As they are now all ranks have them.
  void note(const NamedTensors& tensors);
  // A line for each that was written since, with a digest of what it has: of 256 elements at most. Those without memory
  // are left out.
  std::string text(const char* kind, const NamedTensors& tensors) const;

 private:
  std::unordered_map<const c10::TensorImpl*, std::int64_t> versions_;
};

}  // namespace shoal::train
