// SPDX-License-Identifier: Apache-2.0
// One of several ranks, and tensors of which it has a part.
#pragma once

#include <ATen/core/Tensor.h>

#include "shoal/runtime/groups.h"
#include "shoal/sharding/layout.h"
#include "shoal/train/parallelism.h"

namespace shoal::train {

// Borrows all.
struct Rank {
  const Parallelism& parallelism;
  const runtime::Groups& groups;  // of tensors
  const runtime::Group& control;  // all ranks, of main memory
  int number;
};

// Of what lies as `layout`, from and to this rank's part. `whole_of` is called by all ranks at once.
at::Tensor whole_of(const Rank& rank, const at::Tensor& part, const sharding::Layout& layout,
                    at::IntArrayRef shape);
at::Tensor part_of(const Rank& rank, const at::Tensor& whole, const sharding::Layout& layout);

}  // namespace shoal::train
