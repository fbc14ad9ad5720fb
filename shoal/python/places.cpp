// SPDX-License-Identifier: Apache-2.0
// What can hold other things in Python: how it is read, compared and put back.
#include <algorithm>
#include <cstring>
#include <utility>

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

#include "shoal/python/watch.h"

namespace shoal::python {

static py::object taken(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

// splitmix64's mixing.
static std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

Digest Digest::of(std::string_view text) {
  Digest digest{0xcbf29ce484222325ULL + text.size(), 0x9e3779b97f4a7c15ULL ^ text.size()};
  for (const char c : text) {
    digest.low = (digest.low ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    digest.high = mixed(digest.high + static_cast<unsigned char>(c) + 1);
  }
  return {mixed(digest.low), digest.high};
}

Digest Digest::of(char kind, std::uint64_t number) {
  const auto tagged = number * 256 + static_cast<unsigned char>(kind);
  return {mixed(tagged + 0x1234567), mixed(~tagged)};
}

Digest& Digest::operator+=(const Digest& other) {
  low += other.low;
  high += other.high;
  return *this;
}

Digest Digest::at(std::uint64_t place) const {
  return {mixed(low ^ mixed(place + 1)), mixed(high + mixed(place * 2 + 1))};
}

bool is_plain_value(py::handle object) {
  PyObject* raw = object.ptr();
  return raw == Py_None || raw == Py_Ellipsis || PyBool_Check(raw) || PyLong_CheckExact(raw) ||
         PyFloat_CheckExact(raw) || PyComplex_CheckExact(raw) || PyUnicode_CheckExact(raw) ||
         PyBytes_CheckExact(raw) || THPDtype_Check(raw) || THPDevice_Check(raw) || THPLayout_Check(raw) ||
         THPMemoryFormat_Check(raw) || PyRange_Check(raw) || PySlice_Check(raw);
}

bool same_value(py::handle a, py::handle b) {
  if (a.is(b)) return true;
  if (Py_TYPE(a.ptr()) != Py_TYPE(b.ptr()) || !is_plain_value(a)) return false;
  if (PyFloat_CheckExact(a.ptr())) {  // 0.0 is not -0.0, and nan is nan
    const double x = PyFloat_AS_DOUBLE(a.ptr()), y = PyFloat_AS_DOUBLE(b.ptr());
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  return PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ) == 1;
}

// The dictionary of a place that is one.
static PyObject* dictionary_of(const Place& place) {
  PyObject* holder = place.holder.ptr();
  if (place.kind == Place::Kind::Type) return reinterpret_cast<PyTypeObject*>(holder)->tp_dict;
  return holder;
}

std::string Place::path_of(std::size_t i) const {
  if (kind == Kind::Cell) return path;
  if (kind == Kind::Function || kind == Kind::Set || has_bytes(kind)) return path;
  const std::string own = i < keys.size() && keys[i] ? std::string(py::str(keys[i])) : std::to_string(i);
  return path.empty() ? own : path + "." + own;
}

static std::vector<py::object> items_of(PyObject* iterable) {
  std::vector<py::object> items;
  for (const auto item : taken(iterable)) items.push_back(py::reinterpret_borrow<py::object>(item));
  return items;
}

// What Python itself keeps in a class, and fills in when it is first asked for.
static bool is_pythons_own(PyObject* key) {
  for (const char* name : {"__slotnames__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"})
    if (PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, name) == 0) return true;
  return false;
}

Contents contents_of(const Place& place) {
  Contents contents;
  PyObject* holder = place.holder.ptr();
  switch (place.kind) {
    case Place::Kind::Dict:
    case Place::Kind::Type: {
      PyObject *key = nullptr, *value = nullptr;
      Py_ssize_t position = 0;
      while (PyDict_Next(dictionary_of(place), &position, &key, &value)) {
        if (place.kind == Place::Kind::Type && is_pythons_own(key)) continue;
        contents.keys.push_back(taken(key));
        contents.values.push_back(taken(value));
      }
      break;
    }
    case Place::Kind::Names:
      contents.keys = place.keys;
      for (const auto& name : place.keys)
        contents.values.push_back(taken(PyDict_GetItemWithError(holder, name.ptr())));
      break;
    case Place::Kind::Slots:
      contents.keys = place.keys;
      for (const auto& name : place.keys) {
        PyObject* value = PyObject_GetAttr(holder, name.ptr());
        if (value == nullptr) PyErr_Clear();
        contents.values.push_back(py::reinterpret_steal<py::object>(value));
      }
      break;
    case Place::Kind::List:
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(holder); ++i)
        contents.values.push_back(taken(PyList_GET_ITEM(holder, i)));
      break;
    case Place::Kind::Set:
    case Place::Kind::Deque: contents.values = items_of(holder); break;
    case Place::Kind::Cell: contents.values.push_back(taken(PyCell_GET(holder))); break;
    case Place::Kind::Function:
      contents.values = {taken(PyFunction_GetCode(holder)), taken(PyFunction_GetDefaults(holder)),
                         taken(PyFunction_GetKwDefaults(holder)), taken(PyFunction_GetClosure(holder)),
                         taken(reinterpret_cast<PyFunctionObject*>(holder)->func_dict)};
      break;
    case Place::Kind::Array:
    case Place::Kind::Asked:
    case Place::Kind::Library: break;
  }
  return contents;
}

void put(const Place& place, const Contents& contents) {
  PyObject* holder = place.holder.ptr();
  const auto check = [](int failed) {
    if (failed != 0) throw py::error_already_set();
  };
  switch (place.kind) {
    case Place::Kind::Dict:
    case Place::Kind::Type:
    case Place::Kind::Names:
    case Place::Kind::Slots: {
      const bool by_attribute = place.kind == Place::Kind::Type || place.kind == Place::Kind::Slots;
      const Contents now = contents_of(place);
      for (const auto& key : now.keys) {
        const auto wanted =
            std::ranges::find_if(contents.keys, [&](const py::object& each) { return each.equal(key); });
        const bool stays = wanted != contents.keys.end() &&
                           contents.values[static_cast<std::size_t>(wanted - contents.keys.begin())];
        if (stays || !now.values[static_cast<std::size_t>(&key - now.keys.data())]) continue;
        check(by_attribute ? PyObject_DelAttr(holder, key.ptr()) : PyObject_DelItem(holder, key.ptr()));
      }
      for (std::size_t i = 0; i < contents.keys.size(); ++i) {
        const auto& key = contents.keys[i];
        const auto& value = contents.values[i];
        if (!value) continue;
        if (by_attribute) {
          const auto old = py::reinterpret_steal<py::object>(PyObject_GetAttr(holder, key.ptr()));
          if (!old) PyErr_Clear();
          const bool is_there = place.kind == Place::Kind::Type
                                    ? PyDict_GetItemWithError(dictionary_of(place), key.ptr()) == value.ptr()
                                    : old && old.is(value);
          if (!is_there) check(PyObject_SetAttr(holder, key.ptr(), value.ptr()));
        } else if (PyDict_GetItemWithError(holder, key.ptr()) != value.ptr()) {
          check(PyObject_SetItem(holder, key.ptr(), value.ptr()));  // an OrderedDict has an order of its own
        }
      }
      break;
    }
    case Place::Kind::List: {
      py::list list;
      for (const auto& value : contents.values) list.append(value);
      check(PyList_SetSlice(holder, 0, PyList_GET_SIZE(holder), list.ptr()));
      break;
    }
    case Place::Kind::Set:
      place.holder.attr("clear")();
      for (const auto& value : contents.values) place.holder.attr("add")(value);
      break;
    case Place::Kind::Deque:
      place.holder.attr("clear")();
      for (const auto& value : contents.values) place.holder.attr("append")(value);
      break;
    case Place::Kind::Cell: check(PyCell_Set(holder, contents.values[0].ptr())); break;
    case Place::Kind::Function:
    case Place::Kind::Library:
    case Place::Kind::Asked:
    case Place::Kind::Array: break;  // nobody writes these while a model runs
  }
}

std::string bytes_of(const Place& place) {
  const py::object& array = place.holder;
  if (place.kind == Place::Kind::Asked) return py::str(array());
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    return py::str(py::repr(array));
  }
  std::string bytes(static_cast<std::size_t>(view.len), '\0');
  PyBuffer_ToContiguous(bytes.data(), &view, view.len, 'C');
  PyBuffer_Release(&view);
  return bytes;
}

bool put_bytes(const Place& place) {
  if (bytes_of(place) == place.bytes) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(place.holder.ptr(), &view, PyBUF_FULL) != 0) throw py::error_already_set();
  PyBuffer_FromContiguous(&view, place.bytes.data(), static_cast<Py_ssize_t>(place.bytes.size()), 'C');
  PyBuffer_Release(&view);
  return true;
}

}  // namespace shoal::python
