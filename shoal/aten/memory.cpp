// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <utility>

namespace shoal::aten {

static at::DataPtr& pointer_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
}

const void* address_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.numel() == 0) return nullptr;
  const auto* begin = static_cast<const std::byte*>(pointer_of(tensor).get());
  if (begin == nullptr) return nullptr;
  return begin + static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage() || !b.has_storage()) return false;
  if (a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl()) return true;
  return has_memory(a) && has_memory(b) && a.is_alias_of(b);
}

// The deleter of memory that was taken away, or never there, by which it is known.
static void taken(void* origin) { delete static_cast<Origin*>(origin); }

bool has_memory(const at::Tensor& tensor) {
  return !tensor.has_storage() || pointer_of(tensor).get_deleter() != &taken;
}

void take_memory(const at::Tensor& tensor, std::string text, std::unique_ptr<Origin> origin) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, origin.release(), &taken, tensor.device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(text));
}

// LibTorch before 2.13 has no way back from release_data_and_set_meta_custom_data_ptr_error_msg_. What an explicit
// instantiation names may be private.
namespace {

void unlock(c10::StorageImpl& storage);
template <auto Flag>
struct Unlock {
  friend void unlock(c10::StorageImpl& storage) { storage.*Flag = false; }
};
template struct Unlock<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

// Its memory may be asked for again; once it is set.
template <typename Storage>
static void allow_access(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    unlock(storage);
    storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
  }
}

void give_memory(const at::Tensor& tensor) {
  if (has_memory(tensor)) return;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  allow_access(*storage);
  storage->set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(storage->nbytes()));
}

void give_memory(const at::Tensor& tensor, c10::Storage memory) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  allow_access(*storage);
  storage->set_data_ptr_noswap(memory.set_data_ptr(at::DataPtr()));
  storage->set_resizable(true);
}

at::Tensor empty_without_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options,
                                std::string text, std::unique_ptr<Origin> origin) {
  const auto device = options.device();
  const std::size_t bytes = at::detail::computeStorageNbytes(sizes, strides, options.dtype().itemsize());
  at::Tensor tensor = at::empty({0}, options);
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                                            at::DataPtr(nullptr, origin.release(), &taken, device),
                                            c10::GetAllocator(device.type()), /*resizable=*/false));
  impl->set_sizes_and_strides(sizes, strides);
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::move(text));
  return tensor;
}

void recall(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || has_memory(tensor)) return;
  if (auto* origin = static_cast<Origin*>(pointer_of(tensor).get_context())) origin->recall();
}

const Origin* origin_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || has_memory(tensor)) return nullptr;
  return static_cast<const Origin*>(pointer_of(tensor).get_context());
}

}  // namespace shoal::aten
