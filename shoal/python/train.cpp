// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/python/bindings.h"
#include "shoal/python/eager.h"
#include "shoal/python/model.h"
#include "shoal/python/optimizer.h"
#include "shoal/python/optimizer_state.h"
#include "shoal/python/step_hooks.h"
#include "shoal/python/watch.h"
#include "shoal/python/world.h"
#include "shoal/python/wrappers.h"

namespace shoal::python {

namespace {

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

// PyTorch runs these parameter by parameter, and the capture would run them on recorded tensors.
void refuse_hooks_after_accumulation(const ModelView::NamedTensors& parameters) {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad() || torch::autograd::impl::post_acc_grad_hooks(tensor) == nullptr) continue;
    const py::object hooks = py::cast(tensor).attr("_post_accumulate_grad_hooks");
    SHOAL_CHECK(hooks.is_none() || py::len(hooks) == 0, InvalidInput, "trainer: parameter ", name,
                " has a hook that is to run when its gradient has been accumulated "
                "(register_post_accumulate_grad_hook), and backward() accumulates all gradients at its end. "
                "Remedy: remove the hook, and do what it does after backward()");
  }
}

// What torch's generator would draw next, without a draw: a script's own numbers are as they would be without
// a trainer. Mixed with the parameters' names and sizes, and with how many trainers this model has had:
// torch.manual_seed decides, and two trainers have different ones.
std::uint64_t seed_from_torch(const Model& model) {
  at::Generator next = at::detail::getDefaultCPUGenerator().clone();
  const auto drawn = at::empty({}, at::kLong).random_(next).item<std::int64_t>();
  const py::object counts = py::module_::import("shoal._shoal").attr("_trainers_of");
  const auto count = py::cast<std::uint64_t>(counts.attr("get")(model.module(), 0));
  counts[model.module()] = count + 1;
  std::string text = concat(drawn, ' ', count);
  for (const auto& [name, tensor] : model.parameters()) {
    text += concat('\n', name);
    for (const auto size : tensor.sizes()) text += concat(' ', size);
  }
  return Digest::of(text).low >> 1;  // a tensor has it as a signed number
}

// What a script says besides model, optimizer and loss.
struct Options {
  double clip_norm;
  std::optional<std::uint64_t> seed;
  std::size_t max_graphs;
  bool keeps_gradients;
  double spot_checks;
  std::optional<Degrees> parallelism;
  std::vector<std::string> ignores;
  std::string on_refusal;
  std::int64_t accumulate;
};

void check(const Options& options) {
  SHOAL_CHECK(options.on_refusal == "error" || options.on_refusal == "eager", InvalidInput,
              "trainer: on_refusal is \"", options.on_refusal, "\"; give \"error\" or \"eager\"");
  SHOAL_CHECK(options.accumulate >= 1, InvalidInput, "trainer: accumulate is ", options.accumulate,
              "; it is into how many micro-batches a batch is cut, at least 1");
  if (options.on_refusal == "eager") check_can_be_eager(options.parallelism);
  if (const auto place = this_place(); !options.parallelism && place.size > 1 && place.rank == 0) {
    const auto text =
        concat("shoal: this job has ", place.size,
               " ranks, and a Trainer without parallelism trains alone on each of them. Remedy: "
               "parallelism=shoal.Parallelism(), or one rank");
    if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 2) != 0) throw py::error_already_set();
  }
}

