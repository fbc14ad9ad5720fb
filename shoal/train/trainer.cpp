// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <list>
#include <optional>
#include <sstream>

#include "shoal/aten/memory.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/data/hash.h"
#include "shoal/ir/verify.h"
#include "shoal/program/program.h"
#include "shoal/rewrite/cleanup.h"
#include "shoal/runtime/executor.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/train/accumulate.h"
#include "shoal/train/distribution.h"
#include "shoal/train/given.h"
#include "shoal/train/gradients.h"
#include "shoal/train/memory.h"
#include "shoal/train/spot_checks.h"
#include "shoal/train/update.h"

namespace shoal {

using capture::Mode;
using capture::NamedTensor;
using ir::Role;
using program::Segment;

namespace {

// What a graph is run for: a whole step, one of the micro-batches of a step, a look at the loss, or gradients
// for somebody else's update. The last is the graph of a step without its update.
enum class Use { Step, Part, Evaluation, Backward };

Mode mode_of(Use use) { return use == Use::Evaluation ? Mode::Evaluate : Mode::Train; }

// A captured step for one shape of the batch, ready to run.
struct Step {
  std::string key;
  capture::Guards guards;
  ir::Graph recorded;   // as the model was captured, for spot checks
  ir::Graph gradients;  // of Use::Step: without its update, which is appended when it is first used
  std::vector<at::Tensor> constants;
  ir::Graph graph;
  rewrite::Placed placed;  // of several ranks
  std::vector<train::UpdateGroup> groups;
  std::unique_ptr<runtime::Executor> executor;
  std::unique_ptr<Step> backward = {};  // of Use::Step: `gradients` alone; made when it is first used
  std::vector<std::string> names_of_inputs = {};
  std::string tag = {};                                   // ModelView::tag
  std::vector<std::optional<program::Slot>> inputs = {};  // of the batch's tensors, in their order
  std::vector<std::pair<std::size_t, program::Slot>> written =
      {};  // of these, where the model has written into one
  bool has_grad_norm = false;
  bool is_random = false;             // reads seed and step
  train::Normaliser normaliser = {};  // of a part
  std::int64_t runs = 0;              // as spot checks count: steps, evaluations
  std::int64_t last_step = 0;         // the last one that was counted
};

// Clipping and update of accumulated gradients.
struct AccumulatedUpdate {
  std::vector<std::string> parameters;  // those that have a gradient
  std::vector<train::UpdateGroup> groups;
  std::unique_ptr<runtime::Executor> executor;
};

// Where a tensor lies, and as what.
struct Place {
  const void* memory = nullptr;
  caffe2::TypeMeta dtype;
  std::vector<std::int64_t> shape, strides;

  // Whether the tensor lies somewhere else than before; this place is then its new one.
  bool follow(const at::Tensor& tensor) {
    if (!tensor.defined()) return std::exchange(*this, {}).memory != nullptr;
    const void* now = aten::address_of(tensor);
    if (now == memory && tensor.dtype() == dtype && tensor.sizes() == shape && tensor.strides() == strides)
      return false;
    *this = {now, tensor.dtype(), tensor.sizes().vec(), tensor.strides().vec()};
    return true;
  }
};

// Evaluation mode for a module and all below it; each gets its own mode back.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module* module) {  // null: the model's language sees to it
    if (module == nullptr) return;
    for (const auto& each : module->modules()) was_training_.emplace_back(each, each->is_training());
    module->eval();
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

static std::string display_name(const std::string& input) {
  return capture::is_beside(input) ? input.substr(1) : "item " + input + " of the batch";
}

static std::vector<NamedTensor> named(const ModelView::NamedTensors& tensors) {
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) named.push_back({name, tensor});
  return named;
}

static ModelView view_of(const std::shared_ptr<torch::nn::Module>& module, Trainer::LossFunction loss) {
  ModelView view{.parameters = {}, .buffers = {}, .loss = std::move(loss), .mode = {}};
  for (const auto& item : module->named_parameters()) view.parameters.emplace_back(item.key(), item.value());
  for (const auto& item : module->named_buffers()) view.buffers.emplace_back(item.key(), item.value());
  view.mode = [modules = module->modules()] {
    std::string flags;
    for (const auto& each : modules) flags += each->is_training() ? '1' : '0';
    return flags;
  };
  return view;
}

class Trainer::State {
 public:
  State(std::shared_ptr<torch::nn::Module> module, ModelView view, std::vector<OptimizerPart> optimizers,
        TrainerOptions options)
      : module_(std::move(module)),
        view_(std::move(view)),
        optimizers_(std::move(optimizers)),
        learning_rates_(optimizers_.size()),
        options_(std::move(options)),
        parameters_(named(view_.parameters)),
        buffers_(named(view_.buffers)),
        seed_(at::scalar_tensor(static_cast<std::int64_t>(options_.seed), at::kLong)),
        spot_checks_(options_.spot_check_share) {
    SHOAL_CHECK(options_.max_graphs > 0, InvalidInput,
                "trainer: max_graphs is 0; at least one graph must be kept");
    SHOAL_CHECK(!optimizers_.empty() || options_.clip_norm == 0, InvalidInput, "trainer: clip_norm is ",
                options_.clip_norm,
                ", and without an optimizer there is no step that clips; clip what backward() leaves in the "
                "parameters (clip_grad_norm_)");
    train::refuse_shared_memory(view_.parameters);
    if (options_.parallelism) check_in_main_memory();
    if (options_.parallelism)
      ranks_ = std::make_unique<train::Distribution>(
          *options_.parallelism, view_.parameters, view_.buffers,
          [this](const std::string& parameter) { return needs_whole(parameter); });
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // Gives the parameters back to a module that outlives its trainer, unless an error ends the scope: the
  // other ranks may never come here.
  ~State() {
    view_ = {};  // its functions hold the module
    if (!ranks_ || module_.use_count() < 2 || std::uncaught_exceptions() > exceptions_) return;
    try {
      materialize();
    } catch (const std::exception&) {  // they stay without memory, and reading them says so
    }
  }

  StepResult step(const Batch& batch) {
    check_has_optimizer();
    const observe::Span span(options_.trace, "step", 0, "trainer");
    const train::SharedBatch shared = agree(batch, Use::Step);
    Step& step = checked(shared, Use::Step);
    check_can_write(step, batch, shared.part);
    const auto number = steps_ + 1;
    const double scale = factor(options_.schedule, number);
    bind(step, shared.part, number);
    bind_rates(*step.executor, step.groups, scale);
    step.executor->run(Segment::Gradients, options_.trace);
    const auto [loss, grad_norm] = loss_and_norm(step);
    StepResult result{
        .loss = loss, .grad_norm = grad_norm, .learning_rate = learning_rate() * scale, .step = number};
    if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) report_not_finite(step, result);
    outputs_.clear();
    keep_outputs(step);
    step.executor->run(Segment::Update, options_.trace);
    keep_outputs(step);
    write_inputs(step, shared.part);
    step.executor->release_inputs();
    for (const auto& group : step.groups)
      for (const auto& name : group.parameters) ++updates_[name];
    ++steps_;
    last_ = &step;
    accumulated_.clear();
    keep_gradients();
    return result;
  }

