// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/sparse.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

#include "shoal/aten/sparse.h"

namespace shoal::capture {

static at::Tensor shape_of_product(const at::Tensor& indices, const at::Tensor& values,
                                   const at::Tensor& dense, std::int64_t rows) {
  TORCH_CHECK(indices.dim() == 2 && indices.size(0) == 2 && values.dim() == 1 && dense.dim() == 2,
              "a product with a sparse matrix is of two matrices, and the sparse one's entries are numbers");
  TORCH_CHECK(values.scalar_type() == dense.scalar_type(), "the sparse matrix is ", values.scalar_type(),
              ", and the dense one ", dense.scalar_type());
  return at::empty({rows, dense.size(1)}, dense.options());
}

void define_sparse_mm(torch::Library& library) {
  library.def("sparse_mm(Tensor indices, Tensor values, Tensor dense, int rows) -> Tensor");
  library.impl("sparse_mm", c10::DispatchKey::CompositeExplicitAutograd, aten::sparse_mm);
  library.impl("sparse_mm", c10::DispatchKey::Meta, shape_of_product);
}

// As for dense tensors: a kernel of its own for each operator that has one for sparse tensors of the CPU, or
// would run a composite one; a fallback for the others.
void register_sparse(const std::function<torch::Library&(c10::DispatchKey)>& make,
                     torch::CppFunction (*kernel)()) {
  using c10::DispatchKey;
  for (const auto& [key, of_cpu] :
       {std::pair(DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU),
        std::pair(DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU)}) {
    auto& library = make(key);
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.getNamespace() != "aten") continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      const bool is_transpose = name.name == "aten::t" || toString(name) == "aten::transpose.int";
      if (op && (is_transpose || op->hasKernelForDispatchKey(of_cpu)) && !op->hasKernelForDispatchKey(key))
        library.impl(toString(name).c_str(), kernel());
    }
  }
}

}  // namespace shoal::capture
