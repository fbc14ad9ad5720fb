// SPDX-License-Identifier: Apache-2.0
// Which values lie in one memory, of a graph or of a program: what may be written over, what has to be cloned
// first, when memory is free again and how much of it there is are all asked here.
//
//   %1 = aten::t(%0)              shares: an alias of %0, always
//   %2 = aten::to.dtype(%1, …)    may share: one alias of %1 or memory of its own
//   %3 = aten::mm(%2, %1)         its own
//   %4 = aten::relu(%3) over %3   shares
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/program/program.h"

namespace shoal::program {

// An op with its arguments and what it makes: a node, or a Compute.
struct Call {
  std::string_view op;
  const std::vector<ir::Argument>& arguments;
  const std::vector<std::optional<Slot>>& outputs;
};
Call call_of(const ir::Node& node);
Call call_of(const Compute& compute);

// All slots that the arguments name, repeats included.
std::vector<Slot> inputs_of(const Call& call);

// Of a tensor with memory of its own: from its first element to its last one.
std::int64_t storage_bytes(const ir::TensorType& type);

// Whether the op's outputs lie in the memory of its first input: known from the types, and the same in every
// run.
using Types = std::vector<ir::TensorType>;  // by slot
bool shares_memory(const Call& call, const Types& types);

// Sets of values of a graph, or of slots of a program, that may share memory.
class Aliases {
 public:
  explicit Aliases(const ir::Graph& graph);
  explicit Aliases(const Program& program);
  std::uint32_t root(ir::ValueId value) const;  // the same for all of a set
  const std::vector<ir::ValueId>& members(ir::ValueId value) const { return members_[root(value)]; }
  const std::set<ir::ValueId>& sources(ir::ValueId value) const { return sources_[root(value)]; }

 private:
  explicit Aliases(std::size_t num_values);
  void add(const Call& call);
  void collect();
  void join(ir::ValueId a, ir::ValueId b);

  std::vector<std::uint32_t> parent_;
  std::vector<std::set<ir::ValueId>> sources_;     // by root
  std::vector<std::vector<ir::ValueId>> members_;  // by root
};

}  // namespace shoal::program
