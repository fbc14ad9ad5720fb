// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/capture.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "shoal/aten/interpreter.h"
#include "shoal/aten/memory.h"
#include "shoal/base/error.h"
#include "shoal/capture/composites.h"
#include "shoal/capture/difference.h"
#include "shoal/capture/dispatch.h"
#include "shoal/capture/recorder.h"

namespace shoal::capture {

namespace {

// Takes gradients away for the time of a capture and puts them back as they were.
class SavedGradients {
 public:
  explicit SavedGradients(const std::vector<NamedTensor>& parameters) {
    for (const auto& [name, tensor] : parameters) save(tensor);
  }
  void save(const at::Tensor& tensor) {
    saved_.emplace_back(tensor, tensor.grad());
    tensor.mutable_grad() = at::Tensor();
  }
  ~SavedGradients() {
    // Last to first: a tied parameter is there again, when its gradient has been taken away already.
    for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved)
      saved->first.mutable_grad() = saved->second;
  }
  SavedGradients(const SavedGradients&) = delete;
  SavedGradients& operator=(const SavedGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
};

// On CUDA some operators choose kernels that draw random numbers or change statistics without saying so,
// before the recorder sees them: cuDNN's batch norm, fused attention. Their plain forms are recorded instead.
class PlainKernels {
 public:
  explicit PlainKernels(const Request& request) {
    auto& context = at::globalContext();
    context.setUserEnabledCuDNN(false);
    const auto on_cuda = [](const NamedTensor& each) {
      return each.tensor.defined() && each.tensor.is_cuda();
    };
    const bool in_main_memory =
        std::ranges::none_of(request.parameters, on_cuda) && std::ranges::none_of(request.inputs, on_cuda);
    if (in_main_memory) return;  // the CPU's flash attention obeys the same switch
    context.setSDPUseFlash(false);
    context.setSDPUseMemEfficient(false);
    context.setSDPUseCuDNN(false);
  }
  ~PlainKernels() {
    auto& context = at::globalContext();
    context.setUserEnabledCuDNN(cudnn_);
    context.setSDPUseFlash(flash_);
    context.setSDPUseMemEfficient(efficient_);
    context.setSDPUseCuDNN(cudnn_attention_);
  }
  PlainKernels(const PlainKernels&) = delete;
  PlainKernels& operator=(const PlainKernels&) = delete;

 private:
  bool cudnn_ = at::globalContext().userEnabledCuDNN();
  bool flash_ = at::globalContext().userEnabledFlashSDP();
  bool efficient_ = at::globalContext().userEnabledMemEfficientSDP();
  bool cudnn_attention_ = at::globalContext().userEnabledCuDNNSDP();
};

}  // namespace

static bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) ||
         (a.defined() && aten::share_storage(a, b) && a.storage_offset() == b.storage_offset() &&
          a.sizes() == b.sizes() && a.strides() == b.strides());
}

// Leaves that backward will give a gradient and that are none of the model's parameters: a teacher's, say.
static std::vector<at::Tensor> foreign_leaves(const at::Tensor& loss,
                                              const std::vector<NamedTensor>& parameters) {
  std::vector<at::Tensor> leaves;
  if (!loss.grad_fn()) return leaves;  // a parameter itself
  std::vector<torch::autograd::Node*> open = {loss.grad_fn().get()};
  std::unordered_set<torch::autograd::Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    auto* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges())
      if (edge.is_valid() && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    if (leaf && std::ranges::none_of(
                    parameters, [&](const NamedTensor& each) { return each.tensor.is_same(leaf->variable); }))
      leaves.push_back(leaf->variable);
  }
  return leaves;
}

static void run_model(const Request& request, Recorder& recorder, SavedGradients& gradients_before) {
  const Interception interception(recorder);
  const bool train = request.mode == Mode::Train;
  const at::AutoGradMode grad_mode(train);
  const at::Tensor loss = request.loss(recorder.inputs());
  // A model's own try that has swallowed it went another way than it goes when nothing records it.
  if (recorder.refusal()) throw Error(*recorder.refusal());
  if (loss.defined() || !request.outputs || train) {
    SHOAL_CHECK(loss.defined() && loss.numel() == 1, InvalidInput, "capture: the loss has shape ",
                loss.defined() ? loss.sizes() : at::IntArrayRef{}, "; return a scalar: a mean or a sum");
    recorder.add_result(ir::Role::Loss, "loss", loss);
  }
  if (request.outputs)
    for (const auto& [name, tensor] : request.outputs()) recorder.add_result(ir::Role::Output, name, tensor);
  if (!train) return;
  SHOAL_CHECK(
      loss.requires_grad(), InvalidInput,
      "capture: the loss does not depend on any parameter that requires a gradient; check that the model is "
      "called and that nothing detaches its output");
  for (const auto& leaf : foreign_leaves(loss, request.parameters)) gradients_before.save(leaf);
  recorder.start_backward();
  loss.backward();
  std::map<std::string, at::Tensor> gradients;  // by first name
  for (const auto& parameter : request.parameters) {
    if (!parameter.tensor.grad().defined()) continue;
    const auto& first = *std::ranges::find_if(request.parameters, [&](const NamedTensor& each) {
      return same_memory(each.tensor, parameter.tensor);
    });
    auto& gradient = gradients[first.name];
    if (!gradient.defined())
      gradient = parameter.tensor.grad();
    else if (!parameter.tensor.is_same(first.tensor))  // tied through .data: leaves of their own
      gradient = gradient + parameter.tensor.grad();
  }
  for (const auto& [name, tensor] : request.parameters)
    if (gradients.contains(name)) recorder.add_result(ir::Role::Gradient, name, gradients.at(name));
  for (const auto& [name, tensor] : request.inputs)
    if (ir::is_beside(name) && tensor.requires_grad() && tensor.is_leaf() && tensor.grad().defined())
      recorder.add_result(ir::Role::Output, gradient_name(name), tensor.grad());
}

