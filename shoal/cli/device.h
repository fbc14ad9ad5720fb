// SPDX-License-Identifier: Apache-2.0
// Where a recipe computes: `training.device`.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "shoal/cli/recipe.h"
#include "shoal/cli/task.h"

namespace shoal::cli {

// The processor; or the CUDA device of this rank, which is its number on its host. Throws Infeasible where
// there is none: LibTorch has no CUDA, or the host fewer devices.
at::Device device_of(const Recipe& recipe);
// The most of this rank's device that LibTorch's allocator has given out at any time; none if it does not count.
std::optional<std::int64_t> peak_bytes_of_device();

// The task with its batches there. Its sample is made on the processor, where the model is from then on.
Task on_device(Task task, at::Device device);

}  // namespace shoal::cli
