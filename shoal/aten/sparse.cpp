// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/sparse.h"

#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>

#include "shoal/base/error.h"

namespace shoal::aten {

bool is_sparse(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_sparse() || at::sparse_csr::is_sparse_compressed(tensor));
}

std::vector<std::pair<std::string, at::Tensor>> components_of(const at::Tensor& sparse) {
  if (sparse.is_sparse()) {
    const auto* impl = static_cast<at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
    return {{"indices", impl->indices()}, {"values", impl->values()}};
  }
  const bool is_csc = sparse.layout() == at::kSparseCsc;
  SHOAL_CHECK(is_csc || sparse.layout() == at::kSparseCsr, InvalidInput, "a tensor is ", sparse.layout(),
              "; of sparse ones COO, CSR and CSC are known: to_sparse_coo() makes one");
  const auto* impl = static_cast<at::SparseCsrTensorImpl*>(sparse.unsafeGetTensorImpl());
  return {{is_csc ? "ccol_indices" : "crow_indices", impl->compressed_indices()},
          {is_csc ? "row_indices" : "col_indices", impl->plain_indices()},
          {"values", impl->values()}};
}

at::Tensor sparse_coo(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes,
                      bool is_coalesced) {
  const auto key = values.is_cuda() ? c10::DispatchKey::SparseCUDA : c10::DispatchKey::SparseCPU;
  auto made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), values.dtype());
  auto* impl = static_cast<at::SparseTensorImpl*>(made.unsafeGetTensorImpl());
  impl->raw_resize_(indices.size(0), values.dim() - 1, sizes);
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(is_coalesced);
  return made;
}

at::Tensor with_components(const at::Tensor& sparse, const std::vector<at::Tensor>& components) {
  if (sparse.is_sparse()) {
    const auto* impl = static_cast<at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
    return sparse_coo(components.at(0), components.at(1), sparse.sizes(), impl->coalesced());
  }
  const auto& values = components.at(2);
  const auto key = values.is_cuda() ? c10::DispatchKey::SparseCsrCUDA : c10::DispatchKey::SparseCsrCPU;
  auto made = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), values.device(),
                                                               sparse.layout(), values.dtype());
  static_cast<at::SparseCsrTensorImpl*>(made.unsafeGetTensorImpl())
      ->set_member_tensors(components.at(0), components.at(1), values, sparse.sizes());
  return made;
}

at::Tensor sparse_mm(const at::Tensor& indices, const at::Tensor& values, const at::Tensor& dense,
                     std::int64_t rows) {
  return sparse_coo(indices, values, {rows, dense.size(0)}, false).mm(dense);
}

}  // namespace shoal::aten
