// SPDX-License-Identifier: Apache-2.0
// Python's code called while it is recorded: files that it reads noted, errors explained.
#include <array>
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/python/model.h"
#include "shoal/python/source_line.h"
#include "shoal/python/wrappers.h"

namespace shoal::python {

// What goes wrong below Python, in LibTorch's words, and the remedy.
namespace {
struct Explanation {
  std::string_view says;
  const char* means;
};
}  // namespace
static constexpr std::array<Explanation, 6> kExplanations = {{
    {"Cannot set version_counter for inference tensor",
     "the model enters torch.inference_mode() while it is recorded: use torch.no_grad()"},
    {"data pointer of Tensor that doesn't have storage",
     "while a model is recorded its activations have no data, so numpy(), tolist() and data_ptr() cannot be "
     "used on them: stay with torch operators"},
    {"Cannot access storage of",
     "while a model is recorded its activations have no storage: stay with torch operators"},
    {"incompatible tensor type",
     "a parameter's or buffer's data cannot be replaced while the model is recorded: write into it, with "
     "copy_() or "
     "mul_().add_() under no_grad"},
    {"TorchScript interpreter",
     "TorchScript runs other operators each time while it optimises itself: give the module that was "
     "scripted"},
    {"doesn't have storage",
     "while a model is recorded its activations have no storage: stay with torch operators"},
}};

py::object called_in_capture(const std::function<py::object()>& act,
                             const std::function<bool(const std::string&)>& ignores,
                             std::vector<std::string>* files) {
  struct Readable {
    explicit Readable(const std::function<bool(const std::string&)>& ignored)
        : made(py::module_::import("shoal._reads")
                   .attr("make_readable")(py::cpp_function(
                       [&ignored](const std::string& file) { return ignored && ignored(file); }))) {}
    ~Readable() { made[0](); }
    py::tuple made;
  };
  const Uncompiled uncompiled;
  try {
    const Readable readable(ignores);
    py::object result = act();
    if (files != nullptr)
      for (const auto file : py::list(readable.made[1])) files->push_back(py::str(file));
    return result;
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    const std::string text = py::str(error.value());
    if (text.starts_with("capture: ")) {
      fail(ErrorKind::InvalidInput, text);
    }
    for (const auto& [says, means] : kExplanations) {
      if (text.find(says) == std::string::npos) continue;
      fail(ErrorKind::InvalidInput, "capture: ", text, ", at ", source_line_of(error), ". Remedy: ", means);
    }
    throw;
  }
}

}  // namespace shoal::python
