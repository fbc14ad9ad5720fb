// SPDX-License-Identifier: Apache-2.0
// Tensors whose memory was taken away: they keep their names, shapes and places in a module, and whoever
// reads or writes them gets an error that says why, as the process would end otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace shoal::aten {

// Where a tensor's elements begin, also where reading them is an error; null if it has no memory.
const void* address_of(const at::Tensor& tensor);
// As Tensor::is_alias_of, which reads: whether both lie in one storage.
bool share_storage(const at::Tensor& a, const at::Tensor& b);
// False once `take_memory` has been here. Tensors without elements or without storage need none.
bool has_memory(const at::Tensor& tensor);
// What a tensor without memory would be made of, or who has its elements.
struct Origin {
  virtual ~Origin() = default;
  // Brings the elements back, where this can.
  virtual void recall() {}
};
// Frees the memory of a tensor that owns its storage. Each use of its elements, or of a view's, is then a
// c10::Error with this text (in Python: RuntimeError).
void take_memory(const at::Tensor& tensor, std::string text, std::unique_ptr<Origin> origin = nullptr);
// Has its origin bring a tensor's elements back, where it has no memory.
void recall(const at::Tensor& tensor);
// Gives it memory again, not initialised, or this.
void give_memory(const at::Tensor& tensor);
void give_memory(const at::Tensor& tensor, c10::Storage memory);

// A tensor that never had memory, and as above says so when it is used. `origin` lives as
// long as no memory is given.
at::Tensor empty_without_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::TensorOptions options,
                                std::string text, std::unique_ptr<Origin> origin);
const Origin* origin_of(const at::Tensor& tensor);  // null: it has none; the storage owns it

}  // namespace shoal::aten
