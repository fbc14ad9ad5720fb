// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <sstream>

#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/ir/verify.h"
#include "shoal/program/program.h"
#include "shoal/rewrite/cleanup.h"
#include "shoal/runtime/executor.h"
#include "shoal/train/update.h"

namespace shoal {

using capture::Mode;
using capture::NamedTensor;
using ir::Role;
using program::Segment;

namespace {

// A captured step for one shape of the batch, ready to run.
struct Step {
  std::string key;
  capture::Guards guards;
  ir::Graph graph;
  std::vector<train::UpdateGroup> groups;
  std::unique_ptr<runtime::Executor> executor;
  bool has_grad_norm = false;
  bool is_random = false;  // reads seed and step
};

// Evaluation mode for a module and all below it; each gets its own mode back.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) {
    for (const auto& each : module.modules()) was_training_.emplace_back(each, each->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    // Outermost last to first: train() reaches down, so what is deeper is set after.
    for (const auto& [module, training] : was_training_) module->train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
};

}  // namespace

static std::vector<NamedTensor> named(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> named;
  for (const auto& item : tensors) named.push_back({item.key(), item.value()});
  return named;
}

class Trainer::State {
 public:
  State(std::shared_ptr<torch::nn::Module> module, LossFunction loss, Optimizer optimizer,
        TrainerOptions options)
      : module_(std::move(module)),
        loss_(std::move(loss)),
        optimizer_(std::move(optimizer)),
        options_(std::move(options)),
        modules_(module_->modules()),
        parameters_(named(module_->named_parameters())),
        buffers_(named(module_->named_buffers())),
        seed_(at::scalar_tensor(static_cast<std::int64_t>(options_.seed), at::kLong)) {
    SHOAL_CHECK(options_.max_graphs > 0, InvalidInput,
                "trainer: max_graphs is 0; at least one graph must be kept");
  }

  StepResult step(const Batch& batch) {
    const observe::Span span(options_.trace, "step", 0, "trainer");
    Step& step = find(batch, Mode::Train);
    const auto number = steps_ + 1;
    const double scale = factor(options_.schedule, number);
    bind(step, batch, number);
    for (const auto& group : step.groups) {
      step.executor->bind(Role::Scalar, group.lr_source, at::scalar_tensor(group.lr * scale, at::kDouble));
      if (!group.step_source.empty())
        step.executor->bind(Role::Scalar, group.step_source,
                            at::scalar_tensor(updates_of(group.parameters.front()) + 1, at::kLong));
    }
    step.executor->run(Segment::Gradients, options_.trace);
    StepResult result{.loss = step.executor->result(Role::Loss, "loss").item<double>(),
                      .grad_norm = 0,
                      .learning_rate = std::visit([](const auto& o) { return o.lr; }, optimizer_) * scale,
                      .step = number};
    if (step.has_grad_norm)
      result.grad_norm = step.executor->result(Role::Output, "grad_norm").item<double>();
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) report_not_finite(step, result);
    step.executor->run(Segment::Update, options_.trace);
    step.executor->release_inputs();
    for (const auto& group : step.groups)
      for (const auto& name : group.parameters) ++updates_[name];
    ++steps_;
    last_ = &step;
    return result;
  }

  double evaluate(const Batch& batch) {
    const EvaluationMode mode(*module_);
    Step& step = find(batch, Mode::Evaluate);
    bind(step, batch, steps_ + 1);
    step.executor->run(Segment::Gradients, options_.trace);
    const double loss = step.executor->result(Role::Loss, "loss").item<double>();
    step.executor->release();
    step.executor->release_inputs();
    return loss;
  }

  const ir::Graph& graph(const Batch& batch) { return find(batch, Mode::Train).graph; }