// The interpreter's lock is held on the way in and out; graphs are captured and run without it.
class PythonTrainer {
 public:
  PythonTrainer(py::object model, py::object optimizer, py::object loss_fn, Options options)
      : world_(world_for(options.parallelism)),
        model_(unwrapped(std::move(model), options.parallelism.has_value()), std::move(loss_fn),
               std::move(options.ignores), options.max_graphs),
        optimizer_(recognised(std::move(optimizer))),
        trainer_(made({.clip_norm = options.clip_norm,
                       .seed = seed_ = seed_of_all(options),
                       .max_graphs = options.max_graphs,
                       .keeps_gradients = options.keeps_gradients,
                       .spot_check_share = options.spot_checks},
                      options.parallelism)),
        has_own_seed_(options.seed.has_value()),
        may_be_eager_(options.on_refusal == "eager"),
        accumulate_(options.accumulate) {
    if (!optimizer_) return;
    step_hooks_.emplace(optimizer_->object());
    optimizer_state_.emplace(*optimizer_, trainer_, is_parallel());
    follow(Model::Use::Step);
    const py::object& hooked = optimizer_->object();
    hooks_.push_back(
        hooked.attr("register_load_state_dict_post_hook")(py::cpp_function([this](const py::object&) {
          optimizer_state_->forget_steps();
          follow(Model::Use::Step);
        })));
    if (!is_parallel()) return;
    hooks_.push_back(hooked.attr("register_state_dict_pre_hook")(
        py::cpp_function([this](const py::object&) { optimizer_state_->gather(); })));
    hooks_.push_back(hooked.attr("register_state_dict_post_hook")(
        py::cpp_function([this](const py::object&, const py::object&) { optimizer_state_->put_away(); })));
  }
  ~PythonTrainer() {
    try {
      for (const auto& hook : hooks_) hook.attr("remove")();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("shoal.Trainer");
    }
  }
  PythonTrainer(const PythonTrainer&) = delete;
  PythonTrainer& operator=(const PythonTrainer&) = delete;

  Step step(const py::object& python_batch, bool outputs) {
    if (accumulate_ > 1) return step_over(parts_of(python_batch, accumulate_), outputs);
    if (optimizer_) step_hooks_->check();
    Step step;
    const bool is_captured = captured(is_eager_, [&] {
      act_on(python_batch, Model::Use::Step, outputs,
             [&](const Batch& batch) { step.result = trainer_.step(batch); });
    });
    if (!is_captured) return step_plainly({python_batch}, outputs);
    if (optimizer_) {
      optimizer_->note_step();
      optimizer_state_->publish();
    }
    model_.finish(trainer_.tag(), trainer_.outputs());
    if (optimizer_) step_hooks_->after();
    step.outputs = model_.outputs(trainer_.outputs());
    return step;
  }

  Step step_over(const std::vector<py::object>& batches, bool outputs) {
    SHOAL_CHECK(!batches.empty(), InvalidInput, "trainer: a step over no micro-batch");
    SHOAL_CHECK(!outputs, InvalidInput,
                "trainer: a step over micro-batches keeps the outputs of none; leave outputs=True out");
    if (optimizer_) step_hooks_->check();
    Step step;
    const bool is_captured = captured(is_eager_, [&] { step.result = captured_step_over(batches); });
    if (!is_captured) return step_plainly(batches, outputs);
    finish_step();
    return step;
  }

  Gradients backward(const py::object& python_batch, bool outputs) {
    refuse_hooks_after_accumulation(model_.parameters());
    Gradients gradients{};
    const bool is_captured = captured(is_eager_, [&] {
      run(python_batch, Model::Use::Step, outputs,
          [&](const Batch& batch) { gradients.loss = trainer_.backward(batch); });
    });
    if (!is_captured) {
      auto plain = run_with_gradients(model_, parameters(), {python_batch}, starts(Model::Use::Step));
      {
        const py::gil_scoped_release unlocked;
        gradients.loss = trainer_.backward_with(std::move(plain.given));
      }
      if (outputs) gradients.outputs = plain.outputs;
      return gradients;
    }
    gradients.outputs = model_.outputs(trainer_.outputs());
    return gradients;
  }

