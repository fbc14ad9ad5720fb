// SPDX-License-Identifier: Apache-2.0
// Sparse tensors by what they are made of, which is dense: a graph has no others.
//
//   COO: indices [sparse dims, entries], values [entries]; an entry may be there twice, and counts as their sum
//   CSR: crow_indices [rows + 1], col_indices [entries], values [entries]
//   CSC: ccol_indices [columns + 1], row_indices [entries], values [entries]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace shoal::aten {

bool is_sparse(const at::Tensor& tensor);  // COO, CSR or a layout of their kin

// By the names above, without a copy. Throws InvalidInput for other layouts.
std::vector<std::pair<std::string, at::Tensor>> components_of(const at::Tensor& sparse);
// A tensor of the other's layout and sizes that has these, in the order of components_of.
at::Tensor with_components(const at::Tensor& sparse, const std::vector<at::Tensor>& components);
// COO, of values' device; takes both as they are.
at::Tensor sparse_coo(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes,
                      bool is_coalesced);

// [rows, n]: a COO matrix of so many rows times dense [columns, n]. What shoal::sparse_mm computes; the sums
// are those of torch.sparse.mm.
at::Tensor sparse_mm(const at::Tensor& indices, const at::Tensor& values, const at::Tensor& dense,
                     std::int64_t rows);

}  // namespace shoal::aten
