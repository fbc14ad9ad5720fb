// SPDX-License-Identifier: Apache-2.0
#include "shoal/program/aliases.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "shoal/ir/views.h"

namespace shoal::program {

using ir::TensorType;
using ir::ValueId;

Call call_of(const ir::Node& node) { return {node.op, node.arguments, node.outputs}; }
Call call_of(const Compute& compute) { return {compute.op, compute.arguments, compute.outputs}; }

std::vector<Slot> inputs_of(const Call& call) {
  std::vector<Slot> slots;
  for (const ir::Argument& argument : call.arguments) {
    if (const auto* slot = std::get_if<Slot>(&argument.value)) slots.push_back(*slot);
    if (const auto* list = std::get_if<ir::ValueList>(&argument.value))
      for (const auto& slot : *list)
        if (slot) slots.push_back(*slot);
  }
  return slots;
}

std::int64_t storage_bytes(const TensorType& type) {
  std::int64_t last = 0;
  for (std::size_t dim = 0; dim < type.shape.size(); ++dim) {
    if (type.shape[dim] == 0) return 0;
    last += (type.shape[dim] - 1) * type.strides[dim];
  }
  return (last + 1) * bytes_of(type.dtype);
}

static const ir::Attribute* find(const Call& call, std::string_view name) {
  const auto found = std::ranges::find(call.arguments, name, &ir::Argument::name);
  return found == call.arguments.end() ? nullptr : &found->value;
}

// The elements that are cut out lie one after the other.
static bool is_slice(const Call& call, const TensorType& type) {
  const auto dim = std::get<std::int64_t>(*find(call, "dim"));
  return std::get<std::int64_t>(*find(call, "outer")) == 1 &&
         std::all_of(type.shape.begin(), type.shape.begin() + dim,
                     [](std::int64_t size) { return size == 1; }) &&
         ir::is_contiguous(type);
}

// Whether a tensor that lies like `base` has a view of this shape: each run of dims that lie one behind the
// other is cut as the shape says, as at::detail::computeStride does it.
static bool has_view(const TensorType& base, const std::vector<std::int64_t>& shape) {
  if (ir::num_elements(base) == 0) return true;
  const auto at = [](const std::vector<std::int64_t>& list, std::ptrdiff_t i) {
    return list[static_cast<std::size_t>(i)];
  };
  auto to = std::ssize(shape) - 1;
  std::int64_t run = 1, taken = 1;
  std::int64_t innermost = base.strides.empty() ? 1 : base.strides.back();  // stride, of the run
  for (auto dim = std::ssize(base.shape) - 1; dim >= 0; --dim) {
    run *= at(base.shape, dim);
    const bool ends =
        dim == 0 || (at(base.shape, dim - 1) != 1 && at(base.strides, dim - 1) != run * innermost);
    if (!ends) continue;
    while (to >= 0 && (taken < run || at(shape, to) == 1)) taken *= at(shape, to--);
    if (taken != run) return false;
    run = taken = 1;
    if (dim > 0) innermost = at(base.strides, dim - 1);
  }
  return to < 0;
}

// Names without overload of ops that copy where there is no such view.
static constexpr std::array kReshapes =
    std::to_array<std::string_view>({"flatten", "ravel", "reshape", "reshape_as"});
static constexpr std::array kSometimesCopies =
    std::to_array<std::string_view>({"contiguous", "pin_memory", "to"});

bool shares_memory(const Call& call, const Types& types) {
  const auto inputs = inputs_of(call);
  if (inputs.empty() || !ir::is_view(call.op)) return false;
  const TensorType& base = types.at(inputs.front().index);
  if (call.op == "shoal::part") return is_slice(call, base);
  if (call.op.starts_with("shoal::")) return true;
  if (!call.op.starts_with("aten::")) return false;
  const std::string_view name = call.op.substr(6, call.op.find('.') - 6);
  const bool makes_one = call.outputs.size() == 1 && call.outputs[0].has_value();
  if (std::ranges::find(kReshapes, name) != kReshapes.end())
    return makes_one && has_view(base, types.at(call.outputs[0]->index).shape);
  if (std::ranges::find(kSometimesCopies, name) != kSometimesCopies.end())
    return makes_one && ir::is_contiguous(base) && types.at(call.outputs[0]->index).dtype == base.dtype;
  return true;
}

// An op of another library may do anything: its outputs count as views of all its inputs.
static bool is_known(std::string_view op) { return op.starts_with("aten::") || op.starts_with("shoal::"); }

Aliases::Aliases(std::size_t num_values) : parent_(num_values), sources_(num_values), members_(num_values) {
  std::iota(parent_.begin(), parent_.end(), 0U);
}

Aliases::Aliases(const ir::Graph& graph) : Aliases(graph.values.size()) {
  for (const auto& source : graph.sources) sources_[source.value.index].insert(source.value);
  for (const auto& node : graph.nodes) add(call_of(node));
  collect();
}

Aliases::Aliases(const Program& program) : Aliases(program.types.size()) {
  for (const Source& source : program.sources) sources_[source.slot.index].insert(source.slot);
  for (const Segment& segment : program.segments)
    for (const Instruction& instruction : segment.instructions)
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        add(call_of(*compute));
        if (compute->over) join(compute->outputs.at(0).value(), *compute->over);
      }
  collect();
}

void Aliases::add(const Call& call) {
  if (!ir::is_view(call.op)) return;
  auto shared = inputs_of(call);
  if (is_known(call.op) && shared.size() > 1) shared.resize(1);
  for (const auto& output : call.outputs)
    for (const auto& input : shared)
      if (output) join(*output, input);
}

void Aliases::collect() {
  for (std::uint32_t value = 0; value < parent_.size(); ++value)
    members_[root(ValueId{value})].push_back(ValueId{value});
}

std::uint32_t Aliases::root(ValueId value) const {
  std::uint32_t at = value.index;
  while (parent_[at] != at) at = parent_[at];
  return at;
}

void Aliases::join(ValueId a, ValueId b) {
  const std::uint32_t from = std::max(root(a), root(b));
  const std::uint32_t to = std::min(root(a), root(b));
  if (from == to) return;
  parent_[from] = to;
  sources_[to].merge(sources_[from]);
}

}  // namespace shoal::program
