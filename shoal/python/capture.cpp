// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/capture.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/capture/scopes.h"
#include "shoal/python/bindings.h"
#include "shoal/python/model.h"
#include "shoal/python/source_line.h"
#include "shoal/python/tree.h"

namespace shoal::python {

using capture::Mode;
using capture::NamedTensor;

namespace {
// What was called has no loss to go backward from.
struct ForwardAlone {};

// One call of a Python function, as capture sees a model.
class Call {
 public:
  Call(py::object function, const py::args& arguments, const py::kwargs& named)
      : function_(std::move(function)), arguments_(tree_of(py::make_tuple(arguments, named))) {
    const auto module = py::module_::import("torch.nn").attr("Module");
    const auto join = [&](const py::object& object, const std::string& prefix) {
      if (py::isinstance(object, module)) add_module(object, prefix);
    };
    join(function_, "");
    if (py::hasattr(function_, "__self__")) join(function_.attr("__self__"), "");
    if (py::hasattr(function_, "__closure__") && !function_.attr("__closure__").is_none())
      for (const auto cell : function_.attr("__closure__"))
        if (py::hasattr(cell, "cell_contents")) join(cell.attr("cell_contents"), "");
    for_each_leaf(arguments_, [&](const std::string& path, const Tree& leaf) {
      if (leaf.kind == Tree::Kind::Tensor)
        request_.inputs.push_back({name_of(path), THPVariable_Unpack(leaf.object.ptr())});
      else
        join(leaf.object, "");
    });
    request_.loss = [this](std::span<const at::Tensor> inputs) { return run(inputs); };
    request_.outputs = [this] { return outputs(); };
    request_.source_line = source_line;
    request_.reader = reader;
  }

  ir::Graph graph() {
    try {
      request_.mode = Mode::Train;
      return capture::capture(request_).graph;
    } catch (const ForwardAlone&) {
      request_.mode = Mode::Evaluate;
      return capture::capture(request_).graph;
    }
  }

 private:
  // "0.1" is the second argument, "1.labels" the one of that name.
  static std::string name_of(const std::string& path) {
    return path.starts_with("0.") ? "arg" + path.substr(2) : path.substr(2);
  }

  void add_module(const py::object& module, const std::string& prefix) {
    if (!seen_.insert(module.ptr()).second) return;
    const auto take = [&](const char* method, std::vector<NamedTensor>& to) {
      for (const auto pair : module.attr(method)(prefix)) {
        const auto item = py::cast<std::pair<std::string, at::Tensor>>(pair);
        to.push_back({item.first, item.second});
      }
    };
    take("named_parameters", request_.parameters);
    take("named_buffers", request_.buffers);
  }

  at::Tensor run(std::span<const at::Tensor> inputs) {
    const py::gil_scoped_acquire lock;
    std::size_t next = 0;
    const py::object result = called_in_capture([&] {
      const py::tuple both = object_of(arguments_, [&](const std::string&, const Tree& leaf) {
        return leaf.kind == Tree::Kind::Tensor ? py::cast(inputs[next++]) : leaf.object;
      });
      return function_(*py::tuple(both[0]), **py::dict(both[1]));
    });
    if (request_.mode == Mode::Train) {
      const py::object loss = loss_in(result);
      if (!loss || !THPVariable_Unpack(loss.ptr()).requires_grad()) throw ForwardAlone();
      return THPVariable_Unpack(loss.ptr());
    }
    for_each_leaf(tree_of(result), [&](const std::string& path, const Tree& leaf) {
      if (leaf.kind == Tree::Kind::Tensor)
        results_.push_back(
            {"output" + (path.empty() ? "" : "." + path), THPVariable_Unpack(leaf.object.ptr())});
    });
    SHOAL_CHECK(!results_.empty(), InvalidInput,
                "capture: the function returned no tensor; return what it computes");
    return {};
  }

  std::vector<NamedTensor> outputs() {
    const py::gil_scoped_acquire lock;
    return std::exchange(results_, {});
  }

  py::object function_;
  Tree arguments_;
  std::set<PyObject*> seen_;
  std::vector<NamedTensor> results_;
  capture::Request request_;
};
}  // namespace

static ir::Graph captured(const py::object& function, const py::args& arguments, const py::kwargs& named) {
  Call call(function, arguments, named);
  const py::gil_scoped_release unlocked;
  return call.graph();
}

namespace {
// `with _EagerRandom(seed, step):` what PyTorch runs inside draws as the captured step of that seed and
// number.
struct EagerRandomContext {
  std::int64_t seed = 0, step = 0;
  std::unique_ptr<capture::EagerRandom> random = {};
};

// `with replicate(n):` and `with split(n):`.
class ScopeContext {
 public:
  ScopeContext(Scope::Kind kind, int devices) : kind_(kind), devices_(devices) {}

  void enter() {
    SHOAL_CHECK(!scope_, InvalidInput, "a scope is entered that has not ended. Remedy: another one");
    scope_ = std::make_unique<Scope>(kind_, devices_);
  }
  void exit() { scope_.reset(); }

 private:
  Scope::Kind kind_;
  int devices_;
  std::unique_ptr<Scope> scope_;
};
}  // namespace

// isinstance(x, torch.FloatTensor) asks the class of that class, which is not written in Python. Returns what
// has answered so far, and does nothing else where None is given.
static py::object set_instance_check(const py::object& function) {
  const py::object example = py::module_::import("torch").attr("FloatTensor");
  auto* const type = Py_TYPE(example.ptr());
  const auto methods = py::reinterpret_borrow<py::dict>(type->tp_dict);
  py::object before = methods["__instancecheck__"];
  if (function.is_none()) return before;
  methods["__instancecheck__"] = function;
  PyType_Modified(type);
  return before;
}

void bind_capture(py::module_& module) {
  module.def("_set_instance_check", set_instance_check, py::arg("function"));
  py::class_<EagerRandomContext>(module, "_EagerRandom",
                                 "Eager draws as those of a captured step; for tests.")
      .def(py::init([](std::int64_t seed, std::int64_t step) {
             return std::make_unique<EagerRandomContext>(EagerRandomContext{seed, step});
           }),
           py::arg("seed"), py::arg("step"))
      .def("__enter__",
           [](EagerRandomContext& self) {
             self.random = std::make_unique<capture::EagerRandom>(self.seed, self.step);
           })
      .def("__exit__", [](EagerRandomContext& self, const py::args&) { self.random.reset(); });
  py::class_<ScopeContext>(module, "_Scope")
      .def("__enter__", &ScopeContext::enter)
      .def("__exit__", [](ScopeContext& self, const py::args&) { self.exit(); });
  module.def(
      "replicate",
      [](int devices) { return std::make_unique<ScopeContext>(Scope::Kind::Replicate, devices); },
      py::arg("devices") = 0,
      "A scope around code that builds or calls modules: one stage of a pipeline, of so many ranks for each "
      "replica.");
  module.def(
      "split", [](int devices) { return std::make_unique<ScopeContext>(Scope::Kind::Split, devices); },
      py::arg("devices") = 0,
      "A scope around code that builds or calls modules: their matrices are split over so many ranks.");
  module.def(
      "capture", captured, py::arg("fn"),
      "The graph of fn(*args, **kwargs): forward, and backward if it returns a loss that requires a "
      "gradient. "
      "Tensors among the arguments are its inputs; parameters are those of modules that fn is, closes over "
      "or is given.");
}

}  // namespace shoal::python
