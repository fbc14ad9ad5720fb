// SPDX-License-Identifier: Apache-2.0
// A plan in text: how parameters and the outputs of modules lie on the axes of a mesh.
//
//   # Two matrices of a block, the first cut by columns, the second by rows.
//   parameter h.*.mlp.c_fc.weight    tensor=S(1)
//   parameter h.*.mlp.c_fc.bias      tensor=S(0)
//   parameter h.*.mlp.c_proj.weight  tensor=S(0)
//   output    h.*.mlp.c_proj         tensor=R
//
// A line is about all parameters, or modules, that its pattern names; '*' stands for any characters but '.'.
// Axes that it leaves out are not its business: data parallelism and ZeRO cut by them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

struct PlanLine {
  enum class Kind { Parameter, Output };
  Kind kind = Kind::Parameter;
  std::string pattern;
  std::map<std::string, sharding::Placement> placements;  // by axis
  friend bool operator==(const PlanLine&, const PlanLine&) = default;
};

struct Plan {
  std::vector<PlanLine> lines;
  friend bool operator==(const Plan&, const Plan&) = default;
};

std::string to_text(const Plan& plan);
// Throws InvalidInput naming `name`, the line, and what is wanted there.
Plan plan_from_text(std::string_view text, std::string_view name = "plan");

// What the plan's lines say about it, over what is there. Throws InvalidInput where two lines say different
// things.
sharding::Layout parameter_layout(const Plan& plan, const sharding::Mesh& mesh, std::string_view parameter);
// Throws InvalidInput naming lines that fit none of the parameters, and axes that the mesh has not.
void check_fits(const Plan& plan, const sharding::Mesh& mesh, const std::vector<std::string>& parameters,
                std::string_view name = "plan");

}  // namespace shoal::rewrite
