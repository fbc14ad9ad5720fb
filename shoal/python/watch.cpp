// SPDX-License-Identifier: Apache-2.0
// What has changed since the last look, and the walk that finds all anew where following it is not enough.
#include "shoal/python/watch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "shoal/aten/memory.h"
#include "shoal/aten/sparse.h"
#include "shoal/python/watch_python.h"

namespace shoal::python {

Watch::Python::Python() {
  const py::module_ torch = py::module_::import("torch");
  for (const auto& owner :
       {py::object(torch), py::object(py::module_::import("torch.nn.functional")),
        py::object(torch.attr("Tensor")), py::object(torch.attr("_C").attr("TensorBase"))})
    everywhere.append(owner);
  const py::dict module_hooks = py::module_::import("torch.nn.modules.module").attr("__dict__");
  for (const auto& [name, value] : module_hooks)
    if (std::string(py::str(name)).starts_with("_global_") && PyDict_Check(value.ptr()))
      global_hooks.append(value);
  const py::dict loaded = py::module_::import("sys").attr("modules");
  if (!loaded.contains("numpy")) return;
  const py::module_ numpy = py::module_::import("numpy");
  ndarray = numpy.attr("ndarray");
  numpy_generators =
      py::make_tuple(numpy.attr("random").attr("RandomState"), numpy.attr("random").attr("Generator"));
}

py::object type_of(py::handle object) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

Watch::Watch(py::object module, py::object loss, std::vector<std::string> ignores)
    : module_(std::move(module)),
      loss_(std::move(loss)),
      ignores_(std::move(ignores)),
      python_(std::make_unique<Python>()) {}
Watch::~Watch() = default;

bool Watch::ignores(const std::string& path) const {
  return std::ranges::any_of(
      ignores_, [&](const std::string& pattern) { return py::bool_(python_->match(path, pattern)); });
}

std::string Watch::first_use_of(const std::string& global) const {
  for (const auto& [name, where] : global_uses_)
    if (name == global) return where;
  return "";
}

std::string Watch::signature() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const auto part : {total_.low, total_.high})
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(part >> shift) & 15];
  return text;
}

bool Watch::make_input(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto found = std::ranges::find_if(seen_, [&](const Seen& seen) {
    const auto& each = THPVariable_Unpack(seen.tensor.ptr());
    return each.unsafeGetTensorImpl() == impl || aten::share_storage(each, tensor);
  });
  if (found == seen_.end() || found->role != Seen::Role::Constant) return false;
  make_input(found->path);
  return true;
}

bool Watch::is_input_path(const std::string& path) const {
  return std::ranges::any_of(input_paths_, [&](const std::string& each) {
    return path.starts_with(each) && (path.size() == each.size() || path[each.size()] == '.');
  });
}

static std::uint64_t version_of([[maybe_unused]] PyObject* dictionary) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dictionary)->ma_version_tag;
#else
  return 0;  // not counted
#endif
}

static PyObject* watched_dictionary_of(const Place& place) {
  PyObject* holder = place.holder.ptr();
  if (PyType_Check(holder)) return reinterpret_cast<PyTypeObject*>(holder)->tp_dict;
  return PyModule_Check(holder) ? PyModule_GetDict(holder) : holder;
}

// Which objects all names of a library's class or module stand for, without keeping them.
static Digest names_of(const Place& place) {
  Digest sum;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(watched_dictionary_of(place), &position, &key, &value))
    if (PyCallable_Check(value) || is_plain_value(value))
      sum +=
          Digest::of('n', reinterpret_cast<std::uintptr_t>(value)).at(reinterpret_cast<std::uintptr_t>(key));
  return sum;
}

static bool is_dictionary(Place::Kind kind) {
  return kind == Place::Kind::Dict || kind == Place::Kind::Type || kind == Place::Kind::Names ||
         kind == Place::Kind::Library;
}

void note_version(Place& place) {
  if (is_dictionary(place.kind)) place.version = version_of(watched_dictionary_of(place));
}

