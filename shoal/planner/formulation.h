// SPDX-License-Identifier: Apache-2.0
// The question of find.h as an integer program:
//
//   x[node, way]            the way that the node runs; one of them
//   y[parameter, layout]    likewise
//   e[value, reader, p, q]  the value is made as p and read as q: what is made, and what is read, say so
//   f[value, p, q]          that it is changed so, once for all its readers: what is sent is paid for here
//
// A way and a layout are of all axes asked for together, the last two as changes.h says.
//
// with a row for the bytes of parameters, where they are bounded.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/planner/classes.h"
#include "shoal/planner/find.h"
#include "shoal/planner/milp.h"
#include "shoal/planner/ways.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::planner {

class Formulation {
 public:
  using Terms = std::vector<std::pair<Milp::Variable, double>>;
  // Over the axes asked for, whole over others; few.
  using ByLayout = std::vector<std::pair<sharding::Layout, Terms>>;

  // What a variable that costs anything stands for.
  struct Cost {
    enum class Kind { Work, Kept, Changed };
    Milp::Variable variable;
    Kind kind;
    std::string layer;  // numbers in it are '*'
  };

  // Borrows all of them. Ends before it is all there where it is too large.
  Formulation(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question);

  // For Question::most_together.
  bool is_too_large() const {
    return ways_.are_too_many() ||
           (question_.axes.size() > 1 && milp_.num_variables() > question_.most_together);
  }
  const Milp& milp() const { return milp_; }
  const Classes& classes() const { return classes_; }
  const Ways& ways() const { return ways_; }
  const std::vector<Cost>& costs() const { return costs_; }
  // Of a class of parameters: a variable for each layout that it may have; two where it may be kept in parts, of which
  // the second says so.
  const ByLayout& layouts(std::size_t value) const { return made_[value]; }
  // Of a class of nodes: of its first way; those of the others follow.
  Milp::Variable first_way(std::size_t node) const { return first_way_[node]; }
  // The least bytes of parameters that a rank can keep.
  double least_kept() const;
  std::string layer_of(std::size_t value) const;
  std::string text_of_ranks() const;  // "4 ranks of 'outer' and 'inner'"

 private:
  using Reader = Ways::Reader;
  using Values = Ways::Values;
  struct Change {
    sharding::Layout from, to;
    double seconds;
    Milp::Variable variable;
    Values values;
  };

  const sharding::Shape& shape_of(std::size_t value) const {
    return graph_.at(classes_.values[value].first).type.shape;
  }
  const ir::Node& node_of(std::size_t node) const { return graph_.nodes[classes_.nodes[node].first]; }
  std::vector<std::string> marks() const;
  bool is_matrix(std::size_t value) const;
  std::size_t num_splits_wanted(std::size_t node) const;
  bool has_to_be_cut(std::size_t value) const;
  bool is_split(std::size_t value) const;
  const std::string* name_of(ir::ValueId parameter) const;
  double bytes_of(std::size_t value) const;
  std::optional<sharding::Placement> known_of(ir::ValueId parameter, std::size_t asked) const;
  std::size_t num_cuts(const sharding::Layout& layout) const;
  std::vector<sharding::Layout> layouts_of(std::size_t value) const;
  bool has_whole_blocks(const sharding::Layout& layout, std::size_t value) const;
  ByLayout layouts_of(const std::string& parameter) const;
  double work_of(std::size_t node) const;

  Milp::Variable add_cost(double seconds, bool is_whole, Cost::Kind kind, const std::string& layer);
  void weigh();
  void add_parameters();
  void add_nodes();
  void add_readers();
  void add_change(std::size_t value, const ByLayout& read, const Values& values);
  void add_messages();

  const ir::Graph& graph_;
  const sharding::Mesh& mesh_;
  const Question& question_;
  const Rates rates_;
  const Classes classes_;
  const Ways ways_;
  double all_flops_ = 0, all_bytes_ = 0;
  Milp milp_;
  Milp::Variable one_ = 0;  // is 1
  std::vector<Cost> costs_;
  Terms kept_;                                          // bytes of parameters
  std::vector<Milp::Variable> first_way_;               // by node class
  std::vector<ByLayout> made_;                          // by value class
  std::map<Reader, ByLayout> read_;                     // by node class and input
  std::map<std::size_t, std::vector<Change>> changes_;  // by value class
};

}  // namespace shoal::planner
