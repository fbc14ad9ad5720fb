// SPDX-License-Identifier: Apache-2.0
// From the graph of all stages to that of one rank's: the nodes of its own, and a message for each value that
// crosses, sent once to each rank that reads it. Two stages on two ranks of the axis:
//
//   %a = mm(x, %w) @forward                rank 0   %a = mm(x, %w), send(%a, to=1) @forward
//   %l = sum(%a) @forward 1                         %l = receive(from=1), %da = receive(from=1) @backward 1
//   %da = … @backward 1                             %dw = mm(t(x), %da) @backward
//   %dw = mm(t(x), %da) @backward          rank 1   %a = receive(from=0) @forward
//                                                   %l = sum(%a) @forward 1
//                                                   send(%l, to=0), %da = …, send(%da, to=0) @backward 1
//
// Stage by stage, forward from the first one on, backward from the last: in this order they can run. What is
// received bears the stage that sends it. Forward sends to ranks that have a later stage which reads it, backward to
// the others, and both ends have the messages of a stage's forward, or of its backward, in one order: that in which
// they are made. Loss, outputs and buffers end on every rank. Of a parameter that other ranks' stages have,
// its gradient and the sum of it, a rank has the part without rows. The gradient of a parameter that the stages of
// several ranks read is on each of them a summand: what its own nodes have added to it. Each stage adds its
// gradients to their sums by itself; those that are shared come with the last of the rank's stages to run, the first.
#pragma once

#include <string>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/stages.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

// `device`: where what is received is to be, "cpu".
ir::Graph stage_of_rank(const ir::Graph& local, const Stages& stages, const sharding::Mesh& mesh, int rank,
                        const std::string& axis, const std::string& device);

}  // namespace shoal::rewrite