static bool holds_same(const Contents& now, const Place& place) {
  const auto identical = [](const py::object& a, const py::object& b) { return a.ptr() == b.ptr(); };
  return std::ranges::equal(now.values, place.values, identical) &&
         (place.keys.empty() || std::ranges::equal(now.keys, place.keys, identical));
}

// Whether nothing was put there or taken away; without allocating where that is cheap to see.
bool Watch::is_same(const Place& place) {
  PyObject* holder = place.holder.ptr();
  switch (place.kind) {
    case Place::Kind::Dict:
    case Place::Kind::Type:
    case Place::Kind::Names: {
      const auto version = version_of(watched_dictionary_of(place));
      if (version != 0 && version == place.version) return true;
      if (place.kind != Place::Kind::Names) break;
      for (std::size_t i = 0; i < place.keys.size(); ++i)
        if (PyDict_GetItemWithError(holder, place.keys[i].ptr()) != place.values[i].ptr()) return false;
      return true;
    }
    case Place::Kind::List:
      if (PyList_GET_SIZE(holder) != static_cast<Py_ssize_t>(place.values.size())) return false;
      for (std::size_t i = 0; i < place.values.size(); ++i)
        if (PyList_GET_ITEM(holder, static_cast<Py_ssize_t>(i)) != place.values[i].ptr()) return false;
      return true;
    case Place::Kind::Cell: return PyCell_GET(holder) == place.values[0].ptr();
    case Place::Kind::Function:
      return PyFunction_GET_CODE(holder) == place.values[0].ptr() &&
             PyFunction_GET_DEFAULTS(holder) == place.values[1].ptr() &&
             PyFunction_GET_KW_DEFAULTS(holder) == place.values[2].ptr() &&
             PyFunction_GET_CLOSURE(holder) == place.values[3].ptr() &&
             reinterpret_cast<PyFunctionObject*>(holder)->func_dict == place.values[4].ptr();
    case Place::Kind::Asked:
    case Place::Kind::Array: return bytes_of(place) == place.bytes;
    case Place::Kind::Library: {
      const auto version = version_of(watched_dictionary_of(place));
      return (version != 0 && version == place.version) || names_of(place) == place.digests.at(0);
    }
    default: break;
  }
  return holds_same(contents_of(place), place);
}

std::array<const void*, 3> hooks_of(py::handle tensor) {
  const auto* raw = reinterpret_cast<const THPVariable*>(tensor.ptr());
  PyObject** attributes = _PyObject_GetDictPtr(tensor.ptr());
  return {raw->backward_hooks, raw->post_accumulate_grad_hooks,
          attributes == nullptr ? nullptr : *attributes};
}

bool Watch::same_tensor(Seen& seen) {
  const auto& tensor = THPVariable_Unpack(seen.tensor.ptr());
  if (hooks_of(seen.tensor) != seen.hooks) return false;
  if (seen.role == Seen::Role::Own) return true;  // looked at by the trainer
  const bool is_moved = tensor.requires_grad() != seen.requires_grad ||
                        (tensor.has_storage() && aten::address_of(tensor) != seen.memory);
  if (is_moved) {
    if (seen.role == Seen::Role::Constant) input_paths_.insert(seen.path);
    return false;
  }
  if (seen.role == Seen::Role::Input || tensor.is_inference() || tensor._version() == seen.version)
    return true;
  input_paths_.insert(seen.path);
  return false;
}

