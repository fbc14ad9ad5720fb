// SPDX-License-Identifier: Apache-2.0
// Random small modules: what the Trainer makes of their captured graph equals eager LibTorch, bit for bit,
// and what several ranks make of it equals one device.
//
// A failure prints the seed, the fewest statements that still fail, and their graph. To run one seed alone,
// set kFirstSeed to it and kNumSeeds to 1.
// Above 400 lines: what a captured graph and what several ranks make of the same modules.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"
#include "shoal/capture/capture.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/ir/text.h"
#include "shoal/train/trainer.h"
#include "shoal/train/verify.h"
#include "tests/oracle/random_modules.h"

namespace property_test {

using namespace shoal;
using namespace random_modules;

static constexpr std::uint64_t kFirstSeed = 0;
static constexpr std::uint64_t kNumSeeds = kIsSanitized ? 45 : 300;

// --- Eager and captured.

namespace {

struct Stream {
  std::int64_t seed;
  std::int64_t step;
};

struct Outcome {
  Tensor loss;
  std::map<std::string, Tensor> gradients;  // by a parameter's first name
  std::map<std::string, Tensor> buffers;
};

// The module's parameters and buffers as they are, and put back at the end.
class KeepModule {
 public:
  explicit KeepModule(torch::nn::Module& module) {
    for (const auto& parameter : module.parameters())
      kept_.emplace_back(parameter.detach(), parameter.detach().clone());
    num_parameters_ = kept_.size();
    for (const auto& buffer : module.buffers()) kept_.emplace_back(buffer, buffer.clone());
  }
  ~KeepModule() {
    const at::NoGradGuard no_grad;
    for (auto& [tensor, before] : kept_) tensor.copy_(before);
  }
  KeepModule(const KeepModule&) = delete;
  KeepModule& operator=(const KeepModule&) = delete;

