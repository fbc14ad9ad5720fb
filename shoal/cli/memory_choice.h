// SPDX-License-Identifier: Apache-2.0
// What lets a rank keep memory.limit, where memory.auto asks for it: recompute, offload to a file, and smaller
// micro-batches. Of what fits by the forecast (forecast.h) that which makes the least work more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shoal/cli/forecast.h"
#include "shoal/cli/recipe.h"

namespace shoal::cli {

struct MemoryChoice {
  Recipe recipe;           // as it was given, but for training's batch sizes, recompute and offload
  std::string text;        // for people: what was chosen, and what it costs
  std::int64_t bytes = 0;  // that a rank takes at most
};

// What no forecast knows, in bytes: of a data set what a rank keeps, and the most while it was made.
struct DataMemory {
  std::int64_t kept = 0, most = 0;
  Phase beside(Phase largest) const;  // the largest with these
};

// For a job of so many ranks, each of so many threads; `overlaps`: parallelism_of. Without memory.auto nothing is chosen.
class WithinLimit {
 public:
  WithinLimit(Recipe recipe, int ranks, int threads, bool overlaps = false);
  WithinLimit(const WithinLimit&) = delete;
  WithinLimit& operator=(const WithinLimit&) = delete;
  ~WithinLimit();

  // What was tried for some data is not tried again for other. Throws Infeasible with the least that would do.
  MemoryChoice choose(DataMemory data = {});

 private:
  struct Tried;
  struct Candidate;
  class Sized;
  class Search;
  std::string text_of(const Candidate& chosen) const;

  Recipe recipe_;
  int ranks_, threads_;
  bool overlaps_;
  std::unique_ptr<Search> search_;
};

// What is offloaded, as a number: bits, in the order of Offload's fields.
std::int64_t offload_in(const Recipe& recipe);
void set_offload(Recipe& recipe, std::int64_t bits);

// So that activations fit in so many bytes; 0: nothing is made again.
void recompute_within(Recipe& recipe, std::int64_t activations);

}  // namespace shoal::cli
