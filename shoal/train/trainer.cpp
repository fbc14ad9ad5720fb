// SPDX-License-Identifier: Apache-2.0
// What a call of the trainer does, from its rooms: the captured steps, what they run, the model's tensors and
// the optimizer's state.
#include "shoal/train/trainer.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <unistd.h>

#include <cmath>
#include <exception>
#include <limits>
#include <optional>
#include <sstream>
#include <tuple>

#include "shoal/aten/memory.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/deferred.h"
#include "shoal/compile/accumulate.h"
#include "shoal/compile/compile.h"
#include "shoal/compile/pins.h"
#include "shoal/data/hash.h"
#include "shoal/elastic/place.h"
#include "shoal/ir/text.h"
#include "shoal/program/runs.h"
#include "shoal/rewrite/placed_text.h"
#include "shoal/rewrite/report.h"
#include "shoal/rewrite/tables.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/train/agreement.h"
#include "shoal/train/capture_cost.h"
#include "shoal/train/captured_steps.h"
#include "shoal/train/changes.h"
#include "shoal/train/checkpoints.h"
#include "shoal/train/distribution.h"
#include "shoal/train/given.h"
#include "shoal/train/gradient_sums.h"
#include "shoal/train/gradients.h"
#include "shoal/train/half_products.h"
#include "shoal/train/loss_scale.h"
#include "shoal/train/memory.h"
#include "shoal/train/model_tables.h"
#include "shoal/train/model_tensors.h"
#include "shoal/train/module_view.h"
#include "shoal/train/one_call.h"
#include "shoal/train/optimizer_state.h"
#include "shoal/train/pipeline.h"
#include "shoal/train/runnable.h"

namespace shoal {

using compile::Normaliser;
using compile::Then;
using ir::Role;
using train::CapturedStep;
using train::Runnable;
using train::Use;
using Tensors = std::map<std::string, at::Tensor>;

namespace {

// Clipping and update of gradients that were summed up or given.
struct LaterUpdate {
  std::vector<std::string> parameters;  // those that have a gradient
  Then then;
  std::unique_ptr<Runnable> runnable;
  bool pushes = false;  // rows of tables
};

}  // namespace

static Then then_of(Use use) {
  return use == Use::Step ? Then::Update : use == Use::Microbatch ? Then::Accumulate : Then::HandOut;
}

static ModelView with_buffers_of(ModelView view,
                                 const std::vector<std::shared_ptr<torch::nn::Module>>& beside) {
  for (std::size_t i = 0; i < beside.size(); ++i) {
    SHOAL_CHECK(beside[i] != nullptr, InvalidInput, "trainer: module ", i,
                " of TrainerOptions::beside is null");
    for (const auto& buffer : beside[i]->named_buffers()) {
      const auto is_it = [&](const auto& known) { return known.second.is_same(buffer.value()); };
      if (std::ranges::none_of(view.buffers, is_it))
        view.buffers.emplace_back(concat("beside.", i, '.', buffer.key()), buffer.value());
    }
  }
  return view;
}

static train::Offloading offloading_of(const std::optional<Parallelism>& parallelism) {
  if (!parallelism) return {};
  compile::check(parallelism->plan.offload);
  return {parallelism->plan.offload, parallelism->offload_folder};
}

class Trainer::State {
 public:
  State(ModelView view, std::vector<OptimizerPart> optimizers, TrainerOptions options)
      : module_(view.module),
        view_(with_buffers_of(std::move(view), options.beside)),
        options_(std::move(options)),
        model_(view_),
        offloading_(offloading_of(options_.parallelism)),
        optimizer_(std::move(optimizers), model_, offloading_),
        steps_captured_(view_, model_,
                        {.spot_check_share = options_.spot_check_share,
                         .graph_bytes = options_.graph_bytes,
                         .depends_on = options_.depends_on,
                         .trace = options_.trace,
                         .forgets = [this](const Runnable& runnable) { forget(runnable); }}) {
    SHOAL_CHECK(options_.graph_bytes >= 0, InvalidInput, "trainer: graph_bytes is ", options_.graph_bytes,
                "; it is how many bytes captured graphs may take, at least 0: the last one alone is kept");
    SHOAL_CHECK(!optimizer_.parts().empty() || options_.clip_norm == 0, InvalidInput,
                "trainer: clip_norm is ", options_.clip_norm,
                ", and without an optimizer there is no step that clips; clip what backward() leaves in the "
                "parameters (clip_grad_norm_)");
    if (const auto precision = plan().precision; precision.compute == DType::Float16) {
      compile::check(precision);
      loss_scale_.emplace(precision);
    }
    train::refuse_shared_memory(view_.parameters);
    place_in_tables();
    if (plan().offload.has_any()) check_can_offload();
    set_seed(options_.seed);
    optimizer_.set_master(plan().precision.master);
    const auto& parallelism = options_.parallelism;
    SHOAL_CHECK(!parallelism || parallelism->world != nullptr || parallelism->mesh.size() == 1, InvalidInput,
                "trainer: the mesh '", to_text(parallelism->mesh),
                "' is of several ranks, and they have no communicator (parallelism.world)");
    if (!parallelism) warn_of_ranks();
    if (!parallelism || parallelism->world == nullptr) {
      for (const auto* tensors : {&view_.parameters, &view_.buffers})
        for (const auto& [name, tensor] : *tensors) shoal::materialize(tensor, name);
      for (const auto& [name, tensor] : view_.parameters) offloading_.take_in(Role::Parameter, tensor);
      return;
    }
    if (parallelism->tensors == nullptr) check_in_main_memory();
    ranks_ = std::make_unique<train::Distribution>(
        *parallelism, view_.parameters, view_.buffers,
        [this](const std::string& parameter, const sharding::Shape& shape) {
          return compile::uncut_by(optimizer_.parts(), parameter, shape);
        },
        offloading_);
    model_.set_ranks(ranks_.get());
    optimizer_.set_ranks(ranks_.get());
    steps_captured_.set_ranks(ranks_.get());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  // Gives the parameters back to a module that outlives its trainer, unless an error ends the scope: the
  // other ranks may never come here.
  ~State() {
    if (std::uncaught_exceptions() <= exceptions_) finish_saving_rows();
    view_ = {};  // its functions hold the module
    const bool is_alone = module_ == nullptr || module_.use_count() == 1;
    if ((!ranks_ && !tables_) || is_alone) return;
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      materialize();
    } catch (const std::exception&) {  // they stay without memory, and reading them says so
    }
  }

  template <class Act>
  decltype(auto) alone(const char* name, const Act& act) {
    if (tables_) tables_->go_on_saving();
    const Noting noting{*this};
    return calls_.run(name, act);
  }
  // After a call in which ranks have agreed on what they have.
  struct Noting {
    State& state;
    ~Noting() {
      if (!std::exchange(state.has_agreed_, false)) return;
      state.changes_.note(state.model_.buffers());
      state.changes_.note(state.model_.parameters());
    }
  };

