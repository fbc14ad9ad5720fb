// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/recorded_tensor.h"

#include <utility>

#include "shoal/base/error.h"

namespace shoal::capture {

static c10::DispatchKeySet keys_on(c10::Device device) {
  // Autocast of the real device, so that autocast regions of the model see the tensor.
  const auto real = device.is_cuda() ? c10::BackendComponent::CUDABit : c10::BackendComponent::CPUBit;
  SHOAL_CHECK(device.is_cuda() || device.is_cpu(), InvalidInput, "capture: a tensor is on device ",
              device.str(), "; Shoal runs on cpu and cuda");
  return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | c10::getAutocastRelatedKeySetFromBackend(real);
}

RecordedTensor::RecordedTensor(View of, at::Tensor shown, c10::Device device, std::uint64_t id)
    : TensorImpl(keys_on(device), shown.dtype(), device),
      view(std::move(of)),
      capture_id(id),
      device_(device) {
  set_custom_device(true);
  set_storage_access_should_throw();  // an empty one would be handed out
  take_geometry(std::move(shown));
}

void RecordedTensor::take_geometry(at::Tensor new_meta) {
  meta = std::move(new_meta);
  set_sizes_and_strides(meta.sizes(), meta.strides());
  set_storage_offset(meta.storage_offset());
}

c10::intrusive_ptr<c10::TensorImpl> RecordedTensor::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<RecordedTensor>(view, meta, device_, capture_id);
  copy->set_version_counter(version_counter);
  copy->set_allow_tensor_metadata_change(allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> RecordedTensor::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_tensor_metadata_change) const {
  const c10::VariableVersion version = std::move(version_counter);
  return shallow_copy_and_detach(version, allow_tensor_metadata_change);
}

void RecordedTensor::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) {
  const auto* from = dynamic_cast<const RecordedTensor*>(other.get());
  SHOAL_CHECK(from, InvalidInput, "capture: `.data` of an activation is set to a tensor that is none");
  view = from->view;
  take_geometry(from->meta);
}

RecordedTensor* recorded(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has_backend(c10::BackendComponent::PrivateUse1Bit))
    return nullptr;
  return dynamic_cast<RecordedTensor*>(tensor.unsafeGetTensorImpl());
}

}  // namespace shoal::capture
