// SPDX-License-Identifier: Apache-2.0
// Batches and outputs as Python gives them: containers of tensors and of other things.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace shoal::python {

// A tuple, list, mapping (ModelOutput and BatchEncoding are mappings) or dataclass, of whatever class, or a
// leaf. Holds Python objects: only with the interpreter's lock.
struct Tree {
  // Again: the object that stands at `path` already.
  enum class Kind { Tensor, Value, Other, Again, List, Tuple, Mapping, Dataclass };
  using Items = std::vector<std::pair<py::object, Tree>>;
  Kind kind = Kind::Value;
  py::object object;                 // what was given
  std::string path;                  // "labels", "images.0"; that of no other leaf
  Items items;                       // by key, field name or index, in the order in which they were given
  Items attributes;                  // of a container besides its items, by name
  std::vector<py::object> left_out;  // names of attributes that are neither tensors, values nor containers
};

// Numbers, strings, None, dtypes and devices are values; what is neither a container nor one of those is
// Kind::Other. Paths join keys by dots: a key that has one, or reads as a number, stands in quotes, and one
// that is neither string nor integer in brackets; an attribute is "@name". Throws InvalidInput for a
// container that contains itself.
// `path`: of the object itself.
Tree tree_of(py::handle object, const std::string& path = "");

// "{labels: tensor, scale: float}": containers, names in order, and kinds of leaves. Two trees of which one
// structure is told may differ in values and shapes alone.
std::string structure_of(const Tree& tree);
// The same with what its leaves of kind Value are.
std::string structure_with_values_of(const Tree& tree);

// Calls visit(path, leaf) for every leaf, in order, but for Kind::Again.
void for_each_leaf(const Tree& tree,
                   const std::function<void(const std::string& path, const Tree& leaf)>& visit);

// The object again, with what `replaced` gives for each leaf: containers are shallow copies of what was
// given, without the attributes that are left out.
py::object object_of(const Tree& tree,
                     const std::function<py::object(const std::string& path, const Tree& leaf)>& replaced);

// The batch in as many parts, of almost equal sizes, along dim 0 of its tensors, which all have the same size
// there; tensors without dims, and values, are in each part. Fewer parts where there are fewer samples.
std::vector<py::object> parts_of(const py::object& batch, std::int64_t count);

// Lets go of what containers held when they were given; leaves stay. What object_of makes is the same.
void release_containers(Tree& tree);
// The same structure, in which only values are kept.
Tree without_tensors(Tree tree);

}  // namespace shoal::python
