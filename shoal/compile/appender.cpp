// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/appender.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::compile {

using ir::Role;
using ir::ValueId;

namespace {
struct Rates {
  double lr;
  double weight_decay;
};
}  // namespace

std::vector<Appender::Parameter> Appender::parameters_of(const ir::Graph& graph) {
  std::map<std::string, ValueId> values;  // that updates start from: as forward has left them
  for (const auto& source : graph.sources)
    if (graph.at(source.value).role == Role::Parameter) values.emplace(source.name, source.value);
  for (const auto& result : graph.results)
    if (result.role == Role::Parameter) values.insert_or_assign(result.name, result.value);
  std::vector<Parameter> parameters;
  for (const auto& result : graph.results) {
    if (result.role == Role::Gradient) {
      const auto dtype = graph.at(result.value).type.dtype;
      SHOAL_CHECK(
          dtype != DType::Complex64 && dtype != DType::Complex128, InvalidInput, "trainer: parameter ",
          result.name, " is ", name_of(dtype),
          ", and the optimizers update real numbers alone; keep a real parameter with a last dim of 2, and "
          "take view_as_complex of it in forward");
      parameters.push_back({result.name, values.at(result.name), result.value});
    }
  }
  return parameters;
}

// 32 bits of a name: FNV-1a.
static std::int64_t stream_of(std::string_view name) {
  std::uint32_t hash = 2166136261u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

static Rates rates_of(const std::string& parameter, const ir::TensorType& type, double lr,
                      double weight_decay, const std::vector<ParameterGroup>& groups) {
  for (const auto& group : groups)
    if (group.contains(parameter, type))
      return {group.lr.value_or(lr), group.weight_decay.value_or(weight_decay)};
  return {lr, weight_decay};
}

Appender::Appender(ir::Graph graph, const UpdateSettings& settings)
    : graph_(std::move(graph)),
      parameters_(parameters_of(graph_)),
      numbers_(settings.numbers),
      master_(settings.master) {
  const auto& [parts, clip_norm, finds_norm, updates_of, numbers, master] = settings;
  for (const auto& parameter : parameters_) {
    const auto part = std::ranges::find_if(
        parts, [&](const OptimizerPart& each) { return !each.contains || each.contains(parameter.name); });
    part_of_.push_back(static_cast<std::size_t>(part - parts.begin()));
  }
  if ((clip_norm == 0 && !finds_norm) || parameters_.empty()) return;
  ir::ValueList gradients;
  for (const auto& parameter : parameters_) gradients.emplace_back(parameter.gradient);
  const auto scalar = ir::contiguous(graph_.at(*gradients[0]).type.dtype, {});
  const auto clip = graph_.add_node({.op = "shoal::clip",
                                     .arguments = {{"gradients", gradients}, {"max_norm", clip_norm}},
                                     .phase = ir::Phase::Backward},
                                    {scalar, scalar});
  const auto outputs = graph_.at(clip).outputs;
  graph_.add_result(Role::Output, "grad_norm", *outputs[0]);
  if (clip_norm != 0) scale_ = *outputs[1];
}

void Appender::start_part(std::size_t part, const Optimizer& optimizer) {
  part_ = part;
  optimizer_ = &optimizer;
}

void Appender::append(const std::string& op, const States& states, double lr, double weight_decay,
                      bool counts, const std::vector<ParameterGroup>& groups,
                      const std::function<std::vector<ir::Argument>(double weight_decay)>& settings,
                      const std::function<std::int64_t(const std::string&)>& updates_of,
                      const std::function<bool(const ir::TensorType&)>& takes) {
  std::map<std::tuple<double, double, std::int64_t, Rounding>, std::vector<const Parameter*>> by_settings;
  const bool has_state = std::ranges::any_of(states, [](const auto& state) { return !state.second.empty(); });
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    if (part_of_[i] != part_) continue;
    const auto& type = graph_.at(parameter.value).type;
    if (takes && !takes(type)) continue;
    const auto own = rates_of(parameter.name, type, lr, weight_decay, groups);
    const Rounding rounding = rounding_of(type, has_state);
    const std::int64_t updates = counts || rounding.by_chance ? updates_of(parameter.name) : 0;
    by_settings[{own.lr, own.weight_decay, updates, rounding}].push_back(&parameter);
  }
  for (const auto& [key, members] : by_settings) {
    const auto& [own_lr, own_decay, updates, rounding] = key;
    append_group(op, states, own_lr, counts || rounding.by_chance, settings(own_decay), members, rounding);
  }
}

