// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/source_line.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace shoal::python {

static std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  for (const char* name : {"torch", "shoal"}) {
    const py::module_ package = py::module_::import(name);
    for (const auto folder : package.attr("__path__")) folders.push_back(std::string(py::str(folder)) + "/");
  }
  return folders;
}

static bool is_library_code(const std::string& file) {
  static const auto folders = library_folders();
  static const std::string standard =
      std::string(py::str(py::module_::import("sysconfig").attr("get_path")("stdlib"))) + "/";
  if (file.starts_with("<frozen")) return true;
  if (std::ranges::any_of(folders, [&](const std::string& folder) { return file.starts_with(folder); }))
    return true;
  return file.starts_with(standard) && file.find("/site-packages/") == std::string::npos;
}

static std::string line(const py::handle code, int number) {
  return std::string(py::str(code.attr("co_filename"))) + ":" + std::to_string(number) + " (" +
         std::string(py::str(code.attr("co_name"))) + ")";
}

std::string source_line() {
  const py::gil_scoped_acquire lock;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    if (!is_library_code(py::str(code.attr("co_filename")))) return line(code, PyFrame_GetLineNumber(raw));
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return "";
}

namespace {
struct Known {
  std::string_view file;
  std::string_view function;  // empty: any
  capture::Reader reader;
};
}  // namespace
static constexpr Known kKnown[] = {
    {"/torch/distributions/constraints.py", "", capture::Reader::Check},
    {"/torch/distributions/continuous_bernoulli.py", "__init__", capture::Reader::Check},
    {"/torch/distributions/distribution.py", "", capture::Reader::Check},
    {"/torch/distributions/geometric.py", "__init__", capture::Reader::Check},
    {"/torch/nn/functional.py", "gaussian_nll_loss", capture::Reader::Check},
    {"/torch/nn/modules/batchnorm.py", "forward", capture::Reader::RunningAverage},
};

capture::Reader reader() {
  const py::gil_scoped_acquire lock;
  auto* frame = PyEval_GetFrame();
  if (frame == nullptr) return capture::Reader::User;
  const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const std::string file = py::str(code.attr("co_filename")), function = py::str(code.attr("co_name"));
  for (const auto& known : kKnown)
    if (file.ends_with(known.file) && (known.function.empty() || known.function == function))
      return known.reader;
  return capture::Reader::User;
}

std::string source_line_of(const py::error_already_set& error) {
  std::string innermost = "an unknown line";
  py::object trace = error.trace() ? py::reinterpret_borrow<py::object>(error.trace()) : py::none();
  for (; !trace.is_none(); trace = trace.attr("tb_next")) {
    const py::object code = trace.attr("tb_frame").attr("f_code");
    if (!is_library_code(py::str(code.attr("co_filename"))))
      innermost = line(code, py::cast<int>(trace.attr("tb_lineno")));
  }
  return innermost;
}

}  // namespace shoal::python
