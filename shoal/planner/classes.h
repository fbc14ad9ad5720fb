// SPDX-License-Identifier: Apache-2.0
// Nodes and values that stand alike in layers that are alike: h.0.mlp's products and h.11.mlp's are one class,
// and what is chosen for a class is chosen for all of it. So are the rounds of a loop over time, and the calls of a
// module that is called again. A model of a hundred layers is as much to decide as one of two.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::planner {

inline constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

struct NodeClass {
  std::size_t first = 0;  // a node of it, which speaks for all
  int count = 0;
};

struct ValueClass {
  ir::ValueId first;
  int count = 0;
  std::size_t node = kNone;  // the class that makes it; none: a source
  std::size_t output = 0;
};

struct Classes {
  std::vector<NodeClass> nodes;
  std::vector<ValueClass> values;
  std::vector<std::size_t> of_node;   // by NodeId; kNone for those of an update
  std::vector<std::size_t> of_value;  // by ValueId; kNone for what an update makes
};

// `marks`, by ValueId: values with different ones are not alike. `folds`: else each is a class by itself.
Classes classes_of(const ir::Graph& graph, const std::vector<std::string>& marks, bool folds = true);

bool is_update(const ir::Node& node);

}  // namespace shoal::planner