  Evaluation evaluate(const py::object& python_batch, bool outputs) {
    const auto modes = model_.enter_evaluation();
    Evaluation evaluation{};
    bool is_captured = true;
    try {
      is_captured = captured(evaluates_eagerly_, [&] {
        run(python_batch, Model::Use::Evaluation, outputs,
            [&](const Batch& batch) { evaluation.loss = trainer_.evaluate(batch); });
      });
      if (!is_captured) {
        const auto plain = run_for_loss(model_, python_batch, starts(Model::Use::Evaluation));
        evaluation.loss = trainer_.loss_of(plain.given);
        if (outputs) evaluation.outputs = plain.outputs;
      }
    } catch (...) {
      Model::restore_modes(modes);
      throw;
    }
    Model::restore_modes(modes);
    if (is_captured) evaluation.outputs = model_.outputs(trainer_.outputs());
    return evaluation;
  }

  ir::Graph graph(const py::object& python_batch) {
    ir::Graph graph;
    act_on(python_batch, Model::Use::Step, false, [&](const Batch& batch) { graph = trainer_.graph(batch); });
    return graph;
  }

  // Gathered parameters are copied: the module's memory for them goes with the next step.
  py::dict state_dict() {
    materialize();
    py::dict state;
    state["model"] = model_.module().attr("state_dict")();
    if (is_parallel()) state["model"] = py::module_::import("copy").attr("deepcopy")(state["model"]);
    state["optimizer"] = optimizer_ ? py::object(optimizer_->object().attr("state_dict")()) : py::none();
    const auto progress = trainer_.progress();
    state["steps"] = progress.steps;
    state["backwards"] = progress.backwards;
    state["seed"] = seed_;
    return state;
  }

  void load_state_dict(const py::dict& state) {
    for (const char* part : {"model", "optimizer", "steps"})
      SHOAL_CHECK(state.contains(part), InvalidInput, "trainer: the state has no \"", part,
                  "\"; give what state_dict() returned");
    SHOAL_CHECK(state["optimizer"].is_none() == !optimizer_, InvalidInput,
                "trainer: the state is of a Trainer ",
                optimizer_ ? "without an optimizer, and this one has one"
                           : "with an optimizer, and this one has none");
    materialize();
    model_.module().attr("load_state_dict")(state["model"]);
    if (optimizer_) optimizer_->object().attr("load_state_dict")(state["optimizer"]);
    auto progress = trainer_.progress();
    progress.steps = py::cast<std::int64_t>(state["steps"]);
    if (state.contains("backwards")) progress.backwards = py::cast<std::int64_t>(state["backwards"]);
    trainer_.set_progress(progress);
    if (has_own_seed_ || !state.contains("seed")) return;
    seed_ = py::cast<std::uint64_t>(state["seed"]);
    trainer_.set_seed(seed_);
  }

  std::map<std::string, at::Tensor> gradients() const {
    const py::gil_scoped_release unlocked;
    return trainer_.gradients();
  }
  void materialize() {
    const py::gil_scoped_release unlocked;
    trainer_.materialize();
  }
  void forget_graphs() { trainer_.forget_graphs(); }
  void look() { model_.look(); }
  py::object model() const { return py::reinterpret_borrow<py::object>(model_.module()); }
  py::object optimizer() const {
    return optimizer_ ? py::reinterpret_borrow<py::object>(optimizer_->object()) : py::none();
  }

 private:
  // None where there is one rank, which needs no others.
  static py::object world_for(const std::optional<Degrees>& parallelism) {
    if (!parallelism) return py::none();
    const int ranks = this_place().size;
    parallelism->mesh(ranks);  // fits
    return ranks == 1 ? py::none() : the_world(parallelism->wait());
  }
  std::optional<TorchOptimizer> recognised(py::object optimizer) const {
    if (optimizer.is_none()) return std::nullopt;
    return TorchOptimizer(std::move(optimizer), model_.parameters());
  }
  Trainer made(TrainerOptions options, const std::optional<Degrees>& parallelism) {
    if (is_parallel()) {
      auto& world = py::cast<World&>(world_).communicator();
      options.parallelism = parallelism->with(parallelism->mesh(world.size()), world);
    }
    auto parts = optimizer_ ? optimizer_->parts() : std::vector<OptimizerPart>{};
    auto view = model_.view();
    view.parameters = parameters();
    const py::gil_scoped_release unlocked;
    return {std::move(view), std::move(parts), std::move(options)};
  }
  bool is_parallel() const { return !world_.is_none(); }
  // Rank 0's where none is given.
  std::uint64_t seed_of_all(const Options& options) const {
    if (options.seed) return *options.seed;
    std::uint64_t seed = seed_from_torch(model_);
    if (!is_parallel()) return seed;
    const comm::Buffer buffer{&seed, 1, DType::Int64};
    const py::gil_scoped_release unlocked;
    py::cast<World&>(world_).communicator().broadcast(buffer, 0)->wait(options.parallelism->wait());
    return seed;
  }

