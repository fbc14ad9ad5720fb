// SPDX-License-Identifier: Apache-2.0
// How calls on sparse tensors come to the interceptor, and the operator that stands for their products.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <functional>

namespace shoal::capture {

// shoal::sparse_mm: aten::sparse_mm of shoal/aten/sparse.h.
void define_sparse_mm(torch::Library& library);
// `make` gives a library for a key, which lasts.
void register_sparse(const std::function<torch::Library&(c10::DispatchKey)>& make,
                     torch::CppFunction (*kernel)());

}  // namespace shoal::capture
