// SPDX-License-Identifier: Apache-2.0
// The update of parameters that are not in main memory: ATen's operators over whole lists of tensors, a few
// launches for all of them, and none that the processor waits for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// Which slots; lists of equal lengths, of states also empty ones. Borrowed.
struct UpdateSlots {
  const std::vector<std::uint32_t>& parameters;
  const std::vector<std::uint32_t>& gradients;
  std::vector<const std::vector<std::uint32_t>*> states;
  std::uint32_t scale;  // of the gradients; kNoSlot: 1
};

enum class Halves { AsTheyAre, AsFloat };

// Tensors of one dtype. Those of one index lie alike in memory and without gaps, as LibTorch's fused
// optimizers want them.
struct UpdateLists {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;  // scaled; only read
  std::vector<std::vector<at::Tensor>> states;
};

// Calls `update` for the tensors of each dtype, which changes parameters and states in place. What had to be
// copied to lie so, or to be a float, is carried back.
void update_elsewhere(const Slots& slots, const UpdateSlots& which, Halves halves,
                      const std::function<void(UpdateLists&)>& update);

// Gradients with what decay adds to them.
std::vector<at::Tensor> decayed(const UpdateLists& lists, double weight_decay);
// sqrt(squares) + eps
std::vector<at::Tensor> root(const std::vector<at::Tensor>& squares, double eps);

}  // namespace shoal::runtime
