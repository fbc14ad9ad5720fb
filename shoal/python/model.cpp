// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shoal/aten/memory.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/deferred.h"
#include "shoal/python/deferred.h"
#include "shoal/python/source_line.h"
#include "shoal/python/sparse_items.h"
#include "shoal/python/wrappers.h"

namespace shoal::python {

static void refuse_float8(const std::string& what, const at::Tensor& tensor) {
  SHOAL_CHECK(
      !tensor.defined() || !at::isFloat8Type(tensor.scalar_type()), InvalidInput, "trainer: ", what, " is ",
      c10::toString(tensor.scalar_type()),
      ", which no graph can hold. Remedy: keep it in bfloat16, or convert it to that before the step");
}

static py::object uncompiled(const py::object& module) {
  return py::hasattr(module, "_orig_mod") ? py::object(module.attr("_orig_mod"))
                                          : module;  // torch.compile's wrapper
}

static const py::object& checked_module(const py::object& module) {
  const py::object base = py::module_::import("torch.nn").attr("Module");
  SHOAL_CHECK(py::isinstance(module, base), InvalidInput, "trainer: the model is a ",
              std::string(py::str(py::type::handle_of(module).attr("__name__"))), "; give a torch.nn.Module");
  return module;
}

static const py::object& checked_loss(const py::object& loss) {
  SHOAL_CHECK(loss.is_none() || PyCallable_Check(loss.ptr()), InvalidInput, "trainer: loss_fn is a ",
              std::string(py::str(py::type::handle_of(loss).attr("__name__"))),
              "; give a function of the model and the batch that returns the loss, or None");
  return loss;
}

Model::Model(py::object module, py::object loss, std::vector<std::string> ignores, bool is_parallel)
    : module_(uncompiled(module)),
      loss_(std::move(loss)),
      watch_(checked_module(module_), checked_loss(loss_), std::move(ignores)),
      is_parallel_(is_parallel) {
  materialize_attributes(module_);
  watch_.look();
  for (const auto& [name, tensor] : parameters())
    SHOAL_CHECK(tensor.layout() == at::kStrided, InvalidInput, "trainer: parameter ", name,
                " is sparse; keep it dense");
  for (const auto& [name, tensor] : parameters()) refuse_float8("parameter " + name, tensor);
  for (const auto& [name, tensor] : buffers()) refuse_float8("buffer " + name, tensor);
  for (const auto& [name, tensor] : parameters()) {
    if (is_parallel_) aten::recall(tensor);
    SHOAL_CHECK(aten::has_memory(tensor) || is_deferred(tensor), InvalidInput, "trainer: parameter ", name,
                " has no memory: another Trainer keeps it in parts; give this one parallelism too, or call "
                "materialize() of that one first, on every rank");
  }
}

static void say_progress(std::size_t operators, double seconds) {
  const py::gil_scoped_acquire lock;
  const auto line =
      concat("shoal: capturing the model: ", operators, " operators so far, ", std::lround(seconds),
             " s. It is done once for each structure, and twice in a row");
  py::print(line, py::arg("file") = py::module_::import("sys").attr("stderr"), py::arg("flush") = true);
}

ModelView Model::view() {
  return {.parameters = parameters(),
          .buffers = buffers(),
          .loss = [this](const Batch& batch) { return run(batch); },
          .mode = [this] { return mode(); },
          .outputs =
              [this] {
                const py::gil_scoped_acquire lock;
                return std::exchange(results_, {});
              },
          .source_line = source_line,
          .reader = reader,
          .shared_mode = [this] { return shared_mode(); },
          .tag =
              [this] {
                const py::gil_scoped_acquire lock;
                return keep_effects();
              },
          .forget_tag =
              [this](const std::string& tag) {
                const py::gil_scoped_acquire lock;
                kept_effects_.erase(tag);
              },
          .writes_constant =
              [this](const at::Tensor& tensor) {
                const py::gil_scoped_acquire lock;
                const bool is_known = watch_.make_input(tensor);
                again_ = again_ || is_known;
                return is_known;
              },
          .progress = say_progress,
          .numbers = &numbers_};
}

// What somebody has put on a tensor.
static py::dict attributes_of(py::handle tensor) {
  PyObject** attributes = _PyObject_GetDictPtr(tensor.ptr());
  if (attributes == nullptr || *attributes == nullptr) return {};
  return py::reinterpret_borrow<py::dict>(*attributes);
}

Batch Model::start(py::handle batch, Use use, bool keep_outputs) {
  watch_.look();
  auto signature = watch_.signature();
  auto numbers = numbers_.now();
  if (signature != signature_ || numbers != last_numbers_) {
    signature_ = std::move(signature);
    last_numbers_ = std::move(numbers);
    ++generation_;
  }
  again_ = false;
  values_changed_.reset();
  Tree tree = tree_of(batch);
  const bool may_vary = !is_parallel_ && !watch_.asks_types();
  numbers_.of_batch().start();
  Batch::Map tensors;
  std::string values = structure_of(tree) + ' ';
  for_each_leaf(tree, [&](const std::string& path, const Tree& leaf) {
    const auto name = path.empty() ? std::string("batch") : path;
    if (leaf.kind == Tree::Kind::Tensor) {
      const at::Tensor tensor = THPVariable_Unpack(leaf.object.ptr());
      refuse_float8("item " + name + " of the batch", tensor);
      SHOAL_CHECK(use == Use::Evaluation || !tensor.requires_grad(), InvalidInput, "trainer: item ", name,
                  " of the batch requires a gradient, and a step makes gradients of parameters alone; give ",
                  name, ".detach(), and what it was made from as a part of the model");
      values += add_item(tensors, name, tensor);
      for (const auto& [attribute, value] : attributes_of(leaf.object)) {
        SHOAL_CHECK(is_plain_value(value), InvalidInput, "trainer: item ", name,
                    " of the batch has an attribute ", std::string(py::str(attribute)), ", a ",
                    std::string(py::str(py::type::handle_of(value).attr("__name__"))),
                    "; give that as an item of the batch");
        values += name + "." + std::string(py::str(attribute)) + "=" + std::string(py::repr(value)) + ";";
      }
      return;
    }
    SHOAL_CHECK(leaf.kind == Tree::Kind::Value, InvalidInput, "trainer: item ", name, " of the batch is a ",
                structure_of(leaf),
                "; give tensors, numbers, strings and None in tuples, lists, dictionaries and dataclasses "
                "(torch.as_tensor makes a tensor of an array)");
    const bool varies = may_vary && numbers_.of_batch().note(path, leaf.object);
    values += name + "=" + (varies ? "any" : std::string(py::repr(leaf.object))) + ";";
  });
  for (const auto& [name, tensor] : watch_.beside()) {
    aten::recall(tensor);  // another trainer may keep it in parts
    tensors.emplace(name, Batch(tensor));
  }
  batch_ = std::move(tree);
  values_ = std::move(values);
  keep_outputs_ = keep_outputs;
  return tensors;
}

// What the watch sees, autocast, and what of the batch is no tensor: each makes another graph.
std::string Model::mode() const { return signature_ + surroundings(); }

// What all ranks have to have alike: not the content of what is watched, as a path or a rank may stand in it,
// but that it changes at the same steps.
std::string Model::shared_mode() const {
  return "changes of what forward reads: " + std::to_string(generation_) + surroundings();
}

// A line each: of ranks that differ, the first is shown.
std::string Model::surroundings() const {
  std::string text;
  const auto line = [&](const char* what, auto value) {
    ((text += '\n') += what) += ": ";
    if constexpr (std::is_convertible_v<decltype(value), const char*>)
      text += value;
    else
      text += std::to_string(static_cast<int>(value));
  };
  for (const auto device : {at::kCPU, at::kCUDA})
    if (at::autocast::is_autocast_enabled(device))
      line("autocast", c10::toString(at::autocast::get_autocast_dtype(device)));
  const auto& context = at::globalContext();
  line("deterministic algorithms", context.deterministicAlgorithms());
  line("deterministic cuDNN", context.deterministicCuDNN());
  line("cuDNN benchmark", context.benchmarkCuDNN());
  line("default dtype", c10::toString(c10::get_default_dtype_as_scalartype()));
  line("cuDNN", context.userEnabledCuDNN());
  line("MKL-DNN", context.userEnabledMkldnn());
  line("flash attention", context.userEnabledFlashSDP());
  line("math attention", context.userEnabledMathSDP());
  line("memory-efficient attention", context.userEnabledMemEfficientSDP());
  line("float32 matmul precision", context.float32MatmulPrecision());
  line("anomaly mode", torch::autograd::AnomalyMode::is_enabled());
  line("threads", at::get_num_threads());
  line("torch function modes", at::impl::PythonTorchFunctionTLS::stack_len());
  line("torch dispatch modes", c10::impl::TorchDispatchModeTLS::stack_len());
  line("outputs asked for", keep_outputs_);
  return text + "\nnumbers that forward reads: " + values_;
}

static std::string sizes_of(const Tree& batch) {
  std::string text;
  for_each_leaf(batch, [&](const std::string& path, const Tree& leaf) {
    if (leaf.kind == Tree::Kind::Tensor)
      text += concat(path, THPVariable_Unpack(leaf.object.ptr()).sizes(), ' ');
  });
  return text;
}

// After a recorded run: buffers that were replaced are written into, and what else it has left somewhere
// becomes outputs.
void Model::take_effects(Effects effects) {
  if (again_) throw Again{};
  {
    const py::gil_scoped_release unlocked;
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, value] : effects.copies) at::Tensor(buffer).copy_(value);
  }
  SHOAL_CHECK(!values_changed_ || *values_changed_ == effects.values, InvalidInput,
              "capture: the model changes ",
              effects.values.empty() ? values_changed_->front().first : effects.values.front().first,
              " in another way each time it is called with the same batch. Remedy: make it do the same, or, "
              "if no result "
              "depends on it, Trainer(…, ignores=[…])");
  if (!values_changed_) changes_.check(effects, sizes_of(batch_));
  values_changed_ = effects.values;
  for (std::size_t i = 0; i < effects.outputs.size(); ++i)
    results_.emplace_back("effect." + std::to_string(i), effects.outputs[i]);
  effects.outputs.clear();
  effects.copies.clear();
  effects_ = std::move(effects);
}

