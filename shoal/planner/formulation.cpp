// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/formulation.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "shoal/base/error.h"
#include "shoal/ir/flops.h"
#include "shoal/ir/text.h"
#include "shoal/ir/views.h"
#include "shoal/planner/changes.h"
#include "shoal/planner/in_parts.h"
#include "shoal/sharding/state_blocks.h"

namespace shoal::planner {

using ir::Role;
using ir::ValueId;
using sharding::Layout;
using sharding::Mesh;
using sharding::Placement;
using sharding::Replicate;

// An axis that shares layers is there to share work and memory: what is a larger part of all flops, or of all
// bytes of matrices, than this is cut, if it can be, also where messages would cost more than it saves.
static constexpr double kHeavy = 0.0005, kLarge = 0.01;

static Formulation::Terms& at(Formulation::ByLayout& all, const Layout& layout) {
  const auto found = std::ranges::find(all, layout, &std::pair<Layout, Formulation::Terms>::first);
  return found != all.end() ? found->second : all.emplace_back(layout, Formulation::Terms{}).second;
}

static Formulation::Terms scaled(Formulation::Terms terms, double by) {
  for (auto& [variable, weight] : terms) weight *= by;
  return terms;
}

Formulation::Formulation(const ir::Graph& graph, const Mesh& mesh, const Question& question)
    : graph_(graph),
      mesh_(mesh),
      question_(question),
      rates_(question.rates),
      classes_(classes_of(graph, marks(), question.folds)),
      ways_(graph, mesh, question, classes_) {
  if (is_too_large()) return;
  weigh();
  one_ = milp_.add_variable(0, false);
  milp_.add_row(1, 1, {{one_, 1}});
  add_parameters();
  add_nodes();
  add_readers();
  if (is_too_large()) return;
  add_messages();
  if (question.most_kept > 0) milp_.add_row(0, 1, scaled(kept_, 1 / static_cast<double>(question.most_kept)));
}

std::string Formulation::layer_of(std::size_t value) const {
  const ValueClass& of = classes_.values[value];
  if (of.node != kNone) return rewrite::folded(node_of(of.node).module);
  const std::string* name = graph_.at(of.first).role == Role::Parameter ? name_of(of.first) : nullptr;
  const std::size_t dot = name != nullptr ? name->rfind('.') : std::string::npos;
  return dot == std::string::npos ? "" : rewrite::folded(name->substr(0, dot));
}

double Formulation::least_kept() const {
  Milp milp = milp_;
  milp.set_costs(kept_);
  return milp.solve().cost;
}

Milp::Variable Formulation::add_cost(double seconds, bool is_whole, Cost::Kind kind,
                                     const std::string& layer) {
  const auto variable = milp_.add_variable(seconds, is_whole);
  costs_.push_back({variable, kind, layer});
  return variable;
}

std::string Formulation::text_of_ranks() const {
  int ranks = 1;
  std::string names;
  std::vector<std::size_t> axes;
  if (question_.zero_axis) axes.push_back(*question_.zero_axis);
  for (std::size_t i = question_.axes.size(); i-- > 0;) axes.push_back(question_.axes[i].axis);
  for (const std::size_t axis : axes) {
    const auto& [name, size] = mesh_.axes[axis];
    ranks *= size;
    names += concat(names.empty() ? "'" : " and '", name, "'");
  }
  return concat(ranks, " ranks of ", names);
}

// What keeps classes apart.
std::vector<std::string> Formulation::marks() const {
  std::vector<std::string> marks(graph_.values.size());
  for (const auto& source : graph_.sources)
    if (question_.split.contains(source.name) && graph_.at(source.value).role == Role::Parameter &&
        !std::ranges::all_of(question_.axes,
                             [&](const AskedAxis& asked) { return asked.parameters.contains(source.name); }))
      marks[source.value.index] = "split";
  if (question_.in_parts)
    for (const auto& source : graph_.sources)
      if (graph_.at(source.value).role == Role::Parameter && question_.in_parts->contains(source.name))
        marks[source.value.index] += "parts";
  for (const auto& [axis, parameters, values] : question_.axes) {
    for (const auto& source : graph_.sources)
      if (const auto known = parameters.find(source.name);
          known != parameters.end() && graph_.at(source.value).role == Role::Parameter)
        marks[source.value.index] += concat(axis, ':', sharding::to_text(known->second));
    for (const auto& [value, placement] : values)
      marks[value.index] += concat(axis, '=', sharding::to_text(placement));
  }
  for (const auto& [decided, parameters] : question_.further_in) {
    for (const auto& source : graph_.sources)
      if (const auto known = parameters.find(source.name);
          known != parameters.end() && graph_.at(source.value).role == Role::Parameter)
        marks[source.value.index] += concat('|', sharding::to_text(known->second));
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      std::string how = "|";
      for (const auto* placements : {&decided.nodes[i].in, &decided.nodes[i].out})
        for (const Placement& placement : *placements) how += concat(sharding::to_text(placement), ' ');
      for (const auto& output : graph_.nodes[i].outputs)
        if (output) marks[output->index] += how;
    }
  }
  return marks;
}

