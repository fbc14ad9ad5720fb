// SPDX-License-Identifier: Apache-2.0
// The ways in which the nodes of each class can run on an axis, and the cuts of values that come with them. What
// a rule says of an op alone is the beginning; from there cuts go through the graph, forwards and backwards, until
// there are no new ones: a projection to queries, keys and values is cut in three blocks because attention is cut
// by heads. What would cut the samples of the batch is left out, and what would leave a rank without a part.
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

  // Of a class of nodes; the first is to run whole.
  const std::vector<rewrite::Choice>& of_node(std::size_t node) const { return choices_[node]; }
  const std::vector<sharding::Placement>& cuts_of(std::size_t value) const { return cuts_[value]; }
  bool has_samples(std::size_t value) const { return !samples_[value].empty(); }
  // By class of values: who reads which of it; and the other way round.
  const std::map<std::size_t, std::map<Reader, Values>>& readers() const { return readers_; }
  const std::vector<std::size_t>& read_by(const Reader& reader) const { return read_by_.at(reader); }

  // Of cuts that are the same the one that says the least.
  sharding::Placement plain(const sharding::Placement& placement, const sharding::Shape& shape) const;
  // Of what is cut, how much the largest part is; 1 of what is not.
  double share_of(const sharding::Placement& placement, const sharding::Shape& shape) const {
    return share_of(placement, shape, question_.axis);
  }
  double share_of(const rewrite::Choice& choice, const ir::Node& node) const {
    return share_of(choice, node, question_.axis);
  }
  // How much of it axes further in leave a rank.
  double left_of(std::size_t value) const;
  double left_of(const ir::Node& node) const;
  bool leaves_some_without(const sharding::Placement& placement, const sharding::Shape& shape) const;

 private:
  const sharding::Shape& shape_of(std::size_t value) const;
  const ir::Node& node_of(std::size_t node) const { return graph_.nodes[classes_.nodes[node].first]; }
  rewrite::PlacedNode further_in(const ir::Node& node) const;  // whole, but for what those axes cut

  double share_of(const sharding::Placement& placement, const sharding::Shape& shape, std::size_t axis) const;
  double share_of(const rewrite::Choice& choice, const ir::Node& node, std::size_t axis) const;
  std::string name_of(std::size_t value) const;  // of a parameter
  void find_readers();
  void follow_samples();
  bool follow_samples(std::size_t node);
  void find_cuts();
  std::size_t num_cuts_around(std::size_t node) const;
  void take_cuts(std::size_t node);
  void add_cut(std::size_t value, const sharding::Placement& placement);
  void add_choice(std::size_t node, const rewrite::Choice& found);
  rewrite::Choice plain(rewrite::Choice choice, const ir::Node& node) const;
  bool cuts_samples(const sharding::Placement& placement, std::size_t value) const;
  bool leaves_some_without(const rewrite::Choice& choice, const ir::Node& node) const;
  bool is_good(const rewrite::Choice& choice, std::size_t node) const;

  const ir::Graph& graph_;
  const sharding::Mesh& mesh_;
  const Question& question_;
  const Classes& classes_;
  const int ranks_;
  const rewrite::Candidates candidates_;
  std::map<std::size_t, std::map<Reader, Values>> readers_;
  std::map<Reader, std::vector<std::size_t>> read_by_;
  std::vector<std::vector<sharding::Placement>> cuts_;  // by value class
  std::vector<std::vector<sharding::Shard>> samples_;   // likewise: where the batch's samples are
  std::vector<std::vector<rewrite::Choice>> choices_;   // by node class
};

}  // namespace shoal::planner
