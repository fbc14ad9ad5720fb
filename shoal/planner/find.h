// SPDX-License-Identifier: Apache-2.0
// Finds how a step is cut over one axis of the mesh: a placement of every parameter, and of every node the way to
// run that together take the least time, as DESIGN's rules for layouts and the rates below have it. An integer
// program over classes of nodes (classes.h), solved exactly (milp.h):
//
//   x[node, way]             the way that the node runs; one of them
//   y[parameter, placement]  likewise
//   e[value, reader, p, q]   the value is made as p and read as q: what is made, and what is read, say so
//   f[value, p, q]           that it is changed so, once for all its readers: what is sent is paid for here
//
// Ways and cuts are found by going through the graph, forwards and backwards, until there are no new ones: a
// projection to queries, keys and values is cut in three blocks because attention is cut by heads. The batch is
// never cut here, unless somebody has said what is split: that is what other axes are for.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::planner {

// What a device of the axis does in a second.
struct Rates {
  double flops = 5e10;
  double memory = 1e10;   // bytes that ops over elements read and write
  double link = 1e9;      // bytes that a rank sends
  double latency = 1e-5;  // seconds for each message
  // What of a matrix each rank keeps whole counts as if so many times its bytes were sent each step: memory is
  // what an axis is there for.
  double kept = 4;

  friend bool operator==(const Rates&, const Rates&) = default;
};

struct Question {
  std::size_t axis = 0;
  std::map<std::string, sharding::Placement> parameters = {};  // those that are known
  std::map<ir::ValueId, sharding::Placement> values = {};      // those that are known, as they are handed on
  std::map<std::string, int> batch_dims = {};                  // of inputs that have samples: where they lie
  int data_ranks = 1;                                          // among which these are cut
  // Parameters that have to be cut; where there are any, all others are whole, and the axis may cut samples.
  std::set<std::string> split = {};
  std::set<std::string> in_blocks = {};  // parameters whose parts have whole blocks (sharding/state_blocks.h)
  Rates rates = {};
  double gap = 1e-3;  // how much more than the least it may take, as a share
  bool folds = true;  // what stands alike in alike layers is cut alike

  friend bool operator==(const Question&, const Question&) = default;
};

struct Found {
  std::map<std::string, sharding::Placement> parameters;  // all that the graph has
  rewrite::Decided decided;
  double seconds = 0;  // by the rates, for what a choice can change
  double bound = 0;    // there is no way that takes less
  int variables = 0;
  int rows = 0;
};

// The latest few answers are kept (asked.h).
Found find(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question);

}  // namespace shoal::planner