// --- The program.

void Formulation::weigh() {
  for (const NodeClass& node : classes_.nodes)
    all_flops_ += ir::flops_of(graph_, graph_.nodes[node.first]) * node.count;
  for (std::size_t value = 0; value < classes_.values.size(); ++value)
    if (is_matrix(value)) all_bytes_ += bytes_of(value) * classes_.values[value].count;
}
bool Formulation::is_matrix(std::size_t value) const {
  const ir::Value& of = graph_.at(classes_.values[value].first);
  return of.role == Role::Parameter && (of.type.shape.size() == 2 || of.type.shape.size() == 3);
}
// Over how many axes: as many as there is a way for.
std::size_t Formulation::num_splits_wanted(std::size_t index) const {
  if (ir::flops_of(graph_, node_of(index)) * classes_.nodes[index].count <= kHeavy * all_flops_) return 0;
  std::size_t most = 0;
  for (const Way& way : ways_.of_node(index)) most = std::max(most, ways_.num_splits(way, node_of(index)));
  return most;
}
// Over as many axes as can cut it.
bool Formulation::has_to_be_cut(std::size_t value) const {
  if (!question_.split.empty()) return is_split(value) && shape_of(value).size() > 1;
  if (question_.cuts_samples) return false;
  return is_matrix(value) && bytes_of(value) * classes_.values[value].count > kLarge * all_bytes_;
}
bool Formulation::is_split(std::size_t value) const {
  const std::string* name = name_of(classes_.values[value].first);
  return name != nullptr && question_.split.contains(*name);
}
const std::string* Formulation::name_of(ValueId parameter) const {
  const auto found = std::ranges::find(graph_.sources, parameter, &ir::Source::value);
  return found == graph_.sources.end() ? nullptr : &found->name;
}

double Formulation::bytes_of(std::size_t value) const {
  const auto whole = static_cast<double>(ir::bytes_of(graph_.at(classes_.values[value].first).type));
  const double bytes = whole * ways_.left_of(value);
  return ways_.has_samples(value) ? bytes / question_.data_ranks : bytes;
}

std::size_t Formulation::num_cuts(const Layout& layout) const {
  return static_cast<std::size_t>(std::ranges::count_if(layout.placements, rewrite::is_cut));
}

// Those that a parameter may have.
std::vector<Layout> Formulation::layouts_of(std::size_t value) const {
  const ValueClass& of = classes_.values[value];
  const bool may_be_cut = question_.split.empty() || is_split(value);
  std::vector<Layout> layouts = {sharding::replicated(mesh_)};
  std::size_t num_known = 0, num_known_cuts = 0;
  for (std::size_t i = 0; i < question_.axes.size(); ++i) {
    const std::size_t axis = question_.axes[i].axis;
    const auto known = known_of(of.first, i);
    num_known += known ? 1 : 0;
    num_known_cuts += known && rewrite::is_cut(*known) ? 1 : 0;
    std::vector<Placement> placements = {Replicate{}};
    if (known)
      placements = {*known};
    else if (may_be_cut)
      placements.insert(placements.end(), ways_.cuts_of(value, i).begin(), ways_.cuts_of(value, i).end());
    std::vector<Layout> longer;
    for (const Layout& layout : layouts)
      for (const Placement& placement : placements) {
        longer.push_back(layout);
        longer.back().placements[axis] = placement;
      }
    layouts = std::move(longer);
  }
  if (num_known == question_.axes.size()) return layouts;
  std::erase_if(layouts, [&](const Layout& layout) {
    return num_cuts(layout) > num_known_cuts &&
           (ways_.leaves_some_without(layout, shape_of(value)) || !has_whole_blocks(layout, value));
  });
  if (!has_to_be_cut(value)) return layouts;
  const std::size_t most = num_cuts(
      *std::ranges::max_element(layouts, {}, [&](const Layout& layout) { return num_cuts(layout); }));
  SHOAL_CHECK(question_.split.empty() || most + num_known >= question_.axes.size() + num_known_cuts,
              InvalidInput, "split: parameter ", *name_of(of.first), " cannot be cut over ", text_of_ranks(),
              ": ", ir::to_text(graph_.at(of.first).type), ". Remedy: leave it out of the scope or the line");
  std::erase_if(layouts, [&](const Layout& layout) { return num_cuts(layout) < most; });
  return layouts;
}
bool Formulation::has_whole_blocks(const Layout& layout, std::size_t value) const {
  const auto is_in_blocks = [&](const ir::Source& source) {
    return classes_.of_value[source.value.index] == value && question_.in_blocks.contains(source.name);
  };
  return question_.in_blocks.empty() || std::ranges::none_of(graph_.sources, is_in_blocks) ||
         sharding::layout_of_maxima(mesh_, layout, shape_of(value)).has_value();
}

