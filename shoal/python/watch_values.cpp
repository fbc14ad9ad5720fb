// SPDX-License-Identifier: Apache-2.0
// What a value is: one row for each type that a model or a loss may hold, and what is followed from it.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "shoal/aten/memory.h"
#include "shoal/python/watch_python.h"

namespace shoal::python {

// Longer lists and dictionaries are data, not settings: what they are and how long is watched, not what is in
// them.
static constexpr Py_ssize_t kLong = 65536;
static constexpr Py_ssize_t kArrayBytes = 1 << 20;  // larger arrays likewise

// Of a module's dictionary: what plays no part in a step.
static constexpr std::array<std::string_view, 5> kSkipped = {
    "_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_non_persistent_buffers_set",
    "_state_dict_hooks", "_state_dict_pre_hooks"};
// Of a module's dictionary: their keys are the module's own attributes for the user.
static constexpr std::array<std::string_view, 3> kTransparent = {"_buffers", "_modules", "_parameters"};

template <std::size_t n>
static bool is_one_of(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Digest Watch::number_of(char kind, py::handle object) {
  const auto [found, added] = numbers_.try_emplace(object.ptr());
  if (added) {
    const auto old = old_numbers_.find(object.ptr());
    found->second = {old == old_numbers_.end() ? ++last_number_ : old->second.first,
                     py::reinterpret_borrow<py::object>(object)};
  }
  return Digest::of(kind, found->second.first);
}

// All names of a library's class or module together: somebody may put another function there.
void Watch::follow_names(const py::object& owner) {
  const auto [found, added] = ordinals_.try_emplace(owner.ptr(), places_.size());
  if (!added) return;
  places_.push_back({.kind = Place::Kind::Library, .holder = owner, .path = "", .keys = {}, .values = {}});
}

Digest Watch::follow(Place::Kind kind, py::object holder, const std::string& path, bool in_module,
                     std::vector<py::object> names) {
  if (kind != Place::Kind::Names) {
    const auto [found, added] = ordinals_.try_emplace(holder.ptr(), places_.size());
    if (!added) return Digest::of('@', found->second);
  }
  const auto index = places_.size();
  places_.push_back(
      {.kind = kind, .holder = std::move(holder), .path = path, .keys = std::move(names), .values = {}});
  Contents contents = contents_of(places_[index]);
  if (kind == Place::Kind::Dict || kind == Place::Kind::Type) places_[index].keys = std::move(contents.keys);
  places_[index].values = contents.values;
  if (has_bytes(kind)) places_[index].bytes = bytes_of(places_[index]);
  std::vector<Digest> digests;
  for (std::size_t i = 0; i < contents.values.size(); ++i) {
    const auto& value = contents.values[i];
    if (!value)
      digests.emplace_back();
    else if (kind == Place::Kind::Function && PyTuple_Check(value.ptr()) && i == 3)
      digests.push_back(describe_closure(contents.values[0], value, path));
    else
      digests.push_back(describe(value, places_[index].path_of(i), in_module));
  }
  places_[index].digests = std::move(digests);
  return Digest::of('@', index);
}

// What only a question tells, asked at each look.
Digest Watch::ask(const char* question, const py::object& about, const std::string& path) {
  return follow(Place::Kind::Asked, python_->partial(python_->outside.attr(question), about), path, false);
}

Digest Watch::describe_tensor(py::handle value, const std::string& path) {
  const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (const auto found = seen_at_.find(impl); found != seen_at_.end()) {
    const auto& seen = seen_[found->second];
    return seen.role == Seen::Role::Constant ? number_of('t', value) : Digest::of('T', found->second);
  }
  Seen seen{.tensor = py::reinterpret_borrow<py::object>(value),
            .path = path,
            .role = Seen::Role::Constant,
            .version = tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version()),
            .memory = aten::address_of(tensor),
            .requires_grad = tensor.requires_grad(),
            .hooks = hooks_of(value)};
  const bool shows_own =
      own_.contains(impl) ||
      (tensor.has_storage() && own_memory_.contains(tensor.storage().unsafeGetStorageImpl()));
  const bool can_be_input = tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_sparse();
  if (shows_own) {
    seen.role = Seen::Role::Own;
  } else if (can_be_input && ((tensor.requires_grad() && tensor.is_leaf()) || is_input_path(path))) {
    seen.role = Seen::Role::Input;
    beside_.emplace_back("~" + path, tensor);
  }
  const auto hooked =
      Digest::of('h', (seen.hooks[0] != nullptr ? 1U : 0U) + (seen.hooks[1] != nullptr ? 2U : 0U));
  const auto index = seen_.size();
  Digest hooks = hooked;
  for (const auto* dictionary : seen.hooks)
    if (dictionary != nullptr && PyDict_Check(static_cast<PyObject*>(const_cast<void*>(dictionary))))
      hooks +=
          describe(py::handle(static_cast<PyObject*>(const_cast<void*>(dictionary))), path + ".hooks", false);
  const bool is_constant = seen.role == Seen::Role::Constant;
  const bool is_input = seen.role == Seen::Role::Input;
  const auto version = seen.version;
  seen_at_.emplace(impl, index);
  seen_.push_back(std::move(seen));
  Digest digest = is_constant ? number_of('t', value) : Digest::of('T', index);
  if (is_constant) digest += Digest::of('v', version);
  if (is_input || own_.contains(impl)) {
    std::string type = std::string(tensor.dtype().name()) + (tensor.requires_grad() ? "g" : "");
    for (const auto size : tensor.sizes()) type += "," + std::to_string(size);
    if (is_input)
      for (const auto stride : tensor.strides()) type += ";" + std::to_string(stride);
    digest += Digest::of(type);
  }
  return digest += hooks;
}

// A module of the model or beside it. Tensors of one beside are inputs from the start: they are trained or
// averaged by someone else.
Digest Watch::describe_module(const py::object& module, const std::string& path) {
  const py::object type = type_of(module);
  classes_.emplace_back(module, kind_of(module));
  describe_type(type, py::str(type.attr("__name__")));
  for (const char* kind : {"_parameters", "_buffers"}) {
    const py::object tensors = module.attr(kind);
    if (!PyDict_Check(tensors.ptr())) continue;  // of torch.jit
    for (const auto& [name, tensor] : py::reinterpret_borrow<py::dict>(tensors))
      if (!tensor.is_none() && THPVariable_Check(tensor.ptr()) &&
          !own_.contains(THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl()))
        input_paths_.insert(joined(path, py::str(name)));
  }
  Digest digest = number_of('c', type);
  digest += follow(Place::Kind::Dict, module.attr("__dict__"), path, true);
  return digest;
}

// Of a list or dictionary of a class of the user's, say: what it has besides its items.
Digest Watch::describe_attributes(const py::object& object, const std::string& path, bool in_module) {
  if (PyDict_CheckExact(object.ptr()) || PyList_CheckExact(object.ptr())) return {};
  if (!py::hasattr(object, "__dict__")) return {};
  const py::object attributes = object.attr("__dict__");
  if (!PyDict_CheckExact(attributes.ptr())) return {};
  return follow(Place::Kind::Dict, attributes, path, in_module);
}

Digest Watch::describe_instance(const py::object& object, const std::string& path, bool in_module) {
  const py::object type = type_of(object);
  const bool is_library = py::bool_(python_->is_library_module(type.attr("__module__")));
  const bool followed =
      !py::isinstance(object, python_->busy) && (!is_library || py::isinstance(object, python_->namespaces) ||
                                                 (in_module && !PyType_Check(object.ptr())));
  if (!followed) return number_of('o', object);
  classes_.emplace_back(object, kind_of(object));
  Digest digest = number_of('c', type);
  describe_type(type, py::str(type.attr("__name__")));
  bool found = false;
  if (py::hasattr(object, "__dict__") && PyDict_CheckExact(py::object(object.attr("__dict__")).ptr())) {
    digest += follow(Place::Kind::Dict, object.attr("__dict__"), path, in_module);
    found = true;
  }
  std::vector<py::object> slots;
  for (const auto base : py::tuple(type.attr("__mro__"))) {
    const py::dict dictionary(base.attr("__dict__"));
    if (!dictionary.contains("__slots__")) continue;
    py::object names = dictionary["__slots__"];
    if (PyUnicode_Check(names.ptr())) names = py::make_tuple(names);
    for (const auto name : names)
      if (std::string(py::str(name)) != "__dict__" && std::string(py::str(name)) != "__weakref__")
        slots.push_back(py::reinterpret_borrow<py::object>(name));
  }
  if (!slots.empty()) {
    digest += follow(Place::Kind::Slots, object, path, in_module, std::move(slots));
    found = true;
  }
  if (!found) digest += number_of('o', object);
  return digest;
}

Digest Watch::describe(py::handle value, const std::string& path, bool in_module) {
  PyObject* raw = value.ptr();
  if (PyFloat_CheckExact(raw)) {
    const double number = PyFloat_AS_DOUBLE(raw);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    return Digest::of(std::string("f") + std::to_string(bits));
  }
  if (is_plain_value(value))
    return Digest::of(std::string(Py_TYPE(raw)->tp_name) + ":" + std::string(py::repr(value)));
  const auto object = py::reinterpret_borrow<py::object>(value);
  const auto last = path.substr(path.rfind('.') + 1);
  if (THPVariable_Check(raw)) return describe_tensor(value, path);
  if (PyTuple_Check(raw)) {
    Digest digest =
        Digest::of(std::string("tuple") + Py_TYPE(raw)->tp_name + std::to_string(PyTuple_GET_SIZE(raw)));
    if (PyTuple_GET_SIZE(raw) > kLong) return number_of('o', value);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(raw); ++i)
      digest += describe(PyTuple_GET_ITEM(raw, i), path + "." + std::to_string(i), in_module)
                    .at(static_cast<std::uint64_t>(i));
    return digest;
  }
  if (PyDict_Check(raw)) {
    if (PyDict_Size(raw) > kLong)
      return number_of('o', value) += Digest::of('n', static_cast<std::uint64_t>(PyDict_Size(raw)));
    const bool of_module = in_module && is_one_of(kTransparent, last);
    if (in_module && is_one_of(kSkipped, last)) return {};
    const auto own = of_module ? path.substr(0, path.size() - std::min(path.size(), last.size() + 1)) : path;
    Digest digest = Digest::of(Py_TYPE(raw)->tp_name) += follow(Place::Kind::Dict, object, own, in_module);
    const bool has_order = PyDict_Size(raw) > 1 && py::isinstance(object, python_->ordered);
    if (has_order) digest += ask("state_of_order", object, path);
    return digest += describe_attributes(object, path, in_module);
  }
  if (PyList_Check(raw)) {
    if (PyList_GET_SIZE(raw) > kLong)
      return number_of('o', value) += Digest::of('n', static_cast<std::uint64_t>(PyList_GET_SIZE(raw)));
    return (Digest::of(Py_TYPE(raw)->tp_name) += follow(Place::Kind::List, object, path, in_module)) +=
           describe_attributes(object, path, in_module);
  }
  if (PyAnySet_Check(raw)) {
    if (PySet_GET_SIZE(raw) > kLong || PyFrozenSet_CheckExact(raw)) return number_of('o', value);
    if (in_module && is_one_of(kSkipped, last)) return {};
    return follow(Place::Kind::Set, object, path, in_module);
  }
  if (PyFunction_Check(raw)) return describe_function(object, path);
  if (PyMethod_Check(raw))
    return describe(PyMethod_GET_FUNCTION(raw), path, false) +=
           describe(PyMethod_GET_SELF(raw), path, in_module).at(1);
  if (PyCell_Check(raw)) {
    return follow(Place::Kind::Cell, object, path, in_module);
  }
  if (py::isinstance(object, python_->module_class)) return describe_module(object, path);
  if (PyType_Check(raw)) {
    describe_type(object, py::str(object.attr("__name__")));
    return number_of('c', value);
  }
  if (Py_TYPE(raw) == &PyProperty_Type)
    return number_of('p', value) += describe(object.attr("fget"), path, false);
  if (Py_TYPE(raw) == &PyStaticMethod_Type || Py_TYPE(raw) == &PyClassMethod_Type)
    return Digest::of(Py_TYPE(raw)->tp_name) += describe(object.attr("__func__"), path, false);
  if (py::isinstance(object, python_->partial)) {
    Digest digest = describe(object.attr("func"), path, false).at(0);
    digest += describe(object.attr("args"), path, false).at(1);
    return digest += describe(object.attr("keywords"), path, false).at(2);
  }
  if (py::isinstance(object, python_->random) || py::isinstance(object, python_->numpy_generators)) {
    generators_.emplace_back(path, object);
    return number_of('r', value);
  }
  if (python_->ndarray && py::isinstance(object, python_->ndarray)) {
    if (py::cast<Py_ssize_t>(object.attr("nbytes")) > kArrayBytes) return number_of('o', value);
    Digest digest = follow(Place::Kind::Array, object, path, false);
    if (py::bool_(object.attr("dtype").attr("hasobject")))
      digest += describe(py::tuple(object.attr("ravel")().attr("tolist")()), path, in_module);
    if (!Py_IS_TYPE(raw, reinterpret_cast<PyTypeObject*>(python_->ndarray.ptr())))
      digest += describe_attributes(object, path, in_module);  // the mask of one that has one
    return digest;
  }
  if (PyObject_CheckBuffer(raw) && !PyBytes_Check(raw))
    return follow(Place::Kind::Array, object, path, false);
  if (PyWeakref_CheckRef(raw)) {
    const auto target = py::reinterpret_borrow<py::object>(PyWeakref_GetObject(raw));
    return Digest::of("weak") += describe(target, path, in_module);
  }
  if (py::isinstance(object, python_->optimizer)) {
    const py::object groups = object.attr("param_groups");
    return number_of('o', value) += describe(groups, path + ".param_groups", false);
  }
  if (PyIter_Check(raw) && !py::hasattr(object, "__dict__")) {
    generators_.emplace_back(path, object);
    return number_of('i', value);
  }
  if (py::isinstance(object, python_->deque)) return follow(Place::Kind::Deque, object, path, in_module);
  if (PyModule_Check(raw) || PyCode_Check(raw) || PyCFunction_Check(raw)) return number_of('o', value);
  if (py::isinstance(object, python_->proxy))
    return Digest::of("proxy") += describe(python_->outside.attr("behind_proxy")(object), path, in_module);
  if (py::isinstance(object, python_->logger)) return ask("state_of_logger", object, path);
  if (py::isinstance(object, python_->variable)) {
    Digest digest = ask("state_of_variable", object, path);
    return digest += describe(object.attr("get")(py::none()), path, in_module);
  }
  if (py::hasattr(object, "__wrapped__") && PyFunction_Check(py::object(object.attr("__wrapped__")).ptr())) {
    Digest digest = number_of('o', value) += describe(object.attr("__wrapped__"), path, false);
    return py::hasattr(object, "cache_info") ? digest += ask("state_of_cache", object, path) : digest;
  }
  return describe_instance(object, path, in_module);
}

}  // namespace shoal::python
