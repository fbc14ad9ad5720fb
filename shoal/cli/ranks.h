// SPDX-License-Identifier: Apache-2.0
// The ranks that train a recipe: this process alone, or those of the job that it finds itself in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shoal/cli/recipe.h"
#include "shoal/elastic/place.h"
#include "shoal/ps/tables.h"
#include "shoal/train/parallelism.h"
#include "shoal/world/world.h"

namespace shoal::cli {

// What a recipe's degrees, its ZeRO stage and its plan file make of so many ranks: all but `world`. `overlaps`: over a
// communicator whose messages go on beside what computes. Throws InvalidInput where they make no mesh, or say different
// things.
Parallelism parallelism_of(const Recipe& recipe, int ranks, bool overlaps = false);

int data_ranks_of(const Parallelism& parallelism);  // that share a batch out

// What a step reads, in samples of all ranks together.
struct StepSizes {
  std::int64_t microbatch = 1;
  std::int64_t num_microbatches = 1;

  std::int64_t samples() const { return microbatch * num_microbatches; }
  friend bool operator==(const StepSizes&, const StepSizes&) = default;
};
// As few micro-batches, all of one size, as give each rank no more than training.local_batch_size at once.
// Throws InvalidInput where the batch does not go round.
StepSizes sizes_of(const Recipe& recipe, const Parallelism& parallelism);

// Throws InvalidInput where so many ranks cannot train the recipe: what can be said before they start.
void check_ranks(const Recipe& recipe, int ranks);

class Ranks {
 public:
  // Joins the job that the environment is of; without one this process is the only rank.
  Ranks(const Recipe& recipe, const elastic::Environment& environment);

  // A plan of the same mesh, from now on.
  void follow(const Recipe& recipe);

  int size() const { return parallelism_.mesh.size(); }
  int rank() const { return place_.rank; }
  bool is_first() const { return rank() == 0; }
  bool is_first_of_host() const { return place_.local_rank == 0; }
  const sharding::Mesh& mesh() const { return parallelism_.mesh; }
  int ranks_of_this_host() const { return place_.local_size; }
  // What several ranks speak over: "shared memory", "Gloo", …
  std::string medium() const { return world_ == nullptr ? "" : world_->medium(); }
  // What a Trainer of this rank is told; of this process alone too.
  const Parallelism& parallelism() const { return parallelism_; }
  // Where the recipe's [[tables]] are; null: in this process.
  std::unique_ptr<ps::Tables> tables(const Recipe& recipe) const;
  // This rank's share of so many samples.
  sharding::Range part_of(std::int64_t samples) const;

  // Called by all ranks at once. Throws InvalidInput where they have different recipes.
  void check_same(const Recipe& recipe) const;
  // Likewise: what the first one says; the largest that any says.
  std::int64_t of_first(std::int64_t number) const;
  std::string of_first(std::string text) const;
  std::int64_t largest(std::int64_t number) const;

 private:
  elastic::Place place_;
  std::unique_ptr<World> world_;  // of several ranks, or of one with servers
  Parallelism parallelism_;
};

}  // namespace shoal::cli
