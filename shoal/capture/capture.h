// SPDX-License-Identifier: Apache-2.0
// Runs a model once on one batch and returns what ATen was asked to do, as a graph.
//
// Nothing about the model is swapped or moved: while it runs, a thread-local dispatch key sends every
// operator to the recorder, and autograd, which works above it, records the backward pass by itself. Capture
// leaves every byte of the model and every `.grad` as it was.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/ir/scopes.h"

namespace shoal::capture {

struct NamedTensor {  // of a model or a batch
  std::string name;   // a path: "h.0.attn.weight", "tokens"
  at::Tensor tensor;  // shared
};

enum class Mode {  // what of the model's run is recorded
  Train,           // forward and backward: results are the loss, the gradients and the buffers that change
  Evaluate,        // forward alone, without autograd
};

enum class Reader {  // who looks into a tensor's memory while a model is recorded
  User,
  Check,           // a library's check of values, which raises where they are bad
  RunningAverage,  // BatchNorm without a momentum, which reads the number of batches so far
};

struct Request {                        // what to run, and what its tensors are called
  std::vector<NamedTensor> parameters;  // a tensor that is there twice counts under its first name
  std::vector<NamedTensor> buffers;     // likewise
  // Of the batch; one that stands beside it is known by its memory, see ir::is_beside.
  std::vector<NamedTensor> inputs;
  // Runs the model; returns a scalar. In mode Evaluate it may be undefined, where there are outputs.
  std::function<at::Tensor(std::span<const at::Tensor> inputs)> loss;
  Mode mode = Mode::Train;
  // More results of the run that `loss` made, asked for right after it; may be empty. Their names are unique.
  std::function<std::vector<NamedTensor>()> outputs = {};
  // Asked about a tensor from outside that is none of the above when the model writes into it: true if
  // whoever asked for the capture knows it and will make it an input. Else, or where this is empty, that is
  // an error.
  std::function<bool(const at::Tensor&)> writes_constant = {};
  // Told of a tensor from outside that the model reads and that has no memory, before this is an error: who can
  // bring its elements back (aten/memory.h) may capture again. Not in here: other ranks may wait for that too.
  std::function<void(const at::Tensor&)> lacks_memory = {};
  // Layers of LSTMs are step by step, which ranks can cut, where they would run whole, by oneDNN.
  bool has_lstms_by_step = false;
  // Where in the user's code the current operator was called, for messages; empty: the C++ stack is walked.
  std::function<std::string()> source_line = {};
  // Whose code runs, asked when it reads a value; empty: the user's.
  std::function<Reader()> reader = {};
  // Told how many operators are recorded and for how many seconds, once after `patience` and then each time
  // that it has taken twice as long. May be empty; called by the thread that runs the operator.
  std::function<void(std::size_t operators, double seconds)> progress = {};
  std::chrono::nanoseconds patience = std::chrono::seconds(2);
};

// A value that control flow read, or a shape that depends on data, and what it was. A graph is right for a
// batch only while all of them hold; they depend on inputs alone.
struct Guards {
  struct Guard {                        // one of them
    ir::Node call;                      // reads values of `graph`
    std::vector<c10::IValue> expected;  // what the call returned; sizes alone where shapes_only
    bool shapes_only = false;           // values may differ
    std::string where;                  // for messages
  };
  ir::Graph graph;                    // computes what the calls read
  std::vector<at::Tensor> constants;  // of `graph`, in the order of its sources
  std::vector<Guard> list;            // in the order in which the model read
};

// The result, of role Output, that an input has after a model has written into it.
inline std::string written_name(const std::string& input) { return "written." + input; }

// The result, of role Output, that is the gradient of an input beside the batch that requires one.
inline std::string gradient_name(const std::string& input) { return "gradient." + input; }

struct Captured {                     // what one run was asked to do
  ir::Graph graph;                    // form Captured, phases forward and backward
  std::vector<at::Tensor> constants;  // of the sources with role Constant, in their order
  Guards guards;                      // what it depends on besides shapes
  ir::Scopes scopes = {};             // that the model's code entered
};

// Captures twice and compares: a model that does not do the same again (a Python counter, a coin toss) is an
// error. Once where `is_known` says of the first graph that one like it was compared so. Throws InvalidInput
// naming module path, source line and remedy for what cannot be captured.
Captured capture(const Request& request, const std::function<bool(const ir::Graph&)>& is_known = {});

// Runs the model once, whatever it does: for comparisons of the caller's. Throws InvalidInput for what cannot
// be captured.
ir::Graph record(const Request& request);

// Runs the model once more and compares with the graph and the constants that an earlier capture gave, for
// inputs that lie as those did. Where something that the model reads has changed since, and the graph would
// be another one now: InvalidInput naming the first node that differs, module, source line and remedy.
void check_again(const Request& request, const ir::Graph& graph, const std::vector<at::Tensor>& constants);

// Whether a graph with these guards is right for a batch of the shapes it was captured with. `inputs`: those
// of the request, in its order.
bool hold(const Guards& guards, std::span<const at::Tensor> inputs);

// While it lives, random operators of this thread draw from Shoal's counter-based generators, with the
// ordinals that a capture would give them: an eager step then has the same dropout masks as a captured one
// with that seed and step.
class EagerRandom {
 public:
  EagerRandom(std::int64_t seed,
              std::int64_t step);  // TrainerOptions::seed; updates made before, and this one
  ~EagerRandom();
  EagerRandom(const EagerRandom&) = delete;
  EagerRandom& operator=(const EagerRandom&) = delete;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal::capture
