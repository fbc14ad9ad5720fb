// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/distribution.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>

#include "shoal/aten/memory.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/deferred.h"
#include "shoal/compile/pins.h"
#include "shoal/ir/text.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/train/agreement.h"

namespace shoal {

using sharding::Mesh;

namespace train {

using rewrite::ParameterPins;
using sharding::Layout;
using sharding::Shape;

static std::string describe(const Parallelism& parallelism) {
  return concat("mesh ", to_text(parallelism.mesh), "\nzero stage ",
                compile::zero_stage_of(parallelism.plan, parallelism.mesh), '\n', to_text(parallelism.plan));
}

static std::string describe(const char* kind, const Distribution::NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors)
    text += concat(kind, ' ', name, ' ', tensor.defined() ? ir::to_text(aten::type_of(tensor)) : "undefined",
                   '\n');
  return text;
}

Distribution::Distribution(Parallelism parallelism, const NamedTensors& parameters,
                           const NamedTensors& buffers, const Uncut& uncut, const Offloading& offloading)
    : parallelism_(std::move(parallelism)),
      groups_(parallelism_.mesh,
              parallelism_.tensors != nullptr ? *parallelism_.tensors : *parallelism_.world,
              parallelism_.limit),
      control_{parallelism_.world, parallelism_.limit},
      rank_(parallelism_.world->rank()),
      uncut_(uncut),
      offloading_(offloading) {
  if (groups_.world().communicator->is_asynchronous()) compile::resolve_overlap(parallelism_.plan);
  compile::read_schedule(parallelism_.plan);
  check_same(control_, "parallelism or model",
             describe(parallelism_) + describe("parameter", parameters) + describe("buffer", buffers));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters) names.push_back(name);
  check_fits(parallelism_.plan, parallelism_.mesh, names, parallelism_.plan_name);
  const at::NoGradGuard no_grad;
  const auto share = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    aten::recall(tensor);  // another trainer of the model may have it in parts
    shoal::materialize(tensor, name);
    at::Tensor detached = tensor.detach();
    runtime::broadcast(detached, 0, groups_.world());
  };
  for (const auto& [name, tensor] : buffers) share(name, tensor);
  std::map<std::pair<const void*, std::string>, std::string> first_names;  // by memory and type
  for (const auto& [name, tensor] : parameters) {
    const std::pair<const void*, std::string> where(
        tensor.storage().unsafeGetStorageImpl(),
        concat(tensor.storage_offset(), ' ', ir::to_text(aten::type_of(tensor))));
    const auto [first, is_new] = first_names.try_emplace(where, name);
    if (!is_new) {
      first_name_.emplace(name, first->second);
      continue;
    }
    share(name, tensor);
    parameters_.emplace_back(name, tensor);
    keep(name, tensor);
  }
}

void Distribution::keep(const std::string& name, const at::Tensor& tensor) {
  const Shape shape = tensor.sizes().vec();
  const auto pins_for = [&](std::optional<int> owner) {
    return compile::pins_of(parallelism_.plan, parallelism_.mesh, name, shape, uncut_(name, shape),
                            parallelism_.plan_name, owner);
  };
  ParameterPins& pins = pins_[name];
  pins = pins_for(stages_ ? std::optional(stages_->place_of(name)) : std::nullopt);
  if (const auto keeper = keeper_of(tensor)) pins.kept = pins_for(keeper).kept;
  if (pins.kept == sharding::replicated(parallelism_.mesh))
    return offloading_.take_in(ir::Role::Parameter, tensor);
  cut(kept_.emplace(name, Kept{tensor.detach(), {}}).first->second, name);
}

std::optional<int> Distribution::keeper_of(const at::Tensor& parameter) {
  if (stages_ || pipeline_ranks() == 1 || parameter.dim() == 0) return std::nullopt;
  bytes_kept_.resize(static_cast<std::size_t>(pipeline_ranks()));
  const auto least = std::ranges::min_element(bytes_kept_);
  *least += static_cast<std::int64_t>(parameter.nbytes());
  return static_cast<int>(least - bytes_kept_.begin());
}

void Distribution::settle(compile::Plan plan, std::optional<rewrite::Stages> stages) {
  const at::NoGradGuard no_grad;
  is_settled_ = true;
  parallelism_.plan = std::move(plan);
  stages_ = std::move(stages);
  for (const auto& [name, tensor] : parameters_) {  // one of them is whole at a time
    if (const auto kept = kept_.find(name); kept != kept_.end()) {
      bring_back(kept->second, name);
      kept_.erase(kept);
    }
    keep(name, tensor);
  }
  is_materialized_ = false;
}

bool Distribution::cuts_layers() const {
  const compile::Plan& plan = parallelism_.plan;
  return std::ranges::any_of(parallelism_.mesh.axes, [&](const auto& axis) {
    return axis.size > 1 && axis.name != plan.pipeline_axis && !is_batch_axis(plan, axis.name);
  });
}

int Distribution::pipeline_rank() const {
  return pipeline_ranks() == 1
             ? 0
             : parallelism_.mesh.coordinate(rank_, parallelism_.mesh.axis(parallelism_.plan.pipeline_axis));
}

