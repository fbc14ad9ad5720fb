// SPDX-License-Identifier: Apache-2.0
#include "shoal/sharding/rules.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "shoal/base/error.h"
#include "shoal/sharding/factors.h"
#include "shoal/sharding/ops.h"

namespace shoal::sharding {

std::string to_text(const Strategy& strategy) {
  const auto list = [](const std::vector<Placement>& placements) {
    std::string text;
    for (const Placement& placement : placements)
      text += concat(text.empty() ? "" : ", ", to_text(placement));
    return text;
  };
  return concat(list(strategy.in), " -> ", list(strategy.out));
}

bool has_rule(std::string_view op) { return find_rule(op) != nullptr; }

static std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

static std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    if (const auto part = trimmed(text.substr(0, end)); !part.empty() || separator == ',')
      parts.push_back(part);
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// The number that an argument is; a truth is 0 or 1.
static std::optional<double> number_in(const ir::Node& node, std::string_view argument) {
  const ir::Attribute* found = ir::find(node, argument);
  if (const auto* truth = std::get_if<bool>(found)) return *truth ? 1 : 0;
  if (const auto* whole = std::get_if<std::int64_t>(found)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(found)) return *real;
  return std::nullopt;
}

// Takes what stands behind `word` off the text; empty where the word does not stand there.
static std::string_view taken(std::string_view& text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = trimmed(text.substr(at + word.size()));
  text = trimmed(text.substr(0, at));
  return rest;
}

std::vector<Linear> linear_in(const ir::Node& node) {
  std::vector<Linear> all;
  const OpRule* rule = find_rule(node.op);
  if (rule == nullptr) return all;
  for (std::string_view together : split(rule->linear, '|')) {
    std::string_view made = taken(together, "->");
    if (const std::string_view condition = taken(together, " if "); !condition.empty()) {
      const auto words = split(condition, '=');
      if (number_in(node, words.at(0)) != std::stod(std::string(words.at(1)))) continue;
    }
    if (made.empty()) made = "+";
    Linear linear = {.in = split(together, '+'), .made = {}};
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      linear.made.push_back(made[std::min(i, made.size() - 1)] == '+');
    all.push_back(std::move(linear));
  }
  return all;
}

// The names of the arguments that the tensors come from, as ir::inputs_of(node).
static std::vector<std::string_view> names_of_inputs(const ir::Node& node) {
  std::vector<std::string_view> names;
  for (const ir::Argument& argument : node.arguments) {
    if (std::holds_alternative<ir::ValueId>(argument.value)) names.emplace_back(argument.name);
    if (const auto* list = std::get_if<ir::ValueList>(&argument.value))
      for (const auto& value : *list)
        if (value) names.emplace_back(argument.name);
  }
  return names;
}

static Shapes shapes_in(const ir::Graph& graph, const ir::Node& node) {
  Shapes shapes;
  for (const ir::ValueId input : ir::inputs_of(node)) shapes.emplace_back(graph.at(input).type.shape);
  return shapes;
}

static Shapes shapes_out(const ir::Graph& graph, const ir::Node& node) {
  Shapes shapes;
  for (const auto& output : node.outputs)
    shapes.push_back(output ? std::optional(graph.at(*output).type.shape) : std::nullopt);
  return shapes;
}

static std::vector<Operand> operands_in(std::string_view text, const ir::Node& node) {
  std::vector<Operand> operands;
  for (const std::string_view name : names_of_inputs(node)) {
    const Operand* found = nullptr;
    for (const std::string_view word : split(text, ' ')) {
      const std::size_t colon = word.find(':');
      if (word.substr(0, colon) != name) continue;
      const std::string_view letters = word.substr(colon + 1);
      operands.push_back({letters.substr(letters.starts_with('+')), letters.starts_with('+')});
      found = &operands.back();
    }
    SHOAL_CHECK(found != nullptr, Internal, "rule of ", node.op, ": nothing for argument '", name, "'");
  }
  return operands;
}

static void add_factors(const std::string& text, bool in_parts, const ir::Graph& graph, const ir::Node& node,
                        std::vector<Strategy>& found) {
  const std::size_t arrow = text.find("->");
  SHOAL_CHECK(arrow != std::string::npos, Internal, "rule of ", node.op, ": no '->' in '", text, "'");
  const auto in = operands_in(std::string_view(text).substr(0, arrow), node);
  std::vector<Operand> out;
  for (const std::string_view word : split(std::string_view(text).substr(arrow + 2), ',')) {
    const std::size_t end = std::min(word.find_first_of("/@"), word.size());
    const std::string_view rest = word.substr(end);
    out.push_back({.letters = word.substr(0, end),
                   .without = rest.starts_with('/') ? rest.substr(1) : "",
                   .combine = rest == "@max"   ? Combine::Max
                              : rest == "@min" ? Combine::Min
                                               : Combine::Sum});
  }
  if (out.size() == 1) out.resize(node.outputs.size(), out.front());  // a list: all alike
  for (const Factor& factor : factors_of(in, out, shapes_in(graph, node), shapes_out(graph, node))) {
    Strategy strategy = {.may_be_empty = factor.letter < 'A' || factor.letter > 'Z', .in_parts = in_parts};
    bool makes_summands = false;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool is_whole = !node.outputs[i] || out[i].without.find(factor.letter) != std::string_view::npos;
      makes_summands |= !is_whole && !factor.out[i];
      strategy.out.push_back(factor.out[i] ? Placement(*factor.out[i])
                             : is_whole    ? Placement(Replicate{})
                                           : Placement(Partial{out[i].combine}));
    }
    for (std::size_t i = 0; i < in.size(); ++i)
      strategy.in.push_back(factor.in[i]                     ? Placement(*factor.in[i])
                            : makes_summands && in[i].addend ? Placement(Partial{})
                                                             : Placement(Replicate{}));
    found.push_back(std::move(strategy));
  }
}

