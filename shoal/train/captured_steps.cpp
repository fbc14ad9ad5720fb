// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/captured_steps.h"

#include <ATen/ops/empty_strided.h>

#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "shoal/aten/memory.h"
#include "shoal/base/error.h"
#include "shoal/ir/structure.h"
#include "shoal/train/agreement.h"
#include "shoal/train/memory.h"

namespace shoal::train {

using capture::NamedTensor;
using ir::Role;

CapturedSteps::CapturedSteps(ModelView& view, const ModelTensors& model, Settings settings)
    : view_(view), model_(model), settings_(std::move(settings)), spot_checks_(settings_.spot_check_share) {}

std::string CapturedSteps::structure() const {
  std::string text = view_.mode();
  if (settings_.depends_on) text += ' ' + settings_.depends_on();
  return text;
}

std::string CapturedSteps::shared_structure() const {
  return view_.shared_mode ? view_.shared_mode() : structure();
}

// Everything but tensor contents that a captured graph depends on.
CapturedSteps::Key CapturedSteps::key_of(const SharedBatch& batch, Use use) const {
  std::ostringstream key, sizes;
  key << (use == Use::Evaluation ? "evaluation" : "training");
  for_each_leaf(batch.part, [&](const std::string& path, const Batch& leaf) {
    key << ' ' << path << ':';
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) {
      SHOAL_CHECK(tensor->defined(), InvalidInput, "trainer: batch item ", path, " is an undefined tensor");
      const auto all = batch.sizes.find(path);
      key << tensor->scalar_type() << tensor->device();
      sizes << (all == batch.sizes.end() ? tensor->sizes() : at::IntArrayRef(all->second));
      if (ranks_ == nullptr && !tensor->is_contiguous())
        sizes << '@' << tensor->strides();  // forward may look
    } else if (const auto* integer = std::get_if<std::int64_t>(&leaf.value())) {
      key << *integer;
    } else {
      key << std::hexfloat << leaf.number() << std::defaultfloat;
    }
  });
  key << ' ' << structure() << ' ';
  for (const auto* parameters : {&model_.parameters(), &model_.tables()})
    for (const auto& [name, parameter] : *parameters) key << parameter.requires_grad();
  auto text = std::move(key).str();
  const auto without_sizes = std::hash<std::string>{}(text);
  return {std::move(text.append(" ").append(sizes.view())), without_sizes};
}

// Guards and spot checks look at all samples, those of other ranks too.
Batch CapturedSteps::whole(const SharedBatch& batch) const {
  return ranks_ != nullptr ? train::whole(ranks_->rank(), batch) : batch.part;
}

CapturedStep& CapturedSteps::find(const SharedBatch& batch, Use use) {
  auto key = key_of(batch, use);
  const Numbers numbers = view_.numbers != nullptr ? view_.numbers->now() : Numbers();
  std::vector<at::Tensor> inputs;
  std::optional<Batch> all;
  const auto whole_batch = [&]() -> const Batch& {
    if (!all) all = whole(batch);
    return *all;
  };
  const auto holds = [&](const capture::Guards& guards) {
    if (guards.list.empty()) return true;
    if (inputs.empty())
      for (auto& [name, tensor] : inputs_of(whole_batch())) inputs.push_back(tensor);
    return capture::hold(guards, inputs);
  };
  for (auto step = steps_.begin(); step != steps_.end(); ++step) {
    if (step->key != key.all || !set_numbers(*step, numbers) || !holds(step->guards)) continue;
    steps_.splice(steps_.begin(), steps_, step);
    return steps_.front();
  }
  CapturedStep made = captured(whole_batch(), use, std::move(key));
  made.numbers = numbers;
  if (!numbers.empty() && ranks_ == nullptr) follow_numbers(made, whole_batch(), use);
  steps_.push_front(std::move(made));
  forget_until_it_fits();
  return steps_.front();
}

