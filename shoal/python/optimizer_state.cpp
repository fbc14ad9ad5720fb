// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/optimizer_state.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/compile/update.h"

namespace shoal::python {

static bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

// What a "step" tensor says; none if it is not the kind of tensor that torch.optim makes.
static std::optional<std::int64_t> count_in(const at::Tensor& step) {
  if (step.numel() != 1 || !step.is_cpu()) return std::nullopt;
  if (step.scalar_type() == at::kFloat) return static_cast<std::int64_t>(*step.const_data_ptr<float>());
  if (step.scalar_type() == at::kDouble) return static_cast<std::int64_t>(*step.const_data_ptr<double>());
  return std::nullopt;
}

static void write_count(const at::Tensor& step, std::int64_t count) {
  if (step.scalar_type() == at::kFloat)
    *step.mutable_data_ptr<float>() = static_cast<float>(count);
  else
    *step.mutable_data_ptr<double>() = static_cast<double>(count);
}

static py::object step_tensor(std::int64_t count) {
  const auto dtype = at::get_default_dtype_as_scalartype() == at::kDouble ? at::kDouble : at::kFloat;
  return py::cast(at::scalar_tensor(static_cast<double>(count), dtype));
}

// Both in the order of names.
template <class Visit>
static void with_counts(auto& kept, const std::map<std::string, std::int64_t>& updates, Visit visit) {
  auto next = updates.begin();
  for (auto& each : kept) {
    while (next != updates.end() && next->first < each.member.name) ++next;
    visit(each, next != updates.end() && next->first == each.member.name ? next->second : 0);
  }
}

py::dict OptimizerState::state() const {
  const py::object state = optimizer_.object().attr("state");
  SHOAL_CHECK(PyDict_Check(state.ptr()), InvalidInput, "trainer: optimizer.state is a ",
              std::string(py::str(py::type::handle_of(state).attr("__name__"))),
              "; give a dictionary, such as collections.defaultdict(dict)");
  return state;
}

void OptimizerState::forget_steps() {
  starts_ = true;
  is_known_ = false;
}

bool OptimizerState::is_current() const {
  if (!is_known_ || !seen_.hold(state())) return false;
  if (is_in_parts_) return true;
  return std::ranges::all_of(kept_, [](const Kept& kept) {
    const auto& now = kept.member.tensor;
    return now.scalar_type() == kept.parameter.scalar_type() && now.sizes() == kept.parameter.sizes() &&
           now.strides() == kept.parameter.strides() && (!kept.step.defined() || count_in(kept.step)) &&
           std::ranges::all_of(kept.tensors,
                               [](const auto& pair) { return lie_alike(pair.first, pair.second); });
  });
}

void OptimizerState::follow() {
  if (!is_current())
    take();
  else if (!is_in_parts_)
    follow_counts();
}

// Others than this trainer may have counted on.
void OptimizerState::follow_counts() {
  bool same = true;
  with_counts(kept_, trainer_.updates(), [&](const Kept& kept, std::int64_t count) {
    if (kept.step.defined()) same = same && count_in(kept.step) == count;
  });
  if (same) return;
  auto progress = trainer_.progress();
  for (const auto& kept : kept_)
    if (kept.step.defined()) progress.updates[kept.member.name] = *count_in(kept.step);
  trainer_.set_progress(progress);
}

// What an optimizer makes before its first step, as Adagrad does, would be taken for what the table has.
void OptimizerState::drop_of_table(const TorchOptimizer::Member& member, py::dict& all) {
  if (!all.contains(member.parameter)) return;
  const py::object own = all[member.parameter];
  const bool was_used =
      PyDict_Check(own.ptr()) && own.contains("step") && PyFloat_AsDouble(py::float_(own["step"]).ptr()) > 0;
  SHOAL_CHECK(!was_used, InvalidInput, "trainer: optimizer.state of ", member.name,
              " is that of updates before, and its rows are in a table, which begins without. Remedy: an "
              "optimizer that "
              "has made no step, or no table");
  PyDict_DelItem(all.ptr(), member.parameter.ptr());
}

void OptimizerState::take() {
  kept_.clear();
  for (const auto& member : optimizer_.members()) kept_.push_back({.member = member});
  std::ranges::sort(kept_, {}, [](const Kept& kept) -> const std::string& { return kept.member.name; });
  auto progress = trainer_.progress();
  progress.updates.clear();
  if (starts_) progress.steps = 0;
  std::map<std::string, at::Tensor> tensors;
  py::dict all = state();
  for (auto& kept : kept_) {
    if (kept.member.is_table) drop_of_table(kept.member, all);
    if (all.contains(kept.member.parameter)) {
      const py::object own = all[kept.member.parameter];
      SHOAL_CHECK(PyDict_Check(own.ptr()), InvalidInput, "trainer: optimizer.state of ", kept.member.name,
                  " is a ", std::string(py::str(py::type::handle_of(own).attr("__name__"))),
                  "; give a dictionary");
      read(kept, own, tensors, progress);
    } else {
      read(kept, {}, tensors, progress);
    }
  }
  trainer_.restore(tensors, progress);
  if (is_in_parts_) {
    put_away();
  } else {
    tensors = trainer_.optimizer_state();
    for (auto& kept : kept_)
      if (kept.is_there) share(kept, all[kept.member.parameter], tensors);
    seen_.take(all);
  }
  starts_ = false;
  is_known_ = true;
}

// Codes and their maxima come together, or neither does.
static void check_codes(const TorchOptimizer::Member& member, const std::string& key, const py::dict& own) {
  const std::string maxima = compile::name_of_maxima(key);
  const bool has = own.contains(maxima);
  const bool wants = std::ranges::find(member.keeps, maxima) != member.keeps.end();
  SHOAL_CHECK(
      !own.contains(key) || has == wants, InvalidInput, "trainer: optimizer.state of ", member.name, " has ",
      has ? "" : "no ", "\"", maxima, "\": its \"", key, "\" is ", has ? "uint8" : "of the parameter's type",
      ", and this trainer keeps ", wants ? "uint8" : "another type",
      ". Remedy: Trainer(..., state_dtype=...) as it was there, or an empty dictionary to begin anew");
}

void OptimizerState::read(Kept& kept, const py::dict& own, std::map<std::string, at::Tensor>& state,
                          Progress& progress) {
  const auto& name = kept.member.name;
  const auto& keeps = kept.member.keeps;
  const bool counts = kept.member.torch_counts;
  kept.parameter = kept.member.tensor.detach();
  const auto missing = [&](const std::string& key) {
    fail(ErrorKind::InvalidInput, "trainer: optimizer.state of ", name, " has no \"", key,
         "\", and has other things; give all of it, or an empty dictionary to begin anew");
  };
  const auto known = trainer_.updates().find(name);
  const std::int64_t updates = known == trainer_.updates().end() ? 0 : known->second;
  if (own.empty() || (!counts && keeps.empty())) {
    if (!counts && keeps.empty() && updates > 0) progress.updates[name] = updates;
    return;
  }
  bool is_whole = true;
  for (const auto& key : keeps) {
    check_codes(kept.member, key, own);
    const bool is_there = own.contains(key) && THPVariable_Check(py::object(own[key.c_str()]).ptr());
    if (!is_there && counts) missing(key);
    is_whole = is_whole && is_there;
    if (is_there) state.emplace(name + "." + key, THPVariable_Unpack(py::object(own[key.c_str()]).ptr()));
  }
  if (counts && !own.contains("step")) missing("step");
  if (kept.member.counts && own.contains("step")) {
    progress.updates[name] = static_cast<std::int64_t>(PyFloat_AsDouble(py::float_(own["step"]).ptr()));
    progress.steps = std::max(progress.steps, progress.updates[name]);
  } else if (is_whole) {
    progress.updates[name] = std::max<std::int64_t>(updates, 1);
  }
  kept.is_there = is_whole;
}

// What the trainer has becomes what is in the dictionary; tensors that it could share stay as they are.
void OptimizerState::share(Kept& kept, const py::dict& own, const std::map<std::string, at::Tensor>& state) {
  for (const auto& key : kept.member.keeps) {
    const auto& of_trainer = state.at(kept.member.name + "." + key);
    const bool is_shared =
        own.contains(key) && lie_alike(THPVariable_Unpack(py::object(own[key.c_str()]).ptr()), of_trainer);
    if (!is_shared) own[key.c_str()] = py::cast(of_trainer.detach());
    kept.tensors.emplace_back(THPVariable_Unpack(py::object(own[key.c_str()]).ptr()), of_trainer);
  }
  kept.is_there = true;
  if (!kept.member.counts) return;
  const py::object step = own.contains("step") ? py::object(own["step"]) : py::none();
  const bool is_usual = THPVariable_Check(step.ptr()) && count_in(THPVariable_Unpack(step.ptr()));
  if (!is_usual) own["step"] = step_tensor(trainer_.updates().at(kept.member.name));
  kept.step = THPVariable_Unpack(py::object(own["step"]).ptr());
}

void OptimizerState::publish() {
  if (is_in_parts_) {
    if (!is_put_away_) put_away();
    return;
  }
  std::vector<Kept*> made;
  with_counts(kept_, trainer_.updates(), [&](Kept& kept, std::int64_t count) {
    if (kept.step.defined()) write_count(kept.step, count);
    if (!kept.is_there && count > 0 && (kept.member.counts || !kept.member.keeps.empty()))
      made.push_back(&kept);
  });
  if (made.empty()) return;
  const auto tensors = trainer_.optimizer_state();
  const py::dict all = state();
  for (Kept* kept : made) {
    if (!all.contains(kept->member.parameter)) all[kept->member.parameter] = py::dict();
    const py::dict own = all[kept->member.parameter];
    if (kept->member.counts) own["step"] = step_tensor(trainer_.updates().at(kept->member.name));
    share(*kept, own, tensors);
  }
  seen_.take(all);
}

// Before the first update there is no state to put away, and an empty dictionary says so: PyTorch's
// distributed checkpoints make a state then that they can load into.
void OptimizerState::put_away() {
  py::dict all = state();
  all.clear();
  is_put_away_ = !trainer_.updates().empty();
  if (is_put_away_)
    for (const auto& kept : kept_) all[kept.member.parameter] = py::dict();
  seen_.take(all);
}

void OptimizerState::gather() {
  follow();
  std::map<std::string, at::Tensor> tensors;
  {
    const py::gil_scoped_release unlocked;
    tensors = trainer_.optimizer_state();
  }
  py::dict all = state();
  all.clear();
  with_counts(kept_, trainer_.updates(), [&](const Kept& kept, std::int64_t count) {
    py::dict own;
    if (kept.member.counts && count > 0) own["step"] = step_tensor(count);
    for (const auto& key : kept.member.keeps)
      if (const auto found = tensors.find(kept.member.name + "." + key); found != tensors.end() && count > 0)
        own[key.c_str()] = py::cast(found->second);
    if (!own.empty()) all[kept.member.parameter] = own;
  });
}

}  // namespace shoal::python
