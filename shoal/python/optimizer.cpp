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

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/compile/update.h"
#include "shoal/rewrite/place.h"

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

static Optimizer adadelta(const py::dict& group) {
  return Adadelta{.lr = number(group, "lr"),
                  .rho = number(group, "rho"),
                  .eps = number(group, "eps"),
                  .weight_decay = number(group, "weight_decay"),
                  .maximize = is_set(group, "maximize")};
}

static Optimizer adagrad(const py::dict& group) {
  return Adagrad{.lr = number(group, "lr"),
                 .lr_decay = number(group, "lr_decay"),
                 .eps = number(group, "eps"),
                 .weight_decay = number(group, "weight_decay"),
                 .maximize = is_set(group, "maximize")};
}

static Optimizer adafactor(const py::dict& group) {
  const py::object eps = group["eps"];
  const py::object eps1 = eps[py::int_(0)];
  return Adafactor{.lr = number(group, "lr"),
                   .beta2_decay = number(group, "beta2_decay"),
                   .eps1 = eps1.is_none() ? std::nullopt : std::optional<double>(py::float_(eps1)),
                   .eps2 = py::float_(eps[py::int_(1)]),
                   .d = number(group, "d"),
                   .weight_decay = number(group, "weight_decay"),
                   .maximize = is_set(group, "maximize")};
}

template <class A>
static A adam_of(const py::dict& group) {
  const auto [beta1, beta2] = betas_of(group);
  return A{.lr = number(group, "lr"),
           .beta1 = beta1,
           .beta2 = beta2,
           .eps = number(group, "eps"),
           .weight_decay = number(group, "weight_decay"),
           .maximize = is_set(group, "maximize")};
}

static Optimizer adamw(const py::dict& group) {
  auto adam = adam_of<AdamW>(group);
  adam.amsgrad = is_set(group, "amsgrad");
  return adam;
}

static Optimizer adam(const py::dict& group) {
  if (is_set(group, "decoupled_weight_decay")) return adamw(group);
  auto adam = adam_of<Adam>(group);
  adam.amsgrad = is_set(group, "amsgrad");
  return adam;
}

static Optimizer adamax(const py::dict& group) { return adam_of<Adamax>(group); }

static Optimizer asgd(const py::dict& group) {
  return ASGD{.lr = number(group, "lr"),
              .lambd = number(group, "lambd"),
              .alpha = number(group, "alpha"),
              .t0 = number(group, "t0"),
              .weight_decay = number(group, "weight_decay"),
              .maximize = is_set(group, "maximize")};
}

static Optimizer muon(const py::dict& group) {
  const py::object coefficients = group["ns_coefficients"], adjust = group["adjust_lr_fn"];
  const bool matches = !adjust.is_none() && std::string(py::str(adjust)) == "match_rms_adamw";
  return Muon{.lr = number(group, "lr"),
              .weight_decay = number(group, "weight_decay"),
              .momentum = number(group, "momentum"),
              .nesterov = is_set(group, "nesterov"),
              .a = py::float_(coefficients[py::int_(0)]),
              .b = py::float_(coefficients[py::int_(1)]),
              .c = py::float_(coefficients[py::int_(2)]),
              .eps = number(group, "eps"),
              .steps = py::cast<std::int64_t>(group["ns_steps"]),
              .adjust = matches ? Muon::Adjust::MatchRmsAdamW : Muon::Adjust::Original};
}

static Optimizer nadam(const py::dict& group) {
  auto nadam = adam_of<NAdam>(group);
  nadam.momentum_decay = number(group, "momentum_decay");
  nadam.decoupled_weight_decay = is_set(group, "decoupled_weight_decay");
  return nadam;
}

static Optimizer radam(const py::dict& group) {
  auto radam = adam_of<RAdam>(group);
  radam.decoupled_weight_decay = is_set(group, "decoupled_weight_decay");
  return radam;
}

static Optimizer rmsprop(const py::dict& group) {
  return RMSprop{.lr = number(group, "lr"),
                 .alpha = number(group, "alpha"),
                 .eps = number(group, "eps"),
                 .weight_decay = number(group, "weight_decay"),
                 .momentum = number(group, "momentum"),
                 .centered = is_set(group, "centered"),
                 .maximize = is_set(group, "maximize")};
}

