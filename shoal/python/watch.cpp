// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/watch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "shoal/aten/memory.h"
#include "shoal/base/error.h"

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

struct Watch::Python {
  py::object module_class = py::module_::import("torch.nn").attr("Module");
  py::object globals_read = py::module_::import("shoal._names").attr("globals_read");
  py::object closure_read = py::module_::import("shoal._names").attr("closure_read");
  py::object scheduler = py::module_::import("torch.optim.lr_scheduler").attr("LRScheduler");
  py::object is_library = py::module_::import("shoal._names").attr("is_library");
  py::object is_library_module = py::module_::import("shoal._names").attr("is_library_module");
  py::object imported = py::module_::import("shoal._names").attr("imported");
  py::object reads_environment = py::module_::import("shoal._names").attr("reads_environment");
  py::module_ outside = py::module_::import("shoal._outside");
  py::object partial = py::module_::import("functools").attr("partial");
  py::object variable = py::module_::import("contextvars").attr("ContextVar");
  py::object proxy = py::module_::import("types").attr("MappingProxyType");
  py::object ordered = py::module_::import("collections").attr("OrderedDict");
  py::object environment = py::module_::import("os").attr("environ");
  py::object deque = py::module_::import("collections").attr("deque");
  py::object random = py::module_::import("random").attr("Random");
  py::object match = py::module_::import("fnmatch").attr("fnmatchcase");
  // Objects of libraries whose attributes are settings.
  py::object namespaces = py::make_tuple(
      py::module_::import("types").attr("SimpleNamespace"), py::module_::import("argparse").attr("Namespace"),
      py::module_::import("collections").attr("UserDict"),
      py::module_::import("collections").attr("UserList"),
      py::module_::import("collections").attr("ChainMap"),
      py::module_::import("configparser").attr("RawConfigParser"),
      py::module_::import("configparser").attr("SectionProxy"),
      py::module_::import("weakref").attr("WeakKeyDictionary"),
      py::module_::import("weakref").attr("WeakValueDictionary"),
      py::module_::import("weakref").attr("WeakSet"), py::module_::import("threading").attr("local"),
      py::module_::import("threading").attr("Event"), py::module_::import("queue").attr("Queue"),
      py::type::handle_of(py::module_::import("os").attr("environ")));
  // Objects that change at each step, and that no model reads.
  py::object optimizer = py::module_::import("torch.optim").attr("Optimizer");
  py::object busy = py::make_tuple(py::module_::import("torch.optim.lr_scheduler").attr("LRScheduler"),
                                   py::module_::import("torch.utils.data").attr("DataLoader"),
                                   py::module_::import("torch.utils.data").attr("Dataset"),
                                   py::module_::import("torch.utils.data").attr("Sampler"));
  py::object logger = py::module_::import("logging").attr("Logger");
  // What code of libraries calls, whatever the model.
  py::list everywhere, global_hooks;
  py::object ndarray, numpy_generators = py::tuple();

  Python() {
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
};

static py::object type_of(py::handle object) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
}

static std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

template <std::size_t n>
static bool is_one_of(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
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

// ---- Looking again

static std::uint64_t version_of([[maybe_unused]] PyObject* dictionary) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dictionary)->ma_version_tag;
#else
  return 0;  // not counted
#endif
}

static PyObject* dictionary_of(const Place& place) {
  PyObject* holder = place.holder.ptr();
  if (PyType_Check(holder)) return reinterpret_cast<PyTypeObject*>(holder)->tp_dict;
  return PyModule_Check(holder) ? PyModule_GetDict(holder) : holder;
}

// Which objects all names of a library's class or module stand for, without keeping them.
static Digest names_of(const Place& place) {
  Digest sum;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(dictionary_of(place), &position, &key, &value))
    if (PyCallable_Check(value) || is_plain_value(value))
      sum +=
          Digest::of('n', reinterpret_cast<std::uintptr_t>(value)).at(reinterpret_cast<std::uintptr_t>(key));
  return sum;
}

