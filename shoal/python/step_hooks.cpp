// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/step_hooks.h"

#include <string>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::python {

static const char* const kRemedy =
    ". Remedy: trainer.backward(batch), which fills p.grad, and then optimizer.step()";

static std::string name_of(py::handle function) {
  for (const char* name : {"__qualname__", "__name__"})
    if (py::hasattr(function, name))
      return std::string(py::str(function.attr("__module__"))) + "." +
             std::string(py::str(function.attr(name)));
  return py::repr(function);
}

// Every function in the chain of wrappers is of torch.optim, or what no_grad() decorates with.
static bool is_of_torch(py::object function) {
  const std::string folder = py::str(
      py::module_::import("os.path").attr("dirname")(py::module_::import("torch.optim").attr("__file__")));
  const std::string no_grad = py::str(py::module_::import("torch.utils._contextlib").attr("__file__"));
  for (;;) {
    if (py::hasattr(function, "__func__")) function = function.attr("__func__");
    if (!py::hasattr(function, "__code__")) return false;
    const std::string file = py::str(function.attr("__code__").attr("co_filename"));
    const bool is_wrapper = py::hasattr(function, "__wrapped__");
    if (!file.starts_with(folder) && !(is_wrapper && file == no_grad)) return false;
    if (!is_wrapper) return true;
    function = function.attr("__wrapped__");
  }
}

static py::object in_dictionary(const py::object& object, const char* name) {
  const py::dict dictionary = object.attr("__dict__");
  return dictionary.contains(name) ? py::object(dictionary[name]) : py::object();
}

static void check_step(const py::object& now, py::object& good) {
  if (now.is(good)) return;
  SHOAL_CHECK(!now || is_of_torch(now), InvalidInput, "trainer: optimizer.step is ", name_of(now),
              ", not PyTorch's own, and a Trainer makes the update itself", kRemedy);
  good = now;
}

StepHooks::StepHooks(py::object optimizer) : optimizer_(std::move(optimizer)) {
  const auto module = py::module_::import("torch.optim.optimizer");
  global_before_ = module.attr("_global_optimizer_pre_hooks");
  global_after_ = module.attr("_global_optimizer_post_hooks");
}

void StepHooks::check() {
  check_step(py::type::handle_of(optimizer_).attr("step"), of_class_);
  check_step(in_dictionary(optimizer_, "step"), of_object_);
  const py::dict own = optimizer_.attr("_optimizer_step_pre_hooks");
  for (const auto* hooks : {&own, &std::as_const(global_before_)})
    for (const auto& [number, hook] : *hooks)
      fail(ErrorKind::InvalidInput, "trainer: the optimizer's step has the pre-hook ", name_of(hook),
           ", which would find no gradients in p.grad", kRemedy);
}

void StepHooks::after() const {
  const py::dict own = optimizer_.attr("_optimizer_step_post_hooks");
  for (const auto* hooks : {&own, &global_after_}) {
    if (hooks->empty()) continue;
    for (const auto hook : hooks->attr("copy")().attr("values")())
      hook(optimizer_, py::make_tuple(optimizer_), py::dict());
  }
}

}  // namespace shoal::python
