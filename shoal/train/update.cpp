// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/update.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::train {

using ir::Role;
using ir::ValueId;

namespace {
struct Parameter {
  std::string name;
  ValueId value;
  ValueId gradient;
};
struct Settings {
  double lr;
  double weight_decay;
};
}  // namespace

static std::vector<Parameter> parameters_of(const ir::Graph& graph) {
  std::map<std::string, ValueId> sources;
  for (const auto& source : graph.sources)
    if (graph.at(source.value).role == Role::Parameter) sources.emplace(source.name, source.value);
  std::vector<Parameter> parameters;
  for (const auto& result : graph.results) {
    if (result.role == Role::Gradient) {
      const auto dtype = graph.at(result.value).type.dtype;
      SHOAL_CHECK(
          dtype != DType::Complex64 && dtype != DType::Complex128, InvalidInput, "trainer: parameter ",
          result.name, " is ", name_of(dtype),
          ", and the optimizers update real numbers alone; keep a real parameter with a last dim of 2, and "
          "take view_as_complex of it in forward");
      parameters.push_back({result.name, sources.at(result.name), result.value});
    }
    SHOAL_CHECK(
        result.role != Role::Parameter, InvalidInput, "trainer: the model writes to its parameter ",
        result.name,
        " while it runs (an embedding's max_norm does, say); make it a buffer, or change it between steps");
  }
  return parameters;
}

static Settings settings_of(const Parameter& parameter, const ir::TensorType& type, double lr,
                            double weight_decay, const std::vector<ParameterGroup>& groups) {
  for (const auto& group : groups)
    if (group.contains(parameter.name, type))
      return {group.lr.value_or(lr), group.weight_decay.value_or(weight_decay)};
  return {lr, weight_decay};
}

namespace {

// Builds one update node after the other.
class Appender {
 public:
  Appender(ir::Graph graph, std::span<const OptimizerPart> parts, double clip_norm)
      : graph_(std::move(graph)), parameters_(parameters_of(graph_)) {
    for (const auto& parameter : parameters_) {
      const auto part = std::ranges::find_if(
          parts, [&](const OptimizerPart& each) { return !each.contains || each.contains(parameter.name); });
      part_of_.push_back(static_cast<std::size_t>(part - parts.begin()));
    }
    if (clip_norm == 0 || parameters_.empty()) return;
    ir::ValueList gradients;
    for (const auto& parameter : parameters_) gradients.emplace_back(parameter.gradient);
    const auto scalar = ir::contiguous(graph_.at(*gradients[0]).type.dtype, {});
    const auto clip = graph_.add_node({.op = "shoal::clip",
                                       .arguments = {{"gradients", gradients}, {"max_norm", clip_norm}},
                                       .phase = ir::Phase::Backward},
                                      {scalar, scalar});
    const auto outputs = graph_.at(clip).outputs;
    graph_.add_result(Role::Output, "grad_norm", *outputs[0]);
    scale_ = *outputs[1];
  }

  // What is appended from now on is for the parameters of this part.
  void start_part(std::size_t part) { part_ = part; }

  // `states`: names of the optimizer's tensors for each parameter; `settings`: the op's own arguments after
  // lr and step.
  void append(const std::string& op, const std::vector<std::pair<std::string, std::string>>& states,
              double lr, double weight_decay, bool counts, const std::vector<ParameterGroup>& groups,
              const std::function<std::vector<ir::Argument>(double weight_decay)>& settings,
              const std::function<std::int64_t(const std::string&)>& updates_of) {
    std::map<std::tuple<double, double, std::int64_t>, std::vector<const Parameter*>> by_settings;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& parameter = parameters_[i];
      if (part_of_[i] != part_) continue;
      const auto own = settings_of(parameter, graph_.at(parameter.value).type, lr, weight_decay, groups);
      by_settings[{own.lr, own.weight_decay, counts ? updates_of(parameter.name) : 0}].push_back(&parameter);
    }
    for (const auto& [key, members] : by_settings)
      append_group(op, states, std::get<0>(key), counts, settings(std::get<1>(key)), members);
  }

  Update finish() && { return {std::move(graph_), std::move(groups_)}; }

 private:
  void append_group(const std::string& op, const std::vector<std::pair<std::string, std::string>>& states,
                    double lr, bool counts, const std::vector<ir::Argument>& settings,
                    const std::vector<const Parameter*>& members) {
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
    }
    ir::Node node{.op = op,
                  .arguments = {{"parameters", values}, {"gradients", gradients}},
                  .phase = ir::Phase::Update};
    for (const auto& [argument, suffix] : states) {
      ir::ValueList list;
      if (suffix.empty()) {  // the op has this state, but these settings do not need it
        node.arguments.push_back({argument, list});
        continue;
      }
      for (const auto* member : members) {
        const auto name = member->name + "." + suffix;
        const auto type = graph_.at(member->value).type;
        list.emplace_back(graph_.add_source(Role::OptimizerState, name, type));
        types.emplace_back(type);
        results.emplace_back(Role::OptimizerState, name);
      }
      node.arguments.push_back({argument, std::move(list)});
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

  ir::Graph graph_;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> part_of_;  // by parameter; the number of parts: in none
  std::size_t part_ = 0;
  std::optional<ValueId> scale_;
  std::vector<UpdateGroup> groups_;
};

}  // namespace

