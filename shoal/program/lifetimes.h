// SPDX-License-Identifier: Apache-2.0
// When each slot is free again, and which instruction may take the memory of an input that dies there:
//
//   %3 = relu(%2)                 %3 = relu(%2) over %2
//   %4 = all_reduce(%3)           free %2
//   wait %4                       %4 = all_reduce(%3) over %3
//                                 wait %4
//                                 free %3                       what a message has is its own until it is done
#pragma once

#include "shoal/program/aliases.h"
#include "shoal/program/program.h"

namespace shoal::program {

// Of a program with its waits and without frees. `aliases`: of the slots that its gradient segments fill.
void add_frees(Program& program, const Aliases& aliases);

}  // namespace shoal::program
