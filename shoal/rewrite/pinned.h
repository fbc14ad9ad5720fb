// SPDX-License-Identifier: Apache-2.0
// What is known of a step's values before anything is placed: sources and results as they are kept between
// steps, gradients as they leave backward, and what modules hand on as a plan says.
//
//   pin "h.*.mlp" tensor=R       the last value that the module makes, seen from outside of it, is whole;
//                                its gradient comes back as the module's own work wants it
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

// Where a value is read.
struct Use {
  std::size_t node, input;
};
struct Uses {
  std::vector<std::vector<Use>> of;  // by value
  std::set<ir::ValueId> leaves;      // values that are results
};
Uses uses_of(const ir::Graph& graph);

// What an optimizer keeps of a whole tensor, and every rank has.
bool is_number(const ir::Graph& graph, ir::ValueId value);

struct Pinned {
  std::vector<sharding::Layout> kept, used;  // by source: between steps, and as it is computed with
  std::vector<sharding::Layout> results;     // by result
  std::map<ir::ValueId, std::map<std::size_t, sharding::Placement>> values;  // by axis
  std::map<ir::ValueId, std::vector<ir::ValueId>> gradients_of;              // of outputs that are pinned
  std::map<ir::ValueId, std::string> parameter_at;
};

// Throws InvalidInput where a pin does not fit its tensor, or names none.
Pinned pinned_of(const ir::Graph& graph, const sharding::Mesh& mesh, const Pins& pins, const Uses& uses);

}  // namespace shoal::rewrite
