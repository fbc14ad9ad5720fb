// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/find.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/planner/asked.h"
#include "shoal/planner/formulation.h"

namespace shoal::planner {

using ir::Role;
using rewrite::Choice;
using sharding::Layout;
using sharding::Mesh;

namespace {

using Cost = Formulation::Cost;
using Solution = Milp::Solution;

class Finder {
 public:
  // All axes together.
  Finder(const ir::Graph& graph, const Mesh& mesh, const Question& question)
      : graph_(graph), mesh_(mesh), question_(question), formulation_(graph, mesh, question) {
    for (const auto& source : graph.sources) {
      if (graph.at(source.value).role != Role::Parameter) continue;
      const std::size_t value = formulation_.classes().of_value[source.value.index];
      parameters_.push_back({source.name, value, formulation_.layer_of(value)});
    }
  }

  Found run() const { return read(question_.told.empty() ? solved() : from_text(question_.told)); }
  std::vector<Layer> explain(const std::string& told) const {
    const Solution solution = from_text(told);
    std::vector<Layer> layers = layers_of(solution);
    for (Layer& layer : layers) layer.next = next_best(layer, solution);
    return layers;
  }

 private:
  static bool is_taken(const Solution& solution, Milp::Variable variable) {
    return solution.values[static_cast<std::size_t>(variable)] > 0.5;
  }
  static bool is_taken(const Solution& solution, const Formulation::Terms& terms) {
    return std::ranges::any_of(terms, [&](const auto& term) { return is_taken(solution, term.first); });
  }

  Solution solved() const {
    try {
      return formulation_.milp().solve(question_.gap, question_.budget);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Infeasible || question_.most_kept == 0) throw;
    }
    Question free = question_;
    free.most_kept = 0;
    const double least = Formulation(graph_, mesh_, free).least_kept();
    const auto text_of = [](auto bytes) {
      const auto whole = static_cast<std::int64_t>(bytes);
      return concat(human_bytes(whole), " (", whole, " bytes)");
    };
    fail(ErrorKind::Infeasible, "planner.kept is ", text_of(question_.most_kept), ", and over ",
         formulation_.text_of_ranks(), " no placement leaves a rank less than ",
         text_of(std::ceil(least - 0.5)), " of the model's parameters. Remedy: that much, or more ranks");
  }

  // --- A solution as text, for ranks that have not searched: axes, is_in_time, cost, bound, and what is taken.

  std::string to_text(const Solution& solution) const {
    const auto exact = [](double number) {
      char text[32];
      return std::string(text, std::to_chars(text, text + sizeof text, number).ptr);
    };
    std::string text = concat(question_.axes.size(), ' ', solution.is_in_time ? 1 : 0, ' ',
                              exact(solution.cost), ' ', exact(solution.bound), ' ');
    for (const double value : solution.values) text += value > 0.5 ? '1' : '0';
    return text;
  }
  Solution from_text(std::string_view text) const {
    const auto next = [&] {
      const std::size_t space = std::min(text.find(' '), text.size());
      double number = 0;
      std::from_chars(text.begin(), text.begin() + space, number);
      text.remove_prefix(std::min(space + 1, text.size()));
      return number;
    };
    Solution solution;
    next();  // axes
    solution.is_in_time = next() != 0;
    solution.cost = next();
    solution.bound = next();
    for (const char digit : text) solution.values.push_back(digit == '1' ? 1 : 0);
    SHOAL_CHECK(static_cast<int>(solution.values.size()) == formulation_.milp().num_variables(), Internal,
                "planner: the rank that searched has ", solution.values.size(), " variables, this one ",
                formulation_.milp().num_variables());
    return solution;
  }

  // --- What it says.

  Found read(const Solution& solution) const {
    const Classes& classes = formulation_.classes();
    Found found = {.axes = {},
                   .seconds = solution.cost,
                   .bound = solution.bound,
                   .variables = formulation_.milp().num_variables(),
                   .rows = formulation_.milp().num_rows(),
                   .is_in_time = solution.is_in_time,
                   .told = to_text(solution),
                   .question = question_};
    for (const Parameter& parameter : parameters_)
      for (const auto& [layout, terms] : formulation_.layouts(parameter.value))
        if (terms.size() > 1 && is_taken(solution, terms.back().first)) found.in_parts.insert(parameter.name);
    const auto parameters = parameters_of(solution);
    for (std::size_t asked = 0; asked < question_.axes.size(); ++asked) {
      const std::size_t axis = question_.axes[asked].axis;
      FoundAxis& of = found.axes.emplace_back(
          FoundAxis{.decided = {.axis = axis, .nodes = std::vector<Choice>(graph_.nodes.size())}});
      for (const auto& [name, layout] : parameters) of.parameters.emplace(name, layout.placements[axis]);
      for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
        if (classes.of_node[i] != kNone) of.decided.nodes[i] = way_of(classes.of_node[i], solution)[asked];
    }
    return found;
  }
  const Way& way_of(std::size_t node, const Solution& solution) const {
    const auto& ways = formulation_.ways().of_node(node);
    std::size_t way = 0;
    while (way + 1 < ways.size() && !is_taken(solution, formulation_.first_way(node) + static_cast<int>(way)))
      ++way;
    return ways[way];
  }
  std::map<std::string, Layout> parameters_of(const Solution& solution) const {
    std::map<std::string, Layout> parameters;
    for (const Parameter& parameter : parameters_)
      for (const auto& [layout, terms] : formulation_.layouts(parameter.value))
        if (is_taken(solution, terms)) parameters[parameter.name] = layout;
    return parameters;
  }