// Of the step and what it runs, about; the same on all ranks, which have to forget alike.
static std::int64_t bytes_of(const CapturedStep& step) {
  constexpr std::int64_t kBytesOfNode = 2500;  // in the captured graph and the program; 1,900 for BERT
  std::int64_t bytes = kBytesOfNode * std::ssize(step.graph.nodes);
  for (const auto* constants : {&step.constants, &step.guards.constants})
    for (const at::Tensor& constant : *constants) bytes += static_cast<std::int64_t>(constant.nbytes());
  return bytes;
}

void CapturedSteps::forget_until_it_fits() {
  std::int64_t bytes = bytes_of(steps_.front());
  for (auto step = std::next(steps_.begin()); step != steps_.end();) {
    bytes += bytes_of(*step);
    if (bytes <= settings_.graph_bytes) {
      ++step;
      continue;
    }
    bytes -= bytes_of(*step);
    forget(*step);
    step = steps_.erase(step);
    ++num_forgotten_;
  }
}

// Has the step's arguments follow the numbers that keep changing, where that can be done.
void CapturedSteps::follow_numbers(CapturedStep& step, const Batch& batch, Use use) {
  constexpr int kMostTries = 8;        // one after the other, of which none was of use
  constexpr std::size_t kMost = 4096;  // keys
  if (tries_.size() > kMost) tries_.clear();
  if (++tries_[step.key] > kMostTries) return;
  const auto request = request_of(batch, use);
  try {
    step.followed = Followed::find(*view_.numbers, step.graph, [&] { return capture::record(request); });
  } catch (const std::exception&) {
    // With numbers that are traced the model does something else, or fails: each has a graph of its own.
  }
}

// Whether the step is right for these numbers, or can be made so.
bool CapturedSteps::set_numbers(CapturedStep& step, const Numbers& numbers) {
  if (step.numbers == numbers) return true;
  if (!step.followed) return false;
  const auto values = step.followed->at(numbers);
  if (!values) return false;
  fill(step.graph, step.followed->holes(), *values);
  if (!step.guards.list.empty()) fill(step.guards.graph, step.followed->holes(), *values);
  for (auto& [use, runnable] : step.runnables)
    if (runnable) runnable->set_numbers(*values);
  step.numbers = numbers;
  tries_.erase(step.key);
  return true;
}

void CapturedSteps::forget_runnables(CapturedStep& step) {
  for (const auto& [use, runnable] : step.runnables) settings_.forgets(*runnable);
  step.runnables.clear();
}

void CapturedSteps::forget_runnables() {
  for (auto& step : steps_) forget_runnables(step);
}

void CapturedSteps::forget(CapturedStep& step) {
  forget_runnables(step);
  if (view_.forget_tag && !step.tag.empty()) view_.forget_tag(step.tag);
}

void CapturedSteps::forget() {
  for (auto& step : steps_) forget(step);
  steps_.clear();
  runs_.clear();
}

CapturedStep& CapturedSteps::checked(const SharedBatch& batch, Use use, std::int64_t number) {
  CapturedStep& step = find(batch, use);
  if (use == Use::Microbatch && step.last_step == number) return step;
  if (step.last_step >= 0) {  // else it was recorded just now
    const auto run = runs_[step.structure] + 1;
    if (spot_checks_.is_due(run, ranks_ != nullptr ? batch.asked : run > 8 && spot_checks_.is_time()))
      spot_check(step, batch, use);
    runs_[step.structure] = run;
  }
  step.last_step = number;
  return step;
}

// A batch may lie otherwise than the first one did: the executor copies it then, as is done here.
static at::Tensor laid_as_recorded(const ir::Graph& graph, const std::string& name,
                                   const at::Tensor& tensor) {
  if (ir::is_beside(name)) return tensor;
  for (const auto& source : graph.sources) {
    const auto& [type, role, producer] = graph.at(source.value);
    if (role != Role::Input || source.name != name || tensor.strides() == type.strides) continue;
    return at::empty_strided(type.shape, type.strides, tensor.options()).copy_(tensor.detach());
  }
  return tensor;
}

