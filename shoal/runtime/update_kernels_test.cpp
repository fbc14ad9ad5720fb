// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/update_kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "shoal/aten/types.h"
#include "shoal/runtime/executor.h"

namespace update_kernels_test {

using namespace shoal;
using namespace shoal::runtime;
using ir::Argument;
using ir::Graph;
using ir::Phase;
using ir::Role;

using Tensors = std::vector<at::Tensor>;

// Sizes from none to more than one thread's share, and one whose elements are not in row-major order.
static Tensors some_tensors(at::ScalarType dtype) {
  return {at::randn({3, 5}, dtype),
          at::randn({}, dtype),
          at::randn({0, 4}, dtype),
          at::randn({300, 257}, dtype),
          at::randn({4, 8, 3, 3}, dtype).contiguous(at::MemoryFormat::ChannelsLast),
          at::randn({7}, dtype)};
}

static Tensors zeros_like(const Tensors& tensors) {
  Tensors zeros;
  for (const auto& tensor : tensors) zeros.push_back(at::zeros_like(tensor));
  return zeros;
}

// A program of clip and one optimizer op over lists of sources.
class Update {
 public:
  Update(const std::string& op, Tensors parameters, std::vector<std::pair<std::string, Tensors>> states,
         const std::vector<Argument>& settings, std::optional<double> max_norm = std::nullopt)
      : size_(parameters.size()) {
    Graph graph;
    const auto sources = [&](Role role, const std::string& prefix, const Tensors& tensors) {
      ir::ValueList list;
      for (std::size_t i = 0; i < tensors.size(); ++i)
        list.emplace_back(graph.add_source(role, prefix + std::to_string(i), aten::type_of(tensors[i])));
      return list;
    };
    const auto p = sources(Role::Parameter, "p", parameters);
    const auto g = sources(Role::Input, "g", parameters);
    const auto lr = graph.add_source(Role::Scalar, "lr", ir::contiguous(DType::Float64, {}));
    const auto step = graph.add_source(Role::Scalar, "step", ir::contiguous(DType::Int64, {}));
    const auto scalar = ir::contiguous(DType::Float64, {});
    const auto clip = graph.add_node({.op = "shoal::clip",
                                      .arguments = {{"gradients", g}, {"max_norm", max_norm.value_or(0)}},
                                      .outputs = {},
                                      .phase = Phase::Update,
                                      .module = ""},
                                     {scalar, scalar});
    const auto scale = *graph.at(clip).outputs[1];
    graph.add_result(Role::Output, "norm", *graph.at(clip).outputs[0]);
    std::vector<Argument> arguments = {{"parameters", p}, {"gradients", g}};
    std::vector<std::optional<ir::TensorType>> types;
    std::vector<std::pair<Role, std::string>> names;
    const auto add_outputs = [&](Role role, const std::string& prefix, const Tensors& tensors) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        types.emplace_back(aten::type_of(tensors[i]));
        names.emplace_back(role, prefix + std::to_string(i));
      }
    };
    add_outputs(Role::Parameter, "p", parameters);
    for (const auto& [name, tensors] : states) {
      arguments.push_back({name, sources(Role::OptimizerState, name, tensors)});
      add_outputs(Role::OptimizerState, name, tensors);
    }
    arguments.push_back({"lr", lr});
    if (op == "shoal::adam" || op == "shoal::lamb") arguments.push_back({"step", step});
    arguments.push_back({"scale", max_norm ? ir::Attribute(scale) : ir::Attribute()});
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    const auto node = graph.add_node(
        {.op = op, .arguments = arguments, .outputs = {}, .phase = Phase::Update, .module = ""}, types);
    for (std::size_t i = 0; i < names.size(); ++i)
      graph.add_result(names[i].first, names[i].second, *graph.at(node).outputs[i]);
    executor_ = std::make_unique<Executor>(program::lower(graph));
    executor_->bind(Role::Scalar, "lr", at::scalar_tensor(0.05, at::kDouble));
    for (std::size_t i = 0; i < size_; ++i)
      executor_->bind(Role::Parameter, "p" + std::to_string(i), parameters[i]);
    for (const auto& [name, tensors] : states)
      for (std::size_t i = 0; i < tensors.size(); ++i)
        executor_->bind(Role::OptimizerState, name + std::to_string(i), tensors[i]);
  }

  // The norm of the gradients.
  double operator()(const Tensors& gradients) {
    executor_->bind(Role::Scalar, "step", at::scalar_tensor(++step_, at::kLong));
    for (std::size_t i = 0; i < size_; ++i)
      executor_->bind(Role::Input, "g" + std::to_string(i), gradients[i]);
    executor_->run_gradients();
    executor_->run_update();
    return executor_->result(Role::Output, "norm").item<double>();
  }

 private:
  std::size_t size_;
  std::unique_ptr<Executor> executor_;
  std::int64_t step_ = 0;
};

