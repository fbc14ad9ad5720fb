// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/tree.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <unordered_map>

#include "shoal/base/error.h"

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

static bool is_builtin(py::handle object) {
  return PyList_CheckExact(object.ptr()) || PyTuple_CheckExact(object.ptr()) ||
         PyDict_CheckExact(object.ptr());
}

static bool is_leaf(const Tree& tree) { return tree.kind <= Kind::Again; }

static py::object borrowed(py::handle object) { return py::reinterpret_borrow<py::object>(object); }

// A key as a part of a path.
static std::string part_of(py::handle key) {
  if (!PyUnicode_Check(key.ptr()))
    return PyLong_CheckExact(key.ptr()) ? std::string(py::str(key)) : "[" + std::string(py::repr(key)) + "]";
  std::string text = py::str(key);
  const bool reads_otherwise =
      text.empty() || text.find_first_of(".\"\\[]@") != std::string::npos ||
      std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0 || c == '-'; });
  if (!reads_otherwise) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

static std::string path_to(const std::string& path, const std::string& part) {
  return path.empty() ? part : path + "." + part;
}

static py::object item_of(py::handle object, py::handle key) {
  auto item = py::reinterpret_steal<py::object>(PyObject_GetItem(object.ptr(), key.ptr()));
  if (!item) throw py::error_already_set();
  return item;
}

static bool has_other(const Tree& tree) {
  const auto in = [](const auto& item) { return has_other(item.second); };
  return tree.kind == Kind::Other || std::ranges::any_of(tree.items, in) ||
         std::ranges::any_of(tree.attributes, in);
}

namespace {

class Walk {
 public:
  Tree tree_of(py::handle object, const std::string& path) {
    if (is_value(object)) return leaf(Kind::Value, object, path);
    const bool is_tensor = THPVariable_Check(object.ptr());
    const bool is_tuple = PyTuple_Check(object.ptr());
    if (!is_tuple) {
      const auto [before, is_new] = places_.try_emplace(object.ptr(), Place{path, !is_tensor});
      if (!is_new) {
        SHOAL_CHECK(!before->second.is_open, InvalidInput, "trainer: item ", path,
                    " of the batch is a container that it is in itself; give containers without cycles");
        return leaf(Kind::Again, py::none(), before->second.path);
      }
    }
    if (is_tensor) return leaf(Kind::Tensor, object, path);
    Tree tree = container_of(object, path);
    if (!is_tuple) places_.at(object.ptr()).is_open = false;
    return tree;
  }

 private:
  struct Place {
    std::string path;
    bool is_open;
  };

  static Tree leaf(Kind kind, py::handle object, const std::string& path) {
    return {kind, borrowed(object), path, {}, {}, {}};
  }

  Tree container_of(py::handle object, const std::string& path) {
    Tree tree = leaf(Kind::Other, object, path);
    if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
      tree.kind = PyList_Check(object.ptr()) ? Kind::List : Kind::Tuple;
      py::ssize_t index = 0;
      for (const auto item : object) {
        tree.items.emplace_back(py::int_(index), tree_of(item, path_to(path, std::to_string(index))));
        ++index;
      }
    } else if (is_mapping(object)) {
      tree.kind = Kind::Mapping;
      for (const auto key : object)
        tree.items.emplace_back(borrowed(key), tree_of(item_of(object, key), path_to(path, part_of(key))));
    } else if (is_dataclass(object)) {
      tree.kind = Kind::Dataclass;
      for (const auto name : py::type::handle_of(object).attr("__dataclass_fields__"))
        if (py::hasattr(object, py::str(name)))
          tree.items.emplace_back(
              borrowed(name), tree_of(object.attr(py::str(name)), path_to(path, std::string(py::str(name)))));
    }
    if (tree.kind != Kind::Other && !is_builtin(object)) add_attributes(tree, path);
    return tree;
  }

  // What a class of the user's has besides items; what is no tensor, value or container of these is left out.
  void add_attributes(Tree& tree, const std::string& path) {
    if (!py::hasattr(tree.object, "__dict__")) return;
    for (const auto& [name, value] : py::dict(tree.object.attr("__dict__"))) {
      const bool is_item =
          std::ranges::any_of(tree.items, [name = name](const auto& item) { return item.first.equal(name); });
      const bool is_memory = tree.kind == Kind::Mapping && !PyDict_Check(tree.object.ptr()) &&
                             std::string(py::str(name)) == "data";  // UserDict's
      if (is_item || is_memory) continue;
      auto before = places_;
      Tree attribute = tree_of(value, path_to(path, "@" + std::string(py::str(name))));
      if (has_other(attribute)) {
        places_ = std::move(before);
        tree.left_out.push_back(borrowed(name));
      } else {
        tree.attributes.emplace_back(borrowed(name), std::move(attribute));
      }
    }
  }

  std::unordered_map<PyObject*, Place> places_;  // of what may be there twice
};

}  // namespace

Tree tree_of(py::handle object, const std::string& path) { return Walk().tree_of(object, path); }

static std::string class_name(py::handle object) {
  const py::handle type = py::type::handle_of(object);
  const std::string module = py::str(type.attr("__module__"));
  return (module == "builtins" ? "" : module + ".") + std::string(py::str(type.attr("__qualname__")));
}

