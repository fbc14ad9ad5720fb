// SPDX-License-Identifier: Apache-2.0
// Trains a module through its captured graph. The one place where everything is put together.
//
//   auto model = models::gpt2(config);                                 // any torch::nn::Module
//   Trainer trainer(model, [](auto& net, const Batch& batch) {
//     return cross_entropy(net->forward(batch["tokens"]), batch["labels"]);
//   }, AdamW{.lr = 3e-4}, {.clip_norm = 1.0});
//   for (const Batch& batch : batches) std::cout << trainer.step(batch).loss << '\n';
#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/compile/optimizer.h"
#include "shoal/observe/trace.h"
#include "shoal/program/program.h"
#include "shoal/rewrite/place.h"
#include "shoal/train/batch.h"
#include "shoal/train/model_view.h"
#include "shoal/train/parallelism.h"
#include "shoal/train/tables.h"
#include "shoal/train/training_state.h"

namespace torch::optim {
class Optimizer;
}

namespace shoal {

struct TrainerOptions {                // all have defaults
  double clip_norm = 0;                // largest global L2 norm of the gradients; 0: no clipping
  LearningRateSchedule schedule = {};  // multiplies every learning rate
  std::uint64_t seed = 0;              // of dropout and every other random op in the model
  // What captured graphs, one a shape of the batch, may take together, in bytes: with their programs and
  // constants, without what a step makes. The least recently used go; what a step needs stays.
  std::int64_t graph_bytes = std::int64_t{256} << 20;
  // After a step each parameter's `.grad` is its gradient in that step, before clipping, as gradients() has
  // it, and undefined where it got none. Otherwise a step leaves `.grad` alone.
  bool keeps_gradients = false;
  // A captured step cannot see that a setting of the model has changed. So the model is run once more and
  // compared with its graph: at the 2nd, 4th and 8th step of each graph (those that differ in sizes alone
  // count as one), and then whenever that takes at most this share of the time since. A difference is
  // InvalidInput that names module, line and remedy; the step has then changed nothing. 0: not after the 8th
  // step; negative: never.
  double spot_check_share = 0.005;
  // Text of whatever the model and the loss read besides parameters, buffers and the batch: each text has
  // graphs of its own, so that a change is followed. For a member that is set between steps, and a closure's:
  //
  //   Trainer trainer(net, loss, AdamW{}, {.depends_on = [net] { return std::to_string(net->beta); }});
  std::function<std::string()> depends_on = {};
  observe::Trace* trace = nullptr;  // borrowed; spans of every instruction go there. null: none are recorded
  // Of one rank among several: every rank has a trainer of the same model, and calls it alike, with its part
  // of each batch. What it gives back (losses, norms, states, gradients) is that of all ranks together.
  std::optional<Parallelism> parallelism = {};
  // Parameters whose rows are in tables, beside those that the plan's lines `table` name.
  TableOptions tables = {};
  // Modules that the loss runs besides the one that is trained, a GAN's other one: their buffers are read anew at
  // each step, written, and saved, as "beside.0.norm.running_mean". (Their parameters are read anew in any case.)
  std::vector<std::shared_ptr<torch::nn::Module>> beside = {};
};

struct StepResult {          // of one update
  double loss = 0;           // of the batch, before the update; of all ranks together
  double grad_norm = 0;      // global L2 norm before clipping; 0 without clipping, where nobody computes it
  double learning_rate = 0;  // of parameters in no group
  std::int64_t step = 0;     // updates made so far, this one included
  // Of float16 (Plan::precision): what the loss was multiplied by; and whether that was too much, so that a
  // gradient overflowed and nothing was updated: the step has then changed the scale alone, and counts for
  // nothing.
  double loss_scale = 0;
  bool skipped = false;
};

// What a Trainer remembers from step to step besides the model and the optimizer's tensors.
struct Progress {
  std::int64_t steps = 0;      // updates
  std::int64_t backwards = 0;  // calls of backward(): each draws random numbers of its own
  std::map<std::string, std::int64_t> updates = {};  // by parameter; those that have had none are left out
  std::optional<LossScaleState> loss_scale = {};     // of float16
};

// Not thread-safe: one thread at a time. The module is borrowed by shared_ptr and holds the current
// parameters and buffers: read, save or change them between steps. Parameters that ranks keep in parts
// (ZeRO-3, tensor parallel) are the exception: using or saving one is an error (c10::Error) that says so
// until materialize(), which the end of the trainer calls for a module that lives on. All ranks end theirs
// alike.
class Trainer {
 public:
  // `loss(model, batch)` runs the model on a batch and returns a scalar to minimise, or LossAndOutputs. It is
  // called when a batch of a new shape comes (twice for the first of all: both must do the same) and for spot
  // checks, not at every step. What it leaves in a member that is no buffer holds no data afterwards; reading
  // that is an error: set it anew. All constructors throw InvalidInput naming what options contradict, a
  // parameter that shares memory with another, or one that cannot be in a table; Infeasible where the model
  // is on a device and ranks, or a file, take tensors of main memory alone.
  template <class Model, class Loss>
    requires(!std::derived_from<Model, torch::nn::Module>) && std::invocable<Loss&, Model&, const Batch&>
  Trainer(Model model, Loss loss, Optimizer optimizer, TrainerOptions options = {})
      : Trainer(module_of(model),
                LossFunction([model, loss](const Batch& batch) mutable { return loss(model, batch); }),
                std::move(optimizer), std::move(options)) {}
  Trainer(std::shared_ptr<torch::nn::Module> module, LossFunction loss, Optimizer optimizer,
          TrainerOptions options = {});
  // Without an optimizer: for backward() and evaluate().
  template <class Model, class Loss>
    requires(!std::derived_from<Model, torch::nn::Module>) && std::invocable<Loss&, Model&, const Batch&>
  Trainer(Model model, Loss loss, TrainerOptions options = {})
      : Trainer(module_of(model),
                LossFunction([model, loss](const Batch& batch) mutable { return loss(model, batch); }),
                std::move(options)) {}
  Trainer(std::shared_ptr<torch::nn::Module> module, LossFunction loss, TrainerOptions options = {});
  // Of a module that lies on the stack, or is somebody's member: borrowed.
  template <class Model, class Loss>
    requires std::derived_from<Model, torch::nn::Module> && std::invocable<Loss&, Model&, const Batch&>
  Trainer(Model& model, Loss loss, Optimizer optimizer, TrainerOptions options = {})
      : Trainer(borrowed(model),
                LossFunction([&model, loss](const Batch& batch) mutable { return loss(model, batch); }),
                std::move(optimizer), std::move(options)) {}
  template <class Model, class Loss>
    requires std::derived_from<Model, torch::nn::Module> && std::invocable<Loss&, Model&, const Batch&>
  Trainer(Model& model, Loss loss, TrainerOptions options = {})
      : Trainer(borrowed(model),
                LossFunction([&model, loss](const Batch& batch) mutable { return loss(model, batch); }),
                std::move(options)) {}
  // An optimizer of LibTorch's is for backward() and its own step(): no trainer takes it.
  template <class Model, class Loss, std::derived_from<torch::optim::Optimizer> Other>
  Trainer(const Model&, const Loss&, const Other&, const TrainerOptions& = {}) {
    static_assert(!std::derived_from<Other, torch::optim::Optimizer>,
                  "a Trainer makes the update itself: give it shoal::SGD{.lr = 0.01, .momentum = 0.5}, "
                  "shoal::AdamW{...} "
                  "and the like (docs/loops_in_cpp.md), or no optimizer, and call backward() and the "
                  "optimizer's step()");
  }
  // No parts: as without an optimizer.
  Trainer(ModelView model, std::vector<OptimizerPart> optimizers, TrainerOptions options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  // One update. A loss (or, with clipping, a gradient norm) that is not finite throws InvalidInput naming the
  // module in which a value that is not finite first appears; parameters, buffers and optimizer state are
  // then as before the step. In float16 that is an update that is skipped (StepResult), until 20 in a row
  // were. A batch of a new shape is captured first, and spot checks are made: InvalidInput, as capture() and
  // spot_check_share have it. Throws InvalidInput without an optimizer, after end(), and where ranks differ
  // in what they call; PeerLost and Timeout where another rank has gone, or does not come.
  StepResult step(const Batch& batch);
  // That this batch, or a step's first micro-batch of several, comes next but one: rows of tables that it reads
  // are asked for while the next one is worked on (ExchangeOptions::cache_rows). It changes no result.
  void expect(const Batch& batch);
  // One update by several micro-batches in a row, with the loss and gradients that they have together: a mean
  // is that over all of their targets, ignored ones left out. Batch statistics are those of each micro-batch,
  // and random ops draw anew for each. `weighing` says how. Throws as step() does, and InvalidInput for no
  // micro-batch, and where none has a target.
  StepResult step_over(std::span<const Batch> microbatches);
  // As many of them, each asked for when its turn comes; `after` is called when it has run, and outputs() and
  // tag() are its own then.
  StepResult step_over(std::size_t count, const std::function<Batch(std::size_t)>& microbatch,
                       const std::function<void()>& after);
  // How the micro-batches of a step_over count, for people: a line of text. Captures as step_over would.
  std::string weighing(const Batch& microbatch);
  // Forward and backward without an update, for an optimizer of your own: each gradient is added to its
  // parameter's `.grad`, in place where there is one, as loss.backward() does; buffers change as in forward.
  // Returns the loss, also one that is not finite. Gradients are not clipped. Random ops draw from the number
  // of calls so far, and other numbers than any step. Of several ranks: gradients of the whole batch, whole
  // on each of them, and parameters that are kept in parts are in the module until the next call, as after
  // materialize(). In float16 gradients that overflow are made again, at a smaller scale of the loss. Throws
  // InvalidInput where rows are in tables, and for what cannot be captured.
  double backward(const Batch& batch);
  // One update, and what backward() does, with loss and gradients that were made elsewhere, by eager LibTorch
  // say: the same checks, clipping and update, in the same layout. Of several ranks each gives what its own
  // part of the batch has made, all parameters being whole on each (ZeRO-1, -2); losses and gradients count
  // by samples, and buffers become rank 0's. Both throw InvalidInput where rows are in tables; step_with for
  // a loss that is not finite, and without an optimizer.
  struct Given {
    double loss = 0;                                   // a mean over samples
    double samples = 1;                                // that the loss is the mean of
    std::map<std::string, at::Tensor> gradients = {};  // by parameter; those without one are left out
  };
  StepResult step_with(Given given);
  double backward_with(Given given);
  // The loss of all ranks' samples. Called by all of them alike.
  double loss_of(const Given& given) const;
  // The loss in evaluation mode, without gradients; nothing changes. What the model draws even so, for Monte
  // Carlo dropout, is drawn anew at each call, beside the draws of training, which stay as they are. Throws
  // as step() does, but for a loss that is not finite, which is returned.
  double evaluate(const Batch& batch);

  // What the loss function returned besides the loss (LossAndOutputs), or ModelView::outputs gave, of the last
  // step or evaluation; kept until the next one.
  const std::map<std::string, at::Tensor>& outputs() const;
  // ModelView::tag of the graph that the last step or evaluation ran.
  const std::string& tag() const;
  // Other parameters and buffers from now on: of a model in which some were replaced, added or left out.
  // Optimizer state stays with parameters that are the same tensors as before. Throws InvalidInput on several
  // ranks.
  void set_tensors(ModelView::NamedTensors parameters, ModelView::NamedTensors buffers);
  // From the next step on, for the parameters of that part, in place of what its optimizer says; the
  // schedule's factor comes on top. Throws InvalidInput where there is no such part.
  void set_learning_rate(std::size_t part, double lr);
  // Other settings from the next step on, for other parts of the parameters too. Learning rates that were
  // set stay with the number of the part. Throws InvalidInput for rows in tables whose optimizer changes in
  // more than its rate.
  void set_optimizers(std::vector<OptimizerPart> optimizers);
  // Drops all captured graphs: for a model whose tensors have moved to other memory, or that has changed in a
  // way that ModelView::mode does not say.
  void forget_graphs();

  // The whole captured step for a batch of this shape, update included, as text is printed by `shoal
  // capture`; of several ranks, all of them together. Where no step has captured it, graph(), program()
  // and placed() do, and throw what step() would for it.
  ir::Graph graph(const Batch& batch);
  // What this rank runs of it.
  const program::Program& program(const Batch& batch);
  // What this rank has run in the last step, in this order: one program, or one for each micro-batch and that
  // of the update. Borrowed until the next call.
  std::vector<const program::Program*> ran() const;
  // Where the step for a batch of this shape has its values; throws InvalidInput without parallelism.
  const rewrite::Placed& placed(const Batch& batch);
  // Optimizer state by global name: "fc.weight.exp_avg". Shares memory with the trainer; of several ranks,
  // copies.
  std::map<std::string, at::Tensor> optimizer_state() const;
  Progress progress() const;  // a copy
  // How often each parameter was updated, as progress() has it; borrowed.
  const std::map<std::string, std::int64_t>& updates() const;
  // What random ops draw from, from the next step on.
  void set_seed(std::uint64_t seed);
  // Goes on counting from there. Of float16: throws InvalidInput for a scale that there cannot be.
  void set_progress(const Progress& progress);
  // Goes on from there: what a trainer of the same model had as optimizer_state() and progress(). What is not
  // given begins anew. On one device the tensors are shared from now on, but for those that have another
  // dtype or other strides than their parameter; of several ranks they are copied. Throws InvalidInput naming
  // state of no parameter, or of another shape, before anything has changed.
  void restore(const std::map<std::string, at::Tensor>& optimizer_state, const Progress& progress);
  // All that a run needs to go on bit for bit from here. Shares memory with the trainer: good until the next
  // step. Of several ranks: whole, on each of them.
  TrainingState state() const;
  // Goes on from there: the state is written into the memory of the module and of the trainer. Throws
  // InvalidInput listing all names, shapes and types that do not fit, and where rows of tables were not
  // loaded; nothing has changed then.
  void restore(const TrainingState& state);
  // A checkpoint in `folder`, as step_00000100 of as many updates and backward()s: parameters, buffers,
  // optimizer state, counts, and a note of yours in UTF-8 (how far the data was read, say). Takes the time of
  // one copy: a thread writes it while training goes on, whole or not at all. The newest `keep` stay, 0: all.
  // Throws Infeasible where the save before could not be written: what was there before is; InvalidInput for
  // a note that is no UTF-8, and `keep` below 0. Called by all ranks alike; the first one writes.
  void save(const std::filesystem::path& folder, const std::string& note = "", std::int64_t keep = 10);
  // Until all that was saved is on the disk; throws Infeasible with what is not. The end of the trainer waits
  // too, and says nothing.
  void wait_for_saves();
  // Goes on from the newest checkpoint of the folder whose every byte is as it was written, bit for bit,
  // whatever number of ranks has saved it; a damaged newer one is warned of. Returns its note, or nothing
  // where there is none. Throws Corrupt where all are damaged, or the one that was asked for is, InvalidInput
  // listing what does not fit the model, and the steps that there are where that one is not. All ranks read
  // the folder.
  struct LoadOptions {
    // Of as many updates and backward()s; none: the newest. Where two trainers save in turns, one may have saved
    // once more than the other when the run ended.
    std::optional<std::int64_t> step = {};
    std::function<void(const std::string& note)> check = {};  // may throw: nothing has changed yet
  };
  std::optional<std::string> load(const std::filesystem::path& folder, const LoadOptions& options);
  std::optional<std::string> load(const std::filesystem::path& folder) { return load(folder, LoadOptions()); }
  // Gradients of the last step, before clipping, by parameter name. Parameters without one are left out.
  std::map<std::string, at::Tensor> gradients() const;
  // Parameters that ranks keep in parts are gathered into the module, for others to read, until the next
  // step. Called by all ranks at once.
  void materialize();
  // Rows of a parameter that is in a table, as they are now; of other ranks they have what those have sent.
  // `ids`: whole numbers of any shape; the result has one dim more, the row's, and the parameter's type. All
  // of them, in the order of ids: `rows(name)`. Throws InvalidInput naming a parameter that is in no table,
  // an id that there cannot be, and a table of more rows than fit into a tensor (2 GiB).
  at::Tensor rows(const std::string& parameter, const at::Tensor& ids);
  at::Tensor rows(const std::string& parameter);
  // Rows that are these from now on, and what updates them begins anew. `values`: as rows() gives them for
  // `ids`. Called by all ranks alike; the first one's values count. Throws InvalidInput as rows() does, and
  // for values of another shape.
  void set_rows(const std::string& parameter, const at::Tensor& ids, const at::Tensor& values);
  // A day of rows in tables ends, and the next one has this number: scores decay, and rows expire that TablePlacement::life
  // says, with their optimizer's state; an id that comes again begins anew. Of each table with scores, how many rows
  // there were and what went, on the first rank; empty on others. All ranks call it at once, between two steps.
  std::map<std::string, ps::Shrunk> end_day(std::uint32_t day);
  // Rows in tables, beside the checkpoint of the last step in that folder, and back from beside the one of a step;
  // nothing without tables. Servers write and read the files. save() and load() do it by themselves, and
  // restore() wants it done before. All ranks call them alike, but for finish_saving_rows(). Rows are saved as they are
  // when begin_saving_rows() returns, and training may go on; the first rank's future says that they are whole there, by
  // nothing, or why not: during a later call of this trainer, finish_saving_rows() at the latest. On other ranks, and
  // without tables, there is none. Throw Infeasible where the disk takes no more, Corrupt and InvalidInput naming a file
  // that is damaged or missing.
  std::future<std::string> begin_saving_rows(const std::filesystem::path& folder);
  void finish_saving_rows();
  void load_rows(const std::filesystem::path& folder, std::int64_t step);
  // How many steps of any rank a row lacked at most when a step of this rank read it; none where nobody
  // counts, which is in every mode but half_async.
  std::optional<std::uint64_t> stalest_row() const;
  // The plan that the ranks follow, with what was found of it from the first step on, as text that can be given
  // again (compile/plan.h). Empty on one device.
  std::string plan() const;
  // What ranks do in a step, as `shoal plan` prints it: layouts, messages and their bytes, how much runs split.
  // Throws InvalidInput before the first step, and on one device.
  std::string report() const;
  // Lets go of the last step's gradients and outputs, which the next step would: before an evaluation, say.
  void release();
  // Training ends: the model gets its parameters, whole on each rank, and all else goes, optimizer state and
  // graphs among it. There is no step or evaluation after it: they throw InvalidInput. All ranks do it alike.
  void end();

 private:
  // A ModuleHolder (TORCH_MODULE) or a shared_ptr to the module.
  template <class Model>
  static std::shared_ptr<torch::nn::Module> module_of(const Model& model) {
    if constexpr (requires { model.ptr(); })
      return model.ptr();
    else
      return model;
  }

  static std::shared_ptr<torch::nn::Module> borrowed(torch::nn::Module& model) {
    return {std::shared_ptr<torch::nn::Module>(), &model};
  }

  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shoal
