// SPDX-License-Identifier: Apache-2.0
// Builds the update nodes of a captured step, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/compile/optimizer.h"
#include "shoal/compile/update.h"
#include "shoal/ir/graph.h"

namespace shoal::compile {

// The argument of an op that is a list of state, and the state's name; "": the op has it, but these settings
// do not need it.
using States = std::vector<std::pair<std::string, std::string>>;
using Counts = std::function<std::int64_t(const std::string& parameter)>;

class Appender {
 public:
  Appender(ir::Graph graph, const UpdateSettings& settings);

  // What is appended from now on is for the parameters of this part. Borrowed.
  void start_part(std::size_t part, const Optimizer& optimizer);

  // `settings`: the op's own arguments after lr and step; `counts`: it reads the step; `takes`: of which
  // parameters.
  void append(const std::string& op, const States& states, double lr, double weight_decay, bool counts,
              const std::vector<ParameterGroup>& groups,
              const std::function<std::vector<ir::Argument>(double weight_decay)>& settings,
              const Counts& updates_of, const std::function<bool(const ir::TensorType&)>& takes = {});

  Update finish() &&;

 private:
  struct Parameter {
    std::string name;
    ir::ValueId value;
    ir::ValueId gradient;
  };

  // How what is kept of a parameter is rounded.
  struct Rounding {
    bool to_codes = false, with_compensation = false, by_chance = false;
    friend auto operator<=>(const Rounding&, const Rounding&) = default;
  };

  static std::vector<Parameter> parameters_of(const ir::Graph& graph);
  Rounding rounding_of(const ir::TensorType& parameter, bool has_state) const;
  void append_group(const std::string& op, const States& states, double lr, bool counts,
                    const std::vector<ir::Argument>& settings, const std::vector<const Parameter*>& members,
                    Rounding rounding);
  ir::ValueId rounding_seed();
  ir::TensorType type_of_state(const ir::TensorType& parameter, const std::string& suffix) const;

  ir::Graph graph_;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> part_of_;  // by parameter; the number of parts: in none
  std::size_t part_ = 0;
  const Optimizer* optimizer_ = nullptr;  // of part_
  DType numbers_;
  rewrite::Master master_;
  std::optional<ir::ValueId> scale_, rounding_seed_;
  std::vector<UpdateGroup> groups_;
};

}  // namespace shoal::compile
