// SPDX-License-Identifier: Apache-2.0
// Gradients of micro-batches, added up.
#pragma once

#include <memory>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// shoal::accumulate(sums, gradients, keep, weight, divisor): sum = (sum · keep + gradient · weight) ÷ divisor,
// in place. What is taken 0 times does not count, not even a NaN.
std::unique_ptr<Kernel> make_accumulate(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
