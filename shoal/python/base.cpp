// SPDX-License-Identifier: Apache-2.0
// Errors: one exception a kind, all of them shoal.Error.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <exception>
#include <string>

#include "shoal/base/error.h"
#include "shoal/python/bindings.h"

namespace shoal::python {

namespace {
struct Exception {
  ErrorKind kind;
  const char* name;
  PyObject* base;  // besides shoal.Error; null: none
  const char* meaning;
};
}  // namespace

static std::array<Exception, 6> exceptions() {
  return {{
      {ErrorKind::InvalidInput, "InvalidInput", PyExc_ValueError,
       "The model, the batch or an argument; the message says the remedy."},
      {ErrorKind::Infeasible, "Infeasible", nullptr,
       "Well-formed, but there is no way to do it here: no memory, no disk space."},
      {ErrorKind::PeerLost, "PeerLost", nullptr, "Another rank stopped."},
      {ErrorKind::Timeout, "Timeout", PyExc_TimeoutError, "A wait went past its limit."},
      {ErrorKind::Corrupt, "Corrupt", nullptr, "Bytes that were stored or sent are not what they were."},
      {ErrorKind::Internal, "Internal", nullptr, "A fault of Shoal's own."},
  }};
}

// The class of a kind, borrowed from the extension, which is never unloaded.
static PyObject*& class_of(ErrorKind kind) {
  static std::array<PyObject*, 6> classes = {};
  return classes.at(static_cast<std::size_t>(kind));
}

void bind_base(py::module_& module) {
  const auto make = [&](const std::string& name, const char* meaning, PyObject* bases) {
    PyObject* made = PyErr_NewExceptionWithDoc(("shoal." + name).c_str(), meaning, bases, nullptr);
    if (made == nullptr) throw py::error_already_set();
    module.add_object(name.c_str(), py::handle(made));
    return made;
  };
  PyObject* error = make("Error", "What Shoal refuses or cannot do; its subclasses say what to do about it.",
                         PyExc_RuntimeError);
  for (const auto& [kind, name, base, meaning] : exceptions()) {
    const py::tuple bases = base == nullptr ? py::tuple(py::make_tuple(py::handle(error)))
                                            : py::tuple(py::make_tuple(py::handle(error), py::handle(base)));
    class_of(kind) = make(name, meaning, bases.ptr());
  }
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& raised) {
      PyErr_SetString(class_of(raised.kind()), raised.what());
    } catch (python_error& raised) {  // from Python code that autograd called
      raised.restore();
    }
  });
}

}  // namespace shoal::python
