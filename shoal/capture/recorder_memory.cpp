// SPDX-License-Identifier: Apache-2.0
// Which memory is whose: parameters, buffers and inputs are known by the bytes that they lie in; what else
// is read is a constant, until a value is written into it.
#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "shoal/aten/memory.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/recorder.h"
#include "shoal/capture/views.h"

namespace shoal::capture {

using ir::ValueId;

static std::uint64_t next_capture_id() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

static std::pair<std::int64_t, std::int64_t> bytes_covered(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += std::max<std::int64_t>(tensor.size(dim) - 1, 0) * tensor.stride(dim);
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  const auto begin = tensor.storage_offset() * size;
  return {begin, tensor.numel() == 0 ? begin : begin + (last + 1) * size};
}

Recorder::Recorder(const Request& request, std::optional<Stop> stop)
    : request_(request), stop_(std::move(stop)), id_(next_capture_id()) {
  const auto source = [&](ir::Role role, const std::string& name, const at::Tensor& tensor) {
    const auto value = captured_.graph.add_source(role, name, aten::type_of(tensor));
    metas_.push_back(meta_of(tensor));
    devices_.push_back(tensor.device());
    from_inputs_.push_back(role == ir::Role::Input);
    return value;
  };
  const auto sources = [&](ir::Role role, const std::vector<NamedTensor>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.defined()) continue;
      SHOAL_CHECK(!recorded(tensor), InvalidInput, "capture: ", ir::name_of(role), " ", name,
                  " was replaced by an activation of an earlier capture; write to it with copy_() instead");
      SHOAL_CHECK(tensor.layout() == at::kStrided, InvalidInput, "capture: ", ir::name_of(role), " ", name,
                  " is ", tensor.layout(), "; sparse tensors cannot be captured");
      const auto* region = region_of(tensor);
      if (region && bytes_covered(region->tensor) == bytes_covered(tensor)) continue;  // tied
      const auto value = source(role, name, tensor);
      if (role == ir::Role::Parameter) marks_.add_parameter(value, tensor);
      add_region(tensor, role, name, value);
    }
  };
  sources(ir::Role::Parameter, request.parameters);
  sources(ir::Role::Buffer, request.buffers);
  for (const auto& [name, tensor] : request.inputs) {
    SHOAL_CHECK(tensor.defined() && tensor.layout() == at::kStrided, InvalidInput, "capture: input ", name,
                " is undefined or sparse; give a dense tensor");
    const auto value = source(ir::Role::Input, name, tensor);
    inputs_.push_back(wrap(value));
    if (ir::is_beside(name) && region_of(tensor) == nullptr) {
      add_region(tensor, ir::Role::Input, name, value);
      input_aliases_.push_back(region_of(tensor)->alias);
    } else {
      input_aliases_.push_back(recorded(inputs_.back())->view.alias);
    }
  }
}

void Recorder::add_region(const at::Tensor& tensor, ir::Role role, const std::string& name, ValueId value) {
  const auto [begin, end] = bytes_covered(tensor);
  regions_[tensor.storage().unsafeGetStorageImpl()].push_back(
      {std::make_shared<Alias>(Alias{value, value, 0}), tensor, begin, end, role, name});
}

const Recorder::Region* Recorder::region_of(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return nullptr;
  const auto found = regions_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == regions_.end()) return nullptr;
  const auto [begin, end] = bytes_covered(tensor);
  for (const auto& region : found->second)
    if (begin >= region.begin && end <= region.end && (begin < region.end || begin == end)) return &region;
  return nullptr;
}

bool Recorder::touches_value(const at::Tensor& tensor) const {
  if (const auto* of = recorded(tensor)) {
    SHOAL_CHECK(
        of->capture_id == id_, InvalidInput, "capture: the model uses an activation of an earlier step, ",
        where(), ": a tensor of shape ", tensor.sizes(),
        " that was made in an earlier call and kept outside the model's buffers (a member, a closure). A "
        "captured step sees its batch, parameters and buffers alone, and that tensor holds no data any more. "
        "Remedy: register_buffer() what must last, and write to it with copy_(); set the member anew before "
        "it is used without a Trainer");
    return true;
  }
  return region_of(tensor) != nullptr;
}

