// SPDX-License-Identifier: Apache-2.0
// Collectives that autograd goes through: what ranks exchange is part of the graph.
//
// The gradient is that of the sum of all ranks' losses. Each operation's derivative is another of them,
// called through these same functions, so gradients of gradients are right too:
//
//   broadcast  <-> reduce             all_reduce <-> all_reduce       gather <-> scatter
//   all_gather <-> reduce_scatter     all_to_all <-> all_to_all       send   <-> receive
//
// Backward calls what forward called, the other way round: autograd runs nodes on the CPU in the reverse
// order of their making, so ranks that call the same operations in the same order, each from one thread, also
// meet in backward. For that every rank has to take part:
//   - a tensor requires a gradient on all ranks or on none, also where its elements are not read;
//   - the loss of each rank depends on every result, if only by adding result.sum() * 0; send returns a
//     token for it, which is zero. What no loss depends on, or what leads to none of the inputs that
//     torch::autograd::grad is asked for, is not differentiated there, and others wait for it in vain.
// Tensors may have any strides, no elements, or no dimension; tensors of integers have no gradient. Shapes
// and types are alike on all ranks unless it says otherwise, and results are new tensors of the same type on
// the same device.
//
// All throw InvalidInput for a tensor that is undefined or not strided, an element type that is not moved, a
// rank outside of the group, and where ranks call different things; Timeout after the limit, PeerLost where a
// rank has gone. Backward throws the same.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "shoal/comm/communicator.h"

namespace shoal::collectives {

// With whom, and how long each wait may take, in backward too. The communicator outlives every graph that
// went through it.
struct Ranks {
  comm::Communicator& communicator;                          // whose group takes part
  std::chrono::nanoseconds limit = std::chrono::minutes(5);  // of each wait

  // Not explicit: what a caller has is a communicator.
  Ranks(comm::Communicator& of, std::chrono::nanoseconds wait = std::chrono::minutes(5))
      : communicator(of), limit(wait) {}
};

using comm::ReduceOp;  // elementwise, over ranks

// Every rank gets what all ranks' tensors are together, element by element, of the same shape. Average: of
// floating types alone. Of Min and Max the gradient goes to the elements that are it, in equal shares where
// several ranks have it.
at::Tensor all_reduce(const at::Tensor& tensor, Ranks ranks, ReduceOp op = ReduceOp::Sum);
// Root's tensor; of the others' only the type is read, and their gradient is zero.
at::Tensor broadcast(const at::Tensor& tensor, Ranks ranks, int root);
// On root what all_reduce gives, elsewhere zeros, whose gradient is ignored.
at::Tensor reduce(const at::Tensor& tensor, Ranks ranks, int root, ReduceOp op = ReduceOp::Sum);

// The parts of all ranks, of one shape, joined along dim 0, by rank: [rows, …] becomes [size × rows, …]. A
// tensor without dims is a row.
at::Tensor all_gather(const at::Tensor& tensor, Ranks ranks);
// The same on root; elsewhere zeros of that shape, whose gradient is ignored.
at::Tensor gather(const at::Tensor& tensor, Ranks ranks, int root);

// This rank's part of dim 0, a multiple of the number of ranks (else InvalidInput), of what all_reduce gives:
// [size × rows, …] becomes [rows, …].
at::Tensor reduce_scatter(const at::Tensor& tensor, Ranks ranks, ReduceOp op = ReduceOp::Sum);
// The same of root's tensor; of the others' only the type is read, and their gradient is zero.
at::Tensor scatter(const at::Tensor& tensor, Ranks ranks, int root);

// in_counts[r] rows of dim 0 go to rank r, out_counts[r] come from it, by rank; none: equal parts. Throws
// InvalidInput where in_counts are not all of dim 0, equal parts do not divide it, or what one rank sends is
// not what the other takes.
at::Tensor all_to_all(const at::Tensor& tensor, Ranks ranks, const std::vector<std::int64_t>& in_counts = {},
                      const std::vector<std::int64_t>& out_counts = {});

// A token: a zero without dims, to be added to the loss. Its gradient's arrival receives that of `tensor`.
at::Tensor send(const at::Tensor& tensor, Ranks ranks, int to);
// A tensor of the type of `like`, whose elements are not read and whose gradient is zero; the result has a
// gradient if it does. To order a receive after something else in backward, let `like` depend on that.
at::Tensor receive(const at::Tensor& like, Ranks ranks, int from);

}  // namespace shoal::collectives