void CapturedSteps::spot_check(const CapturedStep& step, const SharedBatch& batch, Use use) {
  const observe::Span span(settings_.trace, "spot check", 0, "trainer");
  const Batch all = whole(batch);
  for (const at::Tensor& constant : step.constants) aten::recall(constant);
  spot_checks_.run([&] {
    auto request = request_of(all, use);
    for (auto& [name, tensor] : request.inputs) tensor = laid_as_recorded(step.graph, name, tensor);
    const auto check = [&] { capture::check_again(request, step.graph, step.constants); };
    if (ranks_ != nullptr)
      together(ranks_->control(), check);
    else
      check();
  });
}

// Borrows the batch.
capture::Request CapturedSteps::request_of(const Batch& batch, Use use) {
  std::function<std::vector<NamedTensor>()> outputs;
  if (view_.outputs)
    outputs = [this] {
      std::vector<NamedTensor> named;
      for (auto& [name, tensor] : view_.outputs()) named.push_back({name, tensor});
      return named;
    };
  auto parameters = model_.parameters();
  parameters.insert(parameters.end(), model_.tables().begin(), model_.tables().end());
  return {
      .parameters = std::move(parameters),
      .buffers = model_.buffers(),
      .inputs = inputs_of(batch),
      .loss =
          [this, &batch](std::span<const at::Tensor> inputs) {
            std::size_t next = 0;
            return view_.loss(
                map_tensors(batch, [&](const std::string&, const at::Tensor&) { return inputs[next++]; }));
          },
      .mode = use == Use::Evaluation ? capture::Mode::Evaluate : capture::Mode::Train,
      .outputs = std::move(outputs),
      .writes_constant = view_.writes_constant,
      .has_lstms_by_step = ranks_ != nullptr && ranks_->cuts_layers(),
      .source_line = view_.source_line,
      .reader = view_.reader,
      .progress = ranks_ != nullptr && ranks_->rank().number != 0 ? nullptr : view_.progress,
  };
}

CapturedStep CapturedSteps::captured(const Batch& batch, Use use, Key key) {
  if (use != Use::Evaluation) refuse_shared_memory(view_.parameters);
  const observe::Span span(settings_.trace, "capture", 0, "trainer");
  capture::Request request = request_of(batch, use);
  at::Tensor elsewhere;  // another trainer has it in parts
  request.lacks_memory = [&](const at::Tensor& tensor) { elsewhere = tensor; };
  constexpr std::size_t kMost = 4096;  // structures
  if (runs_.size() > kMost) runs_.clear();
  std::uint64_t structure = 0;
  const auto has_met = [&](const ir::Graph& graph) {
    structure = ir::structure_of(graph) ^ key.without_sizes;
    const bool is_known = runs_.contains(structure);
    num_alike_ += is_known;
    return is_known;
  };
  const auto capture = [&] {
    for (;;) try {
        return capture::capture(request, has_met);
      } catch (...) {
        const at::Tensor lacking = std::exchange(elsewhere, {});
        aten::recall(lacking);
        if (!lacking.defined() || !aten::has_memory(lacking)) throw;
      }
  };
  auto captured = capture();
  runs_.try_emplace(structure, 1);
  CapturedStep step{.key = std::move(key.all),
                    .structure = structure,
                    .guards = std::move(captured.guards),
                    .graph = std::move(captured.graph),
                    .scopes = std::move(captured.scopes),
                    .constants = std::move(captured.constants),
                    .inputs = {},
                    .tag = view_.tag ? view_.tag() : "",
                    .runnables = {}};
  for (const auto& input : request.inputs) step.inputs.push_back(input.name);
  step.graph.values.shrink_to_fit();  // it stays
  step.graph.nodes.shrink_to_fit();
  return step;
}

}  // namespace shoal::train