static bool is_dictionary(Place::Kind kind) {
  return kind == Place::Kind::Dict || kind == Place::Kind::Type || kind == Place::Kind::Names ||
         kind == Place::Kind::Library;
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
      const auto version = version_of(dictionary_of(place));
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
      const auto version = version_of(dictionary_of(place));
      return (version != 0 && version == place.version) || names_of(place) == place.digests.at(0);
    }
    default: break;
  }
  return holds_same(contents_of(place), place);
}

static std::array<const void*, 3> hooks_of(py::handle tensor) {
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
  else if (is_dictionary(place.kind))
    place.version = version_of(dictionary_of(place));
  return true;
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
  if (is_dictionary(place.kind)) place.version = version_of(dictionary_of(place));
}

// What an object is: its class, and of a class the order in which it looks things up.
static const void* kind_of(const py::object& object) {
  if (PyType_Check(object.ptr())) return reinterpret_cast<PyTypeObject*>(object.ptr())->tp_mro;
  return Py_TYPE(object.ptr());
}

// ---- Numbers that keep changing

static bool is_number(const py::object& value) {
  if (!value || PyFloat_CheckExact(value.ptr())) return bool(value);
  int overflow = 0;
  if (PyLong_CheckExact(value.ptr())) PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  return PyLong_CheckExact(value.ptr()) && overflow == 0;
}

bool Watch::varies(const Place& place, std::size_t i) const {
  const bool can_be_put = place.kind == Place::Kind::Dict || place.kind == Place::Kind::Type ||
                          place.kind == Place::Kind::Names || place.kind == Place::Kind::List ||
                          place.kind == Place::Kind::Cell;
  return can_be_put && !asks_types_ && is_number(place.values[i]) && varying_.contains(place.path_of(i));
}

void Watch::note_number(const Place& place, std::size_t i, const py::object& now) {
  const auto& before = place.values[i];
  if (!is_number(now) || Py_TYPE(now.ptr()) != Py_TYPE(before.ptr()) || same_value(now, before)) return;
  const auto path = place.path_of(i);
  auto& history = histories_[path];
  const bool goes_on = !history.empty() && Py_TYPE(history[0].ptr()) == Py_TYPE(now.ptr());
  if (!goes_on) {
    history = {before};
    varying_.erase(path);
  }
  std::erase_if(history, [&](const py::object& each) { return same_value(each, now); });
  history.insert(history.begin(), now);
  constexpr std::size_t kEnough = 3;
  if (history.size() < kEnough) return;
  history.resize(kEnough);
  if (!ignores(path)) varying_.insert(path);
}

void Watch::gather_numbers() {
  numbers_that_vary_.clear();
  for (const auto& [index, i] : varying_at_) {
    const Place& place = places_[index];
    const auto same = [&, number = i](const Varying& each) {
      const auto& [other, at] = each.at[0];
      return places_[other].holder.is(place.holder) &&
             (place.keys.empty()
                  ? at == number
                  : at < places_[other].keys.size() && places_[other].keys[at].equal(place.keys[number]));
    };
    auto found = std::ranges::find_if(numbers_that_vary_, same);
    if (found == numbers_that_vary_.end())
      found = numbers_that_vary_.insert(found, {{}, histories_.at(place.path_of(i))});
    found->values[0] = place.values[i];
    found->at.emplace_back(index, i);
  }
}

std::vector<py::object> Watch::replace_numbers(const std::vector<py::object>& objects) {
  std::vector<py::object> were;
  for (std::size_t number = 0; number < objects.size(); ++number) {
    const auto& at = numbers_that_vary_[number].at;
    were.push_back(places_[at[0].first].values[at[0].second]);
    for (const auto& [index, i] : at) {
      Place& place = places_[index];
      place.values[i] = objects[number];
      put(place, {place.keys, place.values});
      if (is_dictionary(place.kind)) place.version = version_of(dictionary_of(place));
    }
  }
  return were;
}

