// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/graph.h"

#include <torch/csrc/utils/pybind.h>

#include <set>
#include <string>
#include <vector>

#include "shoal/ir/flops.h"
#include "shoal/ir/text.h"
#include "shoal/python/bindings.h"

namespace shoal::python {

void bind_ir(py::module_& module) {
  py::class_<ir::Graph>(module, "Graph", "What ATen was asked to do, one node a line when printed.")
      .def("__str__", [](const ir::Graph& graph) { return ir::to_text(graph); })
      .def("__repr__",
           [](const ir::Graph& graph) {
             return "<shoal.Graph of " + std::to_string(graph.nodes.size()) + " nodes; print it to read it>";
           })
      .def("__len__", [](const ir::Graph& graph) { return graph.nodes.size(); })
      .def_property_readonly(
          "ops",
          [](const ir::Graph& graph) {
            std::vector<std::string> ops;
            for (const auto& node : graph.nodes) ops.push_back(node.op);
            return ops;
          },
          "Names of the operators, in the order in which they run.")
      .def_property_readonly(
          "flops",
          [](const ir::Graph& graph) {
            double flops = 0;
            for (const auto& node : graph.nodes) flops += ir::flops_of(graph, node);
            return flops;
          },
          "Of matrix products, attention, convolutions and recurrent layers; an addition counts as one.")
      .def_property_readonly(
          "unknown_work",
          [](const ir::Graph& graph) {
            std::set<std::string> ops;
            for (const auto& node : graph.nodes)
              if (!ir::work_of(graph, node)) ops.insert(node.op);
            return std::vector<std::string>(ops.begin(), ops.end());
          },
          "Operators that flops leaves out because no table says how much work they are.")
      .def_property_readonly(
          "modules",
          [](const ir::Graph& graph) {
            std::vector<std::string> modules;
            for (const auto& node : graph.nodes) modules.push_back(node.module);
            return modules;
          },
          "For each operator the path of the module that it belongs to.");
}

}  // namespace shoal::python
