// SPDX-License-Identifier: Apache-2.0
// Views without ATen's shape inference: a program's types never change, so what a view looks like is learned
// from its first run and built directly after that.
#pragma once

#include <memory>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// Wraps the kernel of an op that may return aliases of its first tensor argument; used where it turns out not
// to, too.
std::unique_ptr<Kernel> make_view(const program::Program& program, const program::Compute& compute,
                                  std::unique_ptr<Kernel> kernel);

}  // namespace shoal::runtime