  double backward(const Batch& batch) {
    const observe::Span span(options_.trace, "backward", 0, "trainer");
    const train::SharedBatch shared = agree(batch, Use::Backward);
    Step& step = checked(shared, Use::Backward);
    check_can_write(step, batch, shared.part);
    bind(step, shared.part, backwards_ + 1, kOfBackward);
    step.executor->run(Segment::Gradients, options_.trace);
    const double loss = step.executor->result(Role::Loss, "loss").item<double>();
    outputs_.clear();
    keep_outputs(step);
    step.executor->run(Segment::Update, options_.trace);  // of buffers alone
    keep_outputs(step);
    write_inputs(step, shared.part);
    auto gradients = whole(gradients_in(*step.executor));
    step.executor->release();
    step.executor->release_inputs();
    train::add_gradients(parameters_, std::move(gradients));
    ++backwards_;
    materialize();  // whoever makes use of the gradients needs the parameters
    return loss;
  }

  StepResult step_with(Given given) {
    check_has_optimizer();
    reduce(given);
    StepResult result{.loss = given.loss, .grad_norm = 0, .learning_rate = 0, .step = steps_ + 1};
    SHOAL_CHECK(std::isfinite(given.loss), InvalidInput, "trainer: the loss of step ", result.step, " is ",
                given.loss, ". Nothing was updated. Remedy: a lower learning rate, or a look at this batch");
    last_ = nullptr;
    accumulated_ = std::move(given.gradients);
    if (ranks_)
      for (auto& [name, gradient] : accumulated_) gradient = ranks_->summand_of(name, gradient);
    update_accumulated(result);
    ++steps_;
    keep_gradients();
    return result;
  }
  double backward_with(Given given) {
    reduce(given);
    train::add_gradients(parameters_, std::move(given.gradients));
    ++backwards_;
    return given.loss;
  }
  double loss_of(Given given) const {
    if (ranks_) train::reduce(given, {}, ranks_->groups().world());
    return given.loss;
  }

  StepResult step_over(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                       const std::function<void()>& after) {
    check_has_optimizer();
    SHOAL_CHECK(count > 0, InvalidInput, "trainer: a step over no micro-batch");
    const observe::Span span(options_.trace, "step", 0, "trainer");
    const auto number = steps_ + 1;
    const std::map<std::string, at::Tensor> buffers_before = copies_of_buffers();
    StepResult result{.loss = 0, .grad_norm = 0, .learning_rate = 0, .step = number};
    accumulated_.clear();
    last_ = nullptr;
    try {
      accumulate(count, microbatch, after, result);
      update_accumulated(result);
    } catch (...) {
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : buffers_)
        if (tensor.defined()) tensor.detach().copy_(buffers_before.at(name));
      accumulated_.clear();
      throw;
    }
    ++steps_;
    keep_gradients();
    return result;
  }

  std::string weighing(const Batch& batch) {
    return train::to_text(find(agree(batch, Use::Part), Use::Part).normaliser);
  }

  double evaluate(const Batch& batch) {
    const EvaluationMode mode(module_.get());
    const train::SharedBatch shared = agree(batch, Use::Evaluation);
    Step& step = checked(shared, Use::Evaluation);
    check_can_write(step, batch, shared.part);
    const auto trainings = steps_ + backwards_;
    if (std::exchange(evaluated_after_, trainings) != trainings) evaluations_ = 0;
    bind(step, shared.part, trainings + 1, kOfEvaluation + evaluations_++);
    step.executor->run(Segment::Gradients, options_.trace);
    const double loss = step.executor->result(Role::Loss, "loss").item<double>();
    outputs_.clear();
    keep_outputs(step);
    write_inputs(step, shared.part);
    step.executor->release();
    step.executor->release_inputs();
    return loss;
  }

  const ir::Graph& graph(const Batch& batch) { return find(agree(batch, Use::Step), Use::Step).graph; }
  const program::Program& program(const Batch& batch) {
    return find(agree(batch, Use::Step), Use::Step).executor->program();
  }
  const rewrite::Placed& placed(const Batch& batch) {
    SHOAL_CHECK(ranks_ != nullptr, InvalidInput,
                "trainer: one device places nothing; set options.parallelism");
    return find(agree(batch, Use::Step), Use::Step).placed;
  }

  std::map<std::string, at::Tensor> optimizer_state() const {
    std::map<std::string, at::Tensor> state;
    for (const auto& [name, tensor] : state_) state.emplace(name, whole_state(name, tensor));
    return state;
  }

  void materialize() {
    if (ranks_) ranks_->materialize();
  }

  TrainingState state() const {
    TrainingState state{
        .step = steps_, .backwards = backwards_, .updates = updates_, .model = {}, .optimizer = {}};
    for (const auto* tensors : {&parameters_, &buffers_})
      for (const auto& [name, tensor] : *tensors)
        if (tensor.defined()) state.model.emplace(name, whole_tensor(name, tensor));
    // What a graph was bound to but no step has written is as good as absent.
    for (const auto& [name, tensor] : state_)
      if (updates_of(name.substr(0, name.rfind('.'))) > 0)
        state.optimizer.emplace(name, whole_state(name, tensor));
    return state;
  }

