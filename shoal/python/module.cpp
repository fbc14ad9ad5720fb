// SPDX-License-Identifier: Apache-2.0
// The extension shoal._shoal: one line a bound module. The package around it is in python/shoal.
#include "shoal/python/bindings.h"

PYBIND11_MODULE(_shoal, module) {
  module.doc() = "Captures a PyTorch model's training step as a graph, rewrites it, runs it.";
  shoal::python::bind_base(module);
  shoal::python::bind_ir(module);
  shoal::python::bind_capture(module);
  shoal::python::bind_deferred(module);
  shoal::python::bind_world(module);
  shoal::python::bind_tables(module);
  shoal::python::bind_train(module);
  auto collectives = module.def_submodule("_collectives");
  shoal::python::bind_collectives(collectives);
}
