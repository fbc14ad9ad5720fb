// SPDX-License-Identifier: Apache-2.0
// ATen's own Meta kernels of its structured operators: what these say about shape and strides is what the CPU
// and CUDA kernels allocate, as they ask the same function. Once PyTorch's Python is loaded the dispatcher
// has other kernels for Meta, written in Python: thirty times slower, and their strides differ here and
// there.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace shoal::capture {

// Runs it on the stack. False, and nothing has happened, for operators that have none.
bool call_meta(const c10::OperatorHandle& op, std::string_view name, torch::jit::Stack& stack);

}  // namespace shoal::capture