static void check_close(const Tensors& ours, const Tensors& theirs, double tolerance) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    CHECK(at::allclose(ours[i], theirs[i], tolerance, tolerance));
  }
}

// Five updates of ours and of torch::optim from the same parameters with the same gradients.
template <class Optimizer, class Options>
static void check_against(at::ScalarType dtype, double tolerance, Options options, const std::string& op,
                          const std::vector<std::string>& states, const std::vector<Argument>& settings) {
  at::manual_seed(7);
  const Tensors ours = some_tensors(dtype);
  Tensors theirs;
  for (const auto& tensor : ours) theirs.push_back(tensor.detach().clone().requires_grad_());
  std::vector<std::pair<std::string, Tensors>> state_lists;
  for (const auto& name : states) state_lists.emplace_back(name, zeros_like(ours));
  if (op == "shoal::sgd" && states.empty()) state_lists.emplace_back("momentum_buffers", Tensors{});
  if (op == "shoal::rmsprop")
    for (const char* name : {"momentum_buffers", "grad_avgs"})
      if (std::ranges::find(states, name) == states.end()) state_lists.emplace_back(name, Tensors{});
  Update update(op, ours, state_lists, settings);
  Optimizer optimizer(theirs, options);
  for (int step = 0; step < 5; ++step) {
    const Tensors gradients = some_tensors(dtype);
    Tensors before;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      theirs[i].mutable_grad() = gradients[i].clone();
      before.push_back(gradients[i].clone());
    }
    update(gradients);
    optimizer.step();
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(at::equal(before[i], gradients[i]));
  }
  check_close(ours, theirs, tolerance);
}

static std::vector<Argument> sgd_settings(double momentum, double weight_decay, bool nesterov) {
  return {{"momentum", momentum}, {"weight_decay", weight_decay}, {"nesterov", nesterov}};
}
static std::vector<Argument> adam_settings(double weight_decay, bool decoupled) {
  return {{"beta1", 0.9},
          {"beta2", 0.95},
          {"eps", 1e-8},
          {"weight_decay", weight_decay},
          {"decoupled", decoupled}};
}

TEST_CASE("sgd is torch::optim::SGD") {
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 2e-6)}) {
    check_against<SGD>(dtype, tolerance, SGDOptions(0.05), "shoal::sgd", {}, sgd_settings(0, 0, false));
    check_against<SGD>(dtype, tolerance, SGDOptions(0.05).weight_decay(0.1), "shoal::sgd", {},
                       sgd_settings(0, 0.1, false));
    check_against<SGD>(dtype, tolerance, SGDOptions(0.05).momentum(0.9).weight_decay(0.1), "shoal::sgd",
                       {"momentum_buffers"}, sgd_settings(0.9, 0.1, false));
    check_against<SGD>(dtype, tolerance, SGDOptions(0.05).momentum(0.9).nesterov(true), "shoal::sgd",
                       {"momentum_buffers"}, sgd_settings(0.9, 0, true));
  }
}

TEST_CASE("adam is torch::optim::Adam, and AdamW where weight decay is decoupled") {
  using torch::optim::Adam;
  using torch::optim::AdamOptions;
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 5e-6)}) {
    check_against<Adam>(dtype, tolerance, AdamOptions(0.05).betas({0.9, 0.95}).weight_decay(0.1),
                        "shoal::adam", {"exp_avgs", "exp_avg_sqs"}, adam_settings(0.1, false));
    check_against<AdamW>(dtype, tolerance, AdamWOptions(0.05).betas({0.9, 0.95}).weight_decay(0.1),
                         "shoal::adam", {"exp_avgs", "exp_avg_sqs"}, adam_settings(0.1, true));
  }
}