  StepResult step(const Batch& batch) {
    check_has_optimizer();
    if (is_staged()) return step_through_stages(batch);
    const observe::Span span(options_.trace, "step", 0, "trainer");
    const auto number = steps_ + 1;
    let_go_of_last();  // the next run would, but a spot check comes before it
    const auto [runnable, shared] = ready(batch, Use::Step, number, 0);
    outputs_.clear();
    const double scale = factor(options_.schedule, number);
    optimizer_.bind_rates(runnable->executor(), runnable->whole().groups, scale);
    runnable->bind_rows(number, scale);
    runnable->executor().run_gradients(options_.trace);
    const auto [loss, grad_norm] = runnable->loss_and_norm();
    StepResult result{.loss = loss,
                      .grad_norm = grad_norm,
                      .learning_rate = optimizer_.rate() * scale,
                      .step = number,
                      .loss_scale = scale_now()};
    if (!std::isfinite(loss) || !std::isfinite(grad_norm)) {
      if (!may_skip()) report_not_finite(*runnable, result);
      keep_outputs(*runnable);
      runnable->release();
      return skipped(result);
    }
    commit(*runnable, shared);
    runnable->executor().release_inputs();
    optimizer_.count(runnable->whole().groups);
    ++steps_;
    last_ = runnable;
    ran_.assign(1, runnable);
    sums_.clear();
    keep_gradients();
    if (loss_scale_) loss_scale_->count_update();
    return result;
  }

  double backward(const Batch& batch) {
    check_has_no_tables("backward()");
    const observe::Span span(options_.trace, "backward", 0, "trainer");
    const auto [runnable, shared] = ready(batch, Use::Backward, backwards_ + 1, kOfBackward);
    run_in_range(*runnable);
    const double loss = runnable->loss();
    commit(*runnable, shared);
    auto gradients = as_parameters(whole(runnable->gradients(), &rewrite::ParameterPins::gradient));
    runnable->release();
    train::add_gradients(model_.parameters(), std::move(gradients));
    ++backwards_;
    materialize();  // whoever makes use of the gradients needs the parameters
    return loss;
  }

  StepResult step_with(Given given) {
    check_has_no_tables("step_with()");
    check_has_optimizer();
    reduce(given);
    StepResult result{.loss = given.loss, .grad_norm = 0, .learning_rate = 0, .step = steps_ + 1};
    SHOAL_CHECK(std::isfinite(given.loss), InvalidInput, "trainer: the loss of step ", result.step, " is ",
                given.loss, ". Nothing was updated. Remedy: a lower learning rate, or a look at this batch");
    last_ = nullptr;
    ran_.clear();
    if (ranks_)
      for (auto& [name, gradient] : given.gradients) gradient = ranks_->summand_of(name, gradient);
    if (const auto master = plan().precision.master; master != rewrite::Master::Float32)
      for (auto& [name, gradient] : given.gradients)
        if (rewrite::is_narrow(aten::from_torch(gradient.scalar_type()), master))
          gradient = gradient.to(at::kFloat);
    sums_.set(std::move(given.gradients));
    update_later(Then::UpdateGiven, result);
    ++steps_;
    keep_gradients();
    return result;
  }
  double backward_with(Given given) {
    check_has_no_tables("backward_with()");
    reduce(given);
    train::add_gradients(model_.parameters(), std::move(given.gradients));
    ++backwards_;
    return given.loss;
  }
  double loss_of(Given given) const {
    if (ranks_) train::reduce(given, {}, ranks_->rank());
    return given.loss;
  }

  StepResult step_over(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                       const std::function<void()>& after) {
    check_has_optimizer();
    SHOAL_CHECK(count > 0, InvalidInput, "trainer: a step over no micro-batch");
    const observe::Span span(options_.trace, "step", 0, "trainer");
    const Tensors buffers_before = model_.copies_of_buffers();
    const auto undo = [&] {
      const at::NoGradGuard no_grad;
      for (const auto& [name, tensor] : model_.buffers())
        if (tensor.defined()) tensor.detach().copy_(buffers_before.at(name));
      sums_.clear();
    };
    StepResult result{
        .loss = 0, .grad_norm = 0, .learning_rate = 0, .step = steps_ + 1, .loss_scale = scale_now()};
    sums_.clear();
    last_ = nullptr;
    ran_.clear();
    bool fits = false;
    try {
      fits = is_staged() ? accumulate_through_stages(count, microbatch, after, result)
                         : accumulate(count, microbatch, after, result);
      fits = fits && update_later(Then::UpdateSums, result);
      for (const Runnable* each : ran_) each->executor().finish_sends();
    } catch (...) {
      undo();
      throw;
    }
    if (!fits) {
      undo();
      return skipped(result);
    }
    ++steps_;
    keep_gradients();
    if (loss_scale_) loss_scale_->count_update();
    return result;
  }

  std::string weighing(const Batch& batch) {
    std::string text = compile::to_text(found(batch, Use::Microbatch)->whole().normaliser);
    if (!ranks_) return text;
    const auto& [mesh, world, tensors, plan, plan_name, folder, limit] = ranks_->parallelism();
    return text + (compile::reduces_each(plan, mesh) ? "; the gradients of each are reduced"
                                                     : "; their gradients are reduced together");
  }

  double evaluate(const Batch& batch) {
    const train::EvaluationMode mode(module_);
    if (tables_) tables_->settle();
    const auto trainings = steps_ + backwards_;
    if (std::exchange(evaluated_after_, trainings) != trainings) evaluations_ = 0;
    const auto [runnable, shared] =
        ready(batch, Use::Evaluation, trainings + 1, kOfEvaluation + evaluations_++);
    outputs_.clear();
    runnable->executor().run_gradients(options_.trace);
    const double loss = runnable->loss();
    keep_outputs(*runnable);
    runnable->write_inputs(shared.part, ranks_.get());
    runnable->executor().finish_sends();
    runnable->release();
    return loss;
  }

  ir::Graph graph(const Batch& batch) {
    const auto then = is_staged() ? Then::Accumulate : Then::Update;
    found_step(batch);  // refuses what cannot be
    return compile::compile_whole(steps_captured_.all().front().graph, current_plan(), mesh(),
                                  settings_for_ranks(then))
        .graph;
  }
  const program::Program& program(const Batch& batch) { return found_step(batch)->program(); }
  std::vector<const program::Program*> ran() const {
    std::vector<const program::Program*> programs;
    for (const Runnable* runnable : ran_) programs.push_back(&runnable->program());
    return programs;
  }
  const rewrite::Placed& placed(const Batch& batch) {
    SHOAL_CHECK(ranks_ != nullptr, InvalidInput,
                "trainer: one device places nothing; set options.parallelism");
    return found_step(batch)->whole().placed;
  }

  Tensors optimizer_state() const { return optimizer_.whole(); }

  void materialize() {
    if (ranks_) ranks_->materialize();
    if (tables_) tables_->materialize();
  }
  train::ModelTables& tables(const std::string& parameter) {
    SHOAL_CHECK(tables_ && tables_->has(parameter), InvalidInput, "trainer: ", parameter,
                " is no parameter whose rows are in a table (TrainerOptions::tables)");
    return *tables_;
  }