// A tensor in the place of another one of the same type, where both are inputs.
bool Watch::patch_tensor(Place& place, std::size_t i, const py::object& now) {
  if (!THPVariable_Check(place.values[i].ptr()) || !THPVariable_Check(now.ptr())) return false;
  const at::Tensor &old = THPVariable_Unpack(place.values[i].ptr()), &fresh = THPVariable_Unpack(now.ptr());
  const auto found = seen_at_.find(old.unsafeGetTensorImpl());
  if (found == seen_at_.end() || seen_at_.contains(fresh.unsafeGetTensorImpl())) return false;
  auto& seen = seen_[found->second];
  if (seen.role == Seen::Role::Constant && seen.path == place.path_of(i)) input_paths_.insert(seen.path);
  if (seen.role != Seen::Role::Input || seen.path != place.path_of(i)) return false;
  if (aten::is_sparse(fresh)) return false;
  const bool same_type = old.sizes() == fresh.sizes() && old.strides() == fresh.strides() &&
                         old.dtype() == fresh.dtype() && old.device() == fresh.device() &&
                         old.requires_grad() == fresh.requires_grad() && !fresh.grad_fn() &&
                         !own_memory_.contains(fresh.storage().unsafeGetStorageImpl());
  if (!same_type || hooks_of(now) != seen.hooks) return false;
  const auto input = std::ranges::find(beside_, "~" + seen.path, &NamedTensors::value_type::first);
  if (input == beside_.end()) return false;
  input->second = fresh;
  const auto at = found->second;
  seen_at_.erase(found);
  seen_at_.emplace(fresh.unsafeGetTensorImpl(), at);
  seen.tensor = now;
  seen.memory = aten::address_of(fresh);
  place.values[i] = now;
  return true;
}

// Follows numbers that are others now, and tensors that are inputs. False if more has changed.
bool Watch::patch(std::size_t index) {
  Place& place = places_[index];
  const Contents now = contents_of(place);
  if (place.kind == Place::Kind::Function || has_bytes(place.kind) || place.kind == Place::Kind::Set ||
      place.kind == Place::Kind::Library)
    return false;
  const auto identical = [](const py::object& a, const py::object& b) { return a.ptr() == b.ptr(); };
  if (now.values.size() != place.values.size() || !std::ranges::equal(now.keys, place.keys, identical))
    return false;
  bool is_other = false;
  for (std::size_t i = 0; i < now.values.size(); ++i) {
    const auto& value = now.values[i];
    if (value.ptr() == place.values[i].ptr()) continue;
    is_other = true;
    if (!value || !place.values[i]) return false;
    if (is_plain_value(value) && is_plain_value(place.values[i])) {
      note_number(place, i, value);
      place.values[i] = value;
      place.digests[i] = describe(value, place.path_of(i), false);
    } else if (!patch_tensor(place, i, value)) {
      return false;
    }
  }
  if (is_other)
    finish(place);
  else
    note_version(place);
  return true;
}

const void* kind_of(const py::object& object) {
  if (PyType_Check(object.ptr())) return reinterpret_cast<PyTypeObject*>(object.ptr())->tp_mro;
  return Py_TYPE(object.ptr());
}

// The digest of what is there, and its version.
void Watch::finish(Place& place) {
  const auto ordinal = static_cast<std::uint64_t>(&place - places_.data());
  total_.low -= place.digest.low;
  total_.high -= place.digest.high;
  const bool is_ignored = place.keys.empty() && !ignores_.empty() && ignores(place.path);
  Digest sum =
      Digest::of(static_cast<char>('A' + static_cast<int>(place.kind)), is_ignored ? 0 : place.values.size());
  for (std::size_t i = 0; i < place.digests.size() && !is_ignored; ++i) {
    if (i < place.keys.size() && ignores_.size() > 0 && ignores(place.path_of(i))) continue;
    Digest digest = place.digests[i].at(i);
    if (!varying_.empty() && varies(place, i)) {
      varying_at_.emplace(ordinal, i);
      digest = Digest::of('#', PyFloat_CheckExact(place.values[i].ptr()) ? 1 : 2).at(i);
    }
    if (i < place.keys.size()) digest += Digest::of(std::string(py::str(place.keys[i]))).at(i);
    sum += digest;
  }
  if (has_bytes(place.kind) && !is_ignored) sum += Digest::of(place.bytes);
  if (place.kind == Place::Kind::Library) {
    place.digests = {names_of(place)};
    sum += place.digests[0];
  }
  place.digest = sum.at(ordinal);
  total_ += place.digest;
  note_version(place);
}

