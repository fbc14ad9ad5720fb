// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/model_tensors.h"

#include <algorithm>
#include <utility>

#include "shoal/aten/memory.h"

namespace shoal::train {

static ModelTensors::NamedTensors named(const ModelView::NamedTensors& tensors) {
  ModelTensors::NamedTensors named;
  for (const auto& [name, tensor] : tensors) named.push_back({name, tensor});
  return named;
}

void ModelTensors::set(const ModelView& view) {
  parameters_ = named(view.parameters);
  buffers_ = named(view.buffers);
}

bool ModelTensors::are(const ModelView::NamedTensors& parameters,
                       const ModelView::NamedTensors& buffers) const {
  const auto same = [](const NamedTensors& here, const ModelView::NamedTensors& given) {
    return std::ranges::equal(here, given, [](const capture::NamedTensor& a, const auto& b) {
      return a.name == b.first && a.tensor.is_same(b.second);
    });
  };
  return same(parameters_, parameters) && same(buffers_, buffers);
}

const at::Tensor* ModelTensors::find_parameter(const std::string& name) const {
  const auto found = std::ranges::find(parameters_, name, &capture::NamedTensor::name);
  return found == parameters_.end() ? nullptr : &found->tensor;
}

// Whether the tensor lies somewhere else than before; this place is then its new one.
bool ModelTensors::Place::follow(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::exchange(*this, {}).memory != nullptr;
  const void* now = aten::address_of(tensor);
  if (now == memory && tensor.dtype() == dtype && tensor.sizes() == shape && tensor.strides() == strides)
    return false;
  *this = {now, tensor.dtype(), tensor.sizes().vec(), tensor.strides().vec()};
  return true;
}

bool ModelTensors::have_moved() {
  std::size_t next = 0;
  bool moved = false;
  for (const auto* tensors : {&parameters_, &buffers_})
    for (const auto& [name, tensor] : *tensors) {
      if (next == places_.size()) places_.emplace_back();
      moved = places_[next++].follow(tensor) || moved;
    }
  return moved;
}

at::Tensor ModelTensors::kept(const std::string& name, const at::Tensor& tensor) const {
  const at::Tensor part = ranks_ != nullptr ? ranks_->part_of_parameter(name) : at::Tensor();
  return part.defined() ? part : tensor.detach();
}

at::Tensor ModelTensors::whole(const std::string& name, const at::Tensor& tensor) const {
  const at::Tensor part = ranks_ != nullptr ? ranks_->part_of_parameter(name) : at::Tensor();
  if (!part.defined()) return tensor.detach();
  return whole_of(ranks_->rank(), part, ranks_->pins_of(name).kept, tensor.sizes());
}

void ModelTensors::write(const std::string& name, const at::Tensor& to, const at::Tensor& whole) const {
  const at::Tensor part = ranks_ != nullptr ? ranks_->part_of_parameter(name) : at::Tensor();
  if (part.defined())
    part.copy_(part_of(ranks_->rank(), whole, ranks_->pins_of(name).kept));
  else
    to.copy_(whole);
}

std::map<std::string, at::Tensor> ModelTensors::copies_of_buffers() const {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, tensor] : buffers_)
    if (tensor.defined()) copies.emplace(name, tensor.detach().clone());
  return copies;
}

}  // namespace shoal::train