// For the graph that was captured: its tag.
std::string Model::keep_effects() {
  if (effects_.list.empty()) return "";
  auto tag = std::to_string(++last_tag_);
  kept_effects_.emplace(tag, std::exchange(effects_, {}));
  return tag;
}

void Model::finish(const std::string& tag, const std::map<std::string, at::Tensor>& outputs) {
  if (!tag.empty()) {
    const auto kept = kept_effects_.find(tag);
    SHOAL_CHECK(kept != kept_effects_.end(), Internal,
                "trainer: what a graph changes around the model is lost");
    std::vector<at::Tensor> tensors;
    for (auto output = outputs.find("effect." + std::to_string(tensors.size())); output != outputs.end();
         output = outputs.find("effect." + std::to_string(tensors.size())))
      tensors.push_back(output->second);
    kept->second.apply(tensors);
  }
  for (const auto& [name, leaf] : watch_.beside()) {
    if (!leaf.requires_grad()) continue;
    const auto gradient = outputs.find(capture::gradient_name(name));
    if (gradient == outputs.end()) continue;
    auto& sum = at::Tensor(leaf).mutable_grad();
    sum = sum.defined() ? sum + gradient->second : gradient->second;
  }
}

py::object Model::call(py::handle batch) const {
  if (!loss_.is_none()) return loss_(module_, batch);
  switch (batch_.kind) {
    case Tree::Kind::Mapping: return module_(**py::dict(py::reinterpret_borrow<py::object>(batch)));
    case Tree::Kind::List:
    case Tree::Kind::Tuple: return module_(*py::tuple(py::reinterpret_borrow<py::object>(batch)));
    default: return module_(batch);
  }
}

