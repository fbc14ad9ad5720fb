// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/graph.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/names.h"

namespace shoal::ir {

static constexpr Names<Role, 10> kRoles = {{
    {Role::Parameter, "parameter"},
    {Role::Buffer, "buffer"},
    {Role::OptimizerState, "state"},
    {Role::Input, "input"},
    {Role::Constant, "constant"},
    {Role::Scalar, "scalar"},
    {Role::Activation, "activation"},
    {Role::Gradient, "gradient"},
    {Role::Loss, "loss"},
    {Role::Output, "output"},
}};
static constexpr Names<Phase, 3> kPhases = {{
    {Phase::Forward, "forward"},
    {Phase::Backward, "backward"},
    {Phase::Update, "update"},
}};
static constexpr Names<Form, 2> kForms = {{
    {Form::Captured, "captured"},
    {Form::Local, "local"},
}};

static bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool operator==(const Argument& a, const Argument& b) {
  if (a.name != b.name || a.value.index() != b.value.index()) return false;
  return std::visit(
      [&b]<class T>(const T& mine) {
        const T& other = std::get<T>(b.value);
        if constexpr (std::is_same_v<T, double>)
          return same_bits(mine, other);
        else if constexpr (std::is_same_v<T, std::vector<double>>)
          return std::ranges::equal(mine, other, same_bits);
        else
          return mine == other;
      },
      a.value);
}

std::string_view name_of(Role role) { return name_in(kRoles, role); }
std::optional<Role> parse_role(std::string_view name) { return parse_in(kRoles, name); }
std::string_view name_of(Phase phase) { return name_in(kPhases, phase); }
std::optional<Phase> parse_phase(std::string_view name) { return parse_in(kPhases, name); }
std::string_view name_of(Form form) { return name_in(kForms, form); }
std::optional<Form> parse_form(std::string_view name) { return parse_in(kForms, name); }

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t dim = shape.size(); dim-- > 1;)
    strides[dim - 1] = strides[dim] * std::max<std::int64_t>(shape[dim], 1);
  return strides;
}

TensorType contiguous(DType dtype, std::vector<std::int64_t> shape) {
  auto strides = contiguous_strides(shape);
  return {dtype, std::move(shape), std::move(strides)};
}

std::int64_t num_elements(const TensorType& type) {
  std::int64_t count = 1;
  for (const auto size : type.shape) count *= size;
  return count;
}

std::int64_t bytes_of(const TensorType& type) { return num_elements(type) * shoal::bytes_of(type.dtype); }

bool is_contiguous(const TensorType& type) {
  if (num_elements(type) == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t dim = type.shape.size(); dim-- > 0;) {
    if (type.shape[dim] == 1) continue;
    if (type.strides[dim] != expected) return false;
    expected *= type.shape[dim];
  }
  return true;
}

ValueId Graph::add_source(Role role, std::string name, TensorType type, std::string fingerprint) {
  const ValueId id{static_cast<std::uint32_t>(values.size())};
  values.push_back({std::move(type), role, std::nullopt});
  sources.push_back({id, std::move(name), std::move(fingerprint)});
  return id;
}

NodeId Graph::add_node(Node node, const std::vector<std::optional<TensorType>>& types) {
  const NodeId id{static_cast<std::uint32_t>(nodes.size())};
  node.outputs.clear();
  const Role role = node.phase == Phase::Forward ? Role::Activation : Role::Gradient;
  for (const auto& type : types) {
    if (!type) {
      node.outputs.emplace_back();
      continue;
    }
    node.outputs.emplace_back(ValueId{static_cast<std::uint32_t>(values.size())});
    values.push_back({*type, role, id});
  }
  nodes.push_back(std::move(node));
  return id;
}

void Graph::add_result(Role role, std::string name, ValueId value) {
  SHOAL_CHECK(value.index < values.size(), Internal, "graph: result ", name, " is not a value of this graph");
  results.push_back({role, std::move(name), value});
}

const Attribute* find(const Node& node, std::string_view argument) {
  for (const auto& [name, value] : node.arguments)
    if (name == argument) return &value;
  return nullptr;
}

std::vector<ValueId> inputs_of(const Node& node) {
  std::vector<ValueId> inputs;
  for (const auto& argument : node.arguments) {
    if (const auto* value = std::get_if<ValueId>(&argument.value)) inputs.push_back(*value);
    if (const auto* list = std::get_if<ValueList>(&argument.value))
      for (const auto& value : *list)
        if (value) inputs.push_back(*value);
  }
  return inputs;
}

Node with_inputs(Node node, const std::function<ValueId(ValueId)>& replacement) {
  for (auto& argument : node.arguments) {
    if (auto* value = std::get_if<ValueId>(&argument.value)) *value = replacement(*value);
    if (auto* list = std::get_if<ValueList>(&argument.value))
      for (auto& value : *list)
        if (value) value = replacement(*value);
  }
  return node;
}

}  // namespace shoal::ir