  // Whether it was captured and run. What capture refuses is PyTorch's from then on, where that is allowed.
  bool captured(bool& is_eager, const std::function<void()>& act) {
    if (is_eager) return false;
    try {
      act();
      return true;
    } catch (const Error& error) {
      const std::string_view text = error.what();
      if (!may_be_eager_ || error.kind() != ErrorKind::InvalidInput || !text.starts_with("capture: ")) throw;
      is_eager = true;
      warn_of_eager(error.what(), is_parallel());
      return false;
    }
  }
  std::function<Batch(const py::object&)> starts(Model::Use use) {
    return [this, use](const py::object& batch) {
      auto tensors = model_.start(batch, use, false);
      follow(use);
      return tensors;
    };
  }
  Step step_plainly(const std::vector<py::object>& batches, bool outputs) {
    Step step;
    auto plain = run_with_gradients(model_, parameters(), batches, starts(Model::Use::Step));
    {
      const py::gil_scoped_release unlocked;
      step.result = trainer_.step_with(std::move(plain.given));
    }
    finish_step();
    if (outputs) step.outputs = plain.outputs;
    return step;
  }
  void finish_step() {
    if (!optimizer_) return;
    optimizer_->note_step();
    optimizer_state_->publish();
    step_hooks_->after();
  }
  StepResult captured_step_over(const std::vector<py::object>& batches) {
    const auto start = starts(Model::Use::Step);
    const auto finish = [this] {
      const py::gil_scoped_acquire lock;
      model_.finish(trainer_.tag(), trainer_.outputs());
    };
    constexpr int kMost = 8;  // as in act_on
    for (int time = 0; time < kMost; ++time) {
      std::size_t at = 0;
      try {
        const Batch first = start(batches[0]);
        const py::gil_scoped_release unlocked;
        return trainer_.step_over(
            batches.size(),
            [&](std::size_t i) -> Batch {
              at = i;
              if (i == 0) return first;
              const py::gil_scoped_acquire lock;
              return start(batches[i]);
            },
            finish);
      } catch (const Model::Again&) {
        SHOAL_CHECK(
            at == 0, InvalidInput, "trainer: micro-batch ", at,
            " writes to a tensor beside the model that those before it did not write to. Remedy: give "
            "them one by one to backward()");
      }
    }
    fail(ErrorKind::InvalidInput,
         "trainer: the model writes to other tensors beside it each time it is called");
  }

  // Calls the trainer with the batch and what stands beside it, as the model is now. Without the
  // interpreter's lock.
  void act_on(const py::object& python_batch, Model::Use use, bool outputs,
              const std::function<void(const Batch&)>& act) {
    constexpr int kMost = 8;  // times that another tensor beside the model turns out to be written
    for (int time = 0; time < kMost; ++time) {
      const c10::InferenceMode outside(false);  // what lasts is none of its tensors
      const Batch batch = model_.start(python_batch, use, outputs);
      follow(use);
      try {
        const py::gil_scoped_release unlocked;
        return act(batch);
      } catch (const Model::Again&) {
      }
    }
    fail(ErrorKind::InvalidInput,
         "trainer: the model writes to other tensors beside it each time it is called");
  }
  // The same, and what the step has changed around the model happens.
  void run(const py::object& python_batch, Model::Use use, bool outputs,
           const std::function<void(const Batch&)>& act) {
    act_on(python_batch, use, outputs, act);
    model_.finish(trainer_.tag(), trainer_.outputs());
  }