static bool is_scalar_tensor(py::handle object) {
  return THPVariable_Check(object.ptr()) && THPVariable_Unpack(object.ptr()).numel() == 1;
}

py::object loss_in(py::handle result) {
  const auto taken = [](py::handle object) { return py::reinterpret_borrow<py::object>(object); };
  if (is_scalar_tensor(result)) return taken(result);
  if (THPVariable_Check(result.ptr())) return {};
  if (PyDict_Check(result.ptr()) && py::dict(taken(result)).contains("loss")) {
    const py::object loss = result["loss"];
    if (is_scalar_tensor(loss)) return loss;
  }
  if (py::hasattr(result, "loss") && is_scalar_tensor(result.attr("loss"))) return result.attr("loss");
  if (PyTuple_Check(result.ptr()) && py::len(result) > 0) {
    const py::object first = result[py::int_(0)];
    if (is_scalar_tensor(first)) return first;
  }
  return {};
}

at::Tensor Model::checked_loss_in(const py::object& result) const {
  const py::object loss = loss_in(result);
  SHOAL_CHECK(loss, InvalidInput, "trainer: ", loss_.is_none() ? "the model" : "loss_fn", " returned ",
              structure_of(tree_of(result)),
              ", in which there is no loss: a scalar tensor, alone, as `.loss`, [\"loss\"] or first item. ",
              loss_.is_none() ? "Pass the labels in the batch, or a loss_fn(model, batch)"
                              : "Return a mean or a sum");
  return THPVariable_Unpack(loss.ptr());
}

