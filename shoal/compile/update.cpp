// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/update.h"

#include <optional>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/compile/appender.h"

namespace shoal::compile {

static void check(const char* name, double value, bool good, const char* wanted) {
  SHOAL_CHECK(good, InvalidInput, "optimizer: ", name, " is ", value, "; it must be ", wanted);
}

static void check_factor(const char* name, double value) {
  check(name, value, value >= 0 && value < 1, "in [0, 1)");
}

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
  check("dampening", sgd.dampening, !sgd.nesterov || sgd.dampening == 0, "0 with nesterov");
  const bool counts = sgd.momentum > 0 && sgd.dampening != 0;
  appender.append(
      "shoal::sgd", {{"momentum_buffers", sgd.momentum > 0 ? "momentum_buffer" : ""}}, sgd.lr,
      sgd.weight_decay, counts, sgd.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{
            {"momentum", sgd.momentum}, {"weight_decay", weight_decay}, {"nesterov", sgd.nesterov}};
        if (counts) settings.push_back({"dampening", sgd.dampening});
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
  check("lr_decay", adagrad.lr_decay, adagrad.lr_decay >= 0, "at least 0");
  const bool counts = adagrad.lr_decay != 0;
  appender.append(
      "shoal::adagrad", {{"sums", "sum"}}, adagrad.lr, adagrad.weight_decay, counts, adagrad.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{{"eps", adagrad.eps}, {"weight_decay", weight_decay}};
        if (counts) settings.push_back({"lr_decay", adagrad.lr_decay});
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

static void append_one(Appender& appender, const NAdam& nadam, const Counts& updates_of) {
  check_factor("beta1", nadam.beta1);
  check_factor("beta2", nadam.beta2);
  check("eps", nadam.eps, nadam.eps >= 0, "at least 0");
  check("momentum_decay", nadam.momentum_decay, nadam.momentum_decay >= 0, "at least 0");
  appender.append(
      "shoal::nadam", {{"exp_avgs", "exp_avg"}, {"exp_avg_sqs", "exp_avg_sq"}, {"mu_products", "mu_product"}},
      nadam.lr, nadam.weight_decay, true, nadam.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{{"beta1", nadam.beta1},
                                           {"beta2", nadam.beta2},
                                           {"eps", nadam.eps},
                                           {"weight_decay", weight_decay},
                                           {"momentum_decay", nadam.momentum_decay},
                                           {"decoupled", nadam.decoupled_weight_decay}};
        add_maximize(settings, nadam);
        return settings;
      },
      updates_of);
}

static void append_one(Appender& appender, const ASGD& asgd, const Counts& updates_of) {
  appender.append(
      "shoal::asgd", {{"axs", "ax"}, {"etas", "eta"}, {"mus", "mu"}}, asgd.lr, asgd.weight_decay, true,
      asgd.groups,
      [&](double weight_decay) {
        std::vector<ir::Argument> settings{
            {"lambd", asgd.lambd}, {"alpha", asgd.alpha}, {"t0", asgd.t0}, {"weight_decay", weight_decay}};
        add_maximize(settings, asgd);
        return settings;
      },
      updates_of);
}

static void append_one(Appender& appender, const Adafactor& adafactor, const Counts& updates_of) {
  check("beta2_decay", adafactor.beta2_decay, adafactor.beta2_decay <= 0, "at most 0");
  check("d", adafactor.d, adafactor.d >= 1, "at least 1");
  const auto settings_with = [&](double weight_decay) {
    std::vector<ir::Argument> settings{{"beta2_decay", adafactor.beta2_decay},
                                       {"eps2", adafactor.eps2},
                                       {"d", adafactor.d},
                                       {"weight_decay", weight_decay}};
    if (adafactor.eps1) settings.push_back({"eps1", *adafactor.eps1});
    add_maximize(settings, adafactor);
    return settings;
  };
  const auto append = [&](const States& states, bool of_matrices) {
    appender.append("shoal::adafactor", states, adafactor.lr, adafactor.weight_decay, true, adafactor.groups,
                    settings_with, updates_of, [of_matrices](const ir::TensorType& type) {
                      return (type.shape.size() > 1) == of_matrices;
                    });
  };
  append({{"row_vars", "row_var"}, {"col_vars", "col_var"}, {"variances", ""}}, true);
  append({{"row_vars", ""}, {"col_vars", ""}, {"variances", "variance"}}, false);
}

static void append_one(Appender& appender, const Muon& muon, const Counts& updates_of) {
  check("momentum", muon.momentum, muon.momentum >= 0, "at least 0");
  check("steps", static_cast<double>(muon.steps), muon.steps >= 0 && muon.steps < 100, "in [0, 100)");
  appender.append(
      "shoal::muon", {{"momentum_buffers", "momentum_buffer"}}, muon.lr, muon.weight_decay, false,
      muon.groups,
      [&](double weight_decay) {
        return std::vector<ir::Argument>{{"weight_decay", weight_decay},
                                         {"momentum", muon.momentum},
                                         {"nesterov", muon.nesterov},
                                         {"a", muon.a},
                                         {"b", muon.b},
                                         {"c", muon.c},
                                         {"eps", muon.eps},
                                         {"steps", muon.steps},
                                         {"matches_rms", muon.adjust == Muon::Adjust::MatchRmsAdamW}};
      },
      updates_of);
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

Update append_update(ir::Graph graph, const UpdateSettings& settings) {
  const double clip_norm = settings.clip_norm;
  check("clip_norm", clip_norm, clip_norm >= 0, "at least 0 (0: no clipping)");
  const Counts updates_of =
      settings.updates_of ? settings.updates_of : [](const std::string&) { return std::int64_t{0}; };
  Appender appender(std::move(graph), settings);
  for (std::size_t part = 0; part < settings.parts.size(); ++part) {
    const Optimizer& optimizer = settings.parts[part].optimizer;
    appender.start_part(part, optimizer);
    append(appender, optimizer, updates_of);
  }
  return std::move(appender).finish();
}

}  // namespace shoal::compile