static Optimizer rprop(const py::dict& group) {
  const py::object etas = group["etas"], sizes = group["step_sizes"];
  return Rprop{.lr = number(group, "lr"),
               .shrink = py::float_(etas[py::int_(0)]),
               .grow = py::float_(etas[py::int_(1)]),
               .smallest_step = py::float_(sizes[py::int_(0)]),
               .largest_step = py::float_(sizes[py::int_(1)]),
               .maximize = is_set(group, "maximize")};
}

static Optimizer sgd(const py::dict& group) {
  return SGD{.lr = number(group, "lr"),
             .momentum = number(group, "momentum"),
             .dampening = number(group, "dampening"),
             .weight_decay = number(group, "weight_decay"),
             .nesterov = is_set(group, "nesterov"),
             .maximize = is_set(group, "maximize")};
}

// Classes of torch.optim, in alphabetical order.
namespace {
struct Class {
  const char* name;
  Optimizer (*made)(const py::dict& group);
};
}  // namespace
static constexpr std::array<Class, 13> kClasses = {{{"Adadelta", adadelta},
                                                    {"Adafactor", adafactor},
                                                    {"Adagrad", adagrad},
                                                    {"Adam", adam},
                                                    {"AdamW", adamw},
                                                    {"Adamax", adamax},
                                                    {"ASGD", asgd},
                                                    {"Muon", muon},
                                                    {"NAdam", nadam},
                                                    {"RAdam", radam},
                                                    {"RMSprop", rmsprop},
                                                    {"Rprop", rprop},
                                                    {"SGD", sgd}}};

// Options that say how torch.optim computes, not what, and the learning rate, which is read at each step.
static constexpr std::array<std::string_view, 5> kFree = {"capturable", "foreach", "fused", "initial_lr",
                                                          "lr"};
static constexpr std::array<const char*, 1> kUnsupported = {"differentiable"};

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

// Classes that keep no count of updates with their state.
static constexpr std::array<std::string_view, 2> kWithoutStep = {"Muon", "SGD"};

static py::list groups_of(const py::object& optimizer) { return optimizer.attr("param_groups"); }

TorchOptimizer::TorchOptimizer(py::object optimizer, const ModelView::NamedTensors& parameters,
                               DType state_dtype, rewrite::Master master, std::vector<std::string> tables)
    : optimizer_(std::move(optimizer)),
      state_dtype_(state_dtype),
      master_(master),
      tables_(std::move(tables)) {
  class_of(optimizer_);
  follow(parameters);
  SHOAL_CHECK(members_.empty() || foreign_.size() < members_.size(), InvalidInput,
              "trainer: parameter 0 of the optimizer's group 0, of shape ", foreign_[0].second.sizes(),
              ", is none of the model's, and so are all others; make the optimizer from model.parameters(), "
              "after the model has its final parameters");
}

bool TorchOptimizer::follow(const ModelView::NamedTensors& parameters) {
  const auto same = [](const auto& a, const auto& b) {
    return a.second.is_same(b.second) && a.first == b.first;
  };
  const bool renamed = !std::ranges::equal(known_, parameters, same);
  if (!renamed && !has_tensor_options_ && groups_seen_.hold(groups_of(optimizer_))) return false;
  class_of(optimizer_);
  known_ = parameters;  // a parameter may have another name now
  auto members = members_of(parameters);
  auto options = this->options();
  groups_seen_.take(groups_of(optimizer_), kFree);
  if (members == members_ && options == options_) return false;
  members_ = std::move(members);
  options_ = std::move(options);
  return true;
}