// Whether a sum may as well be made of what the numbers become: those of one dtype are all numbers of the other.
static bool holds(DType made, DType from) {
  if (from == DType::Bool) return false;  // nothing is a sum of truths
  return made == from || (is_floating(made) == is_floating(from) && bytes_of(made) > bytes_of(from));
}

static void add_linear(const ir::Graph& graph, const ir::Node& node, std::vector<Strategy>& found) {
  const auto names = names_of_inputs(node);
  const auto inputs = ir::inputs_of(node);
  for (const Linear& linear : linear_in(node)) {
    Strategy strategy;
    bool is_held = true;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool partial = std::ranges::find(linear.in, names[i]) != linear.in.end();
      strategy.in.push_back(partial ? Placement(Partial{}) : Placement(Replicate{}));
      for (std::size_t k = 0; k < node.outputs.size(); ++k)
        is_held &= !partial || !node.outputs[k] || !linear.made[k] ||
                   holds(graph.at(*node.outputs[k]).type.dtype, graph.at(inputs[i]).type.dtype);
    }
    // An addend that is not there leaves the sum as it is.
    if (!is_held || std::ranges::find(strategy.in, Placement(Partial{})) == strategy.in.end()) continue;
    for (std::size_t k = 0; k < node.outputs.size(); ++k)
      strategy.out.push_back(node.outputs[k] && linear.made[k] ? Placement(Partial{})
                                                               : Placement(Replicate{}));
    found.push_back(std::move(strategy));
  }
}

static void add_reshape(const ir::Graph& graph, const ir::Node& node, std::vector<Strategy>& found) {
  const Shape& from = graph.at(ir::inputs_of(node).front()).type.shape;
  const Shape& to = graph.at(*node.outputs.front()).type.shape;
  const auto add = [&](const std::optional<Shard>& in, const std::optional<Shard>& out) {
    const auto is_cut = [](const Shape& shape, const std::optional<Shard>& shard) {
      return shard && shape[static_cast<std::size_t>(shard->dim)] != 1;
    };
    if (!is_cut(from, in) || !is_cut(to, out)) return;
    const Strategy strategy = {.in = {*in}, .out = {*out}};
    if (std::ranges::find(found, strategy) == found.end()) found.push_back(strategy);
  };
  for (int dim = 0; dim < static_cast<int>(from.size()); ++dim)
    add(Shard{.dim = dim}, through_view(from, to, {.dim = dim}));
  for (int dim = 0; dim < static_cast<int>(to.size()); ++dim)
    add(through_view(to, from, {.dim = dim}), Shard{.dim = dim});
}

std::vector<Strategy> strategies(const ir::Graph& graph, const ir::Node& node) {
  std::vector<Strategy> found;
  const OpRule* rule = find_rule(node.op);
  if (rule == nullptr) return found;
  if (rule->is_reshape)
    add_reshape(graph, node, found);
  else
    add_factors(rule->dims_of != nullptr ? rule->dims_of(graph, node) : std::string(rule->dims), false, graph,
                node, found);
  add_linear(graph, node, found);
  if (const PartForm* form = find_part_form(node.op))
    if (const std::string dims = form->dims_of(graph, node); !dims.empty())
      add_factors(dims, true, graph, node, found);
  return found;
}

