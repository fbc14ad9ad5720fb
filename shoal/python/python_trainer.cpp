// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/python_trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/python/eager.h"
#include "shoal/python/watch.h"
#include "shoal/python/wrappers.h"

namespace shoal::python {

// PyTorch runs these parameter by parameter, and the capture would run them on recorded tensors.
static void refuse_hooks_after_accumulation(const ModelView::NamedTensors& parameters) {
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
static std::uint64_t seed_from_torch(const Model& model) {
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

void check(const Options& options) {
  SHOAL_CHECK(options.on_refusal == "error" || options.on_refusal == "eager", InvalidInput,
              "trainer: on_refusal is \"", options.on_refusal, "\"; give \"error\" or \"eager\"");
  SHOAL_CHECK(options.accumulate >= 1, InvalidInput, "trainer: accumulate is ", options.accumulate,
              "; it is into how many micro-batches a batch is cut, at least 1");
  SHOAL_CHECK(
      options.state_dtype == "float32" || options.state_dtype == "bfloat16" || options.state_dtype == "uint8",
      InvalidInput, "trainer: state_dtype is \"", options.state_dtype,
      "\"; give \"float32\", \"bfloat16\" or \"uint8\"");
  if (options.on_refusal != "eager") return;
  check_can_be_eager(options.parallelism);
  SHOAL_CHECK(!options.has_tables(), InvalidInput,
              "trainer: on_refusal is \"eager\", and PyTorch itself does not find rows that are in tables. "
              "Remedy: on_refusal=\"error\", or no tables");
}

PythonTrainer::PythonTrainer(py::object model, py::object optimizer, py::object loss_fn, Options options)
    : is_parallel_(options.parallelism && this_place().size > 1),
      world_(world_for(options)),
      tables_(tables_for(options)),
      model_(unwrapped(std::move(model), options.parallelism.has_value()), std::move(loss_fn),
             std::move(options.ignores), is_parallel_),
      optimizer_(recognised(std::move(optimizer), options)),
      trainer_(made({.clip_norm = options.clip_norm,
                     .seed = seed_ = seed_of_all(options),
                     .graph_bytes = options.graph_bytes,
                     .keeps_gradients = options.keeps_gradients,
                     .spot_check_share = options.spot_checks,
                     .tables = options.tables},
                    options.parallelism)),
      has_own_seed_(options.seed.has_value()),
      may_be_eager_(options.on_refusal == "eager"),
      accumulate_(options.accumulate) {
  if (!optimizer_) return;
  step_hooks_.emplace(optimizer_->object());
  optimizer_state_.emplace(*optimizer_, trainer_, is_parallel_);
  follow(Model::Use::Step);
  const py::object& hooked = optimizer_->object();
  hooks_.push_back(
      hooked.attr("register_load_state_dict_post_hook")(py::cpp_function([this](const py::object&) {
        optimizer_state_->forget_steps();
        follow(Model::Use::Step);
      })));
  if (!is_parallel_) return;
  hooks_.push_back(hooked.attr("register_state_dict_pre_hook")(
      py::cpp_function([this](const py::object&) { optimizer_state_->gather(); })));
  hooks_.push_back(hooked.attr("register_state_dict_post_hook")(
      py::cpp_function([this](const py::object&, const py::object&) { optimizer_state_->put_away(); })));
}

PythonTrainer::~PythonTrainer() {
  try {
    for (const auto& hook : hooks_) hook.attr("remove")();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("shoal.Trainer");
  }
}

Step PythonTrainer::step(const py::object& python_batch, bool outputs) {
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

Step PythonTrainer::step_over(const std::vector<py::object>& batches, bool outputs) {
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

Gradients PythonTrainer::backward(const py::object& python_batch, bool outputs) {
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

Evaluation PythonTrainer::evaluate(const py::object& python_batch, bool outputs) {
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

ir::Graph PythonTrainer::graph(const py::object& python_batch) {
  ir::Graph graph;
  act_on(python_batch, Model::Use::Step, false, [&](const Batch& batch) { graph = trainer_.graph(batch); });
  return graph;
}

std::map<std::string, at::Tensor> PythonTrainer::gradients() const {
  const py::gil_scoped_release unlocked;
  return trainer_.gradients();
}

void PythonTrainer::materialize() {
  const py::gil_scoped_release unlocked;
  trainer_.materialize();
}

py::object PythonTrainer::optimizer() const {
  return optimizer_ ? py::reinterpret_borrow<py::object>(optimizer_->object()) : py::none();
}

py::object PythonTrainer::world_for(const Options& options) {
  const auto place = this_place();
  if (options.parallelism) options.parallelism->mesh(place.size);  // fits
  const bool has_ranks = options.parallelism && place.size > 1;
  const bool has_servers =
      elastic::servers_in(elastic::environment_of(environ)) > 0 && place.size == 1 && options.has_tables();
  if (!has_ranks && !has_servers) return py::none();
  return the_world(options.parallelism.value_or(Degrees()).wait());
}

std::optional<TorchOptimizer> PythonTrainer::recognised(py::object optimizer, const Options& options) const {
  if (optimizer.is_none()) return std::nullopt;
  const auto master =
      options.parallelism ? options.parallelism->plan.precision.master : rewrite::Master::Float32;
  return TorchOptimizer(std::move(optimizer), model_.parameters(), parse_dtype(options.state_dtype).value(),
                        master, options.table_patterns());
}

Trainer PythonTrainer::made(TrainerOptions options, const std::optional<Degrees>& parallelism) {
  options.tables.tables = tables_.get();
  if (is_parallel_) {
    auto& world = py::cast<World&>(world_).communicator();
    options.parallelism = parallelism->with(parallelism->mesh(world.size()), &world);
  } else if (parallelism) {
    options.parallelism = parallelism->with(parallelism->mesh(1), nullptr);
  }
  auto parts = optimizer_ ? optimizer_->parts() : std::vector<OptimizerPart>{};
  auto view = model_.view();
  view.parameters = parameters();
  const py::gil_scoped_release unlocked;
  return {std::move(view), std::move(parts), std::move(options)};
}

std::uint64_t PythonTrainer::seed_of_all(const Options& options) const {
  if (options.seed) return *options.seed;
  std::uint64_t seed = seed_from_torch(model_);
  if (!is_parallel_) return seed;
  const comm::Buffer buffer{&seed, 1, DType::Int64};
  const py::gil_scoped_release unlocked;
  py::cast<World&>(world_).communicator().broadcast(buffer, 0)->wait(options.parallelism->wait());
  return seed;
}

bool PythonTrainer::captured(bool& is_eager, const std::function<void()>& act) {
  if (is_eager) return false;
  try {
    torch::PyWarningHandler warnings;  // of LibTorch's, as Python has them
    try {
      act();
    } catch (...) {
      warnings.set_in_exception();
      throw;
    }
    return true;
  } catch (python_error& error) {  // where a warning is to be an error
    error.restore();
    throw py::error_already_set();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    if (!may_be_eager_ || error.kind() != ErrorKind::InvalidInput || !text.starts_with("capture: ")) throw;
    is_eager = true;
    warn_of_eager(error.what(), is_parallel_);
    return false;
  }
}

std::function<Batch(const py::object&)> PythonTrainer::starts(Model::Use use) {
  return [this, use](const py::object& batch) {
    auto tensors = model_.start(batch, use, false);
    follow(use);
    return tensors;
  };
}

Step PythonTrainer::step_plainly(const std::vector<py::object>& batches, bool outputs) {
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

void PythonTrainer::finish_step() {
  if (!optimizer_) return;
  optimizer_->note_step();
  optimizer_state_->publish();
  step_hooks_->after();
}

StepResult PythonTrainer::captured_step_over(const std::vector<py::object>& batches) {
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
      SHOAL_CHECK(at == 0, InvalidInput, "trainer: micro-batch ", at,
                  " writes to a tensor beside the model that those before it did not write to. Remedy: give "
                  "them one by one to backward()");
    }
  }
  fail(ErrorKind::InvalidInput,
       "trainer: the model writes to other tensors beside it each time it is called");
}

void PythonTrainer::act_on(const py::object& python_batch, Model::Use use, bool outputs,
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

void PythonTrainer::run(const py::object& python_batch, Model::Use use, bool outputs,
                        const std::function<void(const Batch&)>& act) {
  act_on(python_batch, use, outputs, act);
  model_.finish(trainer_.tag(), trainer_.outputs());
}

void PythonTrainer::follow(Model::Use use) {
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

void PythonTrainer::look_and_follow() {
  model_.look();
  follow(Model::Use::Step);
}

bool PythonTrainer::same(const ModelView::NamedTensors& a, const ModelView::NamedTensors& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.second.is_same(y.second) && x.first == y.first; });
}

ModelView::NamedTensors PythonTrainer::parameters() const {
  auto parameters = model_.parameters();
  if (!optimizer_) return parameters;
  const auto& foreign = optimizer_->foreign();
  SHOAL_CHECK(foreign.empty() || !is_parallel_, InvalidInput, "trainer: parameter ", foreign[0].first,
              " of the optimizer, of shape ", foreign[0].second.sizes(),
              ", is none of the model's, which on several ranks cannot be; make it a parameter of the model");
  parameters.insert(parameters.end(), foreign.begin(), foreign.end());
  return parameters;
}

}  // namespace shoal::python
