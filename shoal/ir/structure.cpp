// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/structure.h"

#include <bit>
#include <concepts>
#include <functional>
#include <string_view>
#include <type_traits>

namespace shoal::ir {

namespace {

class Hash {
 public:
  explicit Hash(const Graph& graph) : graph_(graph) {}
  std::uint64_t value() const { return value_; }

  // SplitMix64's mixer over what came before: Steele et al., OOPSLA 2014.
  void add(std::integral auto number) {
    value_ += 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(number);
    value_ = (value_ ^ value_ >> 30U) * 0xbf58476d1ce4e5b9U;
    value_ = (value_ ^ value_ >> 27U) * 0x94d049bb133111ebU;
    value_ ^= value_ >> 31U;
  }
  void add(std::string_view text) { add(std::hash<std::string_view>{}(text)); }
  template <class T>
    requires std::is_enum_v<T>
  void add(T word) {
    add(static_cast<std::uint64_t>(word));
  }

  void add(ValueId value) { add(value.index); }
  void add_made(ValueId value) {
    const auto& [type, role, producer] = graph_.at(value);
    add(value);
    add(type.dtype);
    add(type.shape.size());
    add(role);
  }

  void add(const Argument& argument) {
    add(argument.name);
    add(argument.value.index());
    std::visit([this](const auto& value) { add_argument(value); }, argument.value);
  }

 private:
  void add_argument(std::monostate) {}
  void add_argument(std::int64_t) {}  // may follow a size
  void add_argument(const std::vector<std::int64_t>& list) { add(list.size()); }
  void add_argument(double number) { add(std::bit_cast<std::uint64_t>(number)); }
  void add_argument(const std::string& text) { add(text); }
  void add_argument(const Symbol& symbol) { add(symbol.name); }
  void add_argument(const std::optional<ValueId>& value) { add(value ? value->index + 1 : 0); }
  void add_argument(ValueId value) { add(value); }
  template <class T>
    requires std::is_enum_v<T> || std::same_as<T, bool>
  void add_argument(T value) {
    add(value);
  }
  template <class T>
  void add_argument(const std::vector<T>& list) {
    add(list.size());
    for (const T& each : list) add_argument(each);
  }

  const Graph& graph_;
  std::uint64_t value_ = 0;
};

}  // namespace

std::uint64_t structure_of(const Graph& graph) {
  Hash hash(graph);
  hash.add(graph.form);
  for (const Source& source : graph.sources) {
    hash.add_made(source.value);
    hash.add(source.name);
  }
  for (const Node& node : graph.nodes) {
    hash.add(node.op);
    hash.add(node.phase);
    hash.add(node.stage);
    hash.add(node.module);
    hash.add(node.arguments.size());
    for (const Argument& argument : node.arguments) hash.add(argument);
    hash.add(node.outputs.size());
    for (const auto& output : node.outputs) {
      hash.add(output.has_value());
      if (output) hash.add_made(*output);
    }
  }
  for (const Result& result : graph.results) {
    hash.add(result.role);
    hash.add(result.name);
    hash.add(result.value);
  }
  return hash.value();
}

}  // namespace shoal::ir
