// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/runnable.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "shoal/aten/memory.h"
#include "shoal/base/error.h"
#include "shoal/compile/accumulate.h"
#include "shoal/compile/pins.h"
#include "shoal/rewrite/loss_scale.h"
#include "shoal/rewrite/tables.h"
#include "shoal/train/shared_batch.h"

namespace shoal::train {

using ir::Role;

std::vector<capture::NamedTensor> inputs_of(const Batch& batch) {
  std::vector<capture::NamedTensor> inputs;
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) inputs.push_back({path, *tensor});
  });
  return inputs;
}

Runnable::Runnable(compile::Compiled compiled, const std::vector<std::string>& inputs,
                   const runtime::Groups* groups, runtime::FileMemory* files, const runtime::RowTables* rows)
    : whole_(std::move(compiled.whole)), executor_(std::move(compiled.program), groups, files, rows) {
  whole_.settings = {};  // it borrows
  whole_.graph = {};
  if constexpr (SHOAL_CHECKS_TYPES)
    if (groups == nullptr) executor_.check_types();
  for (const auto& name : inputs) {
    const auto* source = program::find_source(program(), Role::Input, name);
    const auto* result = program::find_result(program(), Role::Output, capture::written_name(name));
    if (result != nullptr) written_.emplace_back(inputs_.size(), result->slot);
    inputs_.push_back(source == nullptr ? std::nullopt : std::optional(source->slot));
  }
  is_random_ = program::find_source(program(), Role::Scalar, "seed") != nullptr;
  has_grad_norm_ = program::find_result(program(), Role::Output, "grad_norm") != nullptr;
}

void Runnable::bind_lasting(const ModelTensors& model, const std::vector<at::Tensor>& constants) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : model.parameters()) by_name.emplace(name, model.kept(name, tensor));
  for (const auto& [name, tensor] : model.tables())
    by_name.emplace(name, at::empty({0}, tensor.scalar_type()));
  for (const auto& [name, tensor] : model.buffers()) by_name.emplace(name, tensor.detach());
  for (const auto& source : program().sources) {
    if (source.role == Role::Parameter || source.role == Role::Buffer)
      executor_.bind(source.slot, by_name.at(source.name));
    else if (source.role == Role::Constant)
      executor_.bind(source.slot, constants.at(std::stoul(source.name.substr(1))));
  }
}

void Runnable::bind_batch(const Batch& batch, std::size_t microbatch) {
  std::size_t input = 0;
  for_each_leaf(batch, [&](const std::string&, const Batch& leaf) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf.value());
    if (tensor == nullptr) return;
    if (const auto slot = inputs_.at(input++)) executor_.bind(*slot, tensor->detach(), microbatch);
  });
}

void Runnable::bind_draws(const at::Tensor& seed, std::int64_t step, std::size_t microbatch) {
  executor_.bind(Role::Scalar, "seed", seed, microbatch);
  executor_.bind(Role::Scalar, "step", at::scalar_tensor(step, at::kLong), microbatch);
}

void Runnable::bind_rows(std::int64_t step, double rate, double divisor) {
  for (const auto& [name, value] : {std::pair(rewrite::kRowsStep, at::scalar_tensor(step, at::kLong)),
                                    {rewrite::kRowsRate, at::scalar_tensor(rate, at::kDouble)},
                                    {rewrite::kRowsDivisor, at::scalar_tensor(divisor, at::kDouble)}})
    if (const auto* source = program::find_source(program(), Role::Scalar, name))
      executor_.bind(source->slot, value);
}

bool Runnable::adds_up_rows() const {
  return program::find_source(program(), Role::Scalar, rewrite::kRowsKeep) != nullptr;
}

void Runnable::bind_loss_scale(const at::Tensor& scale, std::size_t microbatch) {
  if (const auto* source = program::find_source(program(), Role::Scalar, rewrite::kLossScale))
    executor_.bind(source->slot, scale, microbatch);
}

double Runnable::loss(std::size_t microbatch) const {
  return executor_.result(Role::Loss, "loss", microbatch).item<double>();
}

