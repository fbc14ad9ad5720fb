// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/eager.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/python/tree.h"

namespace shoal::python {

void check_can_be_eager(const std::optional<Degrees>& parallelism) {
  if (!parallelism) return;
  const compile::Plan& plan = parallelism->plan;
  const auto zero = std::ranges::find(plan.mesh, plan.zero_axis, &sharding::Axis::name);
  const bool is_cut =
      plan.mesh.empty() ? parallelism->shard != 1 : zero != plan.mesh.end() && zero->size != 1;
  const bool keeps_parts = is_cut && (plan.zero_stage < 0 || plan.zero_stage == 3 || plan.planner.zero ||
                                      !plan.zero_parts.empty());
  const bool cuts_layers = std::ranges::any_of(
      plan.lines, [](const auto& line) { return line.kind == compile::PlanLine::Kind::Parameter; });
  const auto pipeline = std::ranges::find(plan.mesh, plan.pipeline_axis, &sharding::Axis::name);
  const bool has_stages =
      plan.mesh.empty() ? parallelism->pipeline != 1 : pipeline != plan.mesh.end() && pipeline->size != 1;
  SHOAL_CHECK(
      !has_stages, InvalidInput,
      "trainer: on_refusal=\"eager\" runs the model itself, and with a pipeline each rank has a stage of it "
      "alone. Remedy: Parallelism(pipeline=1), or on_refusal=\"error\"");
  SHOAL_CHECK(plan.precision == rewrite::Precision{}, InvalidInput,
              "trainer: on_refusal=\"eager\" runs the model itself, which knows of no precision. Remedy: "
              "torch.autocast in loss_fn, or on_refusal=\"error\"");
  SHOAL_CHECK(!keeps_parts && parallelism->tensor == 1 && !cuts_layers, InvalidInput,
              "trainer: on_refusal=\"eager\" runs the model itself, and with ",
              keeps_parts ? "ZeRO-3" : "tensor parallel", " no rank has all of its parameters. Remedy: ",
              keeps_parts ? "Parallelism(shard=…, zero_stage=2)" : "Parallelism(tensor=1)",
              ", or on_refusal=\"error\"");
}

// As many as the first tensor has; 1 where none has a dim.
static double samples_in(const Batch& batch) {
  std::optional<double> samples;
  for_each_leaf(batch, [&](const std::string&, const Batch& leaf) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf.value());
    if (!samples && tensor != nullptr && tensor->dim() > 0) samples = static_cast<double>(tensor->size(0));
  });
  return samples.value_or(1);
}

static py::object detached(const py::object& result) {
  return object_of(tree_of(result), [](const std::string&, const Tree& leaf) {
    return leaf.kind == Tree::Kind::Tensor ? py::cast(THPVariable_Unpack(leaf.object.ptr()).detach())
                                           : leaf.object;
  });
}

namespace {

// Parameters have no gradients, and then those that they had.
class OwnGradients {
 public:
  explicit OwnGradients(const ModelView::NamedTensors& parameters) {
    for (const auto& [name, tensor] : parameters) {
      kept_.emplace_back(tensor, tensor.grad());
      tensor.mutable_grad() = at::Tensor();
    }
  }
  ~OwnGradients() {
    for (const auto& [tensor, gradient] : kept_) tensor.mutable_grad() = gradient;
  }
  OwnGradients(const OwnGradients&) = delete;
  OwnGradients& operator=(const OwnGradients&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> kept_;
};

}  // namespace

Plain run_with_gradients(const Model& model, const ModelView::NamedTensors& parameters,
                         const std::vector<py::object>& batches,
                         const std::function<Batch(const py::object&)>& start) {
  const OwnGradients own(parameters);
  const at::AutoGradMode with_grad(true);
  Plain plain;
  plain.given.samples = 0;
  for (const py::object& batch : batches) {
    const double samples = samples_in(start(batch));
    auto [loss, result] = model.run_plainly(batch);
    py::cast(batches.size() == 1 ? loss : loss * samples).attr("backward")();
    plain.given.loss += loss.item<double>() * samples;
    plain.given.samples += samples;
    plain.outputs = detached(result);
  }
  plain.given.loss /= plain.given.samples;
  for (const auto& [name, tensor] : parameters)
    if (tensor.grad().defined())
      plain.given.gradients.emplace(
          name, batches.size() == 1 ? tensor.grad() : tensor.grad() / plain.given.samples);
  return plain;
}

Plain run_for_loss(const Model& model, const py::object& batch,
                   const std::function<Batch(const py::object&)>& start) {
  const at::NoGradGuard no_grad;
  Plain plain;
  plain.given.samples = samples_in(start(batch));
  auto [loss, result] = model.run_plainly(batch);
  plain.given.loss = loss.item<double>();
  plain.outputs = detached(result);
  return plain;
}

void warn_of_eager(const std::string& refusal, bool is_parallel) {
  const auto text = concat(
      "shoal: on_refusal=\"eager\": forward and backward are PyTorch's own from now on, at its speed and "
      "memory, "
      "and draw from its generator",
      is_parallel ? "; gradients are reduced after backward, weighed by samples, and buffers are rank 0's"
                  : "",
      ". The update stays Shoal's. What was refused: ", refusal);
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 2) != 0) throw py::error_already_set();
}

}  // namespace shoal::python
