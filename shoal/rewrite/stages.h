// SPDX-License-Identifier: Apache-2.0
// A step cut into the stages of a pipeline: each node of forward and backward is given one, and which
// parameters are a stage's own follows. The model is not asked: forward is cut between any two nodes, and
// whatever lives there crosses. Two stages, the second from "h.1" on:
//
//   forward    %a = embed(%w, x)      stage 0       backward   %dl = …            stage 1   of the forward it belongs
//              %b = block("h.0", %a)  stage 0                  %db = …("h.1")     stage 1   to, and never later than
//              %c = block("h.1", %b)  stage 1                  %da = …("h.0")     stage 0   what it reads of backward
//              %l = loss(%c, %w)      stage 1                  %dw = %dl' + %da'  stage 0
//
// What depends on no parameter (masks, positions) and views are made anew in each stage that reads them: their
// inputs are there, or cross once for all. %w has no stage of its own: both have it. A rank may have several
// stages, and then what only these read is its own.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

struct Stages {
  static constexpr int kShared = -1;

  // Where each stage but the first begins: at a module's first node ("h.6"), or so many nodes of exactly that
  // module later ("lstm+120").
  std::vector<std::string> begins;
  std::vector<int> rank_of_stage;  // along the pipeline's axis
  // Of each parameter: the stage that reads it, the first of them where they are one rank's. kShared: those of
  // several ranks read it, or it has no dims.
  std::map<std::string, int> owners;
  // Every stage has what none of them reads.
  int owner_of(const std::string& parameter) const {
    const auto found = owners.find(parameter);
    return found == owners.end() ? kShared : found->second;
  }
  // The rank along the axis that alone has it, or kShared.
  int place_of(const std::string& parameter) const {
    const int owner = owner_of(parameter);
    return owner == kShared ? kShared : rank_of_stage.at(static_cast<std::size_t>(owner));
  }
  std::vector<int> of_rank(int rank) const;  // its stages, in order
  friend bool operator==(const Stages&, const Stages&) = default;
};

// As many stages as `rank_of_stage` has. `begins` empty: where the stages' work, and what crosses, is least for the
// one that has most of it (dynamic programming over the places to cut). Throws InvalidInput where a begin names no
// module or comes before the one before it, or where there are fewer places to cut than stages.
std::pair<ir::Graph, Stages> assign_stages(const ir::Graph& graph, std::vector<int> rank_of_stage,
                                           const std::vector<std::string>& begins);

// Likewise, where Node::stage of forward's nodes says: a stage begins at the first that has its number, or a later one.
std::pair<ir::Graph, Stages> assign_marked(const ir::Graph& graph, std::vector<int> rank_of_stage);

}  // namespace shoal::rewrite
