// SPDX-License-Identifier: Apache-2.0
// A Python model and its loss, as capture and Trainer see a model.
//
//   batch of Python ──► Tree ──► Batch{path: tensor}        each step
//   Batch of recorded tensors ──► the same containers ──► model(**batch).loss      when a graph is captured
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <string>
#include <vector>

#include "shoal/python/effects.h"
#include "shoal/python/numbers.h"
#include "shoal/python/tree.h"
#include "shoal/python/watch.h"
#include "shoal/train/trainer.h"

namespace shoal::python {

// Made, called and destroyed with the interpreter's lock; what view() holds takes the lock by itself.
class Model {
 public:
  // `loss`: loss(model, batch), or None: the model is called with the batch, and its output has the loss.
  // `ignores`: see Watch. `is_parallel`: ranks look at numbers in their batches one by one.
  Model(py::object module, py::object loss, std::vector<std::string> ignores, bool is_parallel);

  // Borrows this.
  ModelView view();

  // What `start` does first.
  void look() { watch_.look(); }
  // What the next run is for.
  enum class Use { Step, Evaluation };
  Batch start(py::handle batch, Use use, bool keep_outputs);
  // A run that has to be recorded again: it wrote to a tensor that only now is known to be no constant.
  struct Again {};
  // The model itself, by PyTorch, after `start` with the same batch: the loss, with what autograd has to
  // know, and what was returned.
  std::pair<at::Tensor, py::object> run_plainly(const py::object& batch) const;
  // What a step has changed around the model happens: `tag` and `outputs` are the trainer's, of that step.
  void finish(const std::string& tag, const std::map<std::string, at::Tensor>& outputs);
  // What the model returned, with these tensors; caches are None.
  py::object outputs(const std::map<std::string, at::Tensor>& tensors) const;

  // As `start` has found them.
  const ModelView::NamedTensors& parameters() const { return watch_.parameters(); }
  const ModelView::NamedTensors& buffers() const { return watch_.buffers(); }
  py::handle module() const { return module_; }

  // Evaluation mode for all of the module; returns the modes there were, for restore_modes().
  using Modes = std::vector<std::pair<py::object, bool>>;
  Modes enter_evaluation();
  static void restore_modes(const Modes& modes);

 private:
  at::Tensor run(const Batch& batch);
  py::object call(py::handle batch) const;
  at::Tensor checked_loss_in(const py::object& result) const;
  std::string mode() const;
  std::string shared_mode() const;
  std::string surroundings() const;
  void take_effects(Effects effects);
  std::string keep_effects();

  py::object module_;
  py::object loss_;
  Watch watch_;
  WatchedNumbers numbers_{watch_};
  bool is_parallel_;
  Changes changes_;
  std::string signature_;        // of the watch, at the last start
  train::Numbers last_numbers_;  // likewise
  std::int64_t generation_ = 0;  // how often it was another than before
  bool again_ = false;           // see Again
  Effects effects_;              // of the run that was recorded last
  std::optional<std::vector<std::pair<std::string, std::string>>>
      values_changed_;                           // by the first run since start
  std::map<std::string, Effects> kept_effects_;  // of graphs that are there, by tag
  std::int64_t last_tag_ = 0;
  Tree batch_;          // of the run that is under way
  std::string values_;  // its structure, and leaves that are no tensors
  bool keep_outputs_ = false;
  ModelView::NamedTensors results_;  // of the run that was recorded last; recorded tensors
  std::vector<Tree> shapes_;         // of outputs: without tensors, each structure once
};

// The loss in what a model or loss function returned: a scalar tensor, `.loss`, ["loss"] or the first item.
// Null if there is none.
py::object loss_in(py::handle result);

// Calls `act`, Python code under a capture. An error of Shoal's that went through Python is thrown as
// shoal::Error again; one that tells that an activation was asked for its memory says what is allowed.
// `ignores`: of files. `files`: gets the names of those that were read.
py::object called_in_capture(const std::function<py::object()>& act,
                             const std::function<bool(const std::string&)>& ignores = {},
                             std::vector<std::string>* files = nullptr);

}  // namespace shoal::python