std::vector<TorchOptimizer::Member> TorchOptimizer::members_of(const ModelView::NamedTensors& parameters) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& [name, tensor] : parameters) names.emplace(tensor.unsafeGetTensorImpl(), name);
  const std::string_view type = class_of(optimizer_).name;
  const bool counts = std::ranges::find(kWithoutStep, type) == kWithoutStep.end();
  std::vector<Member> members;
  std::set<std::string> seen;
  foreign_.clear();
  std::size_t group = 0;
  for (const auto each : groups_of(optimizer_)) {
    std::size_t number = 0;
    for (const auto parameter : each["params"]) {
      const at::Tensor tensor = THPVariable_Unpack(parameter.ptr());
      const auto found = names.find(tensor.unsafeGetTensorImpl());
      const auto place = concat("param_groups[", group, "][", number++, "]");
      if (found == names.end()) {
        names.emplace(tensor.unsafeGetTensorImpl(), place);
        foreign_.emplace_back(place, tensor);
      }
      const auto& name = names.at(tensor.unsafeGetTensorImpl());
      SHOAL_CHECK(seen.insert(name).second, InvalidInput, "trainer: parameter ", name,
                  " is in the optimizer twice, also as ", place,
                  ", and PyTorch would update it twice; leave it in one place");
      members.push_back(
          {name, py::reinterpret_borrow<py::object>(parameter), tensor, group, counts, counts, {}});
    }
    ++group;
  }
  const auto all = parts_of(members);
  for (auto& member : members) {
    member.is_table = std::ranges::any_of(
        tables_, [&](const std::string& pattern) { return rewrite::matches(pattern, member.name); });
    if (member.is_table) {
      member.counts = member.torch_counts = false;
      continue;
    }
    const auto shaped =
        ir::contiguous(aten::from_torch(member.tensor.scalar_type()), member.tensor.sizes().vec());
    for (auto& kept : compile::kept_by(all[member.group].optimizer, shaped, DType::Float32, master_))
      member.keeps.push_back(std::move(kept.suffix));
    // What is rounded by chance is another one at each update.
    member.counts = member.torch_counts || (state_dtype_ == DType::BFloat16 && !member.keeps.empty());
  }
  return members;
}

std::vector<OptimizerPart> TorchOptimizer::parts_of(const std::vector<Member>& members) const {
  const auto& of = class_of(optimizer_);
  std::vector<OptimizerPart> parts;
  for (const auto handle : groups_of(optimizer_)) {
    const py::dict group = py::reinterpret_borrow<py::dict>(handle);
    for (const char* option : kUnsupported)
      SHOAL_CHECK(!is_set(group, option), InvalidInput, "trainer: the optimizer's group ", parts.size(),
                  " has ", option, "=", std::string(py::str(group[option])),
                  ", which Shoal does not have for torch.optim.", of.name, "; leave it at its default");
    std::set<std::string> own;
    for (const auto& member : members)
      if (member.group == parts.size()) own.insert(member.name);
    parts.push_back(
        {.contains = [own = std::move(own)](const std::string& name) { return own.contains(name); },
         .optimizer = of.made(group)});
    compile::set_state_dtype(parts.back().optimizer, state_dtype_);
  }
  return parts;
}

std::vector<double> TorchOptimizer::learning_rates() const {
  std::vector<double> rates;
  for (const auto group : groups_of(optimizer_))
    rates.push_back(number(py::reinterpret_borrow<py::dict>(group), "lr"));
  return rates;
}

static bool has_tensor(py::handle value) {
  if (THPVariable_Check(value.ptr())) return true;
  if (!PyTuple_Check(value.ptr()) && !PyList_Check(value.ptr())) return false;
  return std::ranges::any_of(py::reinterpret_borrow<py::sequence>(value),
                             [](py::handle item) { return THPVariable_Check(item.ptr()); });
}

std::string TorchOptimizer::options() {
  has_tensor_options_ = false;
  std::string text;
  for (const auto group : groups_of(optimizer_))
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(group)) {
      const std::string name = py::str(key);
      if (name == "params" || std::ranges::find(kFree, name) != kFree.end()) continue;
      has_tensor_options_ = has_tensor_options_ || has_tensor(value);
      text += name + "=" + std::string(py::repr(value)) + ";";
    }
  return text;
}

void TorchOptimizer::note_step() const { optimizer_.attr("_opt_called") = true; }

}  // namespace shoal::python
