// SPDX-License-Identifier: Apache-2.0
// Lists and dictionaries, nested, as they were: are the same objects still in the same places?
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace shoal::python {

// Compares addresses of objects that it keeps alive; some nanoseconds an object. Order counts. Values that
// are changed in place, but for lists and dictionaries, stay the same objects. With the interpreter's lock.
class Identities {
 public:
  // `ignored`: keys whose values may be any.
  void take(py::handle root, std::span<const std::string_view> ignored = {});
  bool hold(py::handle root) const;

 private:
  void add(py::handle object, std::span<const std::string_view> ignored);
  bool hold_at(std::size_t& next, PyObject* object) const;

  std::vector<py::object> objects_;  // as a walk meets them; null: any
};

}  // namespace shoal::python
