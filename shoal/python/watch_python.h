// SPDX-License-Identifier: Apache-2.0
// What the parts of the watch share: Python's objects that it asks about, and small questions.
#pragma once

#include <string>

#include "shoal/python/watch.h"

namespace shoal::python {

struct Watch::Python {
  py::object module_class = py::module_::import("torch.nn").attr("Module");
  py::object globals_read = py::module_::import("shoal._names").attr("globals_read");
  py::object closure_read = py::module_::import("shoal._names").attr("closure_read");
  py::object scheduler = py::module_::import("torch.optim.lr_scheduler").attr("LRScheduler");
  py::object is_library = py::module_::import("shoal._names").attr("is_library");
  py::object is_library_module = py::module_::import("shoal._names").attr("is_library_module");
  py::object imported = py::module_::import("shoal._names").attr("imported");
  py::object reads_environment = py::module_::import("shoal._names").attr("reads_environment");
  py::module_ outside = py::module_::import("shoal._outside");
  py::object partial = py::module_::import("functools").attr("partial");
  py::object variable = py::module_::import("contextvars").attr("ContextVar");
  py::object proxy = py::module_::import("types").attr("MappingProxyType");
  py::object ordered = py::module_::import("collections").attr("OrderedDict");
  py::object environment = py::module_::import("os").attr("environ");
  py::object deque = py::module_::import("collections").attr("deque");
  py::object random = py::module_::import("random").attr("Random");
  py::object match = py::module_::import("fnmatch").attr("fnmatchcase");
  // Objects of libraries whose attributes are settings.
  py::object namespaces = py::make_tuple(
      py::module_::import("types").attr("SimpleNamespace"), py::module_::import("argparse").attr("Namespace"),
      py::module_::import("collections").attr("UserDict"),
      py::module_::import("collections").attr("UserList"),
      py::module_::import("collections").attr("ChainMap"),
      py::module_::import("configparser").attr("RawConfigParser"),
      py::module_::import("configparser").attr("SectionProxy"),
      py::module_::import("weakref").attr("WeakKeyDictionary"),
      py::module_::import("weakref").attr("WeakValueDictionary"),
      py::module_::import("weakref").attr("WeakSet"), py::module_::import("threading").attr("local"),
      py::module_::import("threading").attr("Event"), py::module_::import("queue").attr("Queue"),
      py::type::handle_of(py::module_::import("os").attr("environ")));
  // Objects that change at each step, and that no model reads.
  py::object optimizer = py::module_::import("torch.optim").attr("Optimizer");
  py::object busy = py::make_tuple(py::module_::import("torch.optim.lr_scheduler").attr("LRScheduler"),
                                   py::module_::import("torch.utils.data").attr("DataLoader"),
                                   py::module_::import("torch.utils.data").attr("Dataset"),
                                   py::module_::import("torch.utils.data").attr("Sampler"));
  py::object logger = py::module_::import("logging").attr("Logger");
  // What code of libraries calls, whatever the model.
  py::list everywhere, global_hooks;
  py::object ndarray, numpy_generators = py::tuple();

  Python();
};

py::object type_of(py::handle object);
// What an object is: its class, and of a class the order in which it looks things up.
const void* kind_of(const py::object& object);
// A tensor's, and its attributes.
std::array<const void*, 3> hooks_of(py::handle tensor);
// A dictionary's version is from now on what it is now.
void note_version(Place& place);
std::string joined(const std::string& path, const std::string& name);

}  // namespace shoal::python