  void restore(const TrainingState& from) {
    using checkpoint::Types;
    const auto here = state();
    std::vector<checkpoint::TensorShape> wanted;
    for (const auto& [name, count] : from.updates) {
      const auto parameter = here.model.find(name);
      if (parameter == here.model.end() || count == 0) continue;
      for (const auto& [suffix, type] : kept_of(name, aten::type_of(parameter->second)))
        wanted.push_back({concat(name, '.', suffix), type.dtype, type.shape});
    }
    checkpoint::check_fits(train::shapes_of(here.model), train::shapes_of(from.model), Types::MustBeEqual,
                           "the checkpoint");
    checkpoint::check_fits(wanted, train::shapes_of(from.optimizer), Types::MustBeEqual,
                           "the checkpoint's optimizer state");
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : from.model) write(name, here.model.at(name), tensor);
    zero_state_but(from.optimizer);
    for (const auto& [name, tensor] : from.optimizer) write_state(name, tensor);
    updates_ = from.updates;
    evaluated_after_ = -1;
    steps_ = from.step;
    backwards_ = from.backwards;
    last_ = nullptr;
  }

  const std::map<std::string, at::Tensor>& outputs() const { return outputs_; }

  Progress progress() const { return {steps_, backwards_, updates_}; }

  void restore(const std::map<std::string, at::Tensor>& optimizer_state, const Progress& progress) {
    for (const auto& [name, tensor] : optimizer_state) {
      const auto& parameter = parameter_of_state(name);
      const auto wanted = type_of_state(name, aten::type_of(parameter));
      SHOAL_CHECK(tensor.defined() && tensor.sizes() == at::IntArrayRef(wanted.shape), InvalidInput,
                  "trainer: optimizer state ", name, " has shape ", tensor.sizes(), ", wanted ",
                  at::IntArrayRef(wanted.shape), ", as its parameter has ", parameter.sizes());
    }
    forget_graphs_if_moved();
    const at::NoGradGuard no_grad;
    if (ranks_) {
      zero_state_but(optimizer_state);
      for (const auto& [name, tensor] : optimizer_state) write_state(name, tensor);
    } else {
      state_.clear();
      for (const auto& [name, tensor] : optimizer_state)
        state_.emplace(name, train::lying_as(type_of_state(name, aten::type_of(parameter_of_state(name))),
                                             parameter_of_state(name).device(), tensor));
      for (auto& step : steps_kept_)
        if (step.executor) bind_state(*step.executor);
      if (update_) bind_state(*update_->executor);
    }
    set_progress(progress);
  }

  void set_progress(const Progress& progress) {
    updates_ = progress.updates;
    evaluated_after_ = -1;
    steps_ = progress.steps;
    backwards_ = progress.backwards;
  }
  void set_seed(std::uint64_t seed) {
    options_.seed = seed;
    seed_ = at::scalar_tensor(static_cast<std::int64_t>(seed), at::kLong);
  }
  const std::map<std::string, std::int64_t>& updates() const { return updates_; }

  const std::string& tag() const { return tag_; }

  void set_tensors(ModelView::NamedTensors parameters, ModelView::NamedTensors buffers) {
    const auto same = [](const std::vector<NamedTensor>& here, const ModelView::NamedTensors& given) {
      return std::ranges::equal(here, given, [](const NamedTensor& a, const auto& b) {
        return a.name == b.first && a.tensor.is_same(b.second);
      });
    };
    if (same(parameters_, parameters) && same(buffers_, buffers)) return;
    SHOAL_CHECK(
        !ranks_, InvalidInput,
        "trainer: parameters or buffers of the model were replaced, added or removed, which on several ranks "
        "needs a new Trainer on all of them");
    const auto before = std::exchange(parameters_, named(parameters));
    buffers_ = named(buffers);
    // State goes with its tensor, which may have another name now.
    const auto state = std::exchange(state_, {});
    const auto updates = std::exchange(updates_, {});
    for (const auto& [name, tensor] : before) {
      const auto now = std::ranges::find_if(
          parameters_, [&, &same = tensor](const NamedTensor& each) { return each.tensor.is_same(same); });
      if (now == parameters_.end()) continue;
      if (const auto found = updates.find(name); found != updates.end()) updates_[now->name] = found->second;
      for (const auto& [key, value] : state)
        if (key.substr(0, key.rfind('.')) == name) state_[now->name + key.substr(key.rfind('.'))] = value;
    }
    view_.parameters = std::move(parameters);
    view_.buffers = std::move(buffers);
    forget_graphs();
  }

  void set_learning_rate(std::size_t part, double lr) {
    SHOAL_CHECK(part < learning_rates_.size(), InvalidInput, "trainer: there is no optimizer part ", part,
                ", there are ", learning_rates_.size());
    learning_rates_[part] = lr;
  }

  void set_optimizers(std::vector<OptimizerPart> optimizers) {
    SHOAL_CHECK(!optimizers.empty(), InvalidInput, "trainer: there is no optimizer");
    optimizers_ = std::move(optimizers);
    learning_rates_.resize(optimizers_.size());
    update_.reset();
    last_ = nullptr;
    for (auto& step : steps_kept_)
      if (!step.gradients.nodes.empty()) step.executor.reset();  // made anew when it is used next
  }

  void forget_graphs() {
    update_.reset();
    last_ = nullptr;
    steps_kept_.clear();
  }

  std::map<std::string, at::Tensor> gradients() const {
    return whole(last_ != nullptr ? gradients_in(*last_->executor) : accumulated_);
  }

 private:
  static constexpr const char* kCount = "loss_count";
  // In place of a micro-batch's number: backward() draws beside all of them.
  static constexpr std::size_t kOfBackward = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kOfEvaluation = kOfBackward / 2;  // and from there on

  void check_has_optimizer() const {
    SHOAL_CHECK(!optimizers_.empty(), InvalidInput,
                "trainer: there is no optimizer to step with. Remedy: give the Trainer one, or call "
                "backward(batch), which leaves gradients in the parameters, and update them yourself");
  }

  // --- Gradients, as a program leaves them and whole.

  static std::map<std::string, at::Tensor> gradients_in(const runtime::Executor& executor) {
    std::map<std::string, at::Tensor> gradients;
    for (const auto& result : executor.program().results)
      if (result.role == Role::Gradient) gradients.emplace(result.name, executor.at(result.slot));
    return gradients;
  }
  std::map<std::string, at::Tensor> whole(std::map<std::string, at::Tensor> gradients) const {
    if (ranks_)
      for (auto& [name, gradient] : gradients)
        gradient = ranks_->whole_of(gradient, ranks_->pins_of(name).gradient, shape_of(name));
    return gradients;
  }
  void keep_gradients() const {
    if (!options_.keeps_gradients) return;
    train::set_gradients(parameters_, gradients());
  }

  // --- What is here and what there is of it on all ranks.

  void check_in_main_memory() const {
    for (const auto* tensors : {&parameters_, &buffers_})
      for (const auto& [name, tensor] : *tensors)
        SHOAL_CHECK(!tensor.defined() || tensor.is_cpu(), Infeasible, "trainer: ", name, " is on ",
                    tensor.device(),
                    ", and ranks exchange tensors of main memory alone. Remedy: keep the model "
                    "on the CPU, or train it on one device, without parallelism");
  }

  train::SharedBatch agree(const Batch& batch, Use use) {
    if (!ranks_) return {batch, {}, false};
    ranks_->drop();
    std::string text = concat("for ", static_cast<int>(use), ' ', shared_structure());
    if (use == Use::Step || use == Use::Part) text += '\n' + settings();
    return ranks_->agree(batch, text, spot_checks_.is_time());
  }

  // What an update takes that stands in no graph.
  std::string settings() const {
    const double scale = factor(options_.schedule, steps_ + 1);
    std::ostringstream text;
    text << std::setprecision(17) << "seed " << options_.seed << ", learning rates";
    for (std::size_t part = 0; part < optimizers_.size(); ++part)
      std::visit(
          [&](const auto& optimizer) {
            text << ' ' << learning_rates_[part].value_or(optimizer.lr) * scale;
            for (const auto& group : optimizer.groups)
              if (group.lr) text << ' ' << *group.lr * scale;
          },
          optimizers_[part].optimizer);
    return std::move(text).str();
  }

  // Of what structure_of_model says, what all ranks have to have alike.
  std::string shared_structure() const {
    return view_.shared_mode ? view_.shared_mode() : structure_of_model();
  }

  // Text of what a graph depends on besides the batch.
  std::string structure_of_model() const {
    std::string text = view_.mode();
    if (options_.depends_on) text += ' ' + options_.depends_on();
    return text;
  }

  at::IntArrayRef shape_of(const std::string& parameter) const {
    return std::ranges::find(parameters_, parameter, &NamedTensor::name)->tensor.sizes();
  }
  // Where a parameter or buffer is kept on this rank.
  at::Tensor kept(const std::string& name, const at::Tensor& tensor) const {
    const at::Tensor part = ranks_ ? ranks_->part_of_parameter(name) : at::Tensor();
    return part.defined() ? part : tensor.detach();
  }
  at::Tensor whole_tensor(const std::string& name, const at::Tensor& tensor) const {
    const at::Tensor part = kept(name, tensor);
    if (part.sizes() == tensor.sizes()) return part;
    return ranks_->whole_of(part, ranks_->pins_of(name).kept, tensor.sizes());
  }
  at::Tensor whole_state(const std::string& name, const at::Tensor& part) const {
    const auto parameter = name.substr(0, name.rfind('.'));
    if (!ranks_ || part.dim() == 0) return part;  // a number is that of all ranks
    return ranks_->whole_of(part, ranks_->pins_of(parameter).updated, shape_of(parameter));
  }
  void write(const std::string& name, const at::Tensor& to, const at::Tensor& whole) const {
    const at::Tensor part = ranks_ ? ranks_->part_of_parameter(name) : at::Tensor();
    if (part.defined())
      part.copy_(ranks_->part_of(whole, ranks_->pins_of(name).kept));
    else
      to.copy_(whole);
  }
  // What is given may be the state's own memory.
  void zero_state_but(const std::map<std::string, at::Tensor>& given) {
    for (auto& [name, tensor] : state_)
      if (!given.contains(name)) tensor.zero_();
  }
  void write_state(const std::string& name, const at::Tensor& whole) {
    const auto type = type_of_state(name, aten::type_of(parameter_of_state(name)));
    if (!ranks_ || whole.dim() == 0) {
      state_of(name, type).copy_(whole);
      return;
    }
    const at::Tensor part = ranks_->part_of(whole, ranks_->pins_of(name.substr(0, name.rfind('.'))).updated);
    state_of(name, part.sizes() == at::IntArrayRef(type.shape) ? type : aten::type_of(part)).copy_(part);
  }

  // Micro-batches of a step draw other numbers; the first one those of a step by itself.
  at::Tensor seed_of(std::size_t microbatch) const {
    if (microbatch == 0) return seed_;
    return at::scalar_tensor(static_cast<std::int64_t>(data::mix(options_.seed ^ data::mix(microbatch))),
                             at::kLong);
  }

  std::map<std::string, at::Tensor> copies_of_buffers() const {
    std::map<std::string, at::Tensor> copies;
    for (const auto& [name, tensor] : buffers_)
      if (tensor.defined()) copies.emplace(name, tensor.detach().clone());
    return copies;
  }

  // The norm is 0 where it is not asked for. Each read of another device waits for it, so that both are one.
  static std::pair<double, double> loss_and_norm(const Step& step) {
    const at::Tensor loss = step.executor->result(Role::Loss, "loss");
    if (!step.has_grad_norm) return {loss.item<double>(), 0};
    const at::Tensor norm = step.executor->result(Role::Output, "grad_norm");
    if (loss.is_cpu()) return {loss.item<double>(), norm.item<double>()};
    const at::Tensor both = at::stack({loss.reshape({}).to(at::kDouble), norm.to(at::kDouble)}).cpu();
    return {both[0].item<double>(), both[1].item<double>()};
  }

  static double weight_of(const Step& part, std::size_t num_microbatches) {
    using Kind = train::Normaliser::Kind;
    switch (part.normaliser.kind) {
      case Kind::Value: return part.executor->result(Role::Output, kCount).item<double>();
      case Kind::Elements: return part.normaliser.elements;
      case Kind::Sum: return 1;
      case Kind::Equal: break;
    }
    return 1 / static_cast<double>(num_microbatches);
  }

  // Leaves loss and gradients of all micro-batches together in `result` and accumulated_.
  void accumulate(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                  const std::function<void()>& after, StepResult& result) {
    using Kind = train::Normaliser::Kind;
    double total = 0;
    std::optional<Kind> kind;
    for (std::size_t i = 0; i < count; ++i) {
      const Batch batch = microbatch(i);
      const train::SharedBatch shared = agree(batch, Use::Part);
      Step& part = checked(shared, Use::Part);
      check_can_write(part, batch, shared.part);
      SHOAL_CHECK(!kind || *kind == part.normaliser.kind, InvalidInput,
                  "trainer: the micro-batches of a step have losses of different kinds: ",
                  train::to_text(part.normaliser), " for number ", i, ", but not for those before");
      kind = part.normaliser.kind;
      bind(part, shared.part, result.step, i);
      part.executor->run(Segment::Gradients, options_.trace);
      const double weight = weight_of(part, count);
      if (weight != 0) {  // without a target that counts a mean is 0 ÷ 0, and all at once would not see it
        const double loss = part.executor->result(Role::Loss, "loss").item<double>();
        if (!std::isfinite(loss)) report_not_finite(part, {.loss = loss, .step = result.step});
        result.loss += weight * loss;
        add_gradients(part, weight);
      }
      total += weight;
      outputs_.clear();
      keep_outputs(part);
      part.executor->run(Segment::Update, options_.trace);  // of buffers alone
      keep_outputs(part);
      write_inputs(part, shared.part);
      part.executor->release();
      part.executor->release_inputs();
      if (after) after();
    }
    if (*kind != Kind::Value && *kind != Kind::Elements) return;
    SHOAL_CHECK(total != 0, InvalidInput, "trainer: no target of step ", result.step,
                " counts: all are ignored, and there is no mean of none. Nothing was updated");
    result.loss /= total;
    for (auto& [name, gradient] : accumulated_) gradient.div_(total);
  }

  void add_gradients(const Step& part, double weight) {
    const at::NoGradGuard no_grad;
    for (const auto& source : part.executor->program().results) {
      if (source.role != Role::Gradient) continue;
      const at::Tensor gradient = part.executor->result(source.role, source.name);
      auto& sum = accumulated_[source.name];
      if (sum.defined())
        sum.add_(gradient, weight);
      else
        sum = at::mul(gradient, weight);
    }
  }

  void reduce(Given& given) const {
    if (!ranks_) return;
    train::reduce(given, parameters_, ranks_->groups().world());
    for (const auto& [name, tensor] : buffers_)
      if (tensor.defined()) {
        at::Tensor detached = tensor.detach();
        runtime::broadcast(detached, 0, ranks_->groups().world());
      }
  }

  // The update for the parameters that have a gradient now, built anew when these, or how often they were
  // updated, are others than before.
  AccumulatedUpdate& accumulated_update() {
    std::vector<std::string> names;
    std::vector<std::pair<std::string, ir::TensorType>> parameters;
    for (const auto& [name, tensor] : parameters_)
      if (accumulated_.contains(name)) {
        names.push_back(name);
        parameters.emplace_back(name, aten::type_of(tensor));
      }
    if (update_ && update_->parameters == names && is_current(update_->groups)) return *update_;
    auto update = train::update_of_gradients(parameters, optimizers_, options_.clip_norm,
                                             [this](const std::string& name) { return updates_of(name); });
    ir::verify(update.graph);
    auto executor = executor_of(update.graph);
    bind_lasting(*executor, {});
    update_ = AccumulatedUpdate{std::move(names), std::move(update.groups), std::move(executor)};
    return *update_;
  }

  void bind_rates(runtime::Executor& executor, const std::vector<train::UpdateGroup>& groups, double scale) {
    for (const auto& group : groups) {
      const double lr = learning_rates_[group.part].value_or(group.lr) * scale;
      executor.bind(Role::Scalar, group.lr_source, at::scalar_tensor(lr, at::kDouble));
      if (!group.step_source.empty())
        executor.bind(Role::Scalar, group.step_source,
                      at::scalar_tensor(updates_of(group.parameters.front()) + 1, at::kLong));
    }
  }

  void update_accumulated(StepResult& result) {
    const double scale = factor(options_.schedule, result.step);
    result.learning_rate = learning_rate() * scale;
    AccumulatedUpdate& update = accumulated_update();
    runtime::Executor& executor = *update.executor;
    for (const auto& name : update.parameters)
      executor.bind(Role::Input, "gradient." + name, accumulated_.at(name));
    bind_rates(executor, update.groups, scale);
    executor.run(Segment::Gradients, options_.trace);
    if (program::find_result(executor.program(), Role::Output, "grad_norm") != nullptr)
      result.grad_norm = executor.result(Role::Output, "grad_norm").item<double>();
    if (!std::isfinite(result.grad_norm)) report_gradient_not_finite(result);
    executor.run(Segment::Update, options_.trace);
    executor.release();
    executor.release_inputs();
    for (const auto& group : update.groups)
      for (const auto& name : group.parameters) ++updates_[name];
  }

  [[noreturn]] void report_gradient_not_finite(const StepResult& result) const {
    std::string first = "?";
    for (const auto& [name, tensor] : parameters_) {
      const auto gradient = accumulated_.find(name);
      if (gradient == accumulated_.end() || at::isfinite(gradient->second).all().item<bool>()) continue;
      first = name;
      break;
    }
    fail(ErrorKind::InvalidInput, "trainer: the gradient norm of step ", result.step, " is ",
         result.grad_norm, ": the gradient of ", first,
         " is not finite. Nothing was updated. Remedy: a lower learning rate, or a look at this batch");
  }

  std::vector<train::Kept> kept_of(const std::string& parameter, const ir::TensorType& type) const {
    for (const auto& part : optimizers_)
      if (!part.contains || part.contains(parameter)) return train::kept_by(part.optimizer, type);
    return {};
  }
  // Of what another optimizer has left there: the parameter's.
  ir::TensorType type_of_state(const std::string& name, const ir::TensorType& parameter) const {
    for (auto& [suffix, type] : kept_of(name.substr(0, name.rfind('.')), parameter))
      if (name.ends_with("." + suffix)) return type;
    return parameter;
  }
  bool needs_whole(const std::string& parameter) const {
    for (const auto& part : optimizers_)
      if (!part.contains || part.contains(parameter)) return train::needs_whole(part.optimizer);
    return false;
  }

  std::int64_t updates_of(const std::string& parameter) const {
    const auto found = updates_.find(parameter);
    return found == updates_.end() ? 0 : found->second;
  }

  // Everything but tensor contents that a captured graph depends on.
  std::string key_of(const train::SharedBatch& batch, Use use) const {
    std::ostringstream key;
    key << static_cast<int>(use == Use::Backward ? Use::Step : use);
    for_each_leaf(batch.part, [&](const std::string& path, const Batch& leaf) {
      key << ' ' << path << ':';
      if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) {
        SHOAL_CHECK(tensor->defined(), InvalidInput, "trainer: batch item ", path, " is an undefined tensor");
        const auto all = batch.sizes.find(path);
        key << tensor->scalar_type()
            << (all == batch.sizes.end() ? tensor->sizes() : at::IntArrayRef(all->second))
            << tensor->device();
        if (!ranks_ && !tensor->is_contiguous()) key << tensor->strides();  // forward may look
      } else if (const auto* integer = std::get_if<std::int64_t>(&leaf.value())) {
        key << *integer;
      } else {
        key << std::hexfloat << leaf.number() << std::defaultfloat;
      }
    });
    key << ' ';
    key << structure_of_model() << ' ';
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
  bool is_current(const std::vector<train::UpdateGroup>& groups) const {
    return std::ranges::all_of(groups, [&](const train::UpdateGroup& group) {
      return group.step_source.empty() || std::ranges::all_of(group.parameters, [&](const std::string& name) {
               return updates_of(name) == updates_of(group.parameters.front());
             });
    });
  }

  // What the model has written into its batch, and into what stands beside it, happens.
  void write_inputs(const Step& step, const Batch& batch) const {
    if (step.written.empty()) return;
    const auto inputs = inputs_of(batch);
    const at::NoGradGuard no_grad;
    for (const auto& [input, slot] : step.written) {
      const auto& [name, tensor] = inputs[input];
      const at::Tensor& whole = step.executor->at(slot);
      tensor.detach().copy_(ranks_ ? ranks_->part_of_input(name, whole) : whole);
    }
  }
  // Nobody would see what is written into the copies that other ranks' samples are put together in.
  static void check_can_write(const Step& step, const Batch& given, const Batch& part) {
    if (step.written.empty()) return;
    const auto theirs = inputs_of(given), ours = inputs_of(part);
    for (const auto& [input, slot] : step.written)
      SHOAL_CHECK(theirs[input].tensor.is_same(ours[input].tensor), InvalidInput,
                  "trainer: the model writes to ", display_name(theirs[input].name),
                  ", and the ranks' parts of it are of other sizes than samples_of() says; give it such "
                  "parts, or write to "
                  "a clone() of it");
  }

  // Graphs are bound to the memory of parameters and buffers, and to how these lie in it: `.to(dtype)`, say,
  // leaves them other memory, and `w.data = w.data[:5]` the same memory in another shape.
  void forget_graphs_if_moved() {
    std::size_t next = 0;
    bool moved = false;
    for (const auto* tensors : {&parameters_, &buffers_})
      for (const auto& [name, tensor] : *tensors) {
        if (next == places_.size()) places_.emplace_back();
        moved = places_[next++].follow(tensor) || moved;
      }
    if (moved) forget_graphs();
  }

  Step& find(const train::SharedBatch& batch, Use use) { return used(found(batch, use), use); }
  Step& used(Step& step, Use use) {
    tag_ = step.tag;
    return use == Use::Backward ? *step.backward : step;
  }

  Step& found(const train::SharedBatch& batch, Use use) {
    forget_graphs_if_moved();
    auto key = key_of(batch, use);
    std::vector<at::Tensor> inputs;
    std::optional<Batch> whole;  // guards look at all samples, those of other ranks too
    const auto all = [&]() -> const Batch& {
      if (!whole) whole = ranks_ ? ranks_->whole(batch) : batch.part;
      return *whole;
    };
    const auto holds = [&](const capture::Guards& guards) {
      if (guards.list.empty()) return true;
      if (inputs.empty())
        for (auto& [name, tensor] : inputs_of(all())) inputs.push_back(tensor);
      return capture::hold(guards, inputs);
    };
    for (auto step = steps_kept_.begin(); step != steps_kept_.end(); ++step) {
      if (step->key != key || !holds(step->guards)) continue;
      prepare(*step, use);
      steps_kept_.splice(steps_kept_.begin(), steps_kept_, step);
      return steps_kept_.front();
    }
    Step step = captured(all(), use, std::move(key));
    prepare(step, use);
    steps_kept_.push_front(std::move(step));
    while (steps_kept_.size() > options_.max_graphs) forget(std::prev(steps_kept_.end()));
    return steps_kept_.front();
  }

  // Makes what this use runs, unless it is there and right.
  void prepare(Step& step, Use use) {
    if (use == Use::Backward) {
      if (step.backward) return;
      auto backward = std::make_unique<Step>(Step{.key = {},
                                                  .guards = {},
                                                  .gradients = {},
                                                  .constants = step.constants,
                                                  .graph = step.gradients,
                                                  .groups = {},
                                                  .executor = nullptr,
                                                  .names_of_inputs = step.names_of_inputs,
                                                  .tag = step.tag});
      make_executor(*backward);
      step.backward = std::move(backward);
      return;
    }
    if (step.executor && is_current(step.groups)) return;
    if (last_ == &step) last_ = nullptr;
    if (use == Use::Step) append_update(step);
    make_executor(step);
  }

  // What a run uses, after a spot check where one is due.
  Step& checked(const train::SharedBatch& batch, Use use) {
    Step& step = found(batch, use);
    const bool goes_on = use == Use::Part && step.last_step == steps_ + 1;  // another micro-batch of a step
    if (!goes_on) {
      const auto number = step.runs + 1;
      if (spot_checks_.is_due(number, ranks_ ? batch.asked : number > 8 && spot_checks_.is_time()))
        spot_check(step, batch, use);
      step.runs = number;
      step.last_step = steps_ + 1;
    }
    return used(step, use);
  }

  void spot_check(const Step& step, const train::SharedBatch& batch, Use use) {
    const observe::Span span(options_.trace, "spot check", 0, "trainer");
    const Batch whole = ranks_ ? ranks_->whole(batch) : batch.part;
    spot_checks_.run([&] {
      auto request = request_of(whole, use);
      for (auto& [name, tensor] : request.inputs) tensor = laid_as_recorded(step.recorded, name, tensor);
      const auto check = [&] { capture::check_again(request, step.recorded, step.constants); };
      if (ranks_)
        ranks_->together(check);
      else
        check();
    });
  }

  // A batch may lie otherwise than the first one did: the executor copies it then, as is done here.
  static at::Tensor laid_as_recorded(const ir::Graph& graph, const std::string& name,
                                     const at::Tensor& tensor) {
    if (capture::is_beside(name)) return tensor;
    for (const auto& source : graph.sources) {
      const auto& [type, role, producer] = graph.at(source.value);
      if (role != Role::Input || source.name != name || tensor.strides() == type.strides) continue;
      return at::empty_strided(type.shape, type.strides, tensor.options()).copy_(tensor.detach());
    }
    return tensor;
  }

  void forget(std::list<Step>::iterator step) {
    if (last_ == &*step) last_ = nullptr;
    steps_kept_.erase(step);
  }

  // Borrows the batch.
  capture::Request request_of(const Batch& batch, Use use) {
    return {
        .parameters = parameters_,
        .buffers = buffers_,
        .inputs = inputs_of(batch),
        .loss =
            [this, &batch](std::span<const at::Tensor> inputs) {
              std::size_t next = 0;
              return view_.loss(
                  map_tensors(batch, [&](const std::string&, const at::Tensor&) { return inputs[next++]; }));
            },
        .mode = mode_of(use),
        .outputs = view_.outputs ? [this] { return named(view_.outputs()); }
                                 : std::function<std::vector<NamedTensor>()>(),
        .writes_constant = view_.writes_constant,
        .source_line = view_.source_line,
        .reader = view_.reader,
    };
  }

  Step captured(const Batch& batch, Use use, std::string key) {
    if (use != Use::Evaluation) train::refuse_shared_memory(view_.parameters);
    const observe::Span span(options_.trace, "capture", 0, "trainer");
    const capture::Request request = request_of(batch, use);
    auto captured = capture::capture(request);
    std::vector<std::string> names_of_inputs;
    for (const auto& input : request.inputs) names_of_inputs.push_back(input.name);
    Step step{.key = std::move(key),
              .guards = std::move(captured.guards),
              .recorded = {},
              .gradients = {},
              .constants = std::move(captured.constants),
              .graph = {},
              .groups = {},
              .executor = nullptr,
              .names_of_inputs = std::move(names_of_inputs)};
    if (view_.tag) step.tag = view_.tag();
    if (options_.spot_check_share >= 0) step.recorded = captured.graph;
    step.graph = rewrite::cleanup(std::move(captured.graph));
    if (use == Use::Part) {
      step.normaliser = train::normaliser_of(step.graph);
      if (step.normaliser.count) step.graph.add_result(Role::Output, kCount, *step.normaliser.count);
    }
    if (use == Use::Step || use == Use::Backward) step.gradients = std::move(step.graph);
    return step;
  }

  void append_update(Step& step) const {
    auto update = train::append_update(step.gradients, optimizers_, options_.clip_norm,
                                       [this](const std::string& name) { return updates_of(name); });
    step.graph = std::move(update.graph);
    step.groups = std::move(update.groups);
  }

  std::unique_ptr<runtime::Executor> executor_of(const ir::Graph& graph) {
    if (!ranks_) {
      auto executor = std::make_unique<runtime::Executor>(program::lower(graph));
      if constexpr (SHOAL_CHECKS_TYPES) executor->check_types();
      return executor;
    }
    const ir::Graph local = ranks_->localize(graph);
    ir::verify(local);
    return std::make_unique<runtime::Executor>(program::lower(local), &ranks_->groups());
  }

  void make_executor(Step& step) {
    ir::verify(step.graph);
    step.executor = executor_of(step.graph);
    if (ranks_) step.placed = ranks_->placed();
    bind_lasting(*step.executor, step.constants);
    find_inputs(step);
    step.is_random = program::find_source(step.executor->program(), Role::Scalar, "seed") != nullptr;
    step.has_grad_norm = program::find_result(step.executor->program(), Role::Output, "grad_norm") != nullptr;
  }

  void find_inputs(Step& step) const {
    const auto& program = step.executor->program();
    step.inputs.clear();
    step.written.clear();
    for (const auto& name : step.names_of_inputs) {
      const auto* source = program::find_source(program, Role::Input, name);
      const auto* result = program::find_result(program, Role::Output, capture::written_name(name));
      if (result != nullptr) step.written.emplace_back(step.inputs.size(), result->slot);
      step.inputs.push_back(source == nullptr ? std::nullopt : std::optional(source->slot));
    }
  }

  double learning_rate() const {
    return learning_rates_[0].value_or(
        std::visit([](const auto& optimizer) { return optimizer.lr; }, optimizers_[0].optimizer));
  }

  // Those that are there; old values of what the update changes are only copied in its segment. An output
  // that is a source's own memory is copied: the update, or the caller, will change that.
  void keep_outputs(const Step& step) {
    if (!view_.outputs) return;
    const auto& program = step.executor->program();
    for (const auto& result : program.results) {
      if (result.role != Role::Output || result.name == "grad_norm" || outputs_.contains(result.name))
        continue;
      at::Tensor tensor = step.executor->at(result.slot);
      if (!tensor.defined()) continue;
      const bool shared = std::ranges::any_of(program.sources, [&](const program::Source& source) {
        const auto& bound = step.executor->at(source.slot);
        return bound.defined() && aten::share_storage(bound, tensor);
      });
      outputs_.emplace(result.name, shared ? tensor.clone() : std::move(tensor));
    }
  }

  // Parameters, buffers, optimizer state and constants stay bound.
  void bind_lasting(runtime::Executor& executor, const std::vector<at::Tensor>& constants) {
    std::map<std::string, at::Tensor> by_name;
    for (const auto& [name, tensor] : parameters_) by_name.emplace(name, kept(name, tensor));
    for (const auto& [name, tensor] : buffers_) by_name.emplace(name, tensor.detach());
    for (const auto& source : executor.program().sources) {
      switch (source.role) {
        case Role::Parameter:
        case Role::Buffer: executor.bind(source.slot, by_name.at(source.name)); break;
        case Role::Constant:
          executor.bind(source.slot, constants.at(std::stoul(source.name.substr(1))));
          break;
        default: break;
      }
    }
    bind_state(executor);
  }

  void bind_state(runtime::Executor& executor) {
    const auto& program = executor.program();
    for (const auto& source : program.sources)
      if (source.role == Role::OptimizerState)
        executor.bind(source.slot, state_of(source.name, program.types.at(source.slot.index)));
  }

  const at::Tensor& parameter_of_state(const std::string& name) const {
    const auto parameter = name.substr(0, name.rfind('.'));
    const auto found = std::ranges::find(parameters_, parameter, &NamedTensor::name);
    SHOAL_CHECK(found != parameters_.end(), InvalidInput, "trainer: optimizer state ", name,
                " is of no parameter of this model");
    return found->tensor;
  }

  at::Tensor state_of(const std::string& name, const ir::TensorType& type) {
    auto& tensor = state_[name];
    if (!tensor.defined())
      tensor = at::empty_strided(type.shape, type.strides,
                                 parameter_of_state(name).options().dtype(aten::to_torch(type.dtype)))
                   .zero_();
    SHOAL_CHECK(tensor.sizes() == at::IntArrayRef(type.shape), InvalidInput,
                "trainer: ", name.substr(0, name.rfind('.')),
                " has another shape than when it was updated last: its ", name.substr(name.rfind('.') + 1),
                " has ", tensor.sizes(), " and it has ", at::IntArrayRef(type.shape),
                ". Remedy: a new Trainer for the changed model");
    return tensor;
  }

  void bind(Step& step, const Batch& batch, std::int64_t number, std::size_t microbatch = 0) {
    std::size_t input = 0;
    for_each_leaf(batch, [&](const std::string&, const Batch& leaf) {
      const auto* tensor = std::get_if<at::Tensor>(&leaf.value());
      if (tensor == nullptr) return;
      if (const auto slot = step.inputs.at(input++)) step.executor->bind(*slot, tensor->detach());
    });
    if (!step.is_random) return;
    step.executor->bind(Role::Scalar, "seed", seed_of(microbatch));
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

  int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<torch::nn::Module> module_;  // null for a model of another language
  ModelView view_;
  std::vector<OptimizerPart> optimizers_;
  std::vector<std::optional<double>> learning_rates_;  // by part, as they were set from outside
  TrainerOptions options_;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  at::Tensor seed_;
  train::SpotChecks spot_checks_;
  std::unique_ptr<train::Distribution> ranks_;     // null: one device
  std::map<std::string, at::Tensor> state_;        // optimizer state by name
  std::map<std::string, std::int64_t> updates_;    // by parameter
  std::vector<Place> places_;                      // of parameters and buffers, as graphs are bound to them
  std::map<std::string, at::Tensor> outputs_;      // of the last step or evaluation
  std::string tag_;                                // of the graph found last
  std::map<std::string, at::Tensor> accumulated_;  // gradients of the last step over micro-batches
  std::optional<AccumulatedUpdate> update_;        // of these
  std::list<Step> steps_kept_;                     // most recently used first
  Step* last_ = nullptr;                           // of the last update; in steps_kept_, or null
  std::int64_t steps_ = 0;
  std::int64_t evaluated_after_ = -1;  // so many steps and backwards, when `evaluations_` last went up
  std::size_t evaluations_ = 0;        // since then: each draws other numbers
  std::int64_t backwards_ = 0;
};

