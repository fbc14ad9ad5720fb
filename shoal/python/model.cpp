// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/model.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/python/source_line.h"

namespace shoal::python {

static ModelView::NamedTensors named(const py::object& pairs) {
  ModelView::NamedTensors tensors;
  for (const auto pair : pairs) {
    const auto item = py::cast<std::pair<std::string, at::Tensor>>(pair);
    tensors.emplace_back(item.first, item.second);
  }
  return tensors;
}

static bool has_memory(const at::Tensor& tensor) {
  return !tensor.has_storage() || tensor.numel() == 0 || tensor.storage().nbytes() > 0;
}

Model::Model(py::object module, py::object loss) : module_(std::move(module)), loss_(std::move(loss)) {
  const py::object base = py::module_::import("torch.nn").attr("Module");
  if (py::hasattr(module_, "_orig_mod")) module_ = module_.attr("_orig_mod");  // torch.compile's wrapper
  SHOAL_CHECK(py::isinstance(module_, base), InvalidInput, "trainer: the model is a ",
              std::string(py::str(py::type::handle_of(module_).attr("__name__"))),
              "; give a torch.nn.Module");
  SHOAL_CHECK(loss_.is_none() || PyCallable_Check(loss_.ptr()), InvalidInput, "trainer: loss_fn is a ",
              std::string(py::str(py::type::handle_of(loss_).attr("__name__"))),
              "; give a function of the model and the batch that returns the loss, or None");
  for (const auto each : module_.attr("modules")()) {
    modules_.push_back(py::reinterpret_borrow<py::object>(each));
    const py::dict buffers = each.attr("_buffers");
    for (const auto& [key, tensor] : buffers)
      if (!tensor.is_none())
        buffer_slots_.push_back(
            {buffers, py::reinterpret_borrow<py::object>(key), py::reinterpret_borrow<py::object>(tensor)});
  }
  parameters_ = named(module_.attr("named_parameters")());
  buffers_ = named(module_.attr("named_buffers")());
  for (const auto& [name, tensor] : parameters_)
    SHOAL_CHECK(has_memory(tensor), InvalidInput, "trainer: parameter ", name,
                " has no memory: another Trainer keeps it in parts; call its materialize() first, on every "
                "rank");
}

void Model::refuse_use_in_parts() const {
  if (std::ranges::all_of(parameters_, [](const auto& item) { return has_memory(item.second); })) return;
  py::module_::import("shoal._parts").attr("guard")(module_);
}

ModelView Model::view() {
  return {.parameters = parameters_,
          .buffers = buffers_,
          .loss = [this](const Batch& batch) { return run(batch); },
          .mode = [this] { return mode(); },
          .outputs =
              [this] {
                const py::gil_scoped_acquire lock;
                return std::exchange(results_, {});
              },
          .source_line = source_line};
}

Batch Model::start(py::handle batch, Use use, bool keep_outputs) {
  Tree tree = tree_of(batch);
  const auto structure = structure_of(tree);
  const auto [first, is_first] = structures_.try_emplace(use, structure);
  SHOAL_CHECK(first->second == structure, InvalidInput, "trainer: this batch is\n    ", structure,
              "\nand the first one was\n    ", first->second,
              "\nRemedy: give every batch the same containers, names and kinds of items; for another kind of "
              "batch make another Trainer");
  Batch::Map tensors;
  std::string values;
  for_each_leaf(tree, [&](const std::string& path, const Tree& leaf) {
    const auto name = path.empty() ? std::string("batch") : path;
    if (leaf.kind == Tree::Kind::Tensor) {
      tensors.emplace(name, Batch(THPVariable_Unpack(leaf.object.ptr())));
      return;
    }
    SHOAL_CHECK(leaf.kind == Tree::Kind::Value, InvalidInput, "trainer: item ", name, " of the batch is a ",
                structure_of(leaf),
                "; give tensors, numbers, strings and None in tuples, lists, dictionaries and dataclasses "
                "(torch.as_tensor makes a tensor of an array)");
    values += name + "=" + std::string(py::repr(leaf.object)) + ";";
  });
  batch_ = std::move(tree);
  values_ = std::move(values);
  keep_outputs_ = keep_outputs;
  return tensors;
}

// Training flags, autocast, and what of the batch is no tensor: each makes another graph.
std::string Model::mode() const {
  const py::gil_scoped_acquire lock;
  std::string text;
  text.reserve(modules_.size() + values_.size() + 32);
  for (const auto& module : modules_) text += py::bool_(module.attr("training")) ? '1' : '0';
  for (const auto device : {at::kCPU, at::kCUDA})
    if (at::autocast::is_autocast_enabled(device))
      text += std::string(" autocast ") + c10::toString(at::autocast::get_autocast_dtype(device));
  text += keep_outputs_ ? " outputs " : " ";
  return text + values_;
}

// `self.mean = …` in forward puts another tensor into the buffer's place; a captured step writes into the
// buffer, which other graphs and the user hold. `write`: while the model is recorded.
void Model::keep_replaced_buffers(bool write) {
  for (const auto& [buffers, key, tensor] : buffer_slots_) {
    const py::object now = py::reinterpret_borrow<py::object>(PyDict_GetItem(buffers.ptr(), key.ptr()));
    if (now.is(tensor)) continue;
    buffers[key] = tensor;
    if (!write) continue;
    const at::Tensor old = THPVariable_Unpack(tensor.ptr());
    const bool fits =
        now && THPVariable_Check(now.ptr()) && THPVariable_Unpack(now.ptr()).sizes() == old.sizes();
    SHOAL_CHECK(fits, InvalidInput, "capture: the model replaces its buffer ", std::string(py::str(key)),
                " by something of another shape while it runs; keep the shape, or make it no buffer");
    const at::Tensor value = THPVariable_Unpack(now.ptr());
    const py::gil_scoped_release unlocked;
    const at::NoGradGuard no_grad;
    old.copy_(value);
  }
}

py::object Model::call(py::handle batch) const {
  if (!loss_.is_none()) return loss_(module_, batch);
  switch (batch_.kind) {
    case Tree::Kind::Mapping: return module_(**py::dict(py::reinterpret_borrow<py::object>(batch)));
    case Tree::Kind::List:
    case Tree::Kind::Tuple:
    case Tree::Kind::NamedTuple: return module_(*py::tuple(py::reinterpret_borrow<py::object>(batch)));
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

// Recorded tensors, and caches that hold some, are not kept beyond their capture.
static Tree without_tensors(Tree tree) {
  if (tree.kind == Tree::Kind::Tensor || tree.kind == Tree::Kind::Other) tree.object = py::none();
  for (auto& [name, item] : tree.items) item = without_tensors(std::move(item));
  return tree;
}

at::Tensor Model::run(const Batch& batch) {
  const py::gil_scoped_acquire lock;
  results_.clear();
  // Casts of parameters that autocast has kept from outside are no values of this capture, and the other way.
  at::autocast::clear_cache();
  py::object result;
  try {
    result = called_in_capture([&] {
      const py::object containers = object_of(batch_, [&](const std::string& path, const Tree& leaf) {
        if (leaf.kind != Tree::Kind::Tensor) return leaf.object;
        return py::cast(batch[path.empty() ? "batch" : path].tensor());
      });
      return call(containers);
    });
    keep_replaced_buffers(true);
  } catch (...) {
    keep_replaced_buffers(false);
    at::autocast::clear_cache();
    throw;
  }
  at::autocast::clear_cache();
  const py::object loss = loss_in(result);
  SHOAL_CHECK(loss, InvalidInput, "trainer: ", loss_.is_none() ? "the model" : "loss_fn", " returned ",
              structure_of(tree_of(result)),
              ", in which there is no loss: a scalar tensor, alone, as `.loss`, [\"loss\"] or first item. ",
              loss_.is_none() ? "Pass the labels in the batch, or a loss_fn(model, batch)"
                              : "Return a mean or a sum");
  if (keep_outputs_) {
    const Tree tree = tree_of(result);
    Tree empty = without_tensors(tree);
    const auto structure = structure_of(empty);
    auto shape = std::ranges::find(shapes_, structure, structure_of);
    const auto number = std::to_string(shape - shapes_.begin());
    for_each_leaf(tree, [&](const std::string& path, const Tree& leaf) {
      if (leaf.kind == Tree::Kind::Tensor)
        results_.emplace_back("output" + number + "." + path, THPVariable_Unpack(leaf.object.ptr()));
    });
    if (shape == shapes_.end()) shapes_.push_back(std::move(empty));
  }
  return THPVariable_Unpack(loss.ptr());
}

py::object Model::outputs(const std::map<std::string, at::Tensor>& tensors) const {
  if (tensors.empty()) return py::none();
  const auto& any = tensors.begin()->first;  // "output0.logits"
  const auto dot = any.find('.');
  const auto prefix = any.substr(0, dot + 1);
  const auto number = std::stoul(any.substr(6, dot - 6));
  return object_of(shapes_.at(number), [&](const std::string& path, const Tree& leaf) -> py::object {
    if (leaf.kind == Tree::Kind::Value) return leaf.object;
    const auto found = tensors.find(prefix + path);
    return found == tensors.end() ? py::none() : py::cast(found->second);
  });
}

std::vector<bool> Model::enter_evaluation() {
  std::vector<bool> modes;
  for (const auto& module : modules_) modes.push_back(py::bool_(module.attr("training")));
  module_.attr("eval")();
  return modes;
}

void Model::restore_modes(const std::vector<bool>& modes) {
  for (std::size_t i = 0; i < modes.size(); ++i) modules_[i].attr("training") = py::bool_(modes[i]);
}

// What goes wrong below Python, in LibTorch's words, and the remedy.
namespace {
struct Explanation {
  std::string_view says;
  const char* means;
};
}  // namespace
static constexpr std::array<Explanation, 3> kExplanations = {{
    {"data pointer of Tensor that doesn't have storage",
     "while a model is recorded its activations have no data, so numpy(), tolist() and data_ptr() cannot be "
     "used on them: stay with torch operators"},
    {"Cannot access storage of",
     "while a model is recorded its activations have no storage: stay with torch operators"},
    {"doesn't have storage",
     "while a model is recorded its activations have no storage: stay with torch operators"},
}};

py::object called_in_capture(const std::function<py::object()>& act) {
  try {
    return act();
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