static void check(const char* name, double value, bool good, const char* wanted) {
  SHOAL_CHECK(good, InvalidInput, "optimizer: ", name, " is ", value, "; it must be ", wanted);
}

static void check_factor(const char* name, double value) {
  check(name, value, value >= 0 && value < 1, "in [0, 1)");
}

using Counts = std::function<std::int64_t(const std::string&)>;

using States = std::vector<std::pair<std::string, std::string>>;

// Left out where it is not set.
static void add_maximize(std::vector<ir::Argument>& settings, const auto& optimizer) {
  if constexpr (requires { optimizer.maximize; })
    if (optimizer.maximize) settings.push_back({"maximize", true});
}

// `decoupled`: of weight decay; not an argument of every op.
template <class A>
static void append_adam(Appender& appender, const A& adam, const char* op, std::optional<bool> decoupled,
                        const States& states, const Counts& updates_of) {
  check_factor("beta1", adam.beta1);
  check_factor("beta2", adam.beta2);
  check("eps", adam.eps, adam.eps >= 0, "at least 0");
  appender.append(
      op, states, adam.lr, adam.weight_decay, true, adam.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{
            {"beta1", adam.beta1}, {"beta2", adam.beta2}, {"eps", adam.eps}, {"weight_decay", weight_decay}};
        if (decoupled) settings.push_back({"decoupled", *decoupled});
        add_maximize(settings, adam);
        return settings;
      },
      updates_of);
}

static void append_one(Appender& appender, const SGD& sgd, const Counts& updates_of) {
  check("momentum", sgd.momentum, sgd.momentum >= 0, "at least 0");
  check("momentum", sgd.momentum, !sgd.nesterov || sgd.momentum > 0, "above 0 with nesterov");
  appender.append(
      "shoal::sgd", {{"momentum_buffers", sgd.momentum > 0 ? "momentum_buffer" : ""}}, sgd.lr,
      sgd.weight_decay, false, sgd.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{
            {"momentum", sgd.momentum}, {"weight_decay", weight_decay}, {"nesterov", sgd.nesterov}};
        add_maximize(settings, sgd);
        return settings;
      },
      updates_of);
}

static States moments(bool amsgrad) {
  States states = {{"exp_avgs", "exp_avg"}, {"exp_avg_sqs", "exp_avg_sq"}};
  if (amsgrad) states.emplace_back("max_exp_avg_sqs", "max_exp_avg_sq");
  return states;
}

static void append_one(Appender& appender, const Adam& adam, const Counts& updates_of) {
  append_adam(appender, adam, "shoal::adam", false, moments(adam.amsgrad), updates_of);
}

static void append_one(Appender& appender, const AdamW& adam, const Counts& updates_of) {
  append_adam(appender, adam, "shoal::adam", true, moments(adam.amsgrad), updates_of);
}

static void append_one(Appender& appender, const LAMB& lamb, const Counts& updates_of) {
  append_adam(appender, lamb, "shoal::lamb", std::nullopt, moments(false), updates_of);
}

static void append_one(Appender& appender, const Adamax& adamax, const Counts& updates_of) {
  append_adam(appender, adamax, "shoal::adamax", std::nullopt,
              {{"exp_avgs", "exp_avg"}, {"exp_infs", "exp_inf"}}, updates_of);
}

static void append_one(Appender& appender, const RAdam& radam, const Counts& updates_of) {
  append_adam(appender, radam, "shoal::radam", radam.decoupled_weight_decay, moments(false), updates_of);
}

static void append_one(Appender& appender, const Adadelta& adadelta, const Counts& updates_of) {
  check("rho", adadelta.rho, adadelta.rho >= 0 && adadelta.rho <= 1, "in [0, 1]");
  check("eps", adadelta.eps, adadelta.eps >= 0, "at least 0");
  appender.append(
      "shoal::adadelta", {{"square_avgs", "square_avg"}, {"acc_deltas", "acc_delta"}}, adadelta.lr,
      adadelta.weight_decay, false, adadelta.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{
            {"rho", adadelta.rho}, {"eps", adadelta.eps}, {"weight_decay", weight_decay}};
        add_maximize(settings, adadelta);
        return settings;
      },
      updates_of);
}

