// SPDX-License-Identifier: Apache-2.0
// Kernels that take a value to where there is more room, and back: what is offloaded leaves the device's
// memory, and is there again before its use.
//
//   shoal::to_host(self)             in the host's memory; page-locked where it comes from CUDA
//   shoal::to_device(self, device)
//   shoal::to_file(self)             from the host's memory to a file's, where others read it
#pragma once

#include <memory>

#include "shoal/runtime/file_memory.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

std::unique_ptr<Kernel> make_to_host(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_to_device(const program::Program& program, const program::Compute& compute);
// `files` outlives it.
std::unique_ptr<Kernel> make_to_file(const program::Compute& compute, FileMemory& files);

}  // namespace shoal::runtime