TEST_CASE("adagrad is torch::optim::Adagrad") {
  using torch::optim::Adagrad;
  using torch::optim::AdagradOptions;
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 2e-6)})
    check_against<Adagrad>(dtype, tolerance, AdagradOptions(0.05).weight_decay(0.1).eps(1e-10),
                           "shoal::adagrad", {"sums"}, {{"eps", 1e-10}, {"weight_decay", 0.1}});
}

TEST_CASE("rmsprop is torch::optim::RMSprop, with momentum and centered too") {
  using torch::optim::RMSprop;
  using torch::optim::RMSpropOptions;
  const auto settings = [](double momentum) {
    return std::vector<Argument>{
        {"alpha", 0.95}, {"eps", 1e-6}, {"momentum", momentum}, {"weight_decay", 0.1}};
  };
  const auto options = RMSpropOptions(0.05).alpha(0.95).eps(1e-6).weight_decay(0.1);
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-11), std::pair(at::kFloat, 1e-4)}) {
    const auto with = [&](double momentum, bool centered) {
      auto changed = options;
      return changed.momentum(momentum).centered(centered);
    };
    check_against<RMSprop>(dtype, tolerance, with(0, false), "shoal::rmsprop", {"square_avgs"}, settings(0));
    check_against<RMSprop>(dtype, tolerance, with(0.9, false), "shoal::rmsprop",
                           {"square_avgs", "momentum_buffers"}, settings(0.9));
    if (dtype == at::kDouble)  // in float the variance is a difference of nearly equal numbers
      check_against<RMSprop>(dtype, tolerance, with(0.9, true), "shoal::rmsprop",
                             {"square_avgs", "momentum_buffers", "grad_avgs"}, settings(0.9));
  }
}

// Five updates of ours and of `formula` from the same parameters with the same gradients, in double.
static void check_against_formula(
    const std::string& op, const std::vector<std::string>& states, const std::vector<Argument>& settings,
    const std::function<void(at::Tensor& p, const at::Tensor& g, Tensors& state, double step)>& formula) {
  at::manual_seed(7);
  const Tensors ours = some_tensors(at::kDouble);
  Tensors theirs;
  for (const auto& tensor : ours) theirs.push_back(tensor.clone());
  std::vector<std::pair<std::string, Tensors>> state_lists;
  for (const auto& name : states) state_lists.emplace_back(name, zeros_like(ours));
  std::vector<Tensors> their_states(ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    for (std::size_t state = 0; state < states.size(); ++state)
      their_states[i].push_back(at::zeros_like(ours[i]));
  Update update(op, ours, state_lists, settings);
  for (int step = 1; step <= 5; ++step) {
    const Tensors gradients = some_tensors(at::kDouble);
    update(gradients);
    for (std::size_t i = 0; i < theirs.size(); ++i) formula(theirs[i], gradients[i], their_states[i], step);
  }
  check_close(ours, theirs, 1e-12);
}

TEST_CASE("lion is algorithm 2 of its paper") {
  check_against_formula("shoal::lion", {"exp_avgs"}, {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.1}},
                        [](at::Tensor& p, const at::Tensor& g, Tensors& state, double) {
                          p -= 0.05 * ((0.9 * state[0] + 0.1 * g).sign() + 0.1 * p);
                          state[0] = 0.99 * state[0] + 0.01 * g;
                        });
}

TEST_CASE("lamb is algorithm 2 of its paper") {
  check_against_formula(
      "shoal::lamb", {"exp_avgs", "exp_avg_sqs"},
      {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-6}, {"weight_decay", 0.1}},
      [](at::Tensor& p, const at::Tensor& g, Tensors& state, double step) {
        state[0] = 0.9 * state[0] + 0.1 * g;
        state[1] = 0.95 * state[1] + 0.05 * g * g;
        const auto m = state[0] / (1 - std::pow(0.9, step)), v = state[1] / (1 - std::pow(0.95, step));
        const auto u = m / (v.sqrt() + 1e-6) + 0.1 * p;
        const double ratio = p.numel() == 0 ? 1 : p.norm().item<double>() / u.norm().item<double>();
        p -= 0.05 * ratio * u;
      });
}

