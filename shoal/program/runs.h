// SPDX-License-Identifier: Apache-2.0
// Which segment a rank of a pipeline runs after which, in the order of a schedule: the trainer's loop, and the
// simulator's. Rank 1 of two with the stages 1 and 3, of interleaved_1f1b:
//
//   schedule   1F0                    3F0            …   3B0                      1B0
//   runs       forward 0 (of 0)       forward 2 (0)      backward 3 (0)           backward 2 (of 0)
//              forward 1 (0)          forward 3 (0)      update 3 (0)             backward 1, update 1 (0)
//
// What another rank sends is received before the first segment that may read it, with all that it has sent before: both
// ends have their messages in one order, that of the sender's row.
#pragma once

#include <cstddef>
#include <vector>

#include "shoal/program/program.h"
#include "shoal/schedule/schedule.h"

namespace shoal::program {

// A segment that a rank runs. Tensors that it makes are those of a number, which its micro-batch has.
struct Run {
  const Program* program = nullptr;  // borrowed
  std::size_t segment = 0;
  int microbatch = 0;
};

// `programs`: of each micro-batch, lowered for the stages that this rank of the pipeline's axis has. Throws InvalidInput
// where a stage has its micro-batches in another order than theirs: sums of gradients, and buffers, have one.
std::vector<Run> runs_of(const schedule::Timeline& timeline, int rank,
                         const std::vector<const Program*>& programs);

}  // namespace shoal::program