bool Watch::look() {
  bool more = is_stale_;
  bool is_patched = false;
  for (std::size_t i = 0; i < places_.size() && !more; ++i) {
    if (is_same(places_[i])) {
      if (is_dictionary(places_[i].kind)) places_[i].version = version_of(dictionary_of(places_[i]));
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

// ---- Walking

void Watch::take_own_tensors() {
  own_.clear();
  own_memory_.clear();
  parameters_.clear();
  buffers_.clear();
  const auto take = [&](const char* method, NamedTensors& to) {
    for (const auto pair : module_.attr(method)()) {
      const auto item = py::cast<std::pair<std::string, at::Tensor>>(pair);
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

Digest Watch::describe_closure(const py::object& code, const py::object& cells, const std::string& path) {
  const py::tuple names = code.attr("co_freevars");
  Digest digest;
  for (std::size_t i = 0; i < names.size(); ++i)
    digest += describe(PyTuple_GET_ITEM(cells.ptr(), static_cast<Py_ssize_t>(i)),
                       joined(path, py::str(names[i])), false)
                  .at(i);
  return digest;
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

void Watch::describe_type(const py::object& type, const std::string& path) {
  for (const auto base : py::tuple(type.attr("__mro__"))) {
    const auto each = py::reinterpret_borrow<py::object>(base);
    if (ordinals_.contains(each.ptr())) continue;
    if (!py::bool_(python_->is_library_module(each.attr("__module__")))) {
      classes_.emplace_back(each, kind_of(each));
      follow(Place::Kind::Type, each, path, false);
      describe_type(type_of(each), path);  // its metaclass
      continue;
    }
    const std::string file = py::str(each.attr("__module__"));
    if (file == "builtins") continue;
    follow_names(each);
    const py::dict loaded = py::module_::import("sys").attr("modules");
    if (loaded.contains(file)) follow_names(loaded[py::str(file)]);
  }
}

Digest Watch::describe_function(const py::object& function, const std::string& path) {
  const py::object code = function.attr("__code__");
  if (py::bool_(python_->is_library(code.attr("co_filename")))) {
    // A library's function is what it is, but what it closes over may be the user's.
    if (PyFunction_GetClosure(function.ptr()) == nullptr) return number_of('l', function);
    return follow(Place::Kind::Function, function, path, false);
  }
  if (ordinals_.contains(function.ptr())) return follow(Place::Kind::Function, function, path, false);
  const Digest digest = follow(Place::Kind::Function, function, path, false);
  const std::string where = std::string(py::str(code.attr("co_filename"))) + ":" +
                            std::string(py::str(code.attr("co_firstlineno"))) + " (" +
                            std::string(py::str(code.attr("co_name"))) + ")";
  Digest all = digest;
  // By dictionary: a function's own globals, and those of the user's modules that it names.
  std::vector<std::pair<py::object, std::vector<py::object>>> read;
  const auto note = [&](const py::object& dictionary, const py::object& name) {
    auto entry = std::ranges::find_if(read, [&](const auto& each) { return each.first.is(dictionary); });
    if (entry == read.end()) entry = read.insert(read.end(), {dictionary, {}});
    if (std::ranges::none_of(entry->second, [&](const py::object& each) { return each.equal(name); }))
      entry->second.push_back(name);
  };
  const py::object globals = function.attr("__globals__");
  for (const char* name : {"globals", "eval", "exec", "vars", "sys", "__import__"})
    if (py::bool_(code.attr("co_names").attr("__contains__")(name)) &&
        ordinals_.try_emplace(globals.ptr(), places_.size()).second)
      places_.push_back(
          {.kind = Place::Kind::Library, .holder = globals, .path = path, .keys = {}, .values = {}});
  const py::dict loaded = py::module_::import("sys").attr("modules");
  for (const auto pair : python_->imported(code)) {
    const auto [name, names] = py::cast<std::pair<std::string, py::tuple>>(pair);
    const std::string here = py::str(function.attr("__module__"));
    for (const auto& each : {name, here.substr(0, here.rfind('.') + 1) + name}) {
      if (!loaded.contains(each)) all += ask("state_of_module", py::str(each), each);
      if (!loaded.contains(each) || py::bool_(python_->is_library_module(each))) continue;
      const py::dict module = loaded[py::str(each)].attr("__dict__");
      for (const auto read_name : names)
        if (module.contains(read_name)) note(module, py::reinterpret_borrow<py::object>(read_name));
      break;
    }
  }
  if (py::bool_(python_->reads_environment(code))) all += describe(python_->environment, "os.environ", false);
  for (const auto chain : python_->globals_read(code)) {
    py::object dictionary = globals;
    const py::tuple names = py::reinterpret_borrow<py::tuple>(chain);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const py::object name = names[i];
      asks_types_ = asks_types_ || (i == 0 && std::string(py::str(name)) == "type");
      if (PyDict_Contains(dictionary.ptr(), name.ptr()) != 1) {
        if (i == 0 && !py::hasattr(py::module_::import("builtins"), name)) note(dictionary, name);
        break;
      }
      const py::object value = dictionary[name];
      if (!PyModule_Check(value.ptr())) {
        note(dictionary, name);
        if (i + 1 < names.size()) all += describe_read(value, names[i + 1], py::str(name));
        break;
      }
      global_uses_.emplace_back(py::str(value.attr("__name__")), where);
      note(dictionary, name);
      dictionary = value.attr("__dict__");
    }
  }
  const py::object cells = function.attr("__closure__");
  const py::tuple free = code.attr("co_freevars");
  for (const auto chain : python_->closure_read(code)) {
    const py::tuple names = py::reinterpret_borrow<py::tuple>(chain);
    for (std::size_t i = 0; i < free.size() && names.size() > 1; ++i) {
      if (!free[i].equal(names[0])) continue;
      PyObject* value = PyCell_GET(PyTuple_GET_ITEM(cells.ptr(), static_cast<Py_ssize_t>(i)));
      if (value != nullptr) all += describe_read(value, names[1], py::str(names[0]));
    }
  }
  for (auto& [dictionary, names] : read)
    all += follow(Place::Kind::Names, dictionary, path, false, std::move(names));
  return all;
}

// A setting that a function reads of an object of a library's, whose other attributes are its own affair: an
// epoch of a scheduler, a shared number. Of a scheduler's methods, all that it has may be the answer.
Digest Watch::describe_read(py::handle object, const py::object& name, const std::string& path) {
  const py::object type = type_of(object);
  if (PyModule_Check(object.ptr()) || PyType_Check(object.ptr()) || THPVariable_Check(object.ptr()) ||
      !py::bool_(python_->is_library_module(type.attr("__module__"))) ||
      py::isinstance(object, python_->module_class) || py::isinstance(object, python_->namespaces))
    return {};
  PyObject* raw = PyObject_GetAttr(object.ptr(), name.ptr());
  if (raw == nullptr) {
    PyErr_Clear();
    return {};
  }
  const auto value = py::reinterpret_steal<py::object>(raw);
  if (PyCallable_Check(raw) != 0 && py::isinstance(object, python_->scheduler))
    return follow(Place::Kind::Dict, object.attr("__dict__"), path, false);
  if (!is_plain_value(value)) return {};
  const std::string key =
      std::to_string(reinterpret_cast<std::uintptr_t>(object.ptr())) + "." + std::string(py::str(name));
  if (!reads_.insert(key).second) return {};
  Digest digest = describe(value, joined(path, py::str(name)), false);
  places_.push_back({.kind = Place::Kind::Slots,
                     .holder = py::reinterpret_borrow<py::object>(object),
                     .path = path,
                     .keys = {name},
                     .values = {value}});
  places_.back().digests = {digest};
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