static void append_one(Appender& appender, const Rprop& rprop, const Counts& updates_of) {
  check("shrink", rprop.shrink, rprop.shrink > 0 && rprop.shrink < 1, "in (0, 1)");
  check("grow", rprop.grow, rprop.grow > 1, "above 1");
  appender.append(
      "shoal::rprop", {{"prevs", "prev"}, {"step_sizes", "step_size"}}, rprop.lr, 0, true, rprop.groups,
      [&](double /*weight_decay*/) {
        std::vector<ir::Argument> settings{{"shrink", rprop.shrink},
                                           {"grow", rprop.grow},
                                           {"smallest", rprop.smallest_step},
                                           {"largest", rprop.largest_step}};
        add_maximize(settings, rprop);
        return settings;
      },
      updates_of);
}

static void append_one(Appender& appender, const Adagrad& adagrad, const Counts& updates_of) {
  check("eps", adagrad.eps, adagrad.eps >= 0, "at least 0");
  appender.append(
      "shoal::adagrad", {{"sums", "sum"}}, adagrad.lr, adagrad.weight_decay, false, adagrad.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{{"eps", adagrad.eps}, {"weight_decay", weight_decay}};
        add_maximize(settings, adagrad);
        return settings;
      },
      updates_of);
}

static void append_one(Appender& appender, const RMSprop& rmsprop, const Counts& updates_of) {
  check_factor("alpha", rmsprop.alpha);
  check("momentum", rmsprop.momentum, rmsprop.momentum >= 0, "at least 0");
  check("eps", rmsprop.eps, rmsprop.eps >= 0, "at least 0");
  appender.append(
      "shoal::rmsprop",
      {{"square_avgs", "square_avg"},
       {"momentum_buffers", rmsprop.momentum > 0 ? "momentum_buffer" : ""},
       {"grad_avgs", rmsprop.centered ? "grad_avg" : ""}},
      rmsprop.lr, rmsprop.weight_decay, false, rmsprop.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{{"alpha", rmsprop.alpha},
                                           {"eps", rmsprop.eps},
                                           {"momentum", rmsprop.momentum},
                                           {"weight_decay", weight_decay}};
        add_maximize(settings, rmsprop);
        return settings;
      },
      updates_of);
}

static void append_one(Appender& appender, const Lion& lion, const Counts& updates_of) {
  check_factor("beta1", lion.beta1);
  check_factor("beta2", lion.beta2);
  appender.append(
      "shoal::lion", {{"exp_avgs", "exp_avg"}}, lion.lr, lion.weight_decay, false, lion.groups,
      [&](double weight_decay) {
        return std::vector<ir::Argument>{
            {"beta1", lion.beta1}, {"beta2", lion.beta2}, {"weight_decay", weight_decay}};
      },
      updates_of);
}

namespace {

struct Suffixes {
  using List = std::vector<std::string>;
  List operator()(const SGD& sgd) const { return sgd.momentum > 0 ? List{"momentum_buffer"} : List{}; }
  List operator()(const Adam& adam) const { return of_adam(adam.amsgrad); }
  List operator()(const AdamW& adam) const { return of_adam(adam.amsgrad); }
  List operator()(const Adadelta&) const { return {"square_avg", "acc_delta"}; }
  List operator()(const Adamax&) const { return {"exp_avg", "exp_inf"}; }
  List operator()(const RAdam&) const { return {"exp_avg", "exp_avg_sq"}; }
  List operator()(const Rprop&) const { return {"prev", "step_size"}; }
  List operator()(const LAMB&) const { return {"exp_avg", "exp_avg_sq"}; }
  List operator()(const Adagrad&) const { return {"sum"}; }
  List operator()(const Lion&) const { return {"exp_avg"}; }
  List operator()(const RMSprop& rmsprop) const {
    List list{"square_avg"};
    if (rmsprop.momentum > 0) list.push_back("momentum_buffer");
    if (rmsprop.centered) list.push_back("grad_avg");
    return list;
  }
  static List of_adam(bool amsgrad) {
    return amsgrad ? List{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"} : List{"exp_avg", "exp_avg_sq"};
  }
};

}  // namespace

std::vector<std::string> state_suffixes(const Optimizer& optimizer) {
  return std::visit(Suffixes{}, optimizer);
}

static void append(Appender& appender, const Optimizer& optimizer, const Counts& updates_of) {
  std::visit(
      [&](const auto& chosen) {
        check("lr", chosen.lr, chosen.lr >= 0, "at least 0");
        if constexpr (requires { chosen.weight_decay; })
          check("weight_decay", chosen.weight_decay, chosen.weight_decay >= 0, "at least 0");
        append_one(appender, chosen, updates_of);
      },
      optimizer);
}

Update append_update(ir::Graph graph, std::span<const OptimizerPart> parts, double clip_norm,
                     const Counts& updates_of) {
  check("clip_norm", clip_norm, clip_norm >= 0, "at least 0 (0: no clipping)");
  Appender appender(std::move(graph), parts, clip_norm);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    appender.start_part(part);
    append(appender, parts[part].optimizer, updates_of);
  }
  return std::move(appender).finish();
}

}  // namespace shoal::train
