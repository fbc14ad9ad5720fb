// SPDX-License-Identifier: Apache-2.0
// Python's Trainer and what its calls return.
#include <pybind11/stl/filesystem.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/python/bindings.h"
#include "shoal/python/python_trainer.h"
#include "shoal/python/tables.h"

namespace shoal::python {

static std::string text_of_loss(const char* name, double loss) {
  return std::string(name) + "(loss=" + std::string(py::repr(py::float_(loss))) + ")";
}

static std::string text_of(const Step& step) {
  return "StepResult(loss=" + std::string(py::repr(py::float_(step.result.loss))) +
         ", step=" + std::to_string(step.result.step) + ")";
}

static std::unique_ptr<PythonTrainer> trainer_of(py::object model, py::object optimizer, py::object loss_fn,
                                                 double clip_norm, std::optional<std::uint64_t> seed,
                                                 std::int64_t graph_bytes, bool keeps_gradients,
                                                 double spot_checks, std::optional<Degrees> parallelism,
                                                 std::vector<std::string> ignores, std::string on_refusal,
                                                 std::int64_t accumulate, std::string state_dtype,
                                                 const py::object& tables) {
  Options options{clip_norm,          seed,
                  graph_bytes,        keeps_gradients,
                  spot_checks,        std::move(parallelism),
                  std::move(ignores), std::move(on_refusal),
                  accumulate,         std::move(state_dtype),
                  tables_in(tables)};
  check(options);
  return std::make_unique<PythonTrainer>(std::move(model), std::move(optimizer), std::move(loss_fn),
                                         std::move(options));
}

void bind_train(py::module_& module) {
  module.attr("_trainers_of") = py::module_::import("weakref").attr("WeakKeyDictionary")();
  py::class_<Step>(module, "StepResult", "What one update did.")
      .def_property_readonly("loss", [](const Step& step) { return step.result.loss; })
      .def_property_readonly(
          "grad_norm", [](const Step& step) { return step.result.grad_norm; },
          "Global L2 norm of the gradients before clipping; 0 without clipping, where nobody computes it.")
      .def_property_readonly(
          "learning_rate", [](const Step& step) { return step.result.learning_rate; },
          "Of the optimizer's first parameter group.")
      .def_property_readonly(
          "step", [](const Step& step) { return step.result.step; },
          "Updates made so far, this one included.")
      .def_property_readonly(
          "loss_scale", [](const Step& step) { return step.result.loss_scale; },
          "What the loss was multiplied by in float16; 0 in other precisions.")
      .def_property_readonly(
          "skipped", [](const Step& step) { return step.result.skipped; },
          "Whether a gradient overflowed in float16, so that nothing was updated and the scale is half as "
          "much.")
      .def_readonly("outputs", &Step::outputs,
                    "What the model returned, if it was asked for; caches are None.")
      .def("__repr__", text_of);
  py::class_<Evaluation>(module, "Evaluation", "The loss of a batch in evaluation mode.")
      .def_readonly("loss", &Evaluation::loss)
      .def_readonly("outputs", &Evaluation::outputs,
                    "What the model returned, if it was asked for; caches are None.")
      .def("__float__", [](const Evaluation& evaluation) { return evaluation.loss; })
      .def("__repr__",
           [](const Evaluation& evaluation) { return text_of_loss("Evaluation", evaluation.loss); });
  py::class_<Gradients>(module, "BackwardResult", "What one backward() did, besides the gradients.")
      .def_readonly("loss", &Gradients::loss)
      .def_readonly("outputs", &Gradients::outputs,
                    "What the model returned, if it was asked for; caches are None.")
      .def("__float__", [](const Gradients& gradients) { return gradients.loss; })
      .def("__repr__",
           [](const Gradients& gradients) { return text_of_loss("BackwardResult", gradients.loss); });
  py::class_<PythonTrainer>(module, "Trainer",
                            "Trains a module through its captured graph. One thread at a time.")
      .def(py::init(&trainer_of), py::arg("model"), py::arg("optimizer") = py::none(),
           py::arg("loss_fn") = py::none(), py::kw_only(), py::arg("clip_norm") = 0.0,
           py::arg("seed") = py::none(), py::arg("graph_bytes") = TrainerOptions().graph_bytes,
           py::arg("keeps_gradients") = false, py::arg("spot_checks") = TrainerOptions().spot_check_share,
           py::arg("parallelism") = py::none(), py::arg("ignores") = std::vector<std::string>(),
           py::arg("on_refusal") = "error", py::arg("accumulate") = 1, py::arg("state_dtype") = "float32",
           py::arg("tables") = py::none())
      .def("step", &PythonTrainer::step, py::arg("batch"), py::kw_only(), py::arg("outputs") = false,
           "One update. A loss that is not finite is an error; parameters, buffers and optimizer state are "
           "then as "
           "before the step.")
      .def("step_over", &PythonTrainer::step_over, py::arg("microbatches"), py::kw_only(),
           py::arg("outputs") = false,
           "One update by several micro-batches, one after the other in the memory of one, with the loss and "
           "gradients that they have together.")
      .def("backward", &PythonTrainer::backward, py::arg("batch"), py::kw_only(), py::arg("outputs") = false,
           "Forward and backward without an update: each gradient is added to its parameter's grad, as "
           "loss.backward() does.")
      .def("evaluate", &PythonTrainer::evaluate, py::arg("batch"), py::kw_only(), py::arg("outputs") = false,
           "The loss in evaluation mode, without gradients; nothing changes.")
      .def("graph", &PythonTrainer::graph, py::arg("batch"),
           "The whole captured step for a batch of this shape, update included.")
      .def("state_dict", &PythonTrainer::state_dict,
           "Model, optimizer and number of updates; load_state_dict() goes on from there.")
      .def("load_state_dict", &PythonTrainer::load_state_dict, py::arg("state"))
      .def("save", &PythonTrainer::save, py::arg("folder"), py::arg("note") = "", py::kw_only(),
           py::arg("keep") = 10,
           "A checkpoint in the folder, written by a thread while training goes on. Called by all ranks at "
           "once.")
      .def("wait_for_saves", &PythonTrainer::wait_for_saves, "Until all that was saved is on the disk.")
      .def("load", &PythonTrainer::load, py::arg("folder"), py::kw_only(), py::arg("step") = py::none(),
           "Goes on from the newest whole checkpoint of the folder, if there is one, or that step's, and "
           "returns its note.")
      .def("gradients", &PythonTrainer::gradients,
           "Gradients of the last step, before clipping, by parameter name.")
      .def("materialize", &PythonTrainer::materialize,
           "Puts parameters that ranks keep in parts back into the module, whole, until the next step. "
           "Called by all ranks at once.")
      .def("rows", &PythonTrainer::rows, py::arg("parameter"), py::arg("ids") = py::none(),
           "Rows of a parameter that is a table, as they are now.")
      .def("set_rows", &PythonTrainer::set_rows, py::arg("parameter"), py::arg("ids"), py::arg("values"),
           "Rows of a parameter that is a table become these. Called by all ranks at once; rank 0's count.")
      .def("end_day", &PythonTrainer::end_day, py::arg("day"),
           "A day of rows in tables ends: scores decay, and rows expire. Called by all ranks at once.")
      .def_property_readonly(
          "stalest_row", [](const PythonTrainer& trainer) { return trainer.stalest_row(); },
          "Tables in half_async: how many steps that row lacked, when it was read, that lacked most; else "
          "None.")
      .def("plan", &PythonTrainer::plan,
           "The plan that the ranks follow, with what was found of it from the first step on, as text that "
           "Parallelism(plan=…) takes.")
      .def("report", &PythonTrainer::report,
           "What ranks do in a step: layouts, messages and their bytes, how much runs split.")
      .def("forget_graphs", &PythonTrainer::forget_graphs,
           "Drops all captured graphs: for a model whose code or settings were changed between steps.")
      .def("_look", &PythonTrainer::look,
           "Looks at what the model depends on, as each step does first: for measurements.")
      .def_property_readonly("model", &PythonTrainer::model)
      .def_property_readonly("optimizer", &PythonTrainer::optimizer, "None if it was given none.");
}

}  // namespace shoal::python
