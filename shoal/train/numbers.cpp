// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

namespace shoal::train {

using ir::Attribute;
using program::Compute;
using program::Program;

// As an operator takes it where it takes `like`: a float may be given as an integer.
static Attribute attribute_of(const Number& number, const Attribute& like) {
  const auto* integer = std::get_if<std::int64_t>(&number);
  if (integer != nullptr && std::holds_alternative<double>(like)) return static_cast<double>(*integer);
  return std::visit([](auto value) { return Attribute(value); }, number);
}

static bool same_bits(const Attribute& a, const Attribute& b) {
  const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
  return x != nullptr && y != nullptr ? std::memcmp(x, y, sizeof *x) == 0 : a == b;
}

// ---- What graphs and programs have in common: lists of arguments.

static std::size_t size_of(const ir::Graph& graph) { return graph.nodes.size(); }
static std::vector<ir::Argument>* arguments_at(ir::Graph& graph, std::size_t node) {
  return &graph.nodes[node].arguments;
}

static std::vector<ir::Argument>* arguments_at(Program& program, std::size_t n) {
  const auto [segment, instruction] = program::place_of(program, n);
  auto* compute = std::get_if<Compute>(&program.segments[segment].instructions[instruction]);
  return compute == nullptr ? nullptr : &compute->arguments;
}

template <class List>
static std::optional<std::vector<Hole>> holes(List first, const Numbers& at_first, List second,
                                              const Numbers& at_second) {
  if (size_of(first) != size_of(second) || at_first.size() != at_second.size()) return std::nullopt;
  std::vector<Hole> found;
  for (std::size_t node = 0; node < size_of(first); ++node) {
    auto *a = arguments_at(first, node), *b = arguments_at(second, node);
    if (a == nullptr || b == nullptr || a->size() != b->size()) continue;
    for (std::size_t argument = 0; argument < a->size(); ++argument) {
      auto &x = (*a)[argument].value, &y = (*b)[argument].value;
      if (same_bits(x, y)) continue;
      std::size_t number = 0;
      while (number < at_first.size() && !(same_bits(attribute_of(at_first[number], x), x) &&
                                           same_bits(attribute_of(at_second[number], y), y)))
        ++number;
      if (number == at_first.size()) return std::nullopt;
      found.push_back({node, argument, number});
      x = y;
    }
  }
  if (!(first == second)) return std::nullopt;
  return found;
}

std::optional<std::vector<Hole>> holes_between(const ir::Graph& first, const Numbers& at_first,
                                               const ir::Graph& second, const Numbers& at_second) {
  return holes(first, at_first, second, at_second);
}
std::optional<std::vector<Hole>> holes_between(const Program& first, const Numbers& at_first,
                                               const Program& second, const Numbers& at_second) {
  return holes(first, at_first, second, at_second);
}

void fill(ir::Graph& graph, const std::vector<Hole>& holes, const Numbers& values) {
  for (const auto& [node, argument, number] : holes) {
    auto& value = graph.nodes.at(node).arguments.at(argument).value;
    value = attribute_of(values.at(number), value);
  }
}

void fill(runtime::Executor& executor, const std::vector<Hole>& holes, const Numbers& values) {
  for (const auto& [node, argument, number] : holes) {
    const auto [segment, instruction] = program::place_of(executor.program(), node);
    const auto& compute = std::get<Compute>(executor.program().segments[segment].instructions[instruction]);
    executor.set_argument(segment, instruction, argument,
                          attribute_of(values.at(number), compute.arguments.at(argument).value));
  }
}

// ---- Finding them

// What operators, formulas of gradients and rewrites may tell apart.
static int kind_of(const Number& number) {
  const double value = std::visit([](auto each) { return static_cast<double>(each); }, number);
  if (!std::isfinite(value)) return 0;
  const int sign = value < 0 || std::signbit(value) ? 1 : 2;
  if (value != std::trunc(value)) return sign;
  if (std::fabs(value) > 1) return 2 + sign;
  return value == 0 ? 4 + sign : 6 + sign;
}

static bool same_kinds(const std::vector<Hole>& holes, const Numbers& a, const Numbers& b) {
  return std::ranges::all_of(holes, [&](const Hole& hole) {
    const int kind = kind_of(a[hole.number]);
    return kind != 0 && kind == kind_of(b[hole.number]);
  });
}

std::unique_ptr<Followed> Followed::find(VaryingNumbers& numbers, const ir::Graph& recorded,
                                         const std::function<ir::Graph()>& record) {
  const Numbers now = numbers.now();
  auto found = std::make_unique<Followed>();
  ir::Graph traced;
  found->trace_ = numbers.trace([&] { traced = record(); });
  if (!found->trace_ || !(traced == recorded)) return nullptr;
  auto first = found->trace_->at(now);
  if (!first) return nullptr;
  found->first_ = std::move(*first);
  const auto others = numbers.others();
  const Numbers* second = nullptr;
  constexpr int kMostRuns = 4;
  int runs = 0;
  for (const Numbers& other : others) {
    const auto values = found->trace_->at(other);
    const bool all_differ =
        std::ranges::equal(now, other, [](const Number& a, const Number& b) { return a != b; });
    if (!all_differ || !values || (second != nullptr && *second == other)) continue;
    if (++runs > kMostRuns) return nullptr;
    ir::Graph there;
    numbers.run_with(other, [&] { there = record(); });
    auto holes = holes_between(recorded, found->first_, there, *values);
    if (!holes) return nullptr;
    if (!same_kinds(*holes, found->first_, *values)) continue;
    if (second != nullptr) {
      found->third_ = *values;
      ir::Graph said = recorded;
      fill(said, found->holes_, *values);
      return said == there ? std::move(found) : nullptr;
    }
    second = &other;
    found->second_ = *values;
    found->holes_ = std::move(*holes);
  }
  return nullptr;
}

std::optional<Numbers> Followed::at(const Numbers& numbers) const {
  auto values = trace_->at(numbers);
  if (!values || !same_kinds(holes_, first_, *values)) return std::nullopt;
  return values;
}

std::optional<std::vector<Hole>> Followed::holes_in(
    const ir::Graph& recorded, const std::function<program::Program(ir::Graph)>& make) const {
  const auto made_at = [&](const Numbers& values) {
    ir::Graph graph = recorded;
    fill(graph, holes_, values);
    return make(std::move(graph));
  };
  const auto first = made_at(first_);
  auto holes = holes_between(first, first_, made_at(second_), second_);
  return holes == holes_between(first, first_, made_at(third_), third_) ? holes : std::nullopt;
}

}  // namespace shoal::train