  std::map<std::string, at::Tensor> optimizer_state() const { return state_; }

  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> gradients;
    if (last_ == nullptr) return gradients;
    for (const auto& result : last_->executor->program().results)
      if (result.role == Role::Gradient)
        gradients.emplace(result.name, last_->executor->result(result.role, result.name));
    return gradients;
  }

 private:
  std::int64_t updates_of(const std::string& parameter) const {
    const auto found = updates_.find(parameter);
    return found == updates_.end() ? 0 : found->second;
  }

  // Everything but tensor contents that a captured graph depends on.
  std::string key_of(const Batch& batch, Mode mode) const {
    std::ostringstream key;
    key << (mode == Mode::Train ? 't' : 'e');
    for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
      key << ' ' << path << ':';
      if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) {
        SHOAL_CHECK(tensor->defined(), InvalidInput, "trainer: batch item ", path, " is an undefined tensor");
        key << tensor->scalar_type() << tensor->sizes() << tensor->device();
      } else if (const auto* integer = std::get_if<std::int64_t>(&leaf.value())) {
        key << *integer;
      } else {
        key << std::hexfloat << leaf.number() << std::defaultfloat;
      }
    });
    key << ' ';
    for (const auto& module : modules_) key << module->is_training();
    for (const auto& [name, parameter] : parameters_) key << parameter.requires_grad();
    return std::move(key).str();
  }

  static std::vector<NamedTensor> inputs_of(const Batch& batch) {
    std::vector<NamedTensor> inputs;
    for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
      if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) inputs.push_back({path, *tensor});
    });
    return inputs;
  }

  // Whether the parameters that one node updates have still been updated equally often.
  bool is_current(const Step& step) const {
    return std::ranges::all_of(step.groups, [&](const train::UpdateGroup& group) {
      return group.step_source.empty() || std::ranges::all_of(group.parameters, [&](const std::string& name) {
               return updates_of(name) == updates_of(group.parameters.front());
             });
    });
  }

  Step& find(const Batch& batch, Mode mode) {
    auto key = key_of(batch, mode);
    std::vector<at::Tensor> inputs;
    for (auto& [name, tensor] : inputs_of(batch)) inputs.push_back(tensor);
    for (auto step = steps_kept_.begin(); step != steps_kept_.end(); ++step) {
      if (step->key != key || !capture::hold(step->guards, inputs)) continue;
      if (!is_current(*step)) {
        forget(step);
        break;
      }
      steps_kept_.splice(steps_kept_.begin(), steps_kept_, step);
      return steps_kept_.front();
    }
    steps_kept_.push_front(captured(batch, mode, std::move(key)));
    while (steps_kept_.size() > options_.max_graphs) forget(std::prev(steps_kept_.end()));
    return steps_kept_.front();
  }

  void forget(std::list<Step>::iterator step) {
    if (last_ == &*step) last_ = nullptr;
    steps_kept_.erase(step);
  }

  Step captured(const Batch& batch, Mode mode, std::string key) {
    const observe::Span span(options_.trace, "capture", 0, "trainer");
    const capture::Request request{
        .parameters = parameters_,
        .buffers = buffers_,
        .inputs = inputs_of(batch),
        .loss =
            [&](std::span<const at::Tensor> inputs) {
              std::size_t next = 0;
              return loss_(
                  map_tensors(batch, [&](const std::string&, const at::Tensor&) { return inputs[next++]; }));
            },
        .mode = mode,
    };
    auto captured = capture::capture(request);
    Step step{.key = std::move(key),
              .guards = std::move(captured.guards),
              .graph = {},
              .groups = {},
              .executor = nullptr};
    step.graph = rewrite::cleanup(std::move(captured.graph));
    if (mode == Mode::Train) {
      auto update = train::append_update(std::move(step.graph), optimizer_, options_.clip_norm,
                                         [this](const std::string& name) { return updates_of(name); });
      step.graph = std::move(update.graph);
      step.groups = std::move(update.groups);
    }
    ir::verify(step.graph);
    step.executor = std::make_unique<runtime::Executor>(program::lower(step.graph));
    bind_lasting(step, captured.constants);
    return step;
  }

  // Parameters, buffers, optimizer state and constants stay bound.
  void bind_lasting(Step& step, const std::vector<at::Tensor>& constants) {
    std::map<std::string, at::Tensor> by_name;
    for (const auto& [name, tensor] : parameters_) by_name.emplace(name, tensor.detach());
    for (const auto& [name, tensor] : buffers_) by_name.emplace(name, tensor.detach());
    for (const auto& source : step.executor->program().sources) {
      const auto& type = step.executor->program().types.at(source.slot.index);
      switch (source.role) {
        case Role::Parameter:
        case Role::Buffer: step.executor->bind(source.slot, by_name.at(source.name)); break;
        case Role::Constant:
          step.executor->bind(source.slot, constants.at(std::stoul(source.name.substr(1))));
          break;
        case Role::OptimizerState: step.executor->bind(source.slot, state_of(source.name, type)); break;
        default: break;
      }
      step.is_random = step.is_random || (source.role == Role::Scalar && source.name == "seed");
    }
    step.has_grad_norm = program::find_result(step.executor->program(), Role::Output, "grad_norm") != nullptr;
  }

  at::Tensor state_of(const std::string& name, const ir::TensorType& type) {
    auto& tensor = state_[name];
    if (!tensor.defined()) {
      const auto parameter = name.substr(0, name.rfind('.'));
      const auto found = std::ranges::find(parameters_, parameter, &NamedTensor::name);
      SHOAL_CHECK(found != parameters_.end(), Internal, "trainer: optimizer state ", name,
                  " is of no parameter");
      tensor = at::empty_strided(type.shape, type.strides, found->tensor.options()).zero_();
    }
    return tensor;
  }

  void bind(Step& step, const Batch& batch, std::int64_t number) {
    for (auto& [name, tensor] : inputs_of(batch))
      if (program::find_source(step.executor->program(), Role::Input, name) != nullptr)
        step.executor->bind(Role::Input, name, tensor.detach());
    if (!step.is_random) return;
    step.executor->bind(Role::Scalar, "seed", seed_);
    step.executor->bind(Role::Scalar, "step", at::scalar_tensor(number, at::kLong));
  }

  [[noreturn]] void report_not_finite(Step& step, const StepResult& result) {
    const auto* first = step.executor->first_not_finite();
    const auto where = first == nullptr
                           ? std::string("it did not happen again when the step was run once more")
                           : concat("a value that is not finite first appears in module \"", first->module,
                                    "\" (", first->op, ")");
    step.executor->release();
    step.executor->release_inputs();
    const bool of_loss = !std::isfinite(result.loss);
    fail(ErrorKind::InvalidInput, "trainer: the ", of_loss ? "loss" : "gradient norm", " of step ",
         result.step, " is ", of_loss ? result.loss : result.grad_norm, ": ", where,
         ". Nothing was updated. Remedy: a lower learning rate, clip_norm, or a look at this batch");
  }

  std::shared_ptr<torch::nn::Module> module_;
  LossFunction loss_;
  Optimizer optimizer_;
  TrainerOptions options_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  at::Tensor seed_;
  std::map<std::string, at::Tensor> state_;      // optimizer state by name
  std::map<std::string, std::int64_t> updates_;  // by parameter
  std::list<Step> steps_kept_;                   // most recently used first
  Step* last_ = nullptr;                         // of the last update; in steps_kept_, or null
  std::int64_t steps_ = 0;
};

Trainer::Trainer(std::shared_ptr<torch::nn::Module> module, LossFunction loss, Optimizer optimizer,
                 TrainerOptions options)
    : state_(std::make_unique<State>(std::move(module), std::move(loss), std::move(optimizer),
                                     std::move(options))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

StepResult Trainer::step(const Batch& batch) { return state_->step(batch); }
double Trainer::evaluate(const Batch& batch) { return state_->evaluate(batch); }
const ir::Graph& Trainer::graph(const Batch& batch) { return state_->graph(batch); }
std::map<std::string, at::Tensor> Trainer::optimizer_state() const { return state_->optimizer_state(); }
std::map<std::string, at::Tensor> Trainer::gradients() const { return state_->gradients(); }

}  // namespace shoal