bool Watch::look() {
  bool more = is_stale_;
  bool is_patched = false;
  for (std::size_t i = 0; i < places_.size() && !more; ++i) {
    if (is_same(places_[i])) {
      note_version(places_[i]);
      continue;
    }
    more = !patch(i);
    is_patched = true;
  }
  for (const auto& [object, type] : classes_) {
    if (more) break;
    more = kind_of(object) != type;
  }
  for (auto& seen : seen_) {
    if (more) break;
    more = !same_tensor(seen);
  }
  if (!more) {
    if (is_patched && !varying_.empty()) gather_numbers();
    return false;
  }
  walk();
  gather_numbers();
  return true;
}

void Watch::take_own_tensors() {
  own_.clear();
  own_memory_.clear();
  parameters_.clear();
  buffers_.clear();
  const auto take = [&](const char* method, NamedTensors& to) {
    for (const auto pair : module_.attr(method)()) {
      const auto item = py::cast<std::pair<std::string, at::Tensor>>(pair);
      if (&to == &buffers_ && aten::is_sparse(item.second)) continue;  // a constant
      to.emplace_back(item.first, item.second);
      own_.emplace(item.second.unsafeGetTensorImpl(), item.first);
      if (item.second.has_storage()) own_memory_.insert(item.second.storage().unsafeGetStorageImpl());
    }
  };
  take("named_parameters", parameters_);
  take("named_buffers", buffers_);
  modules_.clear();
  for (const auto each : module_.attr("modules")())
    modules_.push_back(py::reinterpret_borrow<py::object>(each));
}

void Watch::walk() {
  // Slots whose tensor was replaced by another one: from now on an input, not a graph for each.
  for (const auto& place : places_) {
    if (place.kind == Place::Kind::Function || has_bytes(place.kind)) continue;
    const Contents now = contents_of(place);
    for (std::size_t i = 0; i < now.values.size() && i < place.values.size(); ++i) {
      const bool both = now.values[i] && place.values[i] && now.values[i].ptr() != place.values[i].ptr() &&
                        THPVariable_Check(now.values[i].ptr()) && THPVariable_Check(place.values[i].ptr());
      if (!both) continue;
      const auto seen = seen_at_.find(THPVariable_Unpack(place.values[i].ptr()).unsafeGetTensorImpl());
      if (seen != seen_at_.end() && seen_[seen->second].role == Seen::Role::Constant)
        input_paths_.insert(place.path_of(i));
    }
  }
  std::vector<Place> old_places = std::move(places_);  // objects stay alive: no address is given out twice
  std::vector<Seen> old_seen = std::move(seen_);
  old_numbers_ = std::move(numbers_);
  numbers_.clear();
  places_.clear();
  seen_.clear();
  seen_at_.clear();
  beside_.clear();
  ordinals_.clear();
  reads_.clear();
  const auto old_classes = std::move(classes_);
  classes_.clear();
  generators_.clear();
  global_uses_.clear();
  varying_at_.clear();
  asks_types_ = false;
  total_ = {};
  take_own_tensors();
  describe_all();
  old_numbers_.clear();
  is_stale_ = false;
}

void Watch::describe_all() {
  for (const auto& owner : python_->everywhere) follow_names(py::reinterpret_borrow<py::object>(owner));
  for (const auto& hooks : python_->global_hooks)
    follow(Place::Kind::Dict, py::reinterpret_borrow<py::object>(hooks), "torch.nn.modules.module", false);
  Digest roots = describe(module_, "", true).at(0);
  if (!loss_.is_none()) roots += describe(loss_, "loss_fn", false).at(1);
  for (const auto& file : files_) roots += ask("state_of_file", py::str(file), file);
  for (auto& place : places_) finish(place);
  total_ += roots;
  for (std::size_t i = 0; i < beside_.size(); ++i) total_ += Digest::of(beside_[i].first).at(i);
}

}  // namespace shoal::python