Appender::Rounding Appender::rounding_of(const ir::TensorType& parameter, bool has_state) const {
  using rewrite::Master;
  const bool is_narrow = rewrite::is_narrow(parameter.dtype, master_);
  if (is_narrow) check_updates_narrow(*optimizer_, master_);
  const bool has_narrow_state = has_state && state_dtype_of(*optimizer_) == DType::BFloat16 &&
                                rewrite::gradient_type(parameter.dtype, master_) != DType::BFloat16;
  return {.to_codes = has_state && uncut_by(*optimizer_, parameter.shape) == Uncut::Blocks,
          .with_compensation = is_narrow && master_ == Master::Kahan,
          .by_chance = has_narrow_state || (is_narrow && master_ == Master::None)};
}

ValueId Appender::rounding_seed() {
  if (!rounding_seed_)
    rounding_seed_ =
        graph_.add_source(Role::Scalar, std::string(kRoundingSeed), ir::contiguous(DType::Int64, {}));
  return *rounding_seed_;
}

Update Appender::finish() && { return {std::move(graph_), std::move(groups_)}; }

void Appender::append_group(const std::string& op, const States& states, double lr, bool counts,
                            const std::vector<ir::Argument>& settings,
                            const std::vector<const Parameter*>& members, Rounding rounding) {
  const auto number = std::to_string(groups_.size());
  UpdateGroup group{.parameters = {},
                    .part = part_,
                    .lr = lr,
                    .lr_source = "lr." + number,
                    .step_source = counts ? "update." + number : ""};
  ir::ValueList values, gradients;
  std::vector<std::optional<ir::TensorType>> types;
  std::vector<std::pair<Role, std::string>> results;
  for (const auto* member : members) {
    group.parameters.push_back(member->name);
    values.emplace_back(member->value);
    gradients.emplace_back(member->gradient);
    types.emplace_back(graph_.at(member->value).type);
    results.emplace_back(Role::Parameter, member->name);
    std::erase_if(graph_.results,
                  [&](const ir::Result& result) {  // forward's write: the update starts from it
                    return result.role == Role::Parameter && result.name == member->name;
                  });
  }
  ir::Node node{
      .op = op, .arguments = {{"parameters", values}, {"gradients", gradients}}, .phase = ir::Phase::Update};
  const auto add_states = [&](const std::string& suffix, ir::ValueList& list) {
    for (const auto* member : members) {
      const auto name = member->name + "." + suffix;
      const auto type = type_of_state(graph_.at(member->value).type, suffix);
      list.emplace_back(graph_.add_source(Role::OptimizerState, name, type));
      types.emplace_back(type);
      results.emplace_back(Role::OptimizerState, name);
    }
  };
  for (const auto& [argument, suffix] : states) {
    ir::ValueList list;  // none where the op has this state, but these settings do not need it
    if (!suffix.empty()) add_states(suffix, list);
    node.arguments.push_back({argument, std::move(list)});
  }
  if (rounding.with_compensation) {
    ir::ValueList compensations;
    add_states("compensation", compensations);
    node.arguments.push_back({"compensations", std::move(compensations)});
  }
  if (rounding.by_chance) {
    std::vector<std::int64_t> draws;  // other ones for each parameter
    for (const auto* member : members) draws.push_back(stream_of(member->name));
    node.arguments.push_back({"draws", std::move(draws)});
    node.arguments.push_back({"seed", rounding_seed()});
  }
  if (rounding.to_codes) {
    ir::ValueList maxima;
    std::vector<std::int64_t> signs;
    for (const auto& [argument, suffix] : states) {
      if (suffix.empty() || type_of_state(graph_.at(members[0]->value).type, suffix).dtype != DType::UInt8)
        continue;
      add_states(name_of_maxima(suffix), maxima);
      signs.push_back(is_signed(suffix) ? 1 : 0);
    }
    node.arguments.push_back({"maxima", std::move(maxima)});
    node.arguments.push_back({"signed", std::move(signs)});
  }
  node.arguments.push_back(
      {"lr", graph_.add_source(Role::Scalar, group.lr_source, ir::contiguous(DType::Float64, {}))});
  if (counts)
    node.arguments.push_back(
        {"step", graph_.add_source(Role::Scalar, group.step_source, ir::contiguous(DType::Int64, {}))});
  node.arguments.push_back({"scale", scale_ ? ir::Attribute(*scale_) : ir::Attribute(std::monostate{})});
  node.arguments.insert(node.arguments.end(), settings.begin(), settings.end());
  const auto id = graph_.add_node(std::move(node), types);
  for (std::size_t i = 0; i < results.size(); ++i)
    graph_.add_result(results[i].first, results[i].second, graph_.at(id).outputs[i].value());
  groups_.push_back(std::move(group));
}

ir::TensorType Appender::type_of_state(const ir::TensorType& parameter, const std::string& suffix) const {
  const auto kept = kept_by(*optimizer_, parameter, numbers_, master_);
  const auto found = std::ranges::find(kept, suffix, &Kept::suffix);
  SHOAL_CHECK(found != kept.end(), Internal, "update: an optimizer keeps no ", suffix);
  return found->type;
}

}  // namespace shoal::compile
