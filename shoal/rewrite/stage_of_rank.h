// SPDX-License-Identifier: Apache-2.0
// From the graph of all stages to that of one rank's: its own nodes, and a message for each value that
// crosses, sent once to each rank that reads it. Stage s is on rank s of the axis:
//
//   %a = mm(x, %w) @forward                rank 0   %a = mm(x, %w), send(%a, to=1) @forward
//   %l = sum(%a) @forward 1                         %l = receive(from=1), %da = receive(from=1) @backward
//   %da = … @backward 1                             %dw = mm(t(x), %da) @backward
//   %dw = mm(t(x), %da) @backward          rank 1   %a = receive(from=0), %l = sum(%a) @forward
//                                                   send(%l, to=0), %da = …, send(%da, to=0) @backward
//
// Forward sends to later stages, backward to earlier ones, and both ends have the messages of a pair of ranks
// in one order: that in which they are made. Loss, outputs and buffers end on every rank. Of a parameter of
// another stage, its gradient and the sum of it, a rank has the part without rows. The gradient of a
// parameter that several stages read is on each of them a summand: what its own nodes have added to it.
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