Trainer::Trainer(std::shared_ptr<torch::nn::Module> module, LossFunction loss, Optimizer optimizer,
                 TrainerOptions options)
    : state_(std::make_unique<State>(module, view_of(module, std::move(loss)),
                                     std::vector<OptimizerPart>{{{}, std::move(optimizer)}},
                                     std::move(options))) {}
Trainer::Trainer(std::shared_ptr<torch::nn::Module> module, LossFunction loss, TrainerOptions options)
    : state_(std::make_unique<State>(module, view_of(module, std::move(loss)), std::vector<OptimizerPart>{},
                                     std::move(options))) {}
Trainer::Trainer(ModelView model, std::vector<OptimizerPart> optimizers, TrainerOptions options)
    : state_(std::make_unique<State>(nullptr, std::move(model), std::move(optimizers), std::move(options))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

StepResult Trainer::step(const Batch& batch) { return state_->step(batch); }
StepResult Trainer::step_over(std::span<const Batch> microbatches) {
  return state_->step_over(microbatches.size(), [&](std::size_t i) { return microbatches[i]; }, {});
}
StepResult Trainer::step_over(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                              const std::function<void()>& after) {
  return state_->step_over(count, microbatch, after);
}
StepResult Trainer::step_with(Given given) { return state_->step_with(std::move(given)); }
double Trainer::backward_with(Given given) { return state_->backward_with(std::move(given)); }
double Trainer::loss_of(const Given& given) const { return state_->loss_of(given); }
std::string Trainer::weighing(const Batch& microbatch) { return state_->weighing(microbatch); }
double Trainer::backward(const Batch& batch) { return state_->backward(batch); }
double Trainer::evaluate(const Batch& batch) { return state_->evaluate(batch); }
const ir::Graph& Trainer::graph(const Batch& batch) { return state_->graph(batch); }
std::map<std::string, at::Tensor> Trainer::optimizer_state() const { return state_->optimizer_state(); }
Progress Trainer::progress() const { return state_->progress(); }
void Trainer::set_seed(std::uint64_t seed) { state_->set_seed(seed); }
void Trainer::set_progress(const Progress& progress) { state_->set_progress(progress); }
const std::map<std::string, std::int64_t>& Trainer::updates() const { return state_->updates(); }
void Trainer::restore(const std::map<std::string, at::Tensor>& optimizer_state, const Progress& progress) {
  state_->restore(optimizer_state, progress);
}
const std::map<std::string, at::Tensor>& Trainer::outputs() const { return state_->outputs(); }
const std::string& Trainer::tag() const { return state_->tag(); }
void Trainer::set_tensors(ModelView::NamedTensors parameters, ModelView::NamedTensors buffers) {
  state_->set_tensors(std::move(parameters), std::move(buffers));
}
void Trainer::set_learning_rate(std::size_t part, double lr) { state_->set_learning_rate(part, lr); }
void Trainer::set_optimizers(std::vector<OptimizerPart> optimizers) {
  state_->set_optimizers(std::move(optimizers));
}
void Trainer::forget_graphs() { state_->forget_graphs(); }
void Trainer::materialize() { state_->materialize(); }
const program::Program& Trainer::program(const Batch& batch) { return state_->program(batch); }
const rewrite::Placed& Trainer::placed(const Batch& batch) { return state_->placed(batch); }
TrainingState Trainer::state() const { return state_->state(); }
void Trainer::restore(const TrainingState& state) { state_->restore(state); }
std::map<std::string, at::Tensor> Trainer::gradients() const { return state_->gradients(); }

}  // namespace shoal
