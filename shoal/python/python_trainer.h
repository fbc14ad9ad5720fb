// SPDX-License-Identifier: Apache-2.0
// What Python's Trainer does around the trainer: the batch as it is now, the optimizer followed, what capture
// refuses left to PyTorch.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/python/model.h"
#include "shoal/python/optimizer.h"
#include "shoal/python/optimizer_state.h"
#include "shoal/python/step_hooks.h"
#include "shoal/python/world.h"
#include "shoal/train/tables.h"
#include "shoal/train/trainer.h"

namespace shoal::python {

struct Step {
  StepResult result;
  py::object outputs;
};

struct Evaluation {
  double loss;
  py::object outputs;
};

struct Gradients {
  double loss;
  py::object outputs;
};

// What a script says besides model, optimizer and loss.
struct Options {
  double clip_norm;
  std::optional<std::uint64_t> seed;
  std::int64_t graph_bytes;
  bool keeps_gradients;
  double spot_checks;
  std::optional<Degrees> parallelism;
  std::vector<std::string> ignores;
  std::string on_refusal;
  std::int64_t accumulate;
  std::string state_dtype;
  TableOptions tables;
  bool has_tables() const { return !table_patterns().empty(); }
  std::vector<std::string> table_patterns() const;  // those of the plan too
};
void check(const Options& options);  // throws InvalidInput, or warns

// The interpreter's lock is held on the way in and out; graphs are captured and run without it.
class PythonTrainer {
 public:
  PythonTrainer(py::object model, py::object optimizer, py::object loss_fn, Options options);
  ~PythonTrainer();
  PythonTrainer(const PythonTrainer&) = delete;
  PythonTrainer& operator=(const PythonTrainer&) = delete;

  Step step(const py::object& python_batch, bool outputs);
  Step step_over(const std::vector<py::object>& batches, bool outputs);
  Gradients backward(const py::object& python_batch, bool outputs);
  Evaluation evaluate(const py::object& python_batch, bool outputs);
  ir::Graph graph(const py::object& python_batch);

  // Gathered parameters are copied: the module's memory for them goes with the next step.
  py::dict state_dict();
  void load_state_dict(const py::dict& state);

  // As those of Trainer. The note is any value that JSON can hold; the options of the optimizer's groups, and
  // the seed, lie beside it.
  void save(const std::filesystem::path& folder, const py::object& note, std::int64_t keep);
  void wait_for_saves();
  py::object load(const std::filesystem::path& folder, std::optional<std::int64_t> step);

  std::map<std::string, at::Tensor> gradients() const;
  void materialize();
  at::Tensor rows(const std::string& parameter, const std::optional<at::Tensor>& ids);
  void set_rows(const std::string& parameter, const at::Tensor& ids, const at::Tensor& values);
  std::map<std::string, std::map<std::string, std::int64_t>> end_day(std::uint32_t day);
  std::optional<std::uint64_t> stalest_row() const { return trainer_.stalest_row(); }
  std::string plan() const { return trainer_.plan(); }
  std::string report() const { return trainer_.report(); }
  void forget_graphs() { trainer_.forget_graphs(); }
  void look() { model_.look(); }
  py::object model() const { return py::reinterpret_borrow<py::object>(model_.module()); }
  py::object optimizer() const;

 private:
  // None where there is one rank, which needs no others, and no servers that have tables.
  static py::object world_for(const Options& options);
  std::unique_ptr<ps::Tables> tables_for(const Options& options) const;
  std::optional<TorchOptimizer> recognised(py::object optimizer, const Options& options) const;
  Trainer made(TrainerOptions options, const std::optional<Degrees>& parallelism);
  void set_seed(std::uint64_t seed);
  // Rank 0's where none is given.
  std::uint64_t seed_of_all(const Options& options) const;

  // Whether it was captured and run. What capture refuses is PyTorch's from then on, where that is allowed.
  bool captured(bool& is_eager, const std::function<void()>& act);
  std::function<Batch(const py::object&)> starts(Model::Use use);
  Step step_plainly(const std::vector<py::object>& batches, bool outputs);
  void finish_step();
  StepResult captured_step_over(const std::vector<py::object>& batches);

  // Calls the trainer with the batch and what stands beside it, as the model is now. Without the
  // interpreter's lock.
  void act_on(const py::object& python_batch, Model::Use use, bool outputs,
              const std::function<void(const Batch&)>& act);
  // The same, and what the step has changed around the model happens.
  void run(const py::object& python_batch, Model::Use use, bool outputs,
           const std::function<void(const Batch&)>& act);

  // Options, groups and state are the optimizer's own, whoever changed them between steps.
  void follow(Model::Use use);
  // As before a step, without a batch.
  void look_and_follow();

  static bool same(const ModelView::NamedTensors& a, const ModelView::NamedTensors& b);

  // The model's, and what the optimizer has besides: a loss may have parameters.
  ModelView::NamedTensors parameters() const;

  bool is_parallel_;                    // of several ranks
  py::object world_;                    // or None. The trainer borrows its communicator
  std::unique_ptr<ps::Tables> tables_;  // on servers; borrowed by the trainer too
  Model model_;
  std::uint64_t seed_ = 0;
  std::optional<TorchOptimizer> optimizer_;
  std::optional<StepHooks> step_hooks_;
  Trainer trainer_;
  std::optional<OptimizerState> optimizer_state_;
  ModelView::NamedTensors parameters_, buffers_;  // the model's, as the trainer has them
  std::vector<py::object> hooks_;                 // on the optimizer, which may live longer
  bool has_own_seed_;                             // else that of a state that is loaded
  bool may_be_eager_;
  std::int64_t accumulate_;                            // micro-batches of a batch
  bool is_eager_ = false, evaluates_eagerly_ = false;  // since capture has refused
};

}  // namespace shoal::python
