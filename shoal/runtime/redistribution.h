// SPDX-License-Identifier: Apache-2.0
// What ranks pass to each other between steps, outside of programs: parameters that are looked at, state that
// is saved, batches. Parts may be uneven or empty, and of any dim.
//
//   all_gather of rows, even                 parts are the result's memory, one after the other: nothing is copied
//   all_gather of columns, or uneven         parts travel padded to the largest, and are copied to their places
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "shoal/comm/communicator.h"
#include "shoal/runtime/groups.h"
#include "shoal/sharding/layout.h"

namespace shoal::runtime {

// How the ranks of a group share a tensor.
struct Cut {
  sharding::Shard shard;
  std::int64_t whole = 0;  // size of the dim before it is cut
};

// Bytes and truths travel alike.
at::Tensor as_numbers(const at::Tensor& tensor);
comm::Buffer buffer_of(const at::Tensor& tensor);

// A view where the part lies in one piece; else a copy.
at::Tensor part_of(const at::Tensor& whole, const sharding::Shard& shard, int index, int count);

// Each is called by all ranks of the group, with tensors of one dtype; results are new, and contiguous.
at::Tensor all_gather(const at::Tensor& part, const Cut& cut, const Group& group);
// Writes over the tensor, which is contiguous.
void all_reduce(at::Tensor& tensor, comm::ReduceOp op, const Group& group);
// Writes all parts into `whole`, whose own part may be `part`.
void gather_into(at::Tensor& whole, const at::Tensor& part, const sharding::Shard& shard, const Group& group);
void broadcast(at::Tensor& tensor, int root, const Group& group);

}  // namespace shoal::runtime
