// SPDX-License-Identifier: Apache-2.0
// Random operators of ATen that have no counter-based form (randperm, multinomial, gamma, …): run whole, each
// call with a generator of its own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "shoal/aten/random.h"

namespace shoal::aten {

// The position of the schema's generator; nullopt: it takes none.
std::optional<std::size_t> generator_argument(const c10::FunctionSchema& schema);

// What the operator returns for these arguments of its schema, with a generator made from the stream. The
// same on every device: computed by the processor, on copies there, and carried over to `device`. Contiguous.
// Throws InvalidInput for an operator that takes no generator, or returns anything but tensors.
std::vector<at::Tensor> draw_whole(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                   const RandomStream& stream, c10::Device device);

}  // namespace shoal::aten
