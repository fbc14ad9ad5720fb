// SPDX-License-Identifier: Apache-2.0
// Forward and backward by PyTorch itself, for models that cannot be captured. Everything here holds the
// interpreter's lock.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "shoal/python/model.h"
#include "shoal/python/world.h"
#include "shoal/train/trainer.h"

namespace shoal::python {

// Where it may: every rank has all parameters whole. Throws InvalidInput else.
void check_can_be_eager(const std::optional<Degrees>& parallelism);

struct Plain {
  Trainer::Given given;
  py::object outputs;  // of the last batch, detached
};

// The mean over the samples of these batches, one after the other; parameters' own gradients are as before.
// `start` prepares the model for a batch and returns its tensors.
Plain run_with_gradients(const Model& model, const ModelView::NamedTensors& parameters,
                         const std::vector<py::object>& batches,
                         const std::function<Batch(const py::object&)>& start);
// Without gradients.
Plain run_for_loss(const Model& model, const py::object& batch,
                   const std::function<Batch(const py::object&)>& start);

// Says once what happens from now on, and why.
void warn_of_eager(const std::string& refusal, bool is_parallel);

}  // namespace shoal::python