void Formulation::add_parameters() {
  made_.resize(classes_.values.size());
  for (std::size_t value = 0; value < classes_.values.size(); ++value) {
    const ValueClass& of = classes_.values[value];
    if (of.node != kNone) continue;
    if (graph_.at(of.first).role != Role::Parameter) {
      if (graph_.at(of.first).role != Role::Gradient)
        at(made_[value], sharding::replicated(mesh_)) = {{one_, 1}};
      continue;
    }
    Terms any;
    for (const Layout& layout : layouts_of(value)) {
      const double bytes = bytes_of(value) * ways_.share_of(layout, shape_of(value));
      const auto variable =
          add_cost(of.count * bytes * rates_.kept / rates_.link, true, Cost::Kind::Kept, layer_of(value));
      kept_.emplace_back(variable, of.count * bytes);
      at(made_[value], layout) = {{variable, 1}};
      any.emplace_back(variable, 1);
      const std::string& name = *name_of(of.first);
      const auto share = share_in_parts(mesh_, question_, name, layout, shape_of(value));
      if (!share) continue;
      const auto in_parts = add_cost(milp_.cost_of(variable), true, Cost::Kind::Kept, layer_of(value));
      const auto gathered = add_cost(of.count * seconds_in_parts(mesh_, question_, bytes), false,
                                     Cost::Kind::Changed, layer_of(value));
      milp_.add_row(0, std::numeric_limits<double>::infinity(), {{gathered, 1}, {in_parts, -1}});
      kept_.emplace_back(in_parts, of.count * bytes * *share);
      at(made_[value], layout).emplace_back(in_parts, 1);
      any.emplace_back(in_parts, 1);
      if (question_.in_parts) milp_.forbid(question_.in_parts->contains(name) ? variable : in_parts);
    }
    SHOAL_CHECK(!any.empty(), Internal, "planner: no placement for %", of.first.index);
    milp_.add_row(1, 1, any);
  }
  for (const auto& source : graph_.sources)
    if (graph_.at(source.value).role == Role::Gradient)
      made_[classes_.of_value[source.value.index]] = layouts_of(source.name);
}
std::optional<Placement> Formulation::known_of(ValueId parameter, std::size_t asked) const {
  const auto& parameters = question_.axes[asked].parameters;
  if (const std::string* name = name_of(parameter))
    if (const auto known = parameters.find(*name); known != parameters.end())
      return ways_.plain(known->second, graph_.at(parameter).type.shape, asked);
  return std::nullopt;
}
// A gradient lies as its parameter does.
Formulation::ByLayout Formulation::layouts_of(const std::string& parameter) const {
  for (const auto& source : graph_.sources)
    if (source.name == parameter && graph_.at(source.value).role == Role::Parameter)
      return made_[classes_.of_value[source.value.index]];
  return {{sharding::replicated(mesh_), {{one_, 1}}}};
}

double Formulation::work_of(std::size_t index) const {
  const ir::Node& node = node_of(index);
  double bytes = 0;
  bool has_samples = false;
  for (std::size_t i = 0; i < ir::inputs_of(node).size(); ++i)
    for (const std::size_t value : ways_.read_by({index, i})) has_samples |= ways_.has_samples(value);
  if (!ir::is_view(node.op)) {
    for (const ValueId input : ir::inputs_of(node))
      bytes += static_cast<double>(ir::bytes_of(graph_.at(input).type));
    for (const auto& output : node.outputs)
      if (output) bytes += static_cast<double>(ir::bytes_of(graph_.at(*output).type));
  }
  const double seconds =
      std::max(ir::flops_of(graph_, node) / rates_.flops, bytes / rates_.memory) * ways_.left_of(node);
  return has_samples ? seconds / question_.data_ranks : seconds;
}