  bool parameters_changed() const {
    return !std::all_of(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(num_parameters_),
                        [](const auto& each) { return at::equal(each.first, each.second); });
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> kept_;
  std::size_t num_parameters_ = 0;
};

}  // namespace

static std::map<std::string, Tensor> copies(const torch::OrderedDict<std::string, Tensor>& tensors) {
  std::map<std::string, Tensor> copies;
  for (const auto& item : tensors) copies.emplace(item.key(), item.value().detach().clone());
  return copies;
}

static bool finite(const Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

// Leaves the module as it was. nullopt: eager throws, writes to a parameter or makes a buffer
// part of the autograd graph, or a result is not finite. Without a stream, LibTorch's own generator draws.
static std::optional<Outcome> eager(RandomModule& module, const Statements& statements, const Batch& batch,
                                    std::optional<Stream> stream = std::nullopt) {
  const KeepModule keep(module);
  std::optional<capture::EagerRandom> random;
  if (stream) random.emplace(stream->seed, stream->step);
  Outcome outcome;
  try {
    const auto copy_of = [](const std::string&, const Tensor& tensor) { return tensor.clone(); };
    const Tensor loss =
        loss_of(module, statements, map_tensors(batch, copy_of));  // a statement may write to an input
    if (keep.parameters_changed()) return std::nullopt;
    for (const auto& buffer : module.buffers())
      if (buffer.requires_grad() || !finite(buffer)) return std::nullopt;
    outcome.loss = loss.detach();
    if (!finite(outcome.loss)) return std::nullopt;
    std::map<const void*, std::string> first_names;
    std::vector<Tensor> parameters;
    std::vector<std::string> names;
    for (const auto& item : module.named_parameters()) {
      if (!first_names.emplace(item.value().unsafeGetTensorImpl(), item.key()).second) continue;
      parameters.push_back(item.value());
      names.push_back(item.key());
    }
    const auto gradients = torch::autograd::grad({loss}, parameters, {}, false, false, true);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!gradients[i].defined()) continue;
      if (!finite(gradients[i])) return std::nullopt;
      outcome.gradients.emplace(names[i], gradients[i].detach().clone());
    }
  } catch (const Inapplicable&) {
    return std::nullopt;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  outcome.buffers = copies(module.named_buffers());
  return outcome;
}

static std::string difference(const std::string& name, const Tensor& got, const Tensor& wanted) {
  if (got.sizes() == wanted.sizes() && got.scalar_type() == wanted.scalar_type() && at::equal(got, wanted))
    return "";
  std::ostringstream text;
  text << name << " is " << got << ", eager has " << wanted << '\n';
  return text.str();
}

static std::string difference(const std::string& kind, const std::map<std::string, Tensor>& got,
                              const std::map<std::string, Tensor>& wanted) {
  std::string text;
  for (const auto& [name, tensor] : wanted)
    text += got.contains(name) ? difference(kind + " " + name, got.at(name), tensor)
                               : kind + " " + name + " is missing\n";
  for (const auto& [name, tensor] : got)
    if (!wanted.contains(name)) text += kind + " " + name + " is there, eager has none\n";
  return text;
}

namespace {
struct Seen {
  std::string graph;
  std::uint64_t steps = 0;  // compared
};
// Tensors this small gain nothing from threads, which on busy cores wait for one another.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};
}  // namespace

// What differs from eager over two steps, between which the parameters change; empty if nothing does.
static std::string difference_from_eager(std::uint64_t seed, const Statements& statements,
                                         Seen* seen = nullptr) {
  const auto module = std::make_shared<RandomModule>(seed);
  const Batch batches[] = {random_batch(), random_batch()};
  const auto drawn_from = static_cast<std::int64_t>(seed) + 17;
  const auto first = eager(*module, statements, batches[0], Stream{drawn_from, 1});
  if (!first) return "";
  std::map<std::string, Tensor> marks;
  for (const auto& item : module->named_parameters())
    item.value().mutable_grad() = at::ones_like(item.value());
  for (const auto& item : module->named_parameters()) marks.emplace(item.key(), item.value().grad());
  try {
    Trainer trainer(module, [&](auto& net, const Batch& batch) { return loss_of(*net, statements, batch); },
                    SGD{.lr = 0}, {.seed = static_cast<std::uint64_t>(drawn_from)});
    const auto parameters = copies(module->named_parameters());
    const auto buffers = copies(module->named_buffers());
    const auto& captured = trainer.graph(batches[0]);
    if (seen) seen->graph = ir::to_text(captured);
    auto text = difference("parameter, by capture,", copies(module->named_parameters()), parameters) +
                difference("buffer, by capture,", copies(module->named_buffers()), buffers);

    for (std::int64_t step = 1; step <= 2 && text.empty(); ++step) {
      const auto& batch = batches[step - 1];
      const auto wanted = step == 1 ? first : eager(*module, statements, batch, Stream{drawn_from, step});
      if (!wanted) break;
      if (seen) ++seen->steps;
      const auto before = copies(module->named_parameters());
      const double loss = trainer.step(batch).loss;
      const auto at = " at step " + std::to_string(step);
      text += difference("loss" + at, at::scalar_tensor(loss, at::kDouble), wanted->loss) +
              difference("gradient" + at, trainer.gradients(), wanted->gradients) +
              difference("buffer" + at, copies(module->named_buffers()), wanted->buffers) +
              difference("parameter" + at, copies(module->named_parameters()), before);
      for (const auto& item : module->named_parameters())
        if (!item.value().grad().is_same(marks.at(item.key())))
          text += ".grad of " + item.key() + " was replaced\n";
      const at::NoGradGuard no_grad;
      for (auto& parameter : module->parameters()) parameter.mul_(0.75).add_(0.125);
    }
    return text;
  } catch (const std::exception& error) {
    // A write that left a parameter's bytes as they were: eager() does not see it, and the Trainer refuses
    // it.
    const std::string message = error.what();
    return message.find("writes to its parameter") == std::string::npos ? message : "";
  }
}

// Between 5 and 25 statements that eager accepts together.
static Statements random_statements(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::size_t length = 5 + random() % 21;
  Statements statements;
  while (statements.size() < length) {
    statements.push_back(random_statement(random));
    RandomModule module(seed);  // each time: a refused statement may have left autograd's marks on a buffer
    if (!eager(module, statements, random_batch())) statements.pop_back();
  }
  return statements;
}

// Fewer statements that still differ, none of which can be left out.
static Statements fewest(Statements statements, const std::function<bool(const Statements&)>& differ) {
  for (std::size_t i = statements.size(); i-- > 0;) {
    auto without = statements;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    if (differ(without)) statements = std::move(without);
  }
  return statements;
}

TEST_CASE("random modules train through their captured graph as they do eagerly, bit for bit") {
  const OneThread one_thread;
  Seen seen;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kNumSeeds; ++seed) {
    CAPTURE(seed);
    const auto statements = random_statements(seed);
    const bool equal = difference_from_eager(seed, statements, &seen).empty();
    CHECK(equal);
    if (equal) continue;
    const auto few = fewest(
        statements, [&](const Statements& fewer) { return !difference_from_eager(seed, fewer).empty(); });
    Seen again;
    const auto difference = difference_from_eager(seed, few, &again);
    FAIL_CHECK(difference << "\nby these statements:\n"
                          << to_text(few) << "\nin this graph:\n"
                          << again.graph);
  }
  MESSAGE(seen.steps, " steps compared");
  CHECK(2 * kNumSeeds - seen.steps <= 2 * kNumSeeds / 15);  // eager refuses few programs for the second batch
}

// --- The same modules on several ranks, with layouts drawn at random.

static Parallelism random_parallelism(std::mt19937_64& random, const RandomModule& module) {
  static constexpr std::array<std::array<int, 3>, 8> kDegrees = {
      {{2, 1, 1}, {3, 1, 1}, {1, 2, 1}, {1, 3, 1}, {1, 1, 2}, {1, 1, 3}, {2, 1, 2}, {1, 2, 2}}};
  const auto [replicate, shard, tensor] = kDegrees[random() % kDegrees.size()];
  Parallelism parallelism{.mesh = mesh_of(replicate * shard * tensor, replicate, shard, tensor)};
  if (shard > 1) parallelism.plan.zero_stage = static_cast<int>(random() % 4);
  parallelism.plan.bucket_bytes = random() % 2 == 0 ? 64 : 1 << 20;
  parallelism.plan.gathers_again = random() % 2 == 0;
  for (const auto& item : module.named_parameters()) {
    if (tensor == 1 || random() % 2 == 0) continue;
    const int dim = static_cast<int>(random() % static_cast<std::uint64_t>(item.value().dim()));
    parallelism.plan.lines.push_back(
        {compile::PlanLine::Kind::Parameter, item.key(), {{"tensor", sharding::Shard{.dim = dim}}}});
  }
  return parallelism;
}

// Of what is zero but for rounding, some optimizers make a step of full size: Lion, Rprop, and Adafactor take a
// gradient's sign or norm away. With a larger eps or decay, the others do not.
static const Optimizer& random_optimizer(std::mt19937_64& random) {
  static const Optimizer all[] = {SGD{.lr = 0.05, .momentum = 0.9, .nesterov = true},
                                  SGD{.lr = 0.05, .momentum = 0.9, .dampening = 0.5},
                                  Adam{.lr = 0.01, .weight_decay = 0.1},
                                  AdamW{.lr = 0.01},
                                  AdamW{.lr = 0.01, .amsgrad = true, .maximize = true},
                                  Adagrad{.lr = 0.01, .lr_decay = 0.5, .eps = 1e-6},
                                  RMSprop{.lr = 0.01, .momentum = 0.9, .centered = true},
                                  Adadelta{},
                                  Adamax{.lr = 0.01},
                                  RAdam{.lr = 0.01},
                                  NAdam{.lr = 0.01},
                                  ASGD{.lr = 0.05, .lambd = 0.1, .t0 = 1},
                                  LAMB{.lr = 0.01, .weight_decay = 0.1}};
  return all[random() % std::size(all)];
}

namespace {

// How a module is trained, drawn from its seed: up to three steps of one to three micro-batches.
struct Training {
  Training(std::uint64_t number, const RandomModule& module)
      : random(number),
        seed(number),
        parallelism(random_parallelism(random, module)),
        optimizer(random_optimizer(random)) {
    torch::manual_seed(number);
    const std::size_t microbatches = 1 + random() % 3;
    for (int step = 0; step < 3; ++step) {
      auto& batches = steps.emplace_back();
      for (std::size_t i = 0; i < microbatches; ++i) batches.push_back(random_batch());
    }
  }

