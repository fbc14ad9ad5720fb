// SPDX-License-Identifier: Apache-2.0
// A batch of which each rank was given a part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shoal/train/batch.h"
#include "shoal/train/parts.h"

namespace shoal::train {

// A batch of all ranks together, as one of them sees it.
struct SharedBatch {
  Batch part;                                              // of this rank, cut as the graph wants it
  std::map<std::string, std::vector<std::int64_t>> sizes;  // of each tensor of the whole batch
  bool asked = false;                                      // what rank 0 wished
};

// What the ranks were given, checked against each other; all call it at once. `text`: what else has to be the
// same. `asks`: rank 0's reaches all of them. Throws InvalidInput naming item, ranks and what differs.
SharedBatch agree(const Rank& rank, const Batch& batch, const std::string& text, bool asks);
// This rank's part of a tensor of the whole batch.
at::Tensor part_of_input(const Rank& rank, const std::string& input, const at::Tensor& whole);
// Every tensor of the batch, of all ranks, which call it at once.
Batch whole(const Rank& rank, const SharedBatch& batch);

}  // namespace shoal::train