void Formulation::add_nodes() {
  for (std::size_t i = 0; i < classes_.nodes.size(); ++i) {
    const ir::Node& node = node_of(i);
    const double work = work_of(i) * classes_.nodes[i].count;
    const std::size_t wanted = num_splits_wanted(i);
    Terms any;
    for (const Way& way : ways_.of_node(i)) {
      const auto variable =
          add_cost(work * ways_.share_of(way, node), true, Cost::Kind::Work, rewrite::folded(node.module));
      any.emplace_back(variable, 1);
      if (ways_.num_splits(way, node) < wanted) milp_.forbid(variable);
      for (std::size_t j = 0; j < ir::inputs_of(node).size(); ++j)
        at(read_[{i, j}], ways_.in_of(way, j)).emplace_back(variable, 1);
      for (std::size_t j = 0; j < node.outputs.size(); ++j)
        if (node.outputs[j])
          at(made_[classes_.of_value[node.outputs[j]->index]], ways_.out_of(way, j))
              .emplace_back(variable, 1);
    }
    first_way_.push_back(any.front().first);
    milp_.add_row(1, 1, any);
  }
}

// A value is made in some way, and read in some way.
void Formulation::add_readers() {
  std::map<std::size_t, Values> known;
  for (const AskedAxis& asked : question_.axes)
    for (const auto& [value, placement] : asked.values)
      known[classes_.of_value[value.index]].insert(value.index);
  for (const auto& [of, values] : known) {
    ByLayout handed_on;
    for (auto [layout, terms] : made_[of]) {
      for (std::size_t i = 0; i < question_.axes.size(); ++i)
        if (const auto& of_axis = question_.axes[i]; of_axis.values.contains(classes_.values[of].first))
          layout.placements[of_axis.axis] =
              ways_.plain(of_axis.values.at(classes_.values[of].first), shape_of(of), i);
      Terms& all = at(handed_on, layout);
      all.insert(all.end(), terms.begin(), terms.end());
    }
    add_change(of, handed_on, values);
    made_[of] = std::move(handed_on);
  }
  for (const auto& [value, readers] : ways_.readers())
    for (const auto& [reader, values] : readers) add_change(value, read_.at(reader), values);
  struct Result {
    std::string parameter;  // whose gradient it is
    Values values;
  };
  std::map<std::pair<std::size_t, std::string>, Result> results;
  for (const auto& [role, name, value] : graph_.results) {
    const std::size_t of = classes_.of_value[value.index];
    if (of == kNone) continue;
    const std::string parameter = role == Role::Gradient ? name : "";
    Result& result = results[{of, rewrite::folded(parameter)}];
    result.parameter = parameter;
    result.values.insert(value.index);
  }
  for (const auto& [key, result] : results)
    add_change(key.first,
               result.parameter.empty() ? ByLayout{{sharding::replicated(mesh_), {{one_, 1}}}}
                                        : layouts_of(result.parameter),
               result.values);
}
void Formulation::add_change(std::size_t value, const ByLayout& read, const Values& values) {
  const ByLayout& made = made_[value];
  std::vector<Terms> from(made.size()), to(read.size());
  for (std::size_t p = 0; p < made.size(); ++p) {
    if (is_too_large()) return;
    for (std::size_t q = 0; q < read.size(); ++q) {
      const auto seconds = seconds_of_change(mesh_, question_, ways_, made[p].first, read[q].first,
                                             shape_of(value), bytes_of(value));
      if (!seconds) continue;
      const auto variable = milp_.add_variable(0, false);
      from[p].emplace_back(variable, 1);
      to[q].emplace_back(variable, 1);
      changes_[value].push_back({made[p].first, read[q].first, *seconds, variable, values});
    }
  }
  const auto equal = [&](Terms sum, const Terms& whole) {
    for (const auto& [variable, weight] : whole) sum.emplace_back(variable, -weight);
    milp_.add_row(0, 0, sum);
  };
  for (std::size_t p = 0; p < made.size(); ++p) equal(from[p], made[p].second);
  for (std::size_t q = 0; q < read.size(); ++q) equal(to[q], read[q].second);
}

// Values of a class that the same readers read are changed for all of them at once.
void Formulation::add_messages() {
  for (const auto& [value, changes] : changes_) {
    std::vector<bool> is_done(changes.size());
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const double seconds = changes[i].seconds;
      if (is_done[i] || seconds == 0) continue;
      std::map<std::uint32_t, std::vector<Milp::Variable>> readers;  // by value
      for (std::size_t j = i; j < changes.size(); ++j) {
        if (changes[j].from != changes[i].from || changes[j].to != changes[i].to) continue;
        is_done[j] = true;
        for (const std::uint32_t each : changes[j].values) readers[each].push_back(changes[j].variable);
      }
      std::map<std::vector<Milp::Variable>, int> alike;
      for (const auto& [each, variables] : readers) ++alike[variables];
      for (const auto& [variables, count] : alike) {
        const auto message = add_cost(seconds * count, false, Cost::Kind::Changed, layer_of(value));
        for (const auto variable : variables)
          milp_.add_row(0, std::numeric_limits<double>::infinity(), {{message, 1}, {variable, -1}});
      }
    }
  }
}

}  // namespace shoal::planner