  Trainer trainer(const std::shared_ptr<RandomModule>& module, const Statements& statements,
                  std::optional<Parallelism> on) const {
    return Trainer(module, [&](auto& net, const Batch& part) { return loss_of(*net, statements, part); },
                   optimizer, {.clip_norm = 1, .seed = seed, .parallelism = std::move(on)});
  }
  static StepResult step(Trainer& trainer, const std::vector<Batch>& batches) {
    return batches.size() == 1 ? trainer.step(batches[0]) : trainer.step_over(batches);
  }
  std::string text() const {
    return concat(to_text(parallelism.mesh), ", ZeRO stage ", parallelism.plan.zero_stage, ", optimizer ",
                  optimizer.index(), ", ", steps[0].size(), " micro-batches, plan\n",
                  to_text(parallelism.plan));
  }

  std::mt19937_64 random;
  std::uint64_t seed;
  Parallelism parallelism;
  Optimizer optimizer;
  std::vector<std::vector<Batch>> steps;
};

}  // namespace

static std::vector<Batch> mapped(const std::vector<Batch>& batches,
                                 const std::function<Tensor(const std::string&, const Tensor&)>& change) {
  std::vector<Batch> all;
  for (const Batch& batch : batches) all.push_back(map_tensors(batch, change));
  return all;
}

// What differs between one device and a mesh; empty if nothing does. `seen` counts the steps.
static std::string difference_on_mesh(std::uint64_t seed, const Statements& statements, Seen& seen) {
  const auto whole = std::make_shared<RandomModule>(seed);
  const Training training(seed, *whole);
  std::vector<train::Record> wanted;
  std::vector<std::vector<Batch>> written;  // some modules write into their batch
  try {
    Trainer alone = training.trainer(whole, statements, {});
    for (const auto& batches : training.steps) {
      auto own = mapped(batches, [](const std::string&, const Tensor& tensor) { return tensor.clone(); });
      const auto result = Training::step(alone, own);
      wanted.push_back(train::record_of(alone, result));
      written.push_back(std::move(own));
    }
  } catch (const std::exception&) {  // one device refuses the rest too
  }
  seen.steps += wanted.size();
  const sharding::Mesh& mesh = training.parallelism.mesh;
  std::vector<std::shared_ptr<RandomModule>> modules;
  for (int rank = 0; rank < mesh.size(); ++rank) modules.push_back(std::make_shared<RandomModule>(seed));
  std::string text;
  std::mutex mutex;  // guards text
  try {
    comm::run_as_threads(comm::inproc(mesh.size()), [&](comm::Communicator& world) {
      at::set_num_threads(1);
      Parallelism mine = training.parallelism;
      mine.world = &world;
      mine.limit = std::chrono::seconds(60);
      Trainer trainer = training.trainer(modules[static_cast<std::size_t>(world.rank())], statements, mine);
      const auto own = [&](const std::string&, const Tensor& tensor) {
        if (tensor.dim() == 0) return tensor.clone();
        const auto [begin, end] = samples_of(mesh, world.rank(), tensor.size(0));
        return tensor.slice(0, begin, end).clone();
      };
      for (std::size_t step = 0; step < wanted.size(); ++step) {
        const auto parts = mapped(training.steps[step], own);
        const auto result = Training::step(trainer, parts);
        const auto comparison = train::compare(train::record_of(trainer, result), wanted[step], 1e-9);
        const auto written_here = mapped(written[step], own);
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < parts.size(); ++i)
          for_each_leaf(written_here[i], [&](const std::string& path, const Batch& leaf) {
            const auto* tensor = std::get_if<Tensor>(&leaf.value());
            if (tensor != nullptr && tensor->is_floating_point() &&
                !at::allclose(*tensor, parts[i][path].tensor(), 1e-9, 1e-12))
              text =
                  concat("what is written into ", path, " at step ", step, " differs on rank ", world.rank());
          });
        if (comparison.largest > 1)
          text = concat(comparison.worst, " differs by ", comparison.error, " at step ", step, " on rank ",
                        world.rank(), " of ", training.text());
      }
    });
  } catch (const std::exception& error) {
    return concat(error.what(), " on ", training.text());
  }
  return text;
}

TEST_CASE("random modules train on random meshes, in random layouts, as on one device") {
  const OneThread one_thread;
  Seen seen;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kNumSeeds; ++seed) {
    CAPTURE(seed);
    const auto statements = random_statements(seed);
    if (difference_on_mesh(seed, statements, seen).empty()) continue;
    Seen again;
    const auto few = fewest(
        statements, [&](const Statements& fewer) { return !difference_on_mesh(seed, fewer, again).empty(); });
    FAIL_CHECK(difference_on_mesh(seed, few, again) << "\nby these statements:\n" << to_text(few));
  }
  MESSAGE(seen.steps, " steps compared");
  CHECK(seen.steps >= 3 * kNumSeeds * 4 / 5);
}

}  // namespace property_test