std::pair<double, double> Runnable::loss_and_norm() const {
  const at::Tensor loss = executor_.result(Role::Loss, "loss");
  if (!has_grad_norm_) return {loss.item<double>(), 0};
  const at::Tensor norm = executor_.result(Role::Output, "grad_norm");
  if (loss.is_cpu()) return {loss.item<double>(), norm.item<double>()};
  // Each read of another device waits for it, so that both are one.
  const at::Tensor both = at::stack({loss.reshape({}).to(at::kDouble), norm.to(at::kDouble)}).cpu();
  return {both[0].item<double>(), both[1].item<double>()};
}

std::map<std::string, at::Tensor> Runnable::gradients() const {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& result : program().results)
    if (result.role == Role::Gradient) gradients.emplace(result.name, executor_.at(result.slot));
  return gradients;
}

void Runnable::add_outputs(std::map<std::string, at::Tensor>& outputs, std::size_t microbatch) const {
  for (const auto& result : program().results) {
    const bool is_ours = result.name == "grad_norm" || result.name == compile::kCount;
    const bool is_written =
        std::ranges::any_of(written_, [&](const auto& each) { return each.second == result.slot; });
    if (result.role != Role::Output || is_ours || is_written || outputs.contains(result.name)) continue;
    at::Tensor tensor = executor_.at(result.slot, microbatch);
    if (!tensor.defined()) continue;
    const bool shared = std::ranges::any_of(program().sources, [&](const program::Source& source) {
      const auto& bound = executor_.at(source.slot, microbatch);
      return bound.defined() && aten::share_storage(bound, tensor);
    });
    outputs.emplace(result.name, shared ? tensor.clone() : std::move(tensor));
  }
}

static std::string display_name(const std::string& input) {
  return ir::is_beside(input) ? input.substr(1) : "item " + input + " of the batch";
}

// The bytes between its first element and its last.
static std::pair<const char*, const char*> extent_of(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const char*>(aten::address_of(tensor));
  if (begin == nullptr || tensor.numel() == 0) return {nullptr, nullptr};
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size())};
}

static bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (!aten::share_storage(a, b)) return false;
  const auto [a_begin, a_end] = extent_of(a);
  const auto [b_begin, b_end] = extent_of(b);
  return a_begin < b_end && b_begin < a_end;
}

void Runnable::check_can_write(const Batch& given, const Batch& part) const {
  if (written_.empty()) return;
  const auto theirs = inputs_of(given), ours = inputs_of(part);
  for (const auto& [input, slot] : written_) {
    const auto& [name, tensor] = theirs[input];
    SHOAL_CHECK(
        tensor.is_same(ours[input].tensor), InvalidInput, "trainer: the model writes to ", display_name(name),
        ", and the ranks' parts of it are of other sizes than samples_of() says; give it such parts, or "
        "write to a clone() of it");
    for (std::size_t other = 0; other < theirs.size(); ++other)
      SHOAL_CHECK(other == input || !overlap(tensor, theirs[other].tensor), InvalidInput,
                  "trainer: the model writes to ", display_name(name), ", which shares memory with ",
                  display_name(theirs[other].name),
                  ", and would not see it there; give it a clone() of one of them");
  }
}

void Runnable::check_writes_apart(const Batch& batch, const compile::Plan& plan) const {
  if (written_.empty()) return;
  const auto inputs = inputs_of(batch);
  for (const auto& [input, slot] : written_) {
    const auto& [name, tensor] = inputs[input];
    SHOAL_CHECK(
        compile::is_cut(plan, name, static_cast<std::size_t>(tensor.dim())), InvalidInput,
        "pipeline: the model writes to ", display_name(name),
        ", which each micro-batch reads, and several are under way at once. Remedy: one micro-batch a "
        "step, or no pipeline");
  }
}

void Runnable::write_inputs(const Batch& batch, const Distribution* ranks, std::size_t microbatch) const {
  if (written_.empty()) return;
  const auto inputs = inputs_of(batch);
  const at::NoGradGuard no_grad;
  for (const auto& [input, slot] : written_) {
    const auto& [name, tensor] = inputs[input];
    const at::Tensor& whole = executor_.at(slot, microbatch);
    tensor.detach().copy_(ranks != nullptr ? part_of_input(ranks->rank(), name, whole) : whole);
  }
}

void Runnable::set_numbers(const Numbers& values) { fill(executor_, holes_, values); }

void Runnable::release() {
  executor_.release();
  executor_.release_inputs();
}

}  // namespace shoal::train
