// SPDX-License-Identifier: Apache-2.0
// What kernels on the processor take inside: one line an op.
#pragma once

#include <cstdint>

#include "shoal/program/aliases.h"

namespace shoal::program {

// The most that an instruction has at once above its inputs and the outputs that the program keeps: memory
// that c10's allocator gives its kernel and gets back before it ends, outputs that nobody wants among it.
std::int64_t workspace_bytes(const Call& call, const Types& types, int threads);

}  // namespace shoal::program