static Captured capture_once(const Request& request, std::optional<Recorder::Stop> stop) {
  SavedGradients gradients(request.parameters);
  Recorder recorder(request, std::move(stop));
  const LstmsByStep lstms(request.has_lstms_by_step);
  const PlainKernels plain_kernels(request);  // after what the recorder has seen of the user's choice
  try {
    run_model(request, recorder, gradients);
  } catch (const c10::Error& error) {
    const std::string_view text = error.what_without_backtrace();
    SHOAL_CHECK(text.find("SparsePrivateUse1") == std::string_view::npos, InvalidInput,
                "capture: the model makes a sparse tensor, ", recorder.where_in_module(),
                "; of those in the batch and of constants mm, addmm, mv and t() are recorded. Remedy: make "
                "it before the "
                "step, or to_dense(), and gather() without sparse_grad");
    // Shapes that do not fit, and code that asks a recorded tensor for its memory.
    fail(ErrorKind::InvalidInput, "capture: LibTorch refused what the model does, ",
         recorder.where_in_module(), ": ", error.what_without_backtrace(),
         ". If this is about storage or a data pointer: while a model is captured, activations have no data, "
         "so "
         "data_ptr() and accessors cannot be used on them");
  }
  return std::move(recorder).finish();
}

// Random operators are told apart by the state of PyTorch's generator, which is one of the whole process.
static std::unique_lock<std::mutex> only_capture() {
  static std::mutex one_at_a_time;
  return std::unique_lock(one_at_a_time);
}

// Throws where the difference is made, if the model gets there again.
[[noreturn]] static void report(const Request& request, const Difference& found, const std::string& remedy) {
  if (found.node) capture_once(request, Recorder::Stop{*found.node, found.what, remedy});
  fail(ErrorKind::InvalidInput, "capture: the model ", found.what, ". Remedy: ", remedy);
}

Captured capture(const Request& request, const std::function<bool(const ir::Graph&)>& is_known) {
  const auto lock = only_capture();
  Captured first = capture_once(request, std::nullopt);
  if (is_known && is_known(first.graph)) return first;
  Captured second = capture_once(request, std::nullopt);
  if (first.graph == second.graph) return second;
  if (const auto found =
          difference(first.graph, second.graph, {"each time", "the first time", "the second time"}))
    report(request, *found, "make the model do the same each time it is called with the same batch");
  return second;
}

ir::Graph record(const Request& request) {
  const auto lock = only_capture();
  return capture_once(request, std::nullopt).graph;
}

// A constant that is memory of the user's own, still the same, is what the captured step reads too.
static void follow_live_constants(Captured& now, const ir::Graph& graph,
                                  const std::vector<at::Tensor>& constants) {
  std::size_t constant = 0;
  for (std::size_t i = 0; i < std::min(now.graph.sources.size(), graph.sources.size()); ++i) {
    auto& source = now.graph.sources[i];
    if (now.graph.at(source.value).role != ir::Role::Constant) continue;
    const auto number = constant++;
    if (graph.at(graph.sources[i].value).role != ir::Role::Constant || number >= constants.size()) return;
    if (same_memory(now.constants[number], constants[number]))
      source.fingerprint = graph.sources[i].fingerprint;
  }
}

void check_again(const Request& request, const ir::Graph& graph, const std::vector<at::Tensor>& constants) {
  const auto lock = only_capture();
  Captured now = capture_once(request, std::nullopt);
  follow_live_constants(now, graph, constants);
  if (now.graph == graph) return;
  if (const auto found = difference(graph, now.graph, {"than when its step was captured", "then", "now"}))
    report(
        request, *found,
        "what changes between steps belongs into the batch, a buffer or a parameter (from C++ depends_on may "
        "say it, and each value gets a step of its own); or call forget_graphs() after a change");
}

bool hold(const Guards& guards, std::span<const at::Tensor> inputs) {
  if (guards.list.empty()) return true;
  const c10::InferenceMode inference;
  aten::Interpreter interpreter(guards.graph);
  std::size_t input = 0, held = 0;
  for (const auto& source : guards.graph.sources) {
    const auto role = guards.graph.at(source.value).role;
    if (role == ir::Role::Input) interpreter.bind(source.value, inputs[input++]);
    if (role != ir::Role::Constant) continue;
    aten::recall(guards.constants[held]);
    interpreter.bind(source.value, guards.constants[held++]);
  }
  for (const auto& [call, expected, shapes_only, where] : guards.list) {
    const auto results = aten::call(call, [&](ir::ValueId value) { return interpreter.value(value); });
    for (std::size_t i = 0; i < results.size(); ++i) {
      const bool same = shapes_only
                            ? results[i].toTensor().sizes() == at::IntArrayRef(expected[i].toIntVector())
                        : results[i].isTensor() ? at::equal(results[i].toTensor(), expected[i].toTensor())
                                                : results[i] == expected[i];
      if (!same) return false;
    }
  }
  return true;
}

}  // namespace shoal::capture
