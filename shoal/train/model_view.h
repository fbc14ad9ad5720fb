// SPDX-License-Identifier: Apache-2.0
// A model, in whatever language it is written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/train/batch.h"

namespace torch::nn {
class Module;
}
namespace shoal::train {
class VaryingNumbers;
}
namespace shoal::capture {
enum class Reader;
}

namespace shoal {

// What a loss function returns: a scalar to minimise, and what else of the run a step or an evaluation is to
// keep, by names of yours (Trainer::outputs). A tensor by itself is a loss without any.
struct LossAndOutputs {
  // `scalar`: a tensor of one element that requires a gradient. `kept`: shared.
  LossAndOutputs(at::Tensor scalar, std::map<std::string, at::Tensor> kept = {})
      : loss(std::move(scalar)), outputs(std::move(kept)) {}
  at::Tensor loss;                            // as given
  std::map<std::string, at::Tensor> outputs;  // likewise
};
// Runs a model on a batch.
using LossFunction = std::function<LossAndOutputs(const Batch&)>;

// A model as a Trainer sees it, in whatever language it is written. Everything in it is called on the
// thread that calls the Trainer.
struct ModelView {
  // By path, "fc.weight"; the tensors are the model's own.
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
  NamedTensors parameters;                       // a tensor that is there twice counts under its first name
  NamedTensors buffers;                          // likewise
  std::function<at::Tensor(const Batch&)> loss;  // runs the model; see Trainer
  std::function<std::string()> mode;  // text of what a graph depends on besides the batch: training flags, …
  std::function<NamedTensors()> outputs = {};  // what the run by `loss` made besides the loss; may be empty
  std::function<std::string()> source_line = {};  // of the code that runs, for messages; empty: C++ code
  std::function<capture::Reader()> reader = {};   // whose code reads a value; empty: the user's
  // What of `mode` all ranks have to have alike; empty: all of it.
  std::function<std::string()> shared_mode = {};
  // Text that stays with the graph that the last run by `loss` made: see Trainer::tag; and what is told when
  // that graph goes. May be empty.
  std::function<std::string()> tag = {};
  std::function<void(const std::string& tag)> forget_tag = {};
  // Told of a tensor that is none of the above, nor of the batch, when the model writes into it; may be
  // empty.
  // Returns true if it will be an input when the step is recorded again, which it sees to.
  std::function<bool(const at::Tensor&)> writes_constant = {};
  // Told while a capture takes long, on rank 0: capture::Request::progress. May be empty.
  std::function<void(std::size_t operators, double seconds)> progress = {};
  // What `mode` leaves out because it is another number each time; borrowed, null where there is nothing like
  // that.
  train::VaryingNumbers* numbers = nullptr;
  // Put into evaluation mode for evaluations; null: whoever calls the Trainer sees to it.
  std::shared_ptr<torch::nn::Module> module = {};
};

// Of a LibTorch module, which it holds, and what runs it: for several optimizers, say. Throws InvalidInput
// for a null module.
ModelView view_of(const std::shared_ptr<torch::nn::Module>& module, LossFunction loss);

}  // namespace shoal