const std::string& Distribution::first_name(const std::string& parameter) const {
  const auto tied = first_name_.find(parameter);
  return tied == first_name_.end() ? parameter : tied->second;
}

const ParameterPins& Distribution::pins_of(const std::string& parameter) const {
  return pins_.at(first_name(parameter));
}

at::Tensor Distribution::part_of_parameter(const std::string& name) const {
  const auto found = kept_.find(first_name(name));
  return found == kept_.end() || is_materialized_ ? at::Tensor() : found->second.part;
}

// Memory that belongs to this tensor alone can be given back.
static bool owns_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
}

static constexpr std::int64_t kShared = 64 << 10;  // bytes from which it is worthwhile: it comes in pages

std::int64_t bytes_of_part(std::int64_t bytes) {
  return bytes < kShared ? bytes : (bytes + 4095) / 4096 * 4096;
}

// In memory of the communicator, which others read without a copy on the way.
at::Tensor Distribution::in_shared_memory(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || static_cast<std::int64_t>(tensor.nbytes()) < kShared) return tensor;
  comm::Memory* memory =
      groups_.world().communicator->allocate(static_cast<std::int64_t>(tensor.nbytes())).release();
  at::Tensor shared =
      at::from_blob(memory->data(), tensor.sizes(), [memory](void*) { delete memory; }, tensor.options());
  shared.copy_(tensor);
  return shared;
}

// Where parts lie from step to step.
at::Tensor Distribution::kept_apart(const at::Tensor& part) const {
  if (!offloading_.has(ir::Role::Parameter, part)) return in_shared_memory(part);
  offloading_.take_in(ir::Role::Parameter, part);
  return part;
}

// Of a parameter whose elements the ranks have in parts, for who reads it: another trainer, whose loss runs this model.
struct Distribution::InParts final : aten::Origin {
  explicit InParts(Distribution* of) : keeper(of) {}
  void recall() override {
    if (keeper != nullptr) keeper->materialize();  // which ends this
  }
  mutable Distribution* keeper;  // null: it has gone
};

const Distribution::InParts* Distribution::parts_here(const at::Tensor& whole) const {
  const auto* parts = dynamic_cast<const InParts*>(aten::origin_of(whole));
  return parts != nullptr && parts->keeper == this ? parts : nullptr;
}

Distribution::~Distribution() {
  for (const auto& [name, kept] : kept_)
    if (const InParts* parts = parts_here(kept.whole)) parts->keeper = nullptr;
}

void Distribution::cut(Kept& kept, const std::string& name) {
  const at::Tensor part = part_of(rank(), kept.whole, pins_.at(name).kept);
  if (kept.part.defined())
    kept.part.copy_(part);  // executors are bound to its memory
  else
    kept.part = kept_apart(part);
  kept.takes = owns_storage(kept.whole);
  if (!kept.takes) return;
  aten::take_memory(kept.whole,
                    concat("parameter ", name,
                           " has no data here: the ranks keep it in parts. Remedy: call "
                           "materialize() of the trainer that trains it on every rank, and use, "
                           "save or change the parameter before its next step"),
                    std::make_unique<InParts>(this));
}

bool Distribution::is_here(const Kept& kept) const {
  return kept.takes ? parts_here(kept.whole) != nullptr : !is_materialized_;
}

void Distribution::drop() {
  for (auto& [name, kept] : kept_) {
    if (is_here(kept)) continue;
    aten::recall(kept.whole);
    cut(kept, name);
  }
  is_materialized_ = false;
}

void Distribution::follow() {
  if (!is_materialized_) return drop();
  for (const auto& [name, kept] : kept_) aten::recall(kept.whole);
}

void Distribution::bring_back(Kept& kept, const std::string& name) {
  if (is_here(kept))
    gather(kept, name);
  else
    aten::recall(kept.whole);
}

void Distribution::gather(Kept& kept, const std::string& name) {
  const at::Tensor whole = whole_of(rank(), kept.part, pins_.at(name).kept, kept.whole.sizes());
  give_memory(kept.whole);
  kept.whole.copy_(whole);
}

void Distribution::give_memory(const at::Tensor& whole) const {
  if (aten::has_memory(whole)) return;
  if (!offloading_.has(ir::Role::Parameter, whole)) return aten::give_memory(whole);
  const auto type = aten::type_of(whole);
  aten::give_memory(whole, offloading_.empty(ir::Role::Parameter, type, whole.options()).storage());
}

void Distribution::materialize() {
  for (auto& [name, kept] : kept_) bring_back(kept, name);
  is_materialized_ = true;
}

void Distribution::end() {
  for (auto& [name, kept] : kept_) {
    bring_back(kept, name);
    kept.part.reset();
  }
  is_materialized_ = true;
}

at::Tensor Distribution::summand_of(const std::string& parameter, const at::Tensor& gradient) const {
  const Layout& layout = pins_of(parameter).gradient;
  at::Tensor part = part_of(rank(), gradient, layout);
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
    if (std::holds_alternative<sharding::Partial>(layout.placements[axis]) &&
        parallelism_.mesh.coordinate(rank_, static_cast<int>(axis)) != 0)
      return part.zero_();  // the first rank speaks for the axis
  return part;
}

}  // namespace train
}  // namespace shoal
