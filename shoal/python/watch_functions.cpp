// SPDX-License-Identifier: Apache-2.0
// What code reads: of a function its globals, what it closes over, settings of libraries' objects; of a
// class its bases.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "shoal/python/watch_python.h"

namespace shoal::python {

Digest Watch::describe_closure(const py::object& code, const py::object& cells, const std::string& path) {
  const py::tuple names = code.attr("co_freevars");
  Digest digest;
  for (std::size_t i = 0; i < names.size(); ++i)
    digest += describe(PyTuple_GET_ITEM(cells.ptr(), static_cast<Py_ssize_t>(i)),
                       joined(path, py::str(names[i])), false)
                  .at(i);
  return digest;
}

void Watch::describe_type(const py::object& type, const std::string& path) {
  for (const auto base : py::tuple(type.attr("__mro__"))) {
    const auto each = py::reinterpret_borrow<py::object>(base);
    if (ordinals_.contains(each.ptr())) continue;
    if (!py::bool_(python_->is_library_module(each.attr("__module__")))) {
      classes_.emplace_back(each, kind_of(each));
      follow(Place::Kind::Type, each, path, false);
      describe_type(type_of(each), path);  // its metaclass
      continue;
    }
    const std::string file = py::str(each.attr("__module__"));
    if (file == "builtins") continue;
    follow_names(each);
    const py::dict loaded = py::module_::import("sys").attr("modules");
    if (loaded.contains(file)) follow_names(loaded[py::str(file)]);
  }
}

Digest Watch::describe_function(const py::object& function, const std::string& path) {
  const py::object code = function.attr("__code__");
  if (py::bool_(python_->is_library(code.attr("co_filename")))) {
    // A library's function is what it is, but what it closes over may be the user's.
    if (PyFunction_GetClosure(function.ptr()) == nullptr) return number_of('l', function);
    return follow(Place::Kind::Function, function, path, false);
  }
  if (ordinals_.contains(function.ptr())) return follow(Place::Kind::Function, function, path, false);
  const Digest digest = follow(Place::Kind::Function, function, path, false);
  const std::string where = std::string(py::str(code.attr("co_filename"))) + ":" +
                            std::string(py::str(code.attr("co_firstlineno"))) + " (" +
                            std::string(py::str(code.attr("co_name"))) + ")";
  Digest all = digest;
  // By dictionary: a function's own globals, and those of the user's modules that it names.
  std::vector<std::pair<py::object, std::vector<py::object>>> read;
  const auto note = [&](const py::object& dictionary, const py::object& name) {
    auto entry = std::ranges::find_if(read, [&](const auto& each) { return each.first.is(dictionary); });
    if (entry == read.end()) entry = read.insert(read.end(), {dictionary, {}});
    if (std::ranges::none_of(entry->second, [&](const py::object& each) { return each.equal(name); }))
      entry->second.push_back(name);
  };
  const py::object globals = function.attr("__globals__");
  for (const char* name : {"globals", "eval", "exec", "vars", "sys", "__import__"})
    if (py::bool_(code.attr("co_names").attr("__contains__")(name)) &&
        ordinals_.try_emplace(globals.ptr(), places_.size()).second)
      places_.push_back(
          {.kind = Place::Kind::Library, .holder = globals, .path = path, .keys = {}, .values = {}});
  const py::dict loaded = py::module_::import("sys").attr("modules");
  for (const auto pair : python_->imported(code)) {
    const auto [name, names] = py::cast<std::pair<std::string, py::tuple>>(pair);
    const std::string here = py::str(function.attr("__module__"));
    for (const auto& each : {name, here.substr(0, here.rfind('.') + 1) + name}) {
      if (!loaded.contains(each)) all += ask("state_of_module", py::str(each), each);
      if (!loaded.contains(each) || py::bool_(python_->is_library_module(each))) continue;
      const py::dict module = loaded[py::str(each)].attr("__dict__");
      for (const auto read_name : names)
        if (module.contains(read_name)) note(module, py::reinterpret_borrow<py::object>(read_name));
      break;
    }
  }
  if (py::bool_(python_->reads_environment(code))) all += describe(python_->environment, "os.environ", false);
  for (const auto chain : python_->globals_read(code)) {
    py::object dictionary = globals;
    const py::tuple names = py::reinterpret_borrow<py::tuple>(chain);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const py::object name = names[i];
      asks_types_ = asks_types_ || (i == 0 && std::string(py::str(name)) == "type");
      if (PyDict_Contains(dictionary.ptr(), name.ptr()) != 1) {
        if (i == 0 && !py::hasattr(py::module_::import("builtins"), name)) note(dictionary, name);
        break;
      }
      const py::object value = dictionary[name];
      if (!PyModule_Check(value.ptr())) {
        note(dictionary, name);
        if (i + 1 < names.size()) all += describe_read(value, names[i + 1], py::str(name));
        break;
      }
      global_uses_.emplace_back(py::str(value.attr("__name__")), where);
      note(dictionary, name);
      dictionary = value.attr("__dict__");
    }
  }
  const py::object cells = function.attr("__closure__");
  const py::tuple free = code.attr("co_freevars");
  for (const auto chain : python_->closure_read(code)) {
    const py::tuple names = py::reinterpret_borrow<py::tuple>(chain);
    for (std::size_t i = 0; i < free.size() && names.size() > 1; ++i) {
      if (!free[i].equal(names[0])) continue;
      PyObject* value = PyCell_GET(PyTuple_GET_ITEM(cells.ptr(), static_cast<Py_ssize_t>(i)));
      if (value != nullptr) all += describe_read(value, names[1], py::str(names[0]));
    }
  }
  for (auto& [dictionary, names] : read)
    all += follow(Place::Kind::Names, dictionary, path, false, std::move(names));
  return all;
}

// A setting that a function reads of an object of a library's, whose other attributes are its own affair: an
// epoch of a scheduler, a shared number. Of a scheduler's methods, all that it has may be the answer.
Digest Watch::describe_read(py::handle object, const py::object& name, const std::string& path) {
  const py::object type = type_of(object);
  if (PyModule_Check(object.ptr()) || PyType_Check(object.ptr()) || THPVariable_Check(object.ptr()) ||
      !py::bool_(python_->is_library_module(type.attr("__module__"))) ||
      py::isinstance(object, python_->module_class) || py::isinstance(object, python_->namespaces))
    return {};
  PyObject* raw = PyObject_GetAttr(object.ptr(), name.ptr());
  if (raw == nullptr) {
    PyErr_Clear();
    return {};
  }
  const auto value = py::reinterpret_steal<py::object>(raw);
  if (PyCallable_Check(raw) != 0 && py::isinstance(object, python_->scheduler))
    return follow(Place::Kind::Dict, object.attr("__dict__"), path, false);
  if (!is_plain_value(value)) return {};
  const std::string key =
      std::to_string(reinterpret_cast<std::uintptr_t>(object.ptr())) + "." + std::string(py::str(name));
  if (!reads_.insert(key).second) return {};
  Digest digest = describe(value, joined(path, py::str(name)), false);
  places_.push_back({.kind = Place::Kind::Slots,
                     .holder = py::reinterpret_borrow<py::object>(object),
                     .path = path,
                     .keys = {name},
                     .values = {value}});
  places_.back().digests = {digest};
  return digest;
}

}  // namespace shoal::python
