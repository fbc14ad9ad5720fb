// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/optimizer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::python {

static double number(const py::dict& group, const char* option) {
  return group.contains(option) ? PyFloat_AsDouble(py::float_(group[option]).ptr()) : 0;
}

static bool is_set(const py::dict& group, const char* option) {
  return group.contains(option) && PyObject_IsTrue(py::object(group[option]).ptr()) == 1;
}

static std::pair<double, double> betas_of(const py::dict& group) {
  const py::object betas = group["betas"];
  return {py::float_(betas[py::int_(0)]), py::float_(betas[py::int_(1)])};
}

static Optimizer adamw(const py::dict& group) {
  const auto [beta1, beta2] = betas_of(group);
  return AdamW{.lr = number(group, "lr"),
               .beta1 = beta1,
               .beta2 = beta2,
               .eps = number(group, "eps"),
               .weight_decay = number(group, "weight_decay")};
}

static Optimizer adam(const py::dict& group) {
  if (is_set(group, "decoupled_weight_decay")) return adamw(group);
  const auto [beta1, beta2] = betas_of(group);
  return Adam{.lr = number(group, "lr"),
              .beta1 = beta1,
              .beta2 = beta2,
              .eps = number(group, "eps"),
              .weight_decay = number(group, "weight_decay")};
}

static Optimizer sgd(const py::dict& group) {
  return SGD{.lr = number(group, "lr"),
             .momentum = number(group, "momentum"),
             .weight_decay = number(group, "weight_decay"),
             .nesterov = is_set(group, "nesterov")};
}

// Classes of torch.optim, in alphabetical order.
namespace {
struct Class {
  const char* name;
  Optimizer (*made)(const py::dict& group);
};
}  // namespace
static constexpr std::array<Class, 3> kClasses = {{{"Adam", adam}, {"AdamW", adamw}, {"SGD", sgd}}};

// Options that say how torch.optim computes, not what.
static constexpr std::array<std::string_view, 4> kHow = {"capturable", "foreach", "fused", "initial_lr"};
static constexpr std::array<const char*, 4> kUnsupported = {"amsgrad", "dampening", "differentiable",
                                                            "maximize"};

static const Class& class_of(py::handle optimizer) {
  const py::module_ torch = py::module_::import("torch.optim");
  const py::handle type = py::type::handle_of(optimizer);
  std::string supported;
  for (const auto& each : kClasses) {
    if (type.is(torch.attr(each.name))) return each;
    supported += std::string(supported.empty() ? "" : ", ") + "torch.optim." + each.name;
  }
  fail(ErrorKind::InvalidInput, "trainer: the optimizer is a ", std::string(py::str(type.attr("__module__"))),
       ".", std::string(py::str(type.attr("__qualname__"))), ", which Shoal does not have; it has ",
       supported,
       ". Remedy: make the Trainer without an optimizer, call trainer.backward(batch) in place of "
       "loss.backward(), and then the optimizer's own step()");
}

static py::list groups_of(const py::object& optimizer) { return optimizer.attr("param_groups"); }

TorchOptimizer::TorchOptimizer(py::object optimizer, const ModelView::NamedTensors& parameters)
    : optimizer_(std::move(optimizer)) {
  class_of(optimizer_);
  std::unordered_map<const void*, std::string> names;
  for (const auto& [name, tensor] : parameters) names.emplace(tensor.unsafeGetTensorImpl(), name);
  for (const auto group : groups_of(optimizer_)) {
    auto& members = names_.emplace_back();
    for (const auto parameter : group["params"]) {
      const at::Tensor tensor = THPVariable_Unpack(parameter.ptr());
      const auto found = names.find(tensor.unsafeGetTensorImpl());
      SHOAL_CHECK(
          found != names.end(), InvalidInput, "trainer: parameter ", members.size(),
          " of the optimizer's group ", names_.size() - 1, ", of shape ", tensor.sizes(),
          ", is none of the model's; make the optimizer from model.parameters(), after the model has its "
          "final parameters");
      members.push_back(found->second);
    }
  }
}

