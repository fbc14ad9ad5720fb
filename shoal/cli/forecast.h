// SPDX-License-Identifier: Apache-2.0
// What a rank of a recipe's run will have in memory at most, before there is a model: live bytes in c10's
// allocator and the communicator's memory. Files that are mapped, and what a task keeps of its data, are
// apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/cli/recipe.h"
#include "shoal/compile/compile.h"
#include "shoal/program/memory.h"
#include "shoal/rewrite/report.h"
#include "shoal/train/parallelism.h"

namespace shoal::cli {

// What a rank is at.
struct Phase {
  std::string name;  // "the model", "a step"
  std::int64_t bytes = 0;
  std::string where;  // of a step: the instruction
};

struct Forecast {
  program::Program program;
  program::Memory step;      // of the program alone
  std::int64_t batches = 0;  // made ahead of the one that a step reads
  // Beside these a trainer keeps the constants of two graphs: a step's, and an evaluation's, which are as
  // large.
  std::int64_t communicator =
      0;  // what it needs for itself, and what its pages are larger than what lies in them
  // In a step, beside the program: all of these, and the state of an update that is a program of its own.
  std::int64_t beside = 0;
  std::vector<Phase> phases;  // the two above among them
  ir::Graph local;            // what the program is of

  const Phase& largest() const;
};

// Of a rank of a job in which each has so many threads. `whole`: the step of all, or one of its micro-batches;
// `captured`: what a capture takes of it (HollowStep::bytes); `sums`: the update after these, where the caller
// has it for several ranks.
Forecast forecast_of(const Recipe& recipe, const compile::Whole& whole, std::int64_t captured, int rank,
                     int threads, const compile::Whole* sums = nullptr);
// What follows the micro-batches, of all ranks; borrows from the micro-batch.
compile::Whole update_of_sums(const compile::Whole& microbatch);
// The same from the recipe alone, by a model without memory.
Forecast forecast_of(const Recipe& recipe, const Parallelism& parallelism, int rank, int threads);

// Ranks of which each runs what the others of its kind do; of one device that one.
std::vector<rewrite::RankClass> kinds_of_ranks(const compile::Whole& whole);

// What a rank of a host of so many has, unless OMP_NUM_THREADS says it.
int threads_of_rank(int ranks_of_this_host);

// Throws InvalidInput where memory.limit would be of a device's memory.
void check_device_of_limit(const Recipe& recipe);
// Throws Infeasible where memory.limit is less, with the least that would do and where it is needed.
void check_limit(const Recipe& recipe, const Phase& largest);

std::string to_text(const Forecast& forecast);

}  // namespace shoal::cli