  // Options, groups and state are the optimizer's own, whoever changed them between steps.
  void follow(Model::Use use) {
    const bool steps = optimizer_ && use == Model::Use::Step;
    const bool is_regrouped = steps && optimizer_->follow(model_.parameters());
    if (is_regrouped || !same(model_.parameters(), parameters_) || !same(model_.buffers(), buffers_)) {
      trainer_.set_tensors(parameters(), model_.buffers());
      parameters_ = model_.parameters();
      buffers_ = model_.buffers();
    }
    if (!steps) return;
    if (is_regrouped) {
      trainer_.set_optimizers(optimizer_->parts());
      optimizer_state_->forget();
    }
    const auto rates = optimizer_->learning_rates();
    for (std::size_t part = 0; part < rates.size(); ++part) trainer_.set_learning_rate(part, rates[part]);
    optimizer_state_->follow();
  }

  static bool same(const ModelView::NamedTensors& a, const ModelView::NamedTensors& b) {
    return std::ranges::equal(
        a, b, [](const auto& x, const auto& y) { return x.second.is_same(y.second) && x.first == y.first; });
  }

  // The model's, and what the optimizer has besides: a loss may have parameters.
  ModelView::NamedTensors parameters() const {
    auto parameters = model_.parameters();
    if (!optimizer_) return parameters;
    const auto& foreign = optimizer_->foreign();
    SHOAL_CHECK(
        foreign.empty() || !is_parallel(), InvalidInput, "trainer: parameter ", foreign[0].first,
        " of the optimizer, of shape ", foreign[0].second.sizes(),
        ", is none of the model's, which on several ranks cannot be; make it a parameter of the model");
    parameters.insert(parameters.end(), foreign.begin(), foreign.end());
    return parameters;
  }

  py::object world_;  // None: one rank. The trainer borrows its communicator
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

}  // namespace

static std::string text_of_loss(const char* name, double loss) {
  return std::string(name) + "(loss=" + std::string(py::repr(py::float_(loss))) + ")";
}

static std::string text_of(const Step& step) {
  return "StepResult(loss=" + std::string(py::repr(py::float_(step.result.loss))) +
         ", step=" + std::to_string(step.result.step) + ")";
}

static std::unique_ptr<PythonTrainer> trainer_of(py::object model, py::object optimizer, py::object loss_fn,
                                                 double clip_norm, std::optional<std::uint64_t> seed,
                                                 std::size_t max_graphs, bool keeps_gradients,
                                                 double spot_checks, std::optional<Degrees> parallelism,
                                                 std::vector<std::string> ignores, std::string on_refusal,
                                                 std::int64_t accumulate) {
  Options options{clip_norm,          seed,
                  max_graphs,         keeps_gradients,
                  spot_checks,        std::move(parallelism),
                  std::move(ignores), std::move(on_refusal),
                  accumulate};
  check(options);
  return std::make_unique<PythonTrainer>(std::move(model), std::move(optimizer), std::move(loss_fn),
                                         std::move(options));
}

