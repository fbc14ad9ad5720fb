// SPDX-License-Identifier: Apache-2.0
// Kernels that take a value to the host's memory and back: what is offloaded leaves the device's memory, and
// is there again before its use.
//
//   shoal::to_host(self)             in the host's memory; page-locked where it comes from CUDA
//   shoal::to_device(self, device)
#pragma once

#include <memory>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

std::unique_ptr<Kernel> make_to_host(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_to_device(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