  void expect(const Batch& batch) {
    if (!tables_ || ran_.empty()) return;
    std::map<std::string, const at::Tensor*> inputs;
    for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
      if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) inputs.emplace(path, tensor);
    });
    runtime::expect_rows(ran_.front()->program(), *tables_->rows(), [&](const std::string& name) {
      const auto found = inputs.find(name);
      return found == inputs.end() ? nullptr : found->second;
    });
  }
  std::optional<std::uint64_t> stalest_row() const {
    return tables_ ? tables_->worker().stalest() : std::nullopt;
  }

  void release() {
    let_go_of_last();
    sums_.clear();
    outputs_.clear();
    for (CapturedStep& step : steps_captured_.all())
      for (auto& [use, runnable] : step.runnables) runnable->release();
  }

  void end() {
    forget_graphs();
    release();
    sums_.clear();
    optimizer_.clear();
    if (ranks_) ranks_->end();
    if (tables_) tables_->materialize();
    has_ended_ = true;
  }

  TrainingState state() const {
    if (ranks_) ranks_->follow();
    TrainingState state{.step = steps_,
                        .backwards = backwards_,
                        .updates = optimizer_.updates(),
                        .loss_scale = scale_state(),
                        .model = {},
                        .optimizer = optimizer_.whole_of_updated()};
    for (const auto* tensors : {&model_.parameters(), &model_.buffers()})
      for (const auto& [name, tensor] : *tensors)
        if (tensor.defined()) state.model.emplace(name, model_.whole(name, tensor));
    return state;
  }

  void restore(const TrainingState& from) {
    SHOAL_CHECK(!tables_ || tables_->loaded_step() == from.step, InvalidInput,
                "trainer: restore() has no rows of parameters that are in tables, as ",
                tables_ ? tables_->parameters().front().name : "", " is. Remedy: load_rows() of step ",
                from.step, " before it");
    using checkpoint::Types;
    const auto here = state();
    std::vector<checkpoint::TensorShape> wanted;
    for (const auto& [name, count] : from.updates) {
      const auto parameter = here.model.find(name);
      if (parameter == here.model.end() || count == 0) continue;
      for (const auto& [suffix, type] : optimizer_.kept_of(name, aten::type_of(parameter->second)))
        wanted.push_back({concat(name, '.', suffix), type.dtype, type.shape});
    }
    checkpoint::check_fits(train::shapes_of(here.model), train::shapes_of(from.model), Types::MustBeEqual,
                           "the checkpoint");
    train::check_state_fits(wanted, train::shapes_of(from.optimizer));
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : from.model) model_.write(name, here.model.at(name), tensor);
    optimizer_.write(from.optimizer);
    set_progress({from.step, from.backwards, from.updates, from.loss_scale});
    last_ = nullptr;
  }

  void save(const std::filesystem::path& folder, const std::string& note, std::int64_t keep) {
    if (tables_) wait_for_saves();  // or rows of one that is being written would seem to be of none
    checkpoints().save(folder, state(), note, keep, begin_saving_rows(folder));
  }
  std::map<std::string, ps::Shrunk> end_day(std::uint32_t day) {
    return tables_ ? tables_->end_day(day) : std::map<std::string, ps::Shrunk>();
  }
  std::future<std::string> begin_saving_rows(const std::filesystem::path& folder) {
    return tables_ ? tables_->begin_save(folder, steps_ + backwards_) : std::future<std::string>();
  }
  void finish_saving_rows() {
    if (tables_) tables_->finish_save();
  }
  void load_rows(const std::filesystem::path& folder, std::int64_t step) {
    if (tables_) tables_->load(folder, step);
  }
  void wait_for_saves() {
    finish_saving_rows();
    checkpoints().wait();
  }

  std::string plan_text() const { return ranks_ ? compile::to_text(ranks_->parallelism().plan) : ""; }
  std::string report() const {
    const Runnable* made = nullptr;
    for (const CapturedStep& step : steps_captured_.all())
      for (const auto& [use, runnable] : step.runnables)
        if (made == nullptr && runnable && use != Use::Evaluation) made = runnable.get();
    SHOAL_CHECK(
        ranks_ && made != nullptr, InvalidInput, "report: ",
        ranks_ ? "no step has run yet. Remedy: ask for it after the first one"
               : "one device sends nothing and keeps everything. Remedy: a Parallelism of several ranks");
    const auto& [plan, mesh] = std::tie(made->whole().plan, made->whole().mesh);
    const int rank = ranks_->rank().number;
    const auto local = compile::compile_local(made->whole(), rank).local;
    return rewrite::to_text(mesh, rewrite::report_of(made->whole().placed, local, rank, plan.pipeline_axis));
  }
  std::optional<std::string> load(const std::filesystem::path& folder, const LoadOptions& options) {
    finish_saving_rows();  // a checkpoint that is being written waits for them
    auto found = checkpoints().load(folder, options.step);
    if (!found) return std::nullopt;
    if (options.check) options.check(found->note);
    load_rows(folder, found->state.step + found->state.backwards);
    restore(found->state);
    return std::move(found->note);
  }
  train::Checkpoints& checkpoints() {
    if (!checkpoints_) checkpoints_.emplace(ranks_ ? &ranks_->rank().control : nullptr);
    return *checkpoints_;
  }

  const Tensors& outputs() const { return outputs_; }

  Progress progress() const { return {steps_, backwards_, optimizer_.updates(), scale_state()}; }

  void restore(const Tensors& optimizer_state, const Progress& progress) {
    optimizer_.check(optimizer_state);
    follow_memory();
    const at::NoGradGuard no_grad;
    optimizer_.replace(optimizer_state);
    for (auto& step : steps_captured_.all())
      for (auto& [use, runnable] : step.runnables) optimizer_.bind(runnable->executor());
    if (later_) optimizer_.bind(later_->runnable->executor());
    set_progress(progress);
  }

  void set_progress(const Progress& progress) {
    optimizer_.set_updates(progress.updates);
    evaluated_after_ = -1;
    steps_ = progress.steps;
    backwards_ = progress.backwards;
    if (loss_scale_ && progress.loss_scale) loss_scale_->set(*progress.loss_scale);
  }
  void set_seed(std::uint64_t seed) {
    options_.seed = seed;
    seed_ = at::scalar_tensor(static_cast<std::int64_t>(seed), at::kLong);
    optimizer_.set_seed(seed_);
  }
  const std::map<std::string, std::int64_t>& updates() const { return optimizer_.updates(); }

  const std::string& tag() const { return tag_; }

  void set_tensors(ModelView::NamedTensors parameters, ModelView::NamedTensors buffers) {
    if (tables_) parameters = tables_->without(std::move(parameters));
    if (model_.are(parameters, buffers)) return;
    SHOAL_CHECK(
        !ranks_, InvalidInput,
        "trainer: parameters or buffers of the model were replaced, added or removed, which on several ranks "
        "needs a new Trainer on all of them");
    const auto before = model_.parameters();
    view_.parameters = std::move(parameters);
    view_.buffers = std::move(buffers);
    model_.set(view_);
    optimizer_.follow(before);
    forget_graphs();
  }

  void set_learning_rate(std::size_t part, double lr) {
    optimizer_.set_rate(part, lr);
    if (tables_) tables_->set_learning_rate(part, lr);
  }

  void set_optimizers(std::vector<OptimizerPart> optimizers) {
    if (tables_) tables_->follow(optimizers);
    optimizer_.set_parts(std::move(optimizers));
    forget_later();
    steps_captured_.forget_runnables();
  }

  void forget_graphs() {
    forget_later();
    steps_captured_.forget();
  }

  Tensors gradients() const {
    if (last_ != nullptr) return as_parameters(whole(last_->gradients(), &rewrite::ParameterPins::gradient));
    return as_parameters(whole(sums_.tensors(), &rewrite::ParameterPins::updated));
  }

 private:
  // In place of a micro-batch's number: backward() draws beside all of them.
  static constexpr std::size_t kOfBackward = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kOfEvaluation = kOfBackward / 2;  // and from there on

  void check_has_optimizer() const {
    SHOAL_CHECK(!optimizer_.parts().empty(), InvalidInput,
                "trainer: there is no optimizer to step with. Remedy: give the Trainer one, or call "
                "backward(batch), which leaves gradients in the parameters, and update them yourself");
  }
  // Parameters that the options name, and the plan's lines: they leave the others.
  void place_in_tables() {
    auto& parallelism = options_.parallelism;
    const auto of_plan = parallelism ? parallelism->plan.tables : std::vector<rewrite::TableSpec>();
    if (options_.tables.placements.empty() && of_plan.empty()) return;
    SHOAL_CHECK(
        options_.clip_norm == 0, InvalidInput, "trainer: clip_norm is ", options_.clip_norm,
        ", and the norm of all gradients would lack those of rows in tables, which are summed up where "
        "the rows are. Remedy: clip_norm 0");
    const bool has_ranks = parallelism && parallelism->world != nullptr;
    const elastic::Environment environment = elastic::environment_of(environ);
    const elastic::Place place = elastic::place_of(environment);
    SHOAL_CHECK(
        has_ranks || place.size == 1 || elastic::servers_in(environment) == 0, InvalidInput,
        "tables: this job has ", place.size,
        " ranks, whose rows are on the same servers, and a Trainer without parallelism would train them "
        "alone. Remedy: Parallelism (World::parallelism() in C++, parallelism=shoal.Parallelism())");
    if (has_ranks) control_ = {parallelism->world, parallelism->limit};
    tables_.emplace(options_.tables, of_plan, view_.parameters, optimizer_.parts(),
                    has_ranks ? &control_ : nullptr);
    view_.parameters = tables_->without(std::move(view_.parameters));
    model_.set(view_);
    model_.set_tables(tables_->parameters());
    if (parallelism) parallelism->plan.tables = tables_->specs();
  }
  void check_has_no_tables(const char* call) const {
    SHOAL_CHECK(!tables_, InvalidInput, "trainer: ", call,
                " has nothing to say of parameters whose rows are "
                "in tables, as ",
                tables_ ? tables_->parameters().front().name : "",
                " is. Remedy: step() and step_over() update them, save() and load() keep them");
  }
  void check_can_offload() const {
    for (const auto& [name, tensor] : model_.parameters())
      SHOAL_CHECK(!tensor.defined() || tensor.is_cpu(), Infeasible, "trainer: ", name, " is on ",
                  tensor.device(),
                  ", and what is offloaded goes from main memory to a file. Remedy: leave out "
                  "Parallelism::plan.offload, or keep the model on the CPU");
  }
  void warn_of_ranks() const {
    const elastic::Place place = elastic::place_of(elastic::environment_of(environ));
    if (place.size > 1 && place.rank == 0)
      TORCH_WARN("shoal: this job has ", place.size,
                 " ranks, and a Trainer without parallelism trains alone on each of them. Remedy: "
                 "Parallelism (World::parallelism() in C++, parallelism=shoal.Parallelism()), or one rank");
  }
  void check_in_main_memory() const {
    for (const auto* tensors : {&model_.parameters(), &model_.buffers()})
      for (const auto& [name, tensor] : *tensors)
        SHOAL_CHECK(
            !tensor.defined() || tensor.is_cpu(), Infeasible, "trainer: ", name, " is on ", tensor.device(),
            ", and ranks exchange tensors of main memory alone. Remedy: keep the model on the CPU, give "
            "Parallelism::tensors a communicator of the device's memory (NCCL's), or train on one "
            "device, without parallelism");
  }

  // --- What is run.

  void let_go_of_last() {
    if (last_ != nullptr) last_->executor().release();
    last_ = nullptr;
  }

  train::SharedBatch agree(const Batch& batch, Use use) {
    SHOAL_CHECK(!has_ended_, InvalidInput,
                "trainer: it was told that training ends, by end(). Remedy: a new one");
    if (tables_) tables_->check();
    if (!ranks_) return {batch, {}, false};
    std::string changed = changes_.text("buffer", model_.buffers());
    if (!std::exchange(gave_gradients_, use == Use::Backward))  // else somebody's optimizer has been there
      changed += changes_.text("parameter", model_.parameters());
    has_agreed_ = true;
    ranks_->drop();
    std::string text = concat("a call of ", train::call_of(use), '\n', steps_captured_.shared_structure());
    if (use == Use::Step || use == Use::Microbatch)
      text += concat("\nseed ", options_.seed, ", learning rates",
                     optimizer_.rates_text(factor(options_.schedule, steps_ + 1)));
    if (loss_scale_) text += concat("\nloss scale ", loss_scale_->state().scale);
    text += changed;
    return train::agree(ranks_->rank(), batch, text, steps_captured_.is_time_for_check());
  }

  // Graphs are bound to the memory of parameters and buffers, and to how these lie in it.
  void follow_memory() {
    if (model_.have_moved()) forget_graphs();
  }

  Runnable* found(const Batch& batch, Use use) {
    const auto shared = agree(batch, use);
    follow_memory();
    return runnable_of(steps_captured_.find(shared, use), use);
  }

  // Of a pipeline, what its first micro-batch runs.
  Runnable* found_step(const Batch& batch) {
    return is_staged() ? found(cut_up(batch).front(), Use::Microbatch) : found(batch, Use::Step);
  }

  // With the batch and what it draws bound, as the executor's micro-batch of that number.
  struct Ready {
    Runnable* runnable;
    train::SharedBatch shared;
  };
  Ready ready(const Batch& batch, Use use, std::int64_t number, std::size_t microbatch,
              std::size_t of_executor = 0) {
    Ready ready{nullptr, agree(batch, use)};
    follow_memory();
    const auto alike = steps_captured_.num_alike();
    const auto begin = std::chrono::steady_clock::now();
    ready.runnable = runnable_of(steps_captured_.checked(ready.shared, use, number), use);
    if (steps_captured_.num_alike() != alike) capture_cost_.count(std::chrono::steady_clock::now() - begin);
    if (const auto text = capture_cost_.after_run(steps_captured_.num_forgotten());
        text && (!ranks_ || ranks_->rank().number == 0))
      TORCH_WARN(*text);
    ready.runnable->check_can_write(batch, ready.shared.part);
    ready.runnable->bind_batch(ready.shared.part, of_executor);
    if (loss_scale_) ready.runnable->bind_loss_scale(loss_scale_->tensor(), of_executor);
    if (ready.runnable->is_random()) ready.runnable->bind_draws(seed_of(microbatch), number, of_executor);
    return ready;
  }

  // What this use of a captured step runs: made unless it is there and right.
  Runnable* runnable_of(CapturedStep& step, Use use) {
    tag_ = step.tag;
    for (const at::Tensor& constant : step.constants) aten::recall(constant);
    auto& runnable = step.runnables[use];
    if (runnable && optimizer_.is_current(runnable->whole().groups)) return runnable.get();
    if (runnable) forget(*runnable);
    runnable = compiled(step.graph, then_of(use), step.inputs, &step.scopes);
    runnable->bind_lasting(model_, step.constants);
    if (step.followed) find_holes(step, *runnable, then_of(use));
    return runnable.get();
  }
  // Where what runs has the numbers that the step follows.
  void find_holes(CapturedStep& step, Runnable& runnable, Then then) const {
    auto holes = step.followed->holes_in(step.graph, [&](ir::Graph graph) {
      auto made = compile::compile(std::move(graph), plan(), {}, 0, settings_of(then));
      return std::move(made.program);
    });
    if (holes)
      runnable.follow(std::move(*holes));
    else
      step.followed.reset();
  }
  void forget(const Runnable& runnable) {
    if (last_ == &runnable) last_ = nullptr;
    std::erase(ran_, &runnable);
    std::erase(under_way_, &runnable);
  }
  void forget_later() {
    if (later_) forget(*later_->runnable);
    later_.reset();
  }

  bool emulates() const {
    const DType compute = plan().precision.compute;
    if (compute == DType::Float32) return false;
    const bool on_cpu = model_.parameters().empty() || model_.parameters().front().tensor.is_cpu();
    const bool is_fast = !on_cpu || !train::product_instructions(compute).empty();
    return !(ranks_ ? train::on_all(ranks_->control(), is_fast) : is_fast);
  }
  compile::Plan plan() const {
    if (options_.parallelism) return options_.parallelism->plan;
    return {.tables = tables_ ? tables_->specs() : std::vector<rewrite::TableSpec>()};
  }
  compile::Settings settings_of(Then then) const {
    compile::Settings settings{
        .then = then, .emulates = emulates_.value_or(false), .verifies = SHOAL_CHECKS_TYPES};
    if (then != Then::HandOut)
      settings.update = optimizer_.update(options_.clip_norm, loss_scale_.has_value());
    return settings;
  }
  // The same where there are ranks, with what they have found so far.
  compile::Settings settings_for_ranks(Then then) const {
    compile::Settings settings = settings_of(then);
    if (!ranks_) return settings;
    settings.plan_name = ranks_->parallelism().plan_name;
    settings.update.parts = optimizer_.parts();  // where gradients lie is theirs to say
    settings.stages = ranks_->stages();
    settings.is_settled = ranks_->is_settled();
    settings.from_first = [this](const auto& make) { return train::from_first(ranks_->control(), make); };
    if (!model_.parameters().empty()) settings.device = model_.parameters().front().tensor.device().str();
    return settings;
  }
  compile::Plan current_plan() const { return ranks_ ? ranks_->parallelism().plan : plan(); }
  sharding::Mesh mesh() const { return ranks_ ? ranks_->parallelism().mesh : sharding::Mesh{}; }
  std::unique_ptr<Runnable> compiled(const ir::Graph& graph, Then then,
                                     const std::vector<std::string>& inputs,
                                     const ir::Scopes* scopes = nullptr) {
    const observe::Span span(options_.trace, "compile", 0, "trainer");
    if (!emulates_) emulates_ = emulates();
    compile::Settings settings = settings_for_ranks(then);
    settings.scopes = scopes;
    std::unique_ptr<Runnable> runnable;
    if (ranks_) {
      auto whole = compile::compile_whole(graph, current_plan(), mesh(), settings);
      train::check_same(ranks_->control(), "the captured graph", ir::to_text(whole.graph));
      if (!whole.plan.found_axes.empty())
        train::check_same(ranks_->control(), "placements that were found", rewrite::to_text(whole.placed));
      if (!ranks_->is_settled()) settle(whole);
      train::together(ranks_->control(), [&] {  // a stage may be refused alone
        runnable = std::make_unique<Runnable>(compile::compile_local(std::move(whole), ranks_->rank().number),
                                              inputs, &ranks_->groups(), offloading_.files(), rows());
      });
    } else {
      runnable = std::make_unique<Runnable>(compile::compile(graph, plan(), {}, 0, settings), inputs, nullptr,
                                            offloading_.files(), rows());
    }
    optimizer_.bind(runnable->executor());
    return runnable;
  }

  const runtime::RowTables* rows() const { return tables_ ? tables_->rows() : nullptr; }

  // From the first captured step on, each rank keeps what its stage has, and what was found for it.
  void settle(const compile::Whole& whole) {
    const bool has_moved = is_staged() || whole.plan != ranks_->parallelism().plan;
    if (!has_moved) return;
    const Tensors state = optimizer_.whole();
    ranks_->settle(whole.plan, is_staged() ? std::optional(whole.stages) : std::nullopt);
    optimizer_.clear();  // it has other shapes now
    optimizer_.write(state);
    model_.have_moved();  // what is bound from here on is there
  }

  // Micro-batches of a step draw other numbers; the first one those of a step by itself.
  at::Tensor seed_of(std::size_t microbatch) const {
    if (microbatch == 0) return seed_;
    return at::scalar_tensor(static_cast<std::int64_t>(data::mix(options_.seed ^ data::mix(microbatch))),
                             at::kLong);
  }

  // What a run changes, once its gradients are known to be good; and what it gives.
  void commit(Runnable& runnable, const train::SharedBatch& shared) {
    commit(runnable, shared, 0, [&] { runnable.executor().run_update(options_.trace); });
  }
  void commit(Runnable& runnable, const train::SharedBatch& shared, std::size_t microbatch,
              const std::function<void()>& update) {
    outputs_.clear();
    keep_outputs(runnable, microbatch);
    update();
    keep_outputs(runnable, microbatch);
    runnable.write_inputs(shared.part, ranks_.get(), microbatch);
  }
  void keep_outputs(const Runnable& runnable, std::size_t microbatch = 0) {
    if (view_.outputs) runnable.add_outputs(outputs_, microbatch);
  }

  // --- The loss's scale, of float16.

  std::optional<LossScaleState> scale_state() const {
    return loss_scale_ ? std::optional(loss_scale_->state()) : std::nullopt;
  }
  double scale_now() const { return loss_scale_ ? loss_scale_->state().scale : 0; }
  // Whether what is not finite is an overflow that a smaller scale may mend. All ranks have seen it.
  bool may_skip() { return loss_scale_ && loss_scale_->count_overflow(); }
  StepResult skipped(StepResult result) {
    last_ = nullptr;
    ran_.clear();
    sums_.clear();
    keep_gradients();
    result.step = steps_;
    result.skipped = true;
    return result;
  }
  // With gradients that have not overflowed.
  void run_in_range(Runnable& runnable) {
    runnable.executor().run_gradients(options_.trace);
    if (!loss_scale_) return;
    while (!have_all_finite(runnable)) {
      if (!loss_scale_->count_overflow())
        report_not_finite(runnable, {.loss = runnable.loss(), .grad_norm = NAN, .step = backwards_ + 1});
      runnable.bind_loss_scale(loss_scale_->tensor());
      runnable.executor().run_gradients(options_.trace);
    }
    loss_scale_->count_update();
  }
  bool have_all_finite(const Runnable& runnable) const {
    bool are_finite = true;
    for (const auto& [name, gradient] : runnable.gradients())
      are_finite = are_finite && (!gradient.defined() || at::isfinite(gradient).all().item<bool>());
    return ranks_ ? train::on_all(ranks_->control(), are_finite) : are_finite;
  }

  // --- Gradients.

  Tensors whole(Tensors gradients, sharding::Layout rewrite::ParameterPins::* layout) const {
    if (ranks_)
      for (auto& [name, gradient] : gradients)
        gradient = train::whole_of(ranks_->rank(), gradient, ranks_->pins_of(name).*layout,
                                   model_.find_parameter(name)->sizes());
    return gradients;
  }
  // Those of narrow weights are float32 until here.
  Tensors as_parameters(Tensors gradients) const {
    if (plan().precision.master == rewrite::Master::Float32) return gradients;
    for (auto& [name, gradient] : gradients)
      if (gradient.defined()) gradient = gradient.to(model_.find_parameter(name)->scalar_type());
    return gradients;
  }
  void keep_gradients() const {
    if (!options_.keeps_gradients) return;
    train::set_gradients(model_.parameters(), gradients());
  }

  void reduce(Given& given) const {
    if (!ranks_) return;
    SHOAL_CHECK(
        !is_staged(), InvalidInput,
        "trainer: gradients that were made elsewhere are of whole models, and the ranks of a pipeline have "
        "a stage each. Remedy: data parallel, ZeRO-1 or -2");
    train::reduce(given, model_.parameters(), ranks_->rank());
    for (const auto& [name, tensor] : model_.buffers())
      if (tensor.defined()) {
        at::Tensor detached = tensor.detach();
        runtime::broadcast(detached, 0, ranks_->groups().world());
      }
  }

  // Leaves loss and gradients of all micro-batches together in `result` and sums_. False: one of them overflowed.
  bool accumulate(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                  const std::function<void()>& after, StepResult& result) {
    using Kind = Normaliser::Kind;
    double total = 0;
    adds_up_rows_ = false;
    std::optional<Kind> kind;
    for (std::size_t i = 0; i < count; ++i) {
      const Batch batch = microbatch(i);
      const auto [part, shared] = ready(batch, Use::Microbatch, result.step, i);
      outputs_.clear();
      const Normaliser& normaliser = part->whole().normaliser;
      SHOAL_CHECK(!kind || *kind == normaliser.kind, InvalidInput,
                  "trainer: the micro-batches of a step have losses of different kinds: ",
                  compile::to_text(normaliser), " for number ", i, ", but not for those before");
      kind = normaliser.kind;
      sums_.bind(*part, model_, offloading_, i == 0);
      part->executor().run_gradients(options_.trace);
      const double weight = train::weight_of(*part, count);
      if (weight != 0) {  // without a target that counts a mean is 0 ÷ 0, and all at once would not see it
        const double loss = part->loss();
        if (!std::isfinite(loss)) {
          if (!may_skip()) report_not_finite(*part, {.loss = loss, .step = result.step});
          result.loss = loss;
          part->release();
          return false;
        }
        result.loss += weight * loss;
      }
      total += weight;
      adds_up_rows_ = adds_up_rows_ || part->adds_up_rows();
      const bool is_mean = *kind == Kind::Value || *kind == Kind::Elements;
      SHOAL_CHECK(!is_mean || total != 0 || i + 1 < count, InvalidInput, "trainer: no target of step ",
                  result.step, " counts: all are ignored, and there is no mean of none. Nothing was updated");
      const double divisor = is_mean && i + 1 == count ? total : 1;
      sums_.weigh(*part, i == 0, weight, divisor);
      sums_.divide_others(*part, divisor);
      rows_divisor_ = divisor;
      commit(*part, shared);
      result.loss /= divisor;
      part->release();
      ran_.push_back(part);
      if (after) after();
    }
    return true;
  }

  // --- Stages of a pipeline.

  bool is_staged() const { return ranks_ && ranks_->num_stages() > 1; }

  std::vector<Batch> cut_up(const Batch& batch) const {
    const auto& plan = ranks_->parallelism().plan;
    const std::int64_t wanted = plan.microbatches;
    // The fewest that a rank's part has samples for, of all that share the batch.
    std::int64_t count =
        train::most_microbatches(batch, microbatches_of(plan, ranks_->parallelism().mesh), plan);
    const auto& group = ranks_->control();
    group.communicator->all_reduce({&count, 1, DType::Int64}, comm::ReduceOp::Min)->wait(group.limit);
    if (wanted != 0 && count < wanted) {
      train::microbatches_of(batch, wanted, plan);  // throws where it is this rank's part
      fail(ErrorKind::InvalidInput, "pipeline: another rank's part of the batch has samples for ", count,
           " of ", wanted, " micro-batches. Remedy: a larger batch, or fewer micro-batches");
    }
    return train::microbatches_of(batch, count, plan);
  }
  StepResult step_through_stages(const Batch& batch) {
    const auto parts = cut_up(batch);
    std::vector<Tensors> outputs;
    Tensors all;
    const auto result = step_over(
        parts.size(), [&](std::size_t i) { return parts[i]; },
        [&] {
          outputs.push_back(outputs_);
          if (outputs.size() == parts.size()) all = train::joined(outputs, parts, ranks_->parallelism().plan);
        });
    outputs_ = std::move(all);
    return result;
  }

  // As accumulate(), several under way at once, in the order of the schedule. What is wrong with one is told
  // when all have run: other ranks wait for what this one sends.
  bool accumulate_through_stages(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                                 const std::function<void()>& after, StepResult& result) {
    using Kind = Normaliser::Kind;
    const auto timeline =
        compile::timeline_of(ranks_->parallelism().plan, ranks_->pipeline_ranks(), static_cast<int>(count));
    if (timeline.note != std::exchange(note_, timeline.note) && !note_.empty() && ranks_->rank().number == 0)
      TORCH_WARN(note_);
    std::vector<Ready> all;
    std::vector<const program::Program*> programs;
    under_way_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(ready(microbatch(i), Use::Microbatch, result.step, i, i));
      programs.push_back(&all.back().runnable->program());
      under_way_.push_back(all.back().runnable);
      SHOAL_CHECK(under_way_.size() == i + 1, InvalidInput, "trainer: the ", count,
                  " micro-batches of a step have graphs of their own, which take more than the ",
                  options_.graph_bytes,
                  " bytes of graph_bytes; a pipeline runs them at once. Remedy: a larger graph_bytes");
      if (count > 1) all[i].runnable->check_writes_apart(all[i].shared.part, ranks_->parallelism().plan);
      const Normaliser& normaliser = all[i].runnable->whole().normaliser;
      SHOAL_CHECK(normaliser.kind == all[0].runnable->whole().normaliser.kind, InvalidInput,
                  "trainer: the micro-batches of a step have losses of different kinds: ",
                  compile::to_text(normaliser), " for number ", i, ", but not for those before");
      sums_.bind(*all[i].runnable, model_, offloading_, i == 0, i);
    }
    under_way_.clear();
    const Kind kind = all[0].runnable->whole().normaliser.kind;
    const bool is_mean = kind == Kind::Value || kind == Kind::Elements;
    double total = 0;
    std::vector<std::optional<double>> weights(count);
    std::set<int> begun;  // stages that have added a gradient to its sum
    std::optional<double> bad;
    const int rank = ranks_->pipeline_rank();
    const std::size_t num_stages = ranks_->stages()->of_rank(rank).size();
    std::vector<std::size_t> updated(count);  // stages, by micro-batch
    for (const program::Run& each : program::runs_of(timeline, rank, programs)) {
      const auto i = static_cast<std::size_t>(each.microbatch);
      Runnable& part = *all[i].runnable;
      const program::Segment& segment = part.program().segments[each.segment];
      const auto run = [&] { part.executor().run(each.segment, i, options_.trace); };
      if (segment.phase != ir::Phase::Update) {
        run();
        continue;
      }
      if (!weights[i]) {  // its first gradients
        weights[i] = train::weight_of(part, count, i);
        if (*weights[i] != 0) {
          const double loss = part.loss(i);
          if (!std::isfinite(loss) && !bad) bad = loss;
          result.loss += *weights[i] * loss;
        }
        total += *weights[i];
      }
      // A stage has its micro-batches in order: with the last one, all have been weighed.
      const double divisor = is_mean && i + 1 == count && total != 0 ? total : 1;
      train::GradientSums::weigh(part, begun.insert(segment.stage).second, *weights[i], divisor, i);
      if (++updated[i] != num_stages) {
        run();
        continue;
      }
      commit(part, all[i].shared, i, run);
      part.executor().release(i);
      ran_.push_back(&part);
      if (after) after();
    }
    if (is_mean && total != 0) {
      result.loss /= total;
      sums_.divide_others(*all.back().runnable, total);
    }
    for (const Ready& each : all) each.runnable->executor().release_inputs();
    SHOAL_CHECK(!is_mean || total != 0, InvalidInput, "trainer: no target of step ", result.step,
                " counts: all are ignored, and there is no mean of none. Nothing was updated");
    if (bad) result.loss = *bad;
    SHOAL_CHECK(!bad || may_skip(), InvalidInput, "trainer: the loss of step ", result.step, " is ", *bad,
                skips_text(),
                ". Nothing was updated. Remedy: a lower learning rate, clip_norm, or a look at this batch");
    return !bad;
  }

  // The update for the parameters that have a gradient now, built anew when these, or how often they were
  // updated, are others than before.
  LaterUpdate& later_update(Then then) {
    std::vector<std::string> names;
    std::vector<std::pair<std::string, ir::TensorType>> parameters;
    for (const auto& [name, tensor] : model_.parameters())
      if (sums_.contains(name)) {
        names.push_back(name);
        parameters.emplace_back(name, aten::type_of(tensor));
      }
    const bool pushes = then == Then::UpdateSums && adds_up_rows_;
    if (later_ && later_->then == then && later_->parameters == names && later_->pushes == pushes &&
        optimizer_.is_current(later_->runnable->whole().groups))
      return *later_;
    forget_later();
    ir::Graph graph = compile::graph_of_sums(parameters, plan().precision.master);
    if (pushes) rewrite::append_push_of_sums(graph);
    auto runnable = compiled(graph, then, {});
    runnable->bind_lasting(model_, {});
    later_ = LaterUpdate{std::move(names), then, std::move(runnable), pushes};
    return *later_;
  }

  // False: a gradient overflowed, and nothing is updated.
  bool update_later(Then then, StepResult& result) {
    const double scale = factor(options_.schedule, result.step);
    result.learning_rate = optimizer_.rate() * scale;
    const LaterUpdate& update = later_update(then);
    runtime::Executor& executor = update.runnable->executor();
    for (const auto& name : update.parameters) executor.bind(Role::Gradient, name, sums_.tensors().at(name));
    const auto& groups = update.runnable->whole().groups;
    optimizer_.bind_rates(executor, groups, scale);
    update.runnable->bind_rows(result.step, scale, rows_divisor_);
    if (loss_scale_) update.runnable->bind_loss_scale(loss_scale_->tensor());
    executor.run_gradients(options_.trace);
    if (update.runnable->has_grad_norm())
      result.grad_norm = executor.result(Role::Output, "grad_norm").item<double>();
    if (!std::isfinite(result.grad_norm)) {
      if (then == Then::UpdateGiven || !may_skip()) report_gradient_not_finite(result);
      update.runnable->release();
      return false;
    }
    executor.run_update(options_.trace);
    sums_.set(update.runnable->gradients());
    update.runnable->release();
    optimizer_.count(groups);
    ran_.push_back(update.runnable.get());
    return true;
  }

  std::string skips_text() const {
    if (!loss_scale_ || loss_scale_->overflows() == 0) return "";
    return concat("; the last ", loss_scale_->overflows(),
                  " updates in float16 were skipped, at a loss scale of ", loss_scale_->state().scale,
                  " now");
  }
  [[noreturn]] void report_gradient_not_finite(const StepResult& result) const {
    std::string first = "?";
    for (const auto& [name, tensor] : model_.parameters()) {
      const auto gradient = sums_.tensors().find(name);
      if (gradient == sums_.tensors().end() || at::isfinite(gradient->second).all().item<bool>()) continue;
      first = name;
      break;
    }
    if (ranks_ && !model_.parameters().empty()) {  // all ranks are here, and one may have it alone
      const auto& parameters = model_.parameters();
      const auto found = std::ranges::find(parameters, first, &capture::NamedTensor::name);
      std::int64_t at = found - parameters.begin();
      const auto& group = ranks_->control();
      group.communicator->all_reduce({&at, 1, DType::Int64}, comm::ReduceOp::Min)->wait(group.limit);
      if (at < std::ssize(parameters)) first = parameters[static_cast<std::size_t>(at)].name;
    }
    fail(ErrorKind::InvalidInput, "trainer: the gradient norm of step ", result.step, " is ",
         result.grad_norm, ": the gradient of ", first, " is not finite", skips_text(),
         ". Nothing was updated. Remedy: a lower learning rate, or a look at this batch");
  }

  [[noreturn]] void report_not_finite(Runnable& runnable, const StepResult& result) {
    const auto* first = runnable.executor().first_not_finite();
    const auto where = first == nullptr
                           ? std::string("it did not happen again when the step was run once more")
                           : concat("a value that is not finite first appears in module \"", first->module,
                                    "\" (", first->op, ")");
    runnable.release();
    const bool of_loss = !std::isfinite(result.loss);
    fail(ErrorKind::InvalidInput, "trainer: the ", of_loss ? "loss" : "gradient norm", " of step ",
         result.step, " is ", of_loss ? result.loss : result.grad_norm, ": ", where, skips_text(),
         ". Nothing was updated. Remedy: a lower learning rate, clip_norm, or a look at this batch");
  }

  int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<torch::nn::Module> module_;  // of the view; null for a model of another language
  ModelView view_;
  TrainerOptions options_;
  train::ModelTensors model_;
  runtime::Group control_;  // of all ranks, for tables
  std::optional<train::ModelTables> tables_;
  bool adds_up_rows_ = false;  // the last step's micro-batches did
  double rows_divisor_ = 1;    // of their sums
  train::Offloading offloading_;
  train::OptimizerState optimizer_;
  std::unique_ptr<train::Distribution> ranks_;     // null: one device
  std::optional<train::LossScale> loss_scale_;     // of float16
  std::optional<bool> emulates_;                   // a precision; known from the first compilation on
  std::optional<train::Checkpoints> checkpoints_;  // made when one is asked for
  train::CapturedSteps steps_captured_;
  train::CaptureCost capture_cost_;
  at::Tensor seed_;
  Tensors outputs_;  // of the last step or evaluation
  std::string tag_;  // of the graph found last
  // Gradients that were summed over micro-batches, or given; afterwards as the last update has left them.
  train::GradientSums sums_;
  std::optional<LaterUpdate> later_;        // by these
  Runnable* last_ = nullptr;                // of the last update, unless that was a later one
  std::vector<const Runnable*> ran_;        // in the last step
  std::vector<const Runnable*> under_way_;  // through the stages of a pipeline
  std::string note_;                        // of its schedule, that was said last
  train::OneCall calls_;
  train::Changes changes_;       // of several ranks
  bool has_agreed_ = false;      // in the call that is under way
  bool gave_gradients_ = false;  // the last one that has
  std::int64_t steps_ = 0;
  std::int64_t backwards_ = 0;
  bool has_ended_ = false;
  std::int64_t evaluated_after_ = -1;  // so many steps and backwards, when `evaluations_` last went up
  std::size_t evaluations_ = 0;        // since then: each draws other numbers
};

