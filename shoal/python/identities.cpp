// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/identities.h"

#include <algorithm>
#include <string>

namespace shoal::python {

void Identities::take(py::handle root, std::span<const std::string_view> ignored) {
  objects_.clear();
  add(root, ignored);
}

// A container, how many it has, and these.
void Identities::add(py::handle object, std::span<const std::string_view> ignored) {
  objects_.push_back(py::reinterpret_borrow<py::object>(object));
  if (PyDict_Check(object.ptr())) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(object.ptr(), &position, &key, &value) != 0) {
      objects_.push_back(py::reinterpret_borrow<py::object>(key));
      const bool any = PyUnicode_Check(key) &&
                       std::ranges::find(ignored, std::string(py::str(py::handle(key)))) != ignored.end();
      if (any)
        objects_.emplace_back();
      else
        add(value, ignored);
    }
    objects_.emplace_back();
  } else if (PyList_Check(object.ptr())) {
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(object.ptr()); ++index)
      add(PyList_GET_ITEM(object.ptr(), index), ignored);
    objects_.emplace_back();
  }
}

bool Identities::hold(py::handle root) const {
  std::size_t next = 0;
  return !objects_.empty() && hold_at(next, root.ptr()) && next == objects_.size();
}

// Where a container ends stands null, which is no key and no item of a list.
bool Identities::hold_at(std::size_t& next, PyObject* object) const {
  const auto is_next = [&](PyObject* each) { return next < objects_.size() && objects_[next].ptr() == each; };
  if (!is_next(object)) return false;
  ++next;
  if (PyDict_Check(object)) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(object, &position, &key, &value) != 0) {
      if (!is_next(key)) return false;
      ++next;
      if (is_next(nullptr))
        ++next;
      else if (!hold_at(next, value))
        return false;
    }
    return is_next(nullptr) && ++next > 0;
  }
  if (PyList_Check(object)) {
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(object); ++index)
      if (!hold_at(next, PyList_GET_ITEM(object, index))) return false;
    return is_next(nullptr) && ++next > 0;
  }
  return true;
}

}  // namespace shoal::python
