// SPDX-License-Identifier: Apache-2.0
// The places where forward can be cut into stages, what they are called, and which of them are best.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shoal/ir/flops.h"
#include "shoal/ir/graph.h"

namespace shoal::rewrite {

class Cuts {
 public:
  // `is_free`, by node: what each stage can make for itself does not cross.
  Cuts(const ir::Graph& graph, const std::vector<bool>& is_free);

  // The nodes of forward in their order; a cut is an ordinal among them, that of the first one after it.
  const std::vector<std::size_t>& nodes() const { return nodes_; }

  // Throw InvalidInput (stages.h).
  std::vector<std::size_t> best(int stages) const;
  std::vector<std::size_t> at(const std::vector<std::string>& begins, int stages) const;
  std::vector<std::size_t> marked(int stages) const;  // by Node::stage
  std::vector<std::string> names_of(const std::vector<std::size_t>& ordinals) const;

  // Of the stage between two ordinals, in flops: work, and what comes in for it.
  double cost(std::size_t begin, std::size_t end) const;

 private:
  std::vector<std::size_t> best_of(const std::vector<std::size_t>& places, int stages, double& most) const;
  std::size_t ordinal_of(const std::string& begin) const;

  const ir::Graph& graph_;
  std::vector<std::size_t> nodes_;
  std::vector<std::string> names_;          // by ordinal
  std::vector<std::size_t> module_begins_;  // ordinals at which a module is met first
  std::vector<double> work_;                // of all before the ordinal
  std::vector<double> crossing_;            // bytes, by ordinal
};

}  // namespace shoal::rewrite
