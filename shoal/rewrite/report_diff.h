// SPDX-License-Identifier: Apache-2.0
// Two plans of one model, held against each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/rewrite/report.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

struct ComparedPlan {
  std::string name;
  sharding::Mesh mesh;
  Report report;                      // of a step
  std::vector<std::string> settings;  // lines of the plan that place nothing
  std::int64_t memory = 0;            // of a rank, at most
  std::optional<double> seconds;      // of a step, where it was simulated
};

// What differs, layer by layer, then the totals of both; "the plans are alike" where nothing does. Lines have 120
// characters at most, unless a name is long.
std::string diff_text(const ComparedPlan& a, const ComparedPlan& b);

}  // namespace shoal::rewrite
