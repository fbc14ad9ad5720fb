// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "shoal/aten/sparse.h"
#include "shoal/base/error.h"
#include "shoal/python/tree.h"

namespace shoal::python {

std::vector<py::object> parts_of(const py::object& batch, std::int64_t count) {
  const Tree tree = tree_of(batch);
  std::int64_t size = -1;
  std::string first;
  for_each_leaf(tree, [&](const std::string& path, const Tree& leaf) {
    if (leaf.kind != Tree::Kind::Tensor) return;
    const auto& tensor = THPVariable_Unpack(leaf.object.ptr());
    SHOAL_CHECK(!aten::is_sparse(tensor), InvalidInput, "trainer: accumulate=", count,
                " cuts dim 0 of the batch's tensors, and item ", path,
                " is sparse. Remedy: cut the batch yourself, and step_over([…])");
    if (tensor.dim() == 0) return;
    if (size < 0) {
      size = tensor.size(0);
      first = path;
    }
    SHOAL_CHECK(tensor.size(0) == size, InvalidInput, "trainer: accumulate=", count,
                " cuts dim 0 of the batch's tensors, and item ", path, " has ", tensor.size(0),
                " there, item ", first, " ", size, ". Remedy: cut the batch yourself, and step_over([…])");
  });
  SHOAL_CHECK(size > 0, InvalidInput, "trainer: accumulate=", count,
              " cuts dim 0 of the batch's tensors, and there ",
              size < 0 ? "is no tensor with a dim" : "are no samples");
  const std::int64_t parts = std::min(count, size);
  std::vector<py::object> made;
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto begin = size * part / parts, end = size * (part + 1) / parts;
    made.push_back(object_of(tree, [&](const std::string&, const Tree& leaf) {
      if (leaf.kind != Tree::Kind::Tensor) return leaf.object;
      const auto& tensor = THPVariable_Unpack(leaf.object.ptr());
      return tensor.dim() == 0 ? leaf.object : py::cast(tensor.narrow(0, begin, end - begin));
    }));
  }
  return made;
}

}  // namespace shoal::python