// A shard is A blocks one after the other (the product of the sizes before its dim, times outer), each of n
// units of I elements (unit times the product of the sizes after). A view keeps these three numbers.
std::optional<Shard> through_view(const Shape& from, const Shape& to, const Shard& shard) {
  const auto product = [](const Shape& shape, std::size_t begin, std::size_t end) {
    std::int64_t result = 1;
    for (std::size_t i = begin; i < end; ++i) result *= shape[i];
    return result;
  };
  const auto dim = static_cast<std::size_t>(shard.dim);
  const std::int64_t blocks = product(from, 0, dim) * shard.outer;
  const std::int64_t inner = product(from, dim + 1, from.size()) * shard.unit;
  const std::int64_t units = from[dim] / (shard.outer * shard.unit);
  if (blocks == 0 || inner == 0 || units == 0) return std::nullopt;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::int64_t before = product(to, 0, i), after = product(to, i + 1, to.size());
    if (blocks % before != 0 || inner % after != 0) continue;
    Shard seen = {.dim = static_cast<int>(i),
                  .outer = blocks / before,
                  .unit = inner / after,
                  .weights = shard.weights};
    if (seen.outer * units * seen.unit == to[i]) return seen;
  }
  return std::nullopt;
}

static void set(ir::Node& node, std::string_view argument, const ir::Attribute& value) {
  for (ir::Argument& known : node.arguments)
    if (known.name == argument) known.value = value;
}

// A list of sizes is the shape of the first output; one size is the first input's first, its number of rows.
static void set_sizes(ir::Node& node, std::string_view argument, const std::vector<Box>& in,
                      const std::vector<std::optional<Box>>& out) {
  if (std::holds_alternative<std::int64_t>(*ir::find(node, argument)))
    set(node, argument, in.at(0).shape().at(0));
  else
    set(node, argument, out.at(0).value().shape());
}

static void set_groups(ir::Node& node, std::int64_t channels, std::int64_t here) {
  const auto groups = std::get<std::int64_t>(*ir::find(node, "groups"));
  if (groups > 1) set(node, "groups", groups * here / channels);
}

// The strides that the whole has say nothing of a part.
static void as_reshape(ir::Node& node) {
  node.op = "aten::reshape";
  node.arguments = {{"self", *ir::find(node, "self")}, {"shape", *ir::find(node, "size")}};
}

static ir::Node part_form(const PartForm& form, const ir::Node& node, const Box& cut, const Shape& whole) {
  ir::Node part = node;
  part.op = form.as;
  part.arguments.clear();
  for (const std::string_view name : split(form.arguments, ' '))
    part.arguments.push_back({std::string(name), *ir::find(node, name)});
  const auto& ranges = form.is_last_dim ? cut.dims.back() : cut.dims.front();
  SHOAL_CHECK(ranges.size() <= 1, InvalidInput, "sharding: ", node.op, " of module '", node.module,
              "' got a part in ", ranges.size(),
              " pieces, wanted one: cut its vocabulary or classes with outer=1");
  if (!form.size.empty()) set(part, form.size, cut.shape().front());
  part.arguments.push_back({"first", ranges.empty() ? std::int64_t{0} : ranges.front().begin});
  part.arguments.push_back({"whole", form.is_last_dim ? whole.back() : whole.front()});
  return part;
}

// A random op is told which part of the whole it draws.
static void add_place(ir::Node& node, const Shape& whole, const Box& box) {
  if (box.shape() == whole) return;
  std::vector<std::int64_t> numbers;
  for (const auto& ranges : box.dims) {
    numbers.push_back(static_cast<std::int64_t>(ranges.size()));
    for (const Range& range : ranges) numbers.insert(numbers.end(), {range.begin, range.end});
  }
  node.arguments.push_back({"whole", whole});
  node.arguments.push_back({"box", std::move(numbers)});
}

ir::Node localized(const ir::Graph& graph, const ir::Node& node, const std::vector<Box>& in,
                   const std::vector<std::optional<Box>>& out, bool in_parts) {
  const OpRule* rule = find_rule(node.op);
  if (rule == nullptr) return node;
  ir::Node local = node;
  if (rule->sizes == "groups")
    set_groups(local, graph.at(ir::inputs_of(node).at(0)).type.shape.at(1), in.at(0).shape().at(1));
  else if (!rule->sizes.empty() && !in_parts)
    set_sizes(local, rule->sizes, in, out);
  if (node.op == "aten::_reshape_alias") as_reshape(local);
  if (rule->is_drawn) add_place(local, graph.at(node.outputs.at(0).value()).type.shape, out.at(0).value());
  if (!in_parts) return local;
  const PartForm* form = find_part_form(node.op);
  SHOAL_CHECK(form != nullptr, Internal, "sharding: ", node.op, " has no form that runs in parts");
  const ir::ValueId cut = form->is_of_output ? node.outputs.at(0).value() : ir::inputs_of(node).at(0);
  return part_form(*form, local, form->is_of_output ? out.at(0).value() : in.at(0), graph.at(cut).type.shape);
}

}  // namespace shoal::sharding