Trainer::Trainer(std::shared_ptr<torch::nn::Module> module, LossFunction loss, Optimizer optimizer,
                 TrainerOptions options)
    : state_(std::make_unique<State>(view_of(module, std::move(loss)),
                                     std::vector<OptimizerPart>{{{}, std::move(optimizer)}},
                                     std::move(options))) {}
Trainer::Trainer(std::shared_ptr<torch::nn::Module> module, LossFunction loss, TrainerOptions options)
    : state_(std::make_unique<State>(view_of(module, std::move(loss)), std::vector<OptimizerPart>{},
                                     std::move(options))) {}
Trainer::Trainer(ModelView model, std::vector<OptimizerPart> optimizers, TrainerOptions options)
    : state_(std::make_unique<State>(std::move(model), std::move(optimizers), std::move(options))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

StepResult Trainer::step(const Batch& batch) {
  return state_->alone("step()", [&] { return state_->step(batch); });
}
void Trainer::expect(const Batch& batch) {
  state_->alone("expect()", [&] { state_->expect(batch); });
}
StepResult Trainer::step_over(std::span<const Batch> microbatches) {
  return step_over(microbatches.size(), [&](std::size_t i) { return microbatches[i]; }, {});
}
StepResult Trainer::step_over(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                              const std::function<void()>& after) {
  return state_->alone("step_over()", [&] { return state_->step_over(count, microbatch, after); });
}
StepResult Trainer::step_with(Given given) {
  return state_->alone("step_with()", [&] { return state_->step_with(std::move(given)); });
}
double Trainer::backward_with(Given given) {
  return state_->alone("backward_with()", [&] { return state_->backward_with(std::move(given)); });
}
double Trainer::loss_of(const Given& given) const { return state_->loss_of(given); }
std::string Trainer::weighing(const Batch& microbatch) { return state_->weighing(microbatch); }
double Trainer::backward(const Batch& batch) {
  return state_->alone("backward()", [&] { return state_->backward(batch); });
}
double Trainer::evaluate(const Batch& batch) {
  return state_->alone("evaluate()", [&] { return state_->evaluate(batch); });
}
ir::Graph Trainer::graph(const Batch& batch) {
  return state_->alone("graph()", [&] { return state_->graph(batch); });
}
std::map<std::string, at::Tensor> Trainer::optimizer_state() const { return state_->optimizer_state(); }
Progress Trainer::progress() const { return state_->progress(); }
void Trainer::set_seed(std::uint64_t seed) { state_->set_seed(seed); }
void Trainer::set_progress(const Progress& progress) { state_->set_progress(progress); }
const std::map<std::string, std::int64_t>& Trainer::updates() const { return state_->updates(); }
void Trainer::restore(const std::map<std::string, at::Tensor>& optimizer_state, const Progress& progress) {
  state_->alone("restore()", [&] { state_->restore(optimizer_state, progress); });
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
void Trainer::release() {
  state_->alone("release()", [&] { state_->release(); });
}
void Trainer::end() {
  state_->alone("end()", [&] { state_->end(); });
}
void Trainer::materialize() {
  state_->alone("materialize()", [&] { state_->materialize(); });
}
const program::Program& Trainer::program(const Batch& batch) { return state_->program(batch); }
std::vector<const program::Program*> Trainer::ran() const { return state_->ran(); }
const rewrite::Placed& Trainer::placed(const Batch& batch) { return state_->placed(batch); }
TrainingState Trainer::state() const {
  return state_->alone("state()", [&] { return state_->state(); });
}
void Trainer::restore(const TrainingState& state) {
  state_->alone("restore()", [&] { state_->restore(state); });
}
void Trainer::save(const std::filesystem::path& folder, const std::string& note, std::int64_t keep) {
  state_->alone("save()", [&] { state_->save(folder, note, keep); });
}
std::string Trainer::plan() const { return state_->plan_text(); }
std::string Trainer::report() const { return state_->report(); }
at::Tensor Trainer::rows(const std::string& parameter, const at::Tensor& ids) {
  return state_->alone("rows()", [&] { return state_->tables(parameter).read(parameter, ids); });
}
void Trainer::set_rows(const std::string& parameter, const at::Tensor& ids, const at::Tensor& values) {
  state_->alone("set_rows()", [&] { state_->tables(parameter).write(parameter, ids, values); });
}
at::Tensor Trainer::rows(const std::string& parameter) {
  return state_->alone("rows()", [&] { return state_->tables(parameter).read(parameter); });
}
std::optional<std::uint64_t> Trainer::stalest_row() const { return state_->stalest_row(); }
std::map<std::string, ps::Shrunk> Trainer::end_day(std::uint32_t day) {
  return state_->alone("end_day()", [&] { return state_->end_day(day); });
}
std::future<std::string> Trainer::begin_saving_rows(const std::filesystem::path& folder) {
  return state_->alone("begin_saving_rows()", [&] { return state_->begin_saving_rows(folder); });
}
void Trainer::finish_saving_rows() { state_->finish_saving_rows(); }
void Trainer::load_rows(const std::filesystem::path& folder, std::int64_t step) {
  state_->alone("load_rows()", [&] { state_->load_rows(folder, step); });
}
void Trainer::wait_for_saves() { state_->wait_for_saves(); }
std::optional<std::string> Trainer::load(const std::filesystem::path& folder, const LoadOptions& options) {
  return state_->alone("load()", [&] { return state_->load(folder, options); });
}
std::map<std::string, at::Tensor> Trainer::gradients() const {
  return state_->alone("gradients()", [&] { return state_->gradients(); });
}

}  // namespace shoal