View Recorder::view_of_region(const Region& region, const at::Tensor& tensor) {
  SHOAL_CHECK(tensor.scalar_type() == region.tensor.scalar_type(), InvalidInput, "capture: ", region.name,
              " is seen as another dtype, ", where(), "; convert it with to() instead of view(dtype)");
  View view{region.alias, steps_between(region.tensor, tensor), region.alias->value, region.alias->version};
  if (!view.steps.empty()) view.version = region.alias->version - 1;  // shown value is not known yet
  return view;
}

// A constant that a value is written into becomes a value, with all its aliases.
void Recorder::promote(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  check_write(whole);
  const ValueId value = constant(whole);
  keep_constants_of(whole);
  add_region(whole, ir::Role::Activation, "", value);
}

void Recorder::made(const at::Tensor& tensor) {
  if (!tensor.defined() || recorded(tensor) || !tensor.has_storage()) return;
  const auto& storage = tensor.storage();
  own_.try_emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
}

// A write that a captured step would not repeat. What the model has made itself since it was called is its
// own; memory that no allocator of LibTorch gave (from_blob, frombuffer) may be, which nothing here can tell.
void Recorder::check_write(const at::Tensor& tensor) const {
  if (!tensor.has_storage() || own_.contains(tensor.storage().unsafeGetStorageImpl())) return;
  if (request_.writes_constant && request_.writes_constant(tensor)) return;
  if (tensor.storage().allocator() == nullptr) return;
  untraceable(
      concat("writes to a tensor of shape ", tensor.sizes(), " (", tensor.scalar_type(),
             ") from outside, which is no parameter, buffer or item of the batch: a captured step would "
             "not do it again"),
      "register it as a buffer of the model that is trained, or put it into the batch; both are written "
      "at each step. Of another module that the loss runs: TrainerOptions::beside. What is to leave no trace "
      "there: without_trace(), or a clone()");
}

ValueId Recorder::constant(const at::Tensor& tensor) {
  SHOAL_CHECK(tensor.layout() == at::kStrided && tensor.has_storage(), InvalidInput, "capture: a ",
              tensor.layout(), " tensor meets the model's values, ", where(), "; use a dense one");
  if (request_.lacks_memory && !aten::has_memory(tensor)) request_.lacks_memory(tensor);
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  auto& held = constants_[tensor.storage().unsafeGetStorageImpl()];
  for (const auto& [value, index] : held) {
    const auto& other = captured_.constants[index];
    if (other.sizes() == tensor.sizes() && other.strides() == tensor.strides() &&
        other.dtype() == tensor.dtype() && other.storage_offset() == tensor.storage_offset() &&
        other.is_conj() == tensor.is_conj() && other.unsafeGetTensorImpl()->is_wrapped_number() == wrapped)
      return value;
  }
  const auto index = captured_.constants.size();
  const auto value =
      captured_.graph.add_source(ir::Role::Constant, "c" + std::to_string(index), aten::type_of(tensor));
  captured_.constants.push_back(wrapped ? tensor : tensor.detach());
  metas_.push_back(meta_of(tensor));
  devices_.push_back(tensor.device());
  from_inputs_.push_back(true);
  held.push_back({value, index});
  return value;
}

void Recorder::keep_constants_of(const at::Tensor& about_to_change) {
  if (!about_to_change.has_storage()) return;
  const auto found = constants_.find(about_to_change.storage().unsafeGetStorageImpl());
  if (found == constants_.end()) return;
  for (const auto& held : found->second)
    captured_.constants[held.index] = captured_.constants[held.index].clone();
  constants_.erase(found);
}

}  // namespace shoal::capture
