// SPDX-License-Identifier: Apache-2.0
// Gives every value of a captured step a layout on a mesh. What is kept between steps is pinned (the batch is
// cut over the data axes, parameters as a plan says); from there placements go through the ops by their rules
// (sharding/rules.h), each op taking the way that moves the fewest bytes:
//
//   %x S(0), %w R      %y = mm(%x, %w)        %y S(0)          rows of the batch
//   %x S(0), %dy S(0)  %dw = mm(t(%x), %dy)   %dw P(sum)       a gradient is summed over the batch
//
// An op that would need whole what is cut, and that several simpler ops can stand for (a mean is a sum
// divided by a count), is taken apart; an op without a rule runs whole.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

struct ParameterPins {    // where a parameter lies, at each point of a step
  sharding::Layout kept;  // between steps
  sharding::Layout used;  // as the model computes with it; gathered before, if it is kept in smaller parts
  sharding::Layout gradient;  // as the gradient leaves backward
  sharding::Layout updated;   // as the optimizer sees it; its state is kept like this
  sharding::Layout summed;    // the sum over micro-batches, while more of them come
  // Of state in 8 bits, the blocks' maxima (sharding/state_blocks.h); no placements: there are none.
  sharding::Layout maxima = {};
  friend bool operator==(const ParameterPins&, const ParameterPins&) = default;
};

// What the last op of a module makes, by the module's path; '*' stands for any characters but '.'. Its
// gradient comes back as the module's own work wants it: whole where the output was summed up, cut where it
// was cut.
struct OutputPin {
  std::string module;
  std::map<std::size_t, sharding::Placement> placements;  // by axis; others are left to propagation
  friend bool operator==(const OutputPin&, const OutputPin&) = default;
};

// A way to run a node on one axis.
struct Choice {
  // Of what it reads, as ir::inputs_of, and of what it makes.
  std::vector<sharding::Placement> in, out;
  bool in_parts = false;     // sharding::Strategy has both
  bool may_be_empty = true;  // likewise

  bool splits() const;  // whether any value that it reads or makes is cut
  friend bool operator==(const Choice&, const Choice&) = default;
};

// How each node runs on an axis; those of an update as their parameters are.
struct Decided {
  std::size_t axis = 0;
  std::vector<Choice> nodes;  // by NodeId
  friend bool operator==(const Decided&, const Decided&) = default;
};

struct Pins {                                       // what is given; all else is chosen
  std::map<std::string, ParameterPins> parameters;  // those not named: replicated
  std::map<std::string, sharding::Layout> inputs;   // likewise
  std::vector<OutputPin> outputs;                   // of modules
  bool gathers_again = true;  // parameters for backward, instead of keeping them whole since forward
  // By somebody who has seen all of the graph (planner/find.h); of some axes.
  std::vector<Decided> decided = {};
};

struct PlacedNode {                   // layouts of what a node reads and makes
  std::vector<sharding::Layout> in;   // as ir::inputs_of
  std::vector<sharding::Layout> out;  // as it makes them; of an undefined output: replicated
  bool in_parts = false;              // sharding::Strategy
  friend bool operator==(const PlacedNode&, const PlacedNode&) = default;
};

struct Placed {                   // a graph, and where each of its values lies
  sharding::Mesh mesh;            // that layouts are of
  ir::Graph graph;                // of all ranks together; some ops taken apart
  std::vector<PlacedNode> nodes;  // by NodeId
  // By NodeId: other layouts that a view may have, as its input has been gathered before.
  std::vector<std::vector<PlacedNode>> again;
  std::vector<sharding::Layout> values;   // by ValueId: as it is handed on
  std::vector<sharding::Layout> kept;     // by source
  std::vector<sharding::Layout> results;  // by result
  bool gathers_again = true;              // as in Pins
  friend bool operator==(const Placed&, const Placed&) = default;
};

// Throws InvalidInput where a pin does not fit its tensor, or names none.
Placed place(ir::Graph graph, const sharding::Mesh& mesh, const Pins& pins);
// The pins are asked for anew once ops have been taken apart.
using PinsFor = std::function<Pins(const ir::Graph&)>;
Placed place_with(const PinsFor& pins_for, ir::Graph graph, const sharding::Mesh& mesh);

// Whether a pattern, "h.*.attn", names a path, "h.11.attn": '*' stands for any characters but '.'.
bool matches(std::string_view pattern, std::string_view path);
// The pattern of all paths that differ in numbers alone: "h.11.attn" -> "h.*.attn".
std::string folded(std::string_view path);

// Bytes that a rank sends where one axis' placement of a value changes, of which all ranks of the axis together
// have so many; nothing where there is no way.
std::optional<double> bytes_sent(const sharding::Placement& from, const sharding::Placement& to, double bytes,
                                 int ranks);

}  // namespace shoal::rewrite
