// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/deferred.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "shoal/base/error.h"
#include "shoal/python/bindings.h"
#include "shoal/python/deferred.h"

namespace shoal::python {

static py::object deferred(const py::object& make, const py::args& args, const py::kwargs& kwargs) {
  SHOAL_CHECK(PyCallable_Check(make.ptr()), InvalidInput, "deferred_init: a ",
              std::string(py::str(py::type::handle_of(make).attr("__name__"))),
              " cannot be called; give the class of the model, or a function that makes it, and then its "
              "arguments");
  const capture::Deferral deferral;
  return make(*args, **kwargs);
}

static void materialize_tensor(py::handle tensor, const std::string& name) {
  if (THPVariable_Check(tensor.ptr())) shoal::materialize(THPVariable_Unpack(tensor.ptr()), name);
}

void materialize_attributes(py::handle module) {
  for (const auto& each : module.attr("modules")())
    for (const auto& [name, value] : py::cast<py::dict>(each.attr("__dict__")))
      materialize_tensor(value, py::cast<std::string>(name));
}

// A tensor, or all that a module has: parameters, buffers, and tensors that are attributes of it.
static py::object materialized(py::object given) {
  if (THPVariable_Check(given.ptr())) {
    materialize_tensor(given, "tensor");
    return given;
  }
  SHOAL_CHECK(py::isinstance(given, py::module_::import("torch.nn").attr("Module")), InvalidInput,
              "materialize: a ", std::string(py::str(py::type::handle_of(given).attr("__name__"))),
              " is neither a torch.nn.Module nor a tensor");
  for (const char* kind : {"named_parameters", "named_buffers"})
    for (const auto& item : given.attr(kind)()) {
      const auto pair = py::cast<py::tuple>(item);
      materialize_tensor(pair[1], py::cast<std::string>(pair[0]));
    }
  materialize_attributes(given);
  return given;
}

void bind_deferred(py::module_& module) {
  module.def("deferred_init", &deferred, py::arg("make"),
             "What make(*args, **kwargs) returns, with tensors that have no memory until a Trainer, or "
             "materialize, makes each: eager's values.");
  module.def(
      "materialize", &materialized, py::arg("model"),
      "Gives the tensors of a module, or one tensor, that deferred_init made their memory and values.");
}

}  // namespace shoal::python