std::vector<OptimizerPart> TorchOptimizer::parts() const {
  const auto& of = class_of(optimizer_);
  SHOAL_CHECK(groups_of(optimizer_).size() == names_.size(), InvalidInput, "trainer: the optimizer has ",
              groups_of(optimizer_).size(), " parameter groups and had ", names_.size(),
              "; make another Trainer for it");
  std::vector<OptimizerPart> parts;
  for (const auto handle : groups_of(optimizer_)) {
    const py::dict group = py::reinterpret_borrow<py::dict>(handle);
    for (const char* option : kUnsupported)
      SHOAL_CHECK(!is_set(group, option), InvalidInput, "trainer: the optimizer's group ", parts.size(),
                  " has ", option, "=", std::string(py::str(group[option])),
                  ", which Shoal does not have for torch.optim.", of.name, "; leave it at its default");
    const auto& members = names_.at(parts.size());
    parts.push_back({.contains = [own = std::set<std::string>(members.begin(), members.end())](
                                     const std::string& name) { return own.contains(name); },
                     .optimizer = of.made(group)});
  }
  options_ = options();
  return parts;
}

std::vector<double> TorchOptimizer::learning_rates() const {
  std::vector<double> rates;
  for (const auto group : groups_of(optimizer_))
    rates.push_back(number(py::reinterpret_borrow<py::dict>(group), "lr"));
  return rates;
}

bool TorchOptimizer::changed() const { return options() != options_; }

std::string TorchOptimizer::options() const {
  std::string text;
  for (const auto group : groups_of(optimizer_))
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(group)) {
      const std::string name = py::str(key);
      if (name == "params" || name == "lr" || std::ranges::find(kHow, name) != kHow.end()) continue;
      text += name + "=" + std::string(py::repr(value)) + ";";
    }
  return text;
}

void TorchOptimizer::for_each_parameter(
    const std::function<void(const std::string&, py::handle)>& visit) const {
  std::size_t number = 0;
  for (const auto group : groups_of(optimizer_)) {
    const auto& members = names_.at(number++);
    std::size_t member = 0;
    for (const auto parameter : group["params"]) visit(members.at(member++), parameter);
  }
}

std::map<std::string, at::Tensor> TorchOptimizer::state(Progress& progress) const {
  std::map<std::string, at::Tensor> state;
  const py::dict all = optimizer_.attr("state");
  for_each_parameter([&](const std::string& name, py::handle parameter) {
    if (!all.contains(parameter)) return;
    for (const auto& [key, value] : py::dict(all[parameter])) {
      if (!THPVariable_Check(value.ptr())) continue;
      const at::Tensor tensor = THPVariable_Unpack(value.ptr());
      if (std::string(py::str(key)) == "step")
        progress.updates[name] = static_cast<std::int64_t>(tensor.item<double>());
      else
        state.emplace(name + "." + std::string(py::str(key)), tensor);
    }
  });
  for (const auto& [name, updates] : progress.updates) progress.steps = std::max(progress.steps, updates);
  return state;
}

void TorchOptimizer::set_state(const std::map<std::string, at::Tensor>& state,
                               const Progress& progress) const {
  const py::object all = optimizer_.attr("state");
  for_each_parameter([&](const std::string& name, py::handle parameter) {
    py::dict own;
    for (auto item = state.lower_bound(name + ".");
         item != state.end() && item->first.starts_with(name + "."); ++item)
      own[py::str(item->first.substr(name.size() + 1))] = py::cast(item->second);
    if (own.empty()) return;
    const auto updates = progress.updates.find(name);
    if (updates != progress.updates.end() && own.contains("exp_avg"))
      own["step"] = py::cast(at::scalar_tensor(static_cast<double>(updates->second), at::kFloat));
    all[parameter] = own;
  });
}

void TorchOptimizer::note_step() const { optimizer_.attr("_opt_called") = true; }

}  // namespace shoal::python
