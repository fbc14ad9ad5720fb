// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/sparse_items.h"

#include <torch/csrc/autograd/python_variable.h>

#include <vector>

#include "shoal/aten/sparse.h"
#include "shoal/base/error.h"

namespace shoal::python {

static std::string name_of(const std::string& item, const std::string& component) {
  return concat(item, ir::kOfSparse, component);
}

std::string add_item(Batch::Map& items, const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided) {
    items.emplace(name, Batch(tensor));
    return {};
  }
  const auto layout = tensor.layout();
  SHOAL_CHECK(layout == at::kSparse || layout == at::kSparseCsr || layout == at::kSparseCsc, InvalidInput,
              "trainer: item ", name, " of the batch is ", layout,
              "; give a dense tensor, or a sparse one as COO, CSR or CSC");
  for (const auto& [component, value] : aten::components_of(tensor))
    items.emplace(name_of(name, component), Batch(value));
  const bool is_coalesced = layout == at::kSparse && tensor.is_coalesced();
  return concat(name, "=", layout, tensor.sizes(), is_coalesced ? " coalesced;" : ";");
}

at::Tensor item_in(const Batch& batch, const std::string& name, py::handle given) {
  const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
  if (tensor.layout() == at::kStrided) return batch[name].tensor();
  std::vector<at::Tensor> components;
  for (const auto& [component, value] : aten::components_of(tensor))
    components.push_back(batch[name_of(name, component)].tensor());
  return aten::with_components(tensor, components);
}

}  // namespace shoal::python
