// SPDX-License-Identifier: Apache-2.0
// Which nodes of a graph its program's scopes are around (scopes.h), gathered while it is recorded.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shoal/capture/scopes.h"
#include "shoal/ir/graph.h"
#include "shoal/ir/scopes.h"

namespace shoal::capture {

class Marks {
 public:
  void add_parameter(ir::ValueId value, const at::Tensor& tensor);
  // Of forward, in their order; `where` says where that is.
  void add_node(ir::NodeId id, const ir::Node& node, const std::function<std::string()>& where);
  // Stages in the order in which nodes came to them: fills Node::stage.
  ir::Scopes finish(ir::Graph& graph) &&;

 private:
  struct Parameter {
    std::optional<Entered> stage, split;
  };
  struct Split {
    ir::Scopes::Scope scope;
    std::vector<ir::ValueId> parameters;
  };
  void begin(const std::optional<Entered>& stage, ir::NodeId id, const std::function<std::string()>& where);
  void add_split(const std::optional<Entered>& entered, ir::ValueId parameter,
                 const std::function<std::string()>& where);

  std::map<ir::ValueId, Parameter> parameters_;
  bool is_any_made_ = false;  // of them, inside a scope
  ir::Scopes scopes_;
  std::set<int> begun_;             // numbers of scopes that are stages
  std::vector<ir::NodeId> begins_;  // of stages
  std::map<int, Split> splits_;     // by the number of the scope
};

}  // namespace shoal::capture