void bind_train(py::module_& module) {
  module.attr("_trainers_of") = py::module_::import("weakref").attr("WeakKeyDictionary")();
  py::class_<Step>(module, "StepResult", "What one update did.")
      .def_property_readonly("loss", [](const Step& step) { return step.result.loss; })
      .def_property_readonly(
          "grad_norm", [](const Step& step) { return step.result.grad_norm; },
          "Global L2 norm of the gradients before clipping; 0 without clipping, where nobody computes it.")
      .def_property_readonly(
          "learning_rate", [](const Step& step) { return step.result.learning_rate; },
          "Of the optimizer's first parameter group.")
      .def_property_readonly(
          "step", [](const Step& step) { return step.result.step; },
          "Updates made so far, this one included.")
      .def_readonly("outputs", &Step::outputs,
                    "What the model returned, if it was asked for; caches are None.")
      .def("__repr__", text_of);
  py::class_<Evaluation>(module, "Evaluation", "The loss of a batch in evaluation mode.")
      .def_readonly("loss", &Evaluation::loss)
      .def_readonly("outputs", &Evaluation::outputs,
                    "What the model returned, if it was asked for; caches are None.")
      .def("__float__", [](const Evaluation& evaluation) { return evaluation.loss; })
      .def("__repr__",
           [](const Evaluation& evaluation) { return text_of_loss("Evaluation", evaluation.loss); });
  py::class_<Gradients>(module, "BackwardResult", "What one backward() did, besides the gradients.")
      .def_readonly("loss", &Gradients::loss)
      .def_readonly("outputs", &Gradients::outputs,
                    "What the model returned, if it was asked for; caches are None.")
      .def("__float__", [](const Gradients& gradients) { return gradients.loss; })
      .def("__repr__",
           [](const Gradients& gradients) { return text_of_loss("BackwardResult", gradients.loss); });
  py::class_<PythonTrainer>(module, "Trainer",
                            "Trains a module through its captured graph. One thread at a time.")
      .def(py::init(&trainer_of), py::arg("model"), py::arg("optimizer") = py::none(),
           py::arg("loss_fn") = py::none(), py::kw_only(), py::arg("clip_norm") = 0.0,
           py::arg("seed") = py::none(), py::arg("max_graphs") = 16, py::arg("keeps_gradients") = false,
           py::arg("spot_checks") = TrainerOptions().spot_check_share, py::arg("parallelism") = py::none(),
           py::arg("ignores") = std::vector<std::string>(), py::arg("on_refusal") = "error",
           py::arg("accumulate") = 1)
      .def("step", &PythonTrainer::step, py::arg("batch"), py::kw_only(), py::arg("outputs") = false,
           "One update. A loss that is not finite is an error; parameters, buffers and optimizer state are "
           "then as "
           "before the step.")
      .def("step_over", &PythonTrainer::step_over, py::arg("microbatches"), py::kw_only(),
           py::arg("outputs") = false,
           "One update by several micro-batches, one after the other in the memory of one, with the loss and "
           "gradients that they have together.")
      .def("backward", &PythonTrainer::backward, py::arg("batch"), py::kw_only(), py::arg("outputs") = false,
           "Forward and backward without an update: each gradient is added to its parameter's grad, as "
           "loss.backward() does.")
      .def("evaluate", &PythonTrainer::evaluate, py::arg("batch"), py::kw_only(), py::arg("outputs") = false,
           "The loss in evaluation mode, without gradients; nothing changes.")
      .def("graph", &PythonTrainer::graph, py::arg("batch"),
           "The whole captured step for a batch of this shape, update included.")
      .def("state_dict", &PythonTrainer::state_dict,
           "Model, optimizer and number of updates; load_state_dict() goes on from there.")
      .def("load_state_dict", &PythonTrainer::load_state_dict, py::arg("state"))
      .def("gradients", &PythonTrainer::gradients,
           "Gradients of the last step, before clipping, by parameter name.")
      .def("materialize", &PythonTrainer::materialize,
           "Puts parameters that ranks keep in parts back into the module, whole, until the next step. "
           "Called by all ranks at once.")
      .def("forget_graphs", &PythonTrainer::forget_graphs,
           "Drops all captured graphs: for a model whose code or settings were changed between steps.")
      .def("_look", &PythonTrainer::look,
           "Looks at what the model depends on, as each step does first: for measurements.")
      .def_property_readonly("model", &PythonTrainer::model)
      .def_property_readonly("optimizer", &PythonTrainer::optimizer, "None if it was given none.");
}

}  // namespace shoal::python
