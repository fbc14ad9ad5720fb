// SPDX-License-Identifier: Apache-2.0
// Finds how a step is cut over axes of the mesh, of what axes further in leave of it: a placement of every
// parameter, and of every node the way to run that together take the least time, as DESIGN's rules for layouts and
// the rates below have it. An integer program over classes of nodes (classes.h, formulation.h), solved exactly
// (milp.h); of several axes together, where that is a program of a size that is soon solved.
//
// Ways and cuts are found by going through the graph, forwards and backwards, until there are no new ones: a
// projection to queries, keys and values is cut in three blocks because attention is cut by heads. The batch is
// never cut here, unless somebody asks for it or has said what is split: that is what other axes are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/planner/rates.h"
#include "shoal/rewrite/place.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::planner {

// What was found over an axis.
struct FoundAxis {
  rewrite::Decided decided;
  std::map<std::string, sharding::Placement> parameters = {};  // all that the graph has
  friend bool operator==(const FoundAxis&, const FoundAxis&) = default;
};

// What is known of an axis that is asked for.
struct AskedAxis {
  std::size_t axis = 0;
  std::map<std::string, sharding::Placement> parameters = {};
  std::map<ir::ValueId, sharding::Placement> values = {};  // as they are handed on
  friend bool operator==(const AskedAxis&, const AskedAxis&) = default;
};

struct Question {
  std::vector<AskedAxis> axes = {{}};  // the innermost first
  std::vector<FoundAxis> further_in = {};
  std::map<std::string, int> batch_dims = {};  // of inputs that have samples: where they lie
  int data_ranks = 1;                          // among which these are cut
  // Parameters that have to be cut; where there are any, all others are whole, and the axis may cut samples.
  std::set<std::string> split = {};
  std::set<std::string> in_blocks = {};  // parameters whose parts have whole blocks (sharding/state_blocks.h)
  bool cuts_samples = false;  // the axes may cut the batch where no other does, and matrices may stay whole
  // Bytes of parameters that a rank may keep of the whole model once all of `axes` are found; 0: any.
  std::int64_t most_kept = 0;
  // The axis whose ranks keep of each parameter the whole, or a part that is gathered before its use (ZeRO-3,
  // Rajbhandari et al., arXiv:1910.02054); none: that is not asked for. For backward again, or once a step.
  std::optional<std::size_t> zero_axis = {};
  bool gathers_again = true;
  std::optional<std::set<std::string>> in_parts = {};  // of that axis, where it is known
  double budget = 0;      // seconds of search, after which the best so far is taken; 0: as many as it takes
  std::string told = {};  // Found::told of a rank that has searched, which is taken as it is
  Rates rates = {};
  double gap = 1e-3;  // how much more than the least it may take, as a share
  bool folds = true;  // what stands alike in alike layers is cut alike
  // Variables: of several axes whose program has more the outermost is left, until it has no more. The same on every
  // rank, which a limit of time is not; with these a search takes about a second.
  int most_together = 5000;

  friend bool operator==(const Question&, const Question&) = default;
};

// What a class of layers costs as it was decided, in seconds of a step.
struct Layer {
  std::string path;  // numbers in it are '*'
  // Its own, by what follows the path; over the axes that were found, whole over others.
  std::map<std::string, sharding::Layout> parameters = {};
  double work = 0;     // of the rank that has the most of it
  double changed = 0;  // until values lie as they are read: messages, and copies
  double kept = 0;     // Rates::kept
  // The best way in which its largest parameter lies otherwise, and how much longer all of the step takes.
  struct Next {
    std::map<std::string, sharding::Layout> parameters = {};
    double more = 0;
    friend bool operator==(const Next&, const Next&) = default;
  };
  std::optional<Next> next = {};
  friend bool operator==(const Layer&, const Layer&) = default;
};

struct Found {
  std::vector<FoundAxis> axes;  // of those asked for as many as are found together, the innermost first
  std::set<std::string> in_parts = {};  // parameters, over Question::zero_axis
  double seconds = 0;                   // by the rates, for what a choice can change
  double bound = 0;                     // there is no way that takes less
  int variables = 0;
  int rows = 0;
  bool is_in_time = true;  // else the budget ran out
  std::string told;        // for Question::told
  Question question;       // of the axes that were found
};

// The latest few answers are kept (asked.h). Throws Infeasible where no placement keeps so little, with the least;
// Timeout where the budget is over before there is any.
Found find(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question);

// In the order of the step. Of the graph that `found` is of; searches once more for each class of layers.
std::vector<Layer> explain(const ir::Graph& graph, const sharding::Mesh& mesh, const Found& found);

}  // namespace shoal::planner
