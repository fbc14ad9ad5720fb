// SPDX-License-Identifier: Apache-2.0
// Batches and outputs as Python gives them: containers of tensors and of other things.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace shoal::python {

// A tuple, list, named tuple, mapping (ModelOutput and BatchEncoding are mappings) or dataclass, or a leaf.
// Holds Python objects: only with the interpreter's lock.
struct Tree {
  enum class Kind { Tensor, Value, Other, List, Tuple, NamedTuple, Mapping, Dataclass };
  Kind kind = Kind::Value;
  py::object object;                               // of a leaf the leaf itself; of a container its type
  std::vector<std::pair<py::object, Tree>> items;  // by key, field name or index
};

// Numbers, strings, None, dtypes and devices are values; what is neither a container nor one of those is
// Kind::Other.
Tree tree_of(py::handle object);

// "{labels: tensor, scale: float}": containers, names in order, and kinds of leaves.
std::string structure_of(const Tree& tree);

// Calls visit(path, leaf) for every leaf; paths read "labels", "images.0". Mappings in the order of their
// names.
void for_each_leaf(const Tree& tree,
                   const std::function<void(const std::string& path, const Tree& leaf)>& visit);

// The object again, with what `replaced` gives for each leaf. Dataclasses are made without their __init__.
py::object object_of(const Tree& tree,
                     const std::function<py::object(const std::string& path, const Tree& leaf)>& replaced);

}  // namespace shoal::python