std::string structure_of(const Tree& tree) {
  switch (tree.kind) {
    case Kind::Tensor: return "tensor";
    case Kind::Value:
    case Kind::Other: return class_name(tree.object);
    case Kind::Again: return "the same as " + tree.path;
    default: break;
  }
  const bool is_named = tree.kind == Kind::Mapping || tree.kind == Kind::Dataclass;
  std::string inside;
  const auto add = [&](const std::string& name, const Tree& item) {
    if (!inside.empty()) inside += ", ";
    inside += name + structure_of(item);
  };
  for (const auto& [key, item] : tree.items) add(is_named ? part_of(key) + ": " : "", item);
  for (const auto& [name, item] : tree.attributes) add("@" + std::string(py::str(name)) + ": ", item);
  const auto name = is_builtin(tree.object) ? "" : class_name(tree.object);
  if (tree.kind == Kind::List) return name + "[" + inside + "]";
  if (tree.kind == Kind::Mapping) return name + "{" + inside + "}";
  return name + "(" + inside + (tree.items.size() == 1 && name.empty() ? ",)" : ")");
}

std::string structure_with_values_of(const Tree& tree) {
  std::string text = structure_of(tree);
  for_each_leaf(tree, [&](const std::string& path, const Tree& leaf) {
    if (leaf.kind == Kind::Value) text += concat(';', path, '=', std::string(py::repr(leaf.object)));
  });
  return text;
}

void for_each_leaf(const Tree& tree, const std::function<void(const std::string&, const Tree&)>& visit) {
  if (tree.kind == Kind::Again) return;
  if (is_leaf(tree)) return visit(tree.path, tree);
  for (const auto* children : {&tree.items, &tree.attributes})
    for (const auto& [name, item] : *children) for_each_leaf(item, visit);
}

static py::object tuple_of(py::handle type, const py::tuple& items) {
  const py::handle tuple(reinterpret_cast<PyObject*>(&PyTuple_Type));
  if (type.is(tuple)) return items;
  try {
    return tuple.attr("__new__")(type, items);
  } catch (py::error_already_set& error) {  // one of C's, such as torch.return_types.max
    if (!error.matches(PyExc_TypeError)) throw;
    return type(items);
  }
}

static py::object mapping_of(const Tree& tree, const py::list& items) {
  py::dict plain;
  for (std::size_t i = 0; i < tree.items.size(); ++i) plain[tree.items[i].first] = items[i];
  if (PyDict_CheckExact(tree.object.ptr())) return plain;
  if (!py::hasattr(tree.object, "__setitem__")) return py::type::handle_of(tree.object)(plain);
  const py::object copy = py::module_::import("copy").attr("copy")(tree.object);
  for (const auto& [key, item] : plain) copy.attr("__setitem__")(key, item);
  return copy;
}

// A container like the one that was given, of these items and attributes.
static py::object container_of(const Tree& tree, const py::list& items, const py::list& attributes) {
  if (PyList_CheckExact(tree.object.ptr())) return items;
  const py::handle type = py::type::handle_of(tree.object);
  py::object made;
  if (tree.kind == Kind::Tuple) {
    made = tuple_of(type, py::tuple(items));
  } else if (tree.kind == Kind::Mapping) {
    made = mapping_of(tree, items);
  } else if (tree.kind == Kind::Dataclass) {
    made = type.attr("__new__")(type);
    const py::object set =
        py::module_::import("builtins").attr("object").attr("__setattr__");  // of a frozen one too
    for (std::size_t i = 0; i < tree.items.size(); ++i) set(made, tree.items[i].first, items[i]);
  } else {
    made = py::module_::import("copy").attr("copy")(tree.object);
    for (std::size_t i = 0; i < tree.items.size(); ++i)
      if (PyList_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), py::object(items[i]).release().ptr()) != 0)
        throw py::error_already_set();
  }
  if (is_builtin(tree.object) || !py::hasattr(tree.object, "__dict__")) return made;
  const py::dict now = made.attr("__dict__");
  for (std::size_t i = 0; i < tree.attributes.size(); ++i) now[tree.attributes[i].first] = attributes[i];
  for (const auto& name : tree.left_out) now.attr("pop")(name, py::none());
  return made;
}

static py::object built(const Tree& tree, std::map<std::string, py::object>& made,
                        const std::function<py::object(const std::string&, const Tree&)>& replaced) {
  if (tree.kind == Kind::Again) return made.at(tree.path);
  const auto all = [&](const Tree::Items& items) {
    py::list list;
    for (const auto& [name, item] : items) list.append(built(item, made, replaced));
    return list;
  };
  py::object object =
      is_leaf(tree) ? replaced(tree.path, tree) : container_of(tree, all(tree.items), all(tree.attributes));
  if (tree.kind != Kind::Value && tree.kind != Kind::Tuple) made.emplace(tree.path, object);
  return object;
}

py::object object_of(const Tree& tree,
                     const std::function<py::object(const std::string&, const Tree&)>& replaced) {
  std::map<std::string, py::object> made;
  return built(tree, made, replaced);
}

static py::list nones(std::size_t count) {
  py::list list;
  for (std::size_t i = 0; i < count; ++i) list.append(py::none());
  return list;
}

void release_containers(Tree& tree) {
  if (is_leaf(tree)) return;
  tree.object = container_of(tree, nones(tree.items.size()), nones(tree.attributes.size()));
  for (auto* children : {&tree.items, &tree.attributes})
    for (auto& [name, item] : *children) release_containers(item);
}

static void drop_leaves(Tree& tree) {
  if (is_leaf(tree) && tree.kind != Kind::Value) tree.object = py::none();
  for (auto* children : {&tree.items, &tree.attributes})
    for (auto& [name, item] : *children) drop_leaves(item);
}

Tree without_tensors(Tree tree) {
  release_containers(tree);
  drop_leaves(tree);
  return tree;
}

}  // namespace shoal::python
