// SPDX-License-Identifier: Apache-2.0
// Kernels of what rewrite/packing.h puts before and after messages. Where elements go is known when a program
// is loaded; a step copies bytes.
#pragma once

#include <memory>

#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

std::unique_ptr<Kernel> make_pack(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_pack_parts(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_unpack(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_unpack_parts(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_unpack_into(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_combine(const program::Program& program, const program::Compute& compute);
// shoal::part(self, dim, outer, unit, index, count): what rank `index` of `count` keeps of a whole value.
std::unique_ptr<Kernel> make_part(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
