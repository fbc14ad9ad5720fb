// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/rewrite/place.h"

namespace shoal::rewrite {

using sharding::Layout;
using sharding::Mesh;
using sharding::Placement;

std::string to_text(const Plan& plan) {
  std::string text;
  for (const PlanLine& line : plan.lines) {
    text += concat(line.kind == PlanLine::Kind::Parameter ? "parameter " : "output ", line.pattern);
    for (const auto& [axis, placement] : line.placements) text += concat(' ', axis, '=', to_text(placement));
    text += '\n';
  }
  return text;
}

static std::string_view take_word(std::string_view& text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::size_t end = 0;
  int depth = 0;  // a placement may have spaces within its brackets
  while (end < text.size() && (depth > 0 || (text[end] != ' ' && text[end] != '\t'))) {
    depth += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
    ++end;
  }
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

static std::optional<PlanLine> read_line(std::string_view text, const std::string& where) {
  text = text.substr(0, text.find('#'));
  const std::string_view kind = take_word(text);
  if (kind.empty()) return std::nullopt;
  SHOAL_CHECK(kind == "parameter" || kind == "output", InvalidInput, where, "'", kind,
              "' is neither 'parameter' nor 'output'");
  PlanLine line = {.kind = kind == "parameter" ? PlanLine::Kind::Parameter : PlanLine::Kind::Output,
                   .pattern = std::string(take_word(text)),
                   .placements = {}};
  SHOAL_CHECK(!line.pattern.empty(), InvalidInput, where, "a name is wanted after '", kind, "'");
  for (std::string_view word = take_word(text); !word.empty(); word = take_word(text)) {
    const std::size_t equals = word.find('=');
    SHOAL_CHECK(equals != std::string_view::npos && equals > 0, InvalidInput, where, "'", word,
                "' is not AXIS=PLACEMENT, as in tensor=S(1)");
    Layout layout;
    try {
      layout = sharding::layout_from_text(concat("[", word.substr(equals + 1), "]"));
    } catch (const Error& error) {
      fail(ErrorKind::InvalidInput, where, error.what());
    }
    SHOAL_CHECK(layout.placements.size() == 1, InvalidInput, where, "'", word, "' is not one placement");
    const bool is_new = line.placements.emplace(word.substr(0, equals), layout.placements[0]).second;
    SHOAL_CHECK(is_new, InvalidInput, where, "axis '", word.substr(0, equals), "' is there twice");
  }
  SHOAL_CHECK(!line.placements.empty(), InvalidInput, where, "no placement is given for ", line.pattern);
  return line;
}

Plan plan_from_text(std::string_view text, std::string_view name) {
  Plan plan;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (auto line = read_line(text.substr(0, end), concat(name, ":", number, ": ")))
      plan.lines.push_back(std::move(*line));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return plan;
}

Layout parameter_layout(const Plan& plan, const Mesh& mesh, std::string_view parameter) {
  Layout layout = sharding::replicated(mesh);
  std::map<std::string, std::pair<Placement, std::string>> said;
  for (const PlanLine& line : plan.lines) {
    if (line.kind != PlanLine::Kind::Parameter || !matches(line.pattern, parameter)) continue;
    for (const auto& [axis, placement] : line.placements) {
      const auto [known, is_new] = said.try_emplace(axis, placement, line.pattern);
      SHOAL_CHECK(is_new || known->second.first == placement, InvalidInput, "plan: parameter ", parameter,
                  " is ", axis, "=", to_text(known->second.first), " by '", known->second.second, "' and ",
                  axis, "=", to_text(placement), " by '", line.pattern, "'; leave one of them out");
      if (const auto index = static_cast<std::size_t>(mesh.axis(axis)); mesh.axes[index].size > 1)
        layout.placements[index] = placement;
    }
  }
  return layout;
}

void check_fits(const Plan& plan, const Mesh& mesh, const std::vector<std::string>& parameters,
                std::string_view name) {
  std::string unknown;
  for (const PlanLine& line : plan.lines) {
    for (const auto& [axis, placement] : line.placements)
      SHOAL_CHECK(std::ranges::find(mesh.axes, axis, &sharding::Axis::name) != mesh.axes.end(), InvalidInput,
                  name, ": '", line.pattern, "' is placed on axis '", axis, "', and the mesh is '",
                  to_text(mesh), "'");
    const auto fits = [&](const std::string& parameter) { return matches(line.pattern, parameter); };
    if (line.kind == PlanLine::Kind::Parameter && std::ranges::none_of(parameters, fits))
      unknown += concat(unknown.empty() ? "" : ", ", line.pattern);
  }
  SHOAL_CHECK(unknown.empty(), InvalidInput, name, ": this model has no parameter ", unknown, "; it has ",
              parameters.size(), ", the first is ", parameters.empty() ? "none" : parameters.front());
}

}  // namespace shoal::rewrite