TEST_CASE("lamb is the same bits for any number of threads") {
  const auto after = [](int threads) {
    at::set_num_threads(threads);
    at::manual_seed(1);
    Tensors parameters = {at::randn({300001}), at::randn({77})};
    Update update("shoal::lamb", parameters,
                  {{"exp_avgs", zeros_like(parameters)}, {"exp_avg_sqs", zeros_like(parameters)}},
                  {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-6}, {"weight_decay", 0.1}}, 1.0);
    for (int step = 0; step < 3; ++step) update({at::randn({300001}), at::randn({77})});
    return parameters;
  };
  const int threads = at::get_num_threads();
  const auto alone = after(1);
  const auto many = after(3);
  at::set_num_threads(threads);
  CHECK(at::equal(alone[0], many[0]));
  CHECK(at::equal(alone[1], many[1]));
}

TEST_CASE("bfloat16 parameters are updated in float") {
  const Tensors ours = {at::full({4}, 2.0, at::kBFloat16)};
  Update update("shoal::adam", ours, {{"exp_avgs", zeros_like(ours)}, {"exp_avg_sqs", zeros_like(ours)}},
                adam_settings(0, true));
  update({at::full({4}, 0.5, at::kBFloat16)});
  CHECK(at::allclose(ours[0].to(at::kFloat), at::full({4}, 1.95), 0.01, 0));
}

TEST_CASE("clipping scales what the update sees, and reports the norm before it") {
  const Tensors clipped = {at::zeros({4}, at::kDouble), at::zeros({2}, at::kDouble)};
  Update update("shoal::sgd", clipped, {{"momentum_buffers", {}}}, sgd_settings(0, 0, false),
                /*max_norm=*/1.0);
  const Tensors gradients = {at::full({4}, 1.5, at::kDouble), at::full({2}, 4.0, at::kDouble)};
  const double norm = std::sqrt(4 * 2.25 + 2 * 16.0);
  CHECK(update(gradients) == doctest::Approx(norm).epsilon(1e-14));
  CHECK(at::allclose(clipped[1], gradients[1] * (-0.05 / (norm + 1e-6)), 1e-12, 0));
  CHECK(update({gradients[0] * 0.01, gradients[1] * 0.01}) == doctest::Approx(norm / 100).epsilon(1e-14));
  CHECK(at::allclose(clipped[0], gradients[0] * (-0.05 * (1 / (norm + 1e-6) + 0.01)), 1e-12, 0));
}

TEST_CASE("the norm of a million floats is right to the last digits") {
  Tensors parameters = {at::zeros({1000003}), at::zeros({5})};
  Update update("shoal::sgd", parameters, {{"momentum_buffers", {}}}, sgd_settings(0, 0, false));
  const Tensors gradients = {at::randn({1000003}) * 1e-3, at::randn({5}) * 1e3};
  const double norm = std::sqrt(gradients[0].to(at::kDouble).square().sum().item<double>() +
                                gradients[1].to(at::kDouble).square().sum().item<double>());
  CHECK(update(gradients) == doctest::Approx(norm).epsilon(1e-13));
}

TEST_CASE("updates are the same bits for any number of threads") {
  const auto after = [](int threads) {
    at::set_num_threads(threads);
    at::manual_seed(1);
    Tensors parameters = {at::randn({300001}), at::randn({77})};
    Update update("shoal::adam", parameters,
                  {{"exp_avgs", zeros_like(parameters)}, {"exp_avg_sqs", zeros_like(parameters)}},
                  adam_settings(0.1, true), 1.0);
    for (int step = 0; step < 3; ++step) update({at::randn({300001}), at::randn({77})});
    return parameters;
  };
  const int threads = at::get_num_threads();
  const auto alone = after(1);
  const auto many = after(3);
  at::set_num_threads(threads);
  CHECK(at::equal(alone[0], many[0]));
  CHECK(at::equal(alone[1], many[1]));
}

TEST_CASE("an infinite norm scales to zero and a NaN norm to NaN") {
  Tensors parameters = {at::zeros({2}, at::kDouble)};
  Update update("shoal::sgd", parameters, {{"momentum_buffers", {}}}, sgd_settings(0, 0, false), 1.0);
  CHECK(std::isinf(update({at::tensor({INFINITY, 1.0}, at::kDouble)})));
  CHECK(std::isnan(update({at::tensor({NAN, 1.0}, at::kDouble)})));
}

}  // namespace update_kernels_test
