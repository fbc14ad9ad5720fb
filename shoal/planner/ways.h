// SPDX-License-Identifier: Apache-2.0
// The ways in which the nodes of each class can run on an axis, and the cuts of values that come with them. What
// a rule says of an op alone is the beginning; from there cuts go through the graph, forwards and backwards, until
// there are no new ones: a projection to queries, keys and values is cut in three blocks because attention is cut
// by heads. What would cut the samples of the batch is left out, and what would leave a rank without a part.
//
// Of several axes asked for together, each way over an axis is one beside each over those further in, which it has
// to go together with.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/planner/classes.h"
#include "shoal/planner/find.h"
#include "shoal/rewrite/candidates.h"
#include "shoal/rewrite/place.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::planner {

using Way = std::vector<rewrite::Choice>;  // by axis of those asked for together, the innermost first

class Ways {
 public:
  // An input of a class of nodes.
  struct Reader {
    std::size_t node;
    std::size_t input;
    friend auto operator<=>(const Reader&, const Reader&) = default;
  };
  using Values = std::set<std::uint32_t>;  // of a class

  // Borrows all of them.
  Ways(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question, const Classes& classes);

  // For Question::most_together; they have not all been found then. Of programs near that size each way of several axes
  // brings ten variables and more, most of them of changes.
  bool are_too_many() const { return question_.axes.size() > 1 && num_ways_ > question_.most_together / 10; }
  // Of a class of nodes; the first is to run whole.
  const std::vector<Way>& of_node(std::size_t node) const { return ways_[node]; }
  // Over that axis of those asked for.
  const std::vector<sharding::Placement>& cuts_of(std::size_t value, std::size_t asked) const {
    return axes_[asked].cuts[value];
  }
  bool has_samples(std::size_t value) const {
    return !axes_.empty() && !axes_.front().samples[value].empty();
  }
  // By class of values: who reads which of it; and the other way round.
  const std::map<std::size_t, std::map<Reader, Values>>& readers() const { return readers_; }
  const std::vector<std::size_t>& read_by(const Reader& reader) const { return read_by_.at(reader); }

  // How what is read, or made, lies over the axes asked for; over others it is whole.
  sharding::Layout in_of(const Way& way, std::size_t input) const;
  sharding::Layout out_of(const Way& way, std::size_t output) const;

  // Of cuts that are the same the one that says the least.
  sharding::Placement plain(const sharding::Placement& placement, const sharding::Shape& shape,
                            std::size_t asked) const;
  // Of what is cut, how much the largest part is; 1 of what is not.
  double share_of(const sharding::Layout& layout, const sharding::Shape& shape) const;
  double share_of(const Way& way, const ir::Node& node) const;
  std::size_t num_splits(const Way& way, const ir::Node& node) const;  // axes that share the work
  // How much of it axes further in leave a rank.
  double left_of(std::size_t value) const;
  double left_of(const ir::Node& node) const;
  bool leaves_some_without(const sharding::Layout& layout, const sharding::Shape& shape) const;

 private:
  struct Axis {  // that is asked for
    std::size_t axis;
    int ranks;
    std::vector<std::vector<sharding::Placement>> cuts;  // by value class
    std::vector<std::vector<sharding::Shard>> samples;   // likewise: where the batch's samples are
  };

  const sharding::Shape& shape_of(std::size_t value) const;
  const ir::Node& node_of(std::size_t node) const { return graph_.nodes[classes_.nodes[node].first]; }
  // Whole, but for what the axes further in cut.
  rewrite::PlacedNode further_in(const ir::Node& node, const Way& way = {}) const;

  double share_of(const sharding::Placement& placement, const sharding::Shape& shape, std::size_t axis) const;
  double share_of(const rewrite::Choice& choice, const ir::Node& node, std::size_t axis) const;
  std::string name_of(std::size_t value) const;  // of a parameter
  void find_readers();
  void follow_samples(Axis& of);
  bool follow_samples(Axis& of, std::size_t node);
  void find_ways(std::size_t asked);
  std::size_t num_cuts_around(const Axis& of, std::size_t node) const;
  void take_cuts(std::size_t asked, std::size_t node);
  static void add_cut(Axis& of, std::size_t value, const sharding::Placement& placement);
  void add_way(std::size_t asked, std::size_t node, const Way& further_in, const rewrite::Choice& found);
  rewrite::Choice plain(rewrite::Choice choice, const ir::Node& node, std::size_t asked) const;
  bool cuts_samples(const Axis& of, const sharding::Placement& placement, std::size_t value) const;
  static bool leaves_some_without(const Axis& of, const sharding::Placement& placement,
                                  const sharding::Shape& shape);
  bool is_somewhere_empty(const sharding::Layout& layout, const sharding::Shape& shape) const;
  bool leaves_some_without(const Axis& of, const rewrite::PlacedNode& placed, const ir::Node& node) const;
  bool is_good(std::size_t asked, const Way& further_in, const rewrite::Choice& choice,
               std::size_t node) const;

  const ir::Graph& graph_;
  const sharding::Mesh& mesh_;
  const Question& question_;
  const Classes& classes_;
  const rewrite::Candidates candidates_;
  std::map<std::size_t, std::map<Reader, Values>> readers_;
  std::map<Reader, std::vector<std::size_t>> read_by_;
  std::vector<Axis> axes_;              // that are asked for
  std::vector<std::vector<Way>> ways_;  // by node class
  int num_ways_ = 0;
  // Over axes further in alone, while those of the next are found.
  std::vector<std::vector<Way>> further_in_;
};

}  // namespace shoal::planner
