// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/tree.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace shoal::python {

using Kind = Tree::Kind;

static bool is_value(py::handle object) {
  return object.is_none() || PyBool_Check(object.ptr()) || PyLong_Check(object.ptr()) ||
         PyFloat_Check(object.ptr()) || PyUnicode_Check(object.ptr()) || THPDtype_Check(object.ptr()) ||
         THPDevice_Check(object.ptr());
}

static bool is_mapping(py::handle object) {
  if (PyDict_Check(object.ptr())) return true;
  return py::isinstance(object, py::module_::import("collections.abc").attr("Mapping"));
}

static bool is_dataclass(py::handle object) {
  return py::hasattr(py::type::handle_of(object), "__dataclass_fields__");
}

static Tree container(Kind kind, py::handle object) {
  return {kind, py::reinterpret_borrow<py::object>(py::type::handle_of(object)), {}};
}

static Tree sequence(Kind kind, py::handle object) {
  Tree tree = container(kind, object);
  py::ssize_t index = 0;
  for (const auto item : object) tree.items.emplace_back(py::int_(index++), tree_of(item));
  return tree;
}

Tree tree_of(py::handle object) {
  if (THPVariable_Check(object.ptr())) return {Kind::Tensor, py::reinterpret_borrow<py::object>(object), {}};
  if (is_value(object)) return {Kind::Value, py::reinterpret_borrow<py::object>(object), {}};
  if (PyList_Check(object.ptr())) return sequence(Kind::List, object);
  if (PyTuple_Check(object.ptr()))
    return sequence(py::hasattr(object, "_fields") ? Kind::NamedTuple : Kind::Tuple, object);
  if (is_mapping(object)) {
    Tree tree = container(Kind::Mapping, object);
    for (const auto key : object) {
      const auto item = py::reinterpret_steal<py::object>(PyObject_GetItem(object.ptr(), key.ptr()));
      if (!item) throw py::error_already_set();
      tree.items.emplace_back(py::reinterpret_borrow<py::object>(key), tree_of(item));
    }
    // A loader may fill its dictionaries in another order each time.
    std::ranges::stable_sort(tree.items, {},
                             [](const auto& item) { return std::string(py::str(item.first)); });
    return tree;
  }
  if (is_dataclass(object)) {
    Tree tree = container(Kind::Dataclass, object);
    for (const auto name : py::type::handle_of(object).attr("__dataclass_fields__"))
      if (py::hasattr(object, py::str(name)))
        tree.items.emplace_back(py::reinterpret_borrow<py::object>(name),
                                tree_of(object.attr(py::str(name))));
    return tree;
  }
  return {Kind::Other, py::reinterpret_borrow<py::object>(object), {}};
}

static std::string type_name(py::handle type) { return py::str(type.attr("__name__")); }

std::string structure_of(const Tree& tree) {
  switch (tree.kind) {
    case Kind::Tensor: return "tensor";
    case Kind::Value:
    case Kind::Other: return type_name(py::type::handle_of(tree.object));
    default: break;
  }
  const bool named = tree.kind != Kind::List && tree.kind != Kind::Tuple;
  std::string inside;
  for (const auto& [name, item] : tree.items) {
    if (!inside.empty()) inside += ", ";
    if (named && tree.kind != Kind::NamedTuple) inside += std::string(py::str(name)) + ": ";
    inside += structure_of(item);
  }
  if (tree.kind == Kind::List) return "[" + inside + "]";
  if (tree.kind == Kind::Tuple) return "(" + inside + (tree.items.size() == 1 ? ",)" : ")");
  if (tree.kind == Kind::Mapping) return "{" + inside + "}";
  return type_name(tree.object) + "(" + inside + ")";
}

static std::string joined(const std::string& path, py::handle name) {
  const std::string own = py::str(name);
  return path.empty() ? own : path + "." + own;
}

static void visit_leaves(const std::string& path, const Tree& tree,
                         const std::function<void(const std::string&, const Tree&)>& visit) {
  if (tree.kind == Kind::Tensor || tree.kind == Kind::Value || tree.kind == Kind::Other)
    return visit(path, tree);
  for (const auto& [name, item] : tree.items) visit_leaves(joined(path, name), item, visit);
}

void for_each_leaf(const Tree& tree, const std::function<void(const std::string&, const Tree&)>& visit) {
  visit_leaves("", tree, visit);
}

// Mappings that are dataclasses too (ModelOutput) take their items by keyword, the others as one dictionary.
static py::object mapping_of(py::handle type, const py::dict& items) {
  if (type.is(py::handle(reinterpret_cast<PyObject*>(&PyDict_Type)))) return items;
  return py::hasattr(type, "__dataclass_fields__") ? type(**items) : type(items);
}

static py::object built(const std::string& path, const Tree& tree,
                        const std::function<py::object(const std::string&, const Tree&)>& replaced) {
  const auto items = [&] {
    py::list list;
    for (const auto& [name, item] : tree.items) list.append(built(joined(path, name), item, replaced));
    return list;
  };
  switch (tree.kind) {
    case Kind::Tensor:
    case Kind::Value:
    case Kind::Other: return replaced(path, tree);
    case Kind::List: return items();
    case Kind::Tuple: return py::tuple(items());
    case Kind::NamedTuple: return tree.object(*py::tuple(items()));
    case Kind::Mapping: {
      py::dict dict;
      for (const auto& [name, item] : tree.items) dict[name] = built(joined(path, name), item, replaced);
      return mapping_of(tree.object, dict);
    }
    case Kind::Dataclass: break;
  }
  const py::object object = tree.object.attr("__new__")(tree.object);
  const py::object set =
      py::module_::import("builtins").attr("object").attr("__setattr__");  // frozen ones too
  for (const auto& [name, item] : tree.items) set(object, name, built(joined(path, name), item, replaced));
  return object;
}

py::object object_of(const Tree& tree,
                     const std::function<py::object(const std::string&, const Tree&)>& replaced) {
  return built("", tree, replaced);
}

}  // namespace shoal::python