  std::vector<Layer> layers_of(const Solution& solution) const {
    std::vector<Layer> layers;
    const auto at = [&](const std::string& path) -> Layer& {
      const auto found = std::ranges::find(layers, path, &Layer::path);
      return found != layers.end() ? *found : layers.emplace_back(Layer{.path = path});
    };
    for (const NodeClass& node : formulation_.classes().nodes)
      at(rewrite::folded(graph_.nodes[node.first].module));
    for (const auto& [variable, kind, layer] : formulation_.costs()) {
      const double seconds =
          formulation_.milp().cost_of(variable) * solution.values[static_cast<std::size_t>(variable)];
      if (seconds == 0) continue;
      Layer& of = at(layer);
      (kind == Cost::Kind::Work ? of.work : kind == Cost::Kind::Kept ? of.kept : of.changed) += seconds;
    }
    const auto parameters = parameters_of(solution);
    for (Layer& layer : layers) layer.parameters = own(layer.path, parameters);
    return layers;
  }
  std::map<std::string, Layout> own(const std::string& path, const std::map<std::string, Layout>& all) const {
    std::map<std::string, Layout> own;
    for (const Parameter& parameter : parameters_)
      if (parameter.layer == path)
        own.emplace(rewrite::folded(parameter.name).substr(path.empty() ? 0 : path.size() + 1),
                    all.at(parameter.name));
    return own;
  }

  std::optional<Layer::Next> next_best(const Layer& layer, const Solution& best) const {
    std::size_t largest = kNone;
    for (const Parameter& parameter : parameters_)
      if (parameter.layer == layer.path && formulation_.layouts(parameter.value).size() > 1 &&
          (largest == kNone || elements_of(parameter.value) > elements_of(largest)))
        largest = parameter.value;
    if (largest == kNone) return std::nullopt;
    Milp milp = formulation_.milp();
    for (const auto& [layout, terms] : formulation_.layouts(largest))
      if (is_taken(best, terms))
        for (const auto& [variable, weight] : terms) milp.forbid(variable);
    try {
      const Solution next = milp.solve(question_.gap, question_.budget);
      return Layer::Next{.parameters = own(layer.path, parameters_of(next)),
                         .more = std::max(0.0, next.cost - best.cost)};
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Infeasible && error.kind() != ErrorKind::Timeout) throw;
      return std::nullopt;  // there is no other, or not in time
    }
  }
  std::int64_t elements_of(std::size_t value) const {
    return ir::num_elements(graph_.at(formulation_.classes().values[value].first).type);
  }

  struct Parameter {
    std::string name;
    std::size_t value;  // its class
    std::string layer;
  };

  const ir::Graph& graph_;
  const Mesh& mesh_;
  const Question& question_;
  const Formulation formulation_;
  std::vector<Parameter> parameters_;
};

}  // namespace

// With as many of its axes, the innermost first, as are found together; of a rank that has searched as many as there.
static Question together(const ir::Graph& graph, const Mesh& mesh, Question question) {
  std::size_t told = 0;
  std::from_chars(question.told.data(), question.told.data() + question.told.size(), told);
  const auto are_too_many = [&] {
    return told > 0 ? question.axes.size() > told : Formulation(graph, mesh, question).is_too_large();
  };
  while (question.axes.size() > 1 && are_too_many()) {
    question.axes.pop_back();
    question.most_kept = 0;
    question.zero_axis.reset();
  }
  question.most_together = std::numeric_limits<int>::max();  // of these it is settled
  return question;
}

Found find(const ir::Graph& graph, const Mesh& mesh, const Question& question) {
  return asked(graph, mesh, question, [&] {
    const Question taken = together(graph, mesh, question);
    return Finder(graph, mesh, taken).run();
  });
}

std::vector<Layer> explain(const ir::Graph& graph, const Mesh& mesh, const Found& found) {
  return Finder(graph, mesh, found.question).explain(found.told);
}

}  // namespace shoal::planner
