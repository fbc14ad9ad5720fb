// SPDX-License-Identifier: Apache-2.0
// Whether kernels give what was recorded.
#pragma once

#include "shoal/program/program.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// Of an op of ATen's that has just run: another dtype, shape or stride would fail the views that are taken of
// it, or give a sum another order. Throws Internal naming op and module.
void check_outputs(const program::Program& program, const program::Compute& compute, const Slots& slots);

}  // namespace shoal::runtime
