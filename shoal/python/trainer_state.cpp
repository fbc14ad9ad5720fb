// SPDX-License-Identifier: Apache-2.0
// What a Python trainer's run goes on from: its state as a dictionary, and checkpoints.
#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>

#include "shoal/base/error.h"
#include "shoal/python/python_trainer.h"

namespace shoal::python {

py::dict PythonTrainer::state_dict() {
  materialize();
  py::dict state;
  state["model"] = model_.module().attr("state_dict")();
  if (is_parallel_) state["model"] = py::module_::import("copy").attr("deepcopy")(state["model"]);
  state["optimizer"] = optimizer_ ? py::object(optimizer_->object().attr("state_dict")()) : py::none();
  const auto progress = trainer_.progress();
  state["steps"] = progress.steps;
  state["backwards"] = progress.backwards;
  if (progress.loss_scale)
    state["loss_scale"] = py::dict(py::arg("scale") = progress.loss_scale->scale,
                                   py::arg("updates") = progress.loss_scale->updates);
  state["seed"] = seed_;
  return state;
}

void PythonTrainer::load_state_dict(const py::dict& state) {
  for (const char* part : {"model", "optimizer", "steps"})
    SHOAL_CHECK(state.contains(part), InvalidInput, "trainer: the state has no \"", part,
                "\"; give what state_dict() returned");
  SHOAL_CHECK(
      state["optimizer"].is_none() == !optimizer_, InvalidInput, "trainer: the state is of a Trainer ",
      optimizer_ ? "without an optimizer, and this one has one" : "with an optimizer, and this one has none");
  materialize();
  model_.module().attr("load_state_dict")(state["model"]);
  if (optimizer_) optimizer_->object().attr("load_state_dict")(state["optimizer"]);
  auto progress = trainer_.progress();
  progress.steps = py::cast<std::int64_t>(state["steps"]);
  if (state.contains("loss_scale"))
    progress.loss_scale = {py::cast<double>(state["loss_scale"]["scale"]),
                           py::cast<std::int64_t>(state["loss_scale"]["updates"])};
  if (state.contains("backwards")) progress.backwards = py::cast<std::int64_t>(state["backwards"]);
  trainer_.set_progress(progress);
  if (has_own_seed_ || !state.contains("seed")) return;
  set_seed(py::cast<std::uint64_t>(state["seed"]));
}

void PythonTrainer::save(const std::filesystem::path& folder, const py::object& note, std::int64_t keep) {
  const auto text = py::cast<std::string>(
      py::module_::import("shoal._checkpoints").attr("text_of")(model_.module(), optimizer(), seed_, note));
  look_and_follow();
  const py::gil_scoped_release unlocked;
  trainer_.save(folder, text, keep);
}

void PythonTrainer::wait_for_saves() {
  const py::gil_scoped_release unlocked;
  trainer_.wait_for_saves();
}

py::object PythonTrainer::load(const std::filesystem::path& folder, std::optional<std::int64_t> step) {
  look_and_follow();
  const py::object checkpoints = py::module_::import("shoal._checkpoints");
  py::object note = py::none(), seed = py::none(), groups = py::none();
  {
    const py::gil_scoped_release unlocked;
    const auto check = [&](const std::string& text) {
      const py::gil_scoped_acquire lock;
      std::tie(note, seed, groups) = py::cast<std::tuple<py::object, py::object, py::object>>(
          checkpoints.attr("parts_of")(text, optimizer()));
    };
    trainer_.load(folder, {.step = step, .check = check});
  }
  if (optimizer_ && !groups.is_none()) checkpoints.attr("put")(optimizer_->object(), groups);
  if (optimizer_) optimizer_state_->publish();
  if (!has_own_seed_ && !seed.is_none()) set_seed(py::cast<std::uint64_t>(seed));
  return note;
}

void PythonTrainer::set_seed(std::uint64_t seed) {
  seed_ = seed;
  trainer_.set_seed(seed);
}

}  // namespace shoal::python
