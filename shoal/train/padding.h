// SPDX-License-Identifier: Apache-2.0
// Batches of few sizes, where samples come in many lengths: each size has a graph of its own.
//
//   padded(batch, {.multiple = 4, .values = {{"tokens", 0}, {"labels", -100}}})
//
//   tokens i64[2, 6]  7 2 5 3 9 1     i64[2, 8]  7 2 5 3 9 1  0  0
//                     4 8 6 2 1 3                4 8 6 2 1 3  0  0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shoal/train/batch.h"

namespace shoal {

struct Padding {               // how items are filled up
  std::int64_t multiple = 64;  // `dim` of an item becomes the next multiple of it
  std::int64_t dim = 1;        // from 0; of every item that is filled up
  // What items are filled up with, by their path in the batch: "tokens".
  std::map<std::string, double> values = {};
};

// The batch with these items filled up; the others are as they were. A loss has to leave out what was added,
// as cross_entropy does with its ignore_index. Throws InvalidInput for a multiple below 1, an item that is not
// there, is no tensor, or has no such dim, and a value that its type cannot hold.
Batch padded(const Batch& batch, const Padding& padding);

}  // namespace shoal