at::Tensor Model::run(const Batch& batch) {
  const py::gil_scoped_acquire lock;
  results_.clear();
  // Casts of parameters that autocast has kept from outside are no values of this capture, and the other way.
  at::autocast::clear_cache();
  const Generators generators(watch_);
  py::object result;
  std::vector<std::string> files;
  const auto ignores = [this](const std::string& file) { return watch_.ignores(file); };
  const auto act = [&] {
    const py::object containers = object_of(batch_, [&](const std::string& path, const Tree& leaf) {
      if (leaf.kind != Tree::Kind::Tensor) return numbers_.of_batch().at(path, leaf.object);
      py::object tensor = py::cast(item_in(batch, path.empty() ? "batch" : path, leaf.object));
      for (const auto& [name, value] : attributes_of(leaf.object)) tensor.attr(name) = value;
      return tensor;
    });
    return call(containers);
  };
  try {
    result = called_in_capture(act, ignores, &files);
    Effects effects = take_back(watch_);
    generators.check(watch_);
    take_effects(std::move(effects));
  } catch (...) {
    generators.restore();
    take_back(watch_);
    at::autocast::clear_cache();
    throw;
  }
  at::autocast::clear_cache();
  for (const auto& file : files) watch_.follow_file(file);
  const at::Tensor loss = checked_loss_in(result);
  if (keep_outputs_) {
    const Tree tree = tree_of(result);
    Tree empty = without_tensors(tree);  // recorded tensors, and caches of some, end with their capture
    const auto structure = structure_with_values_of(empty);
    auto shape = std::ranges::find(shapes_, structure, structure_with_values_of);
    const auto number = std::to_string(shape - shapes_.begin());
    for_each_leaf(tree, [&](const std::string& path, const Tree& leaf) {
      if (leaf.kind == Tree::Kind::Tensor)
        results_.emplace_back("output" + number + "." + path, THPVariable_Unpack(leaf.object.ptr()));
    });
    if (shape == shapes_.end()) shapes_.push_back(std::move(empty));
  }
  return loss;
}

std::pair<at::Tensor, py::object> Model::run_plainly(const py::object& batch) const {
  py::object result = call(batch);
  return {checked_loss_in(result), result};
}

py::object Model::outputs(const std::map<std::string, at::Tensor>& tensors) const {
  const auto first = tensors.lower_bound("output");
  if (first == tensors.end() || !first->first.starts_with("output")) return py::none();
  const auto& any = first->first;  // "output0.logits"
  const auto dot = any.find('.');
  const auto prefix = any.substr(0, dot + 1);
  const auto number = std::stoul(any.substr(6, dot - 6));
  return object_of(shapes_.at(number), [&](const std::string& path, const Tree& leaf) -> py::object {
    if (leaf.kind == Tree::Kind::Value) return leaf.object;
    const auto found = tensors.find(prefix + path);
    return found == tensors.end() ? py::none() : py::cast(found->second);
  });
}

Model::Modes Model::enter_evaluation() {
  watch_.look();
  Modes modes;
  for (const auto& module : watch_.modules()) modes.emplace_back(module, py::bool_(module.attr("training")));
  module_.attr("eval")();
  return modes;
}

void Model::restore_modes(const Modes& modes) {
  for (const auto& [module, training] : modes)
    if (bool(py::bool_(module.attr("training"))) != training) module.attr("training") = py::bool_(training);
}

}  // namespace shoal::python
