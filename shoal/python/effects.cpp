// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/effects.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "shoal/base/error.h"

namespace shoal::python {

// Tensors of a run that is being recorded have this key, and nothing else has.
static bool is_recorded(py::handle object) {
  return THPVariable_Check(object.ptr()) && THPVariable_Unpack(object.ptr())
                                                .unsafeGetTensorImpl()
                                                ->key_set()
                                                .has_backend(c10::BackendComponent::PrivateUse1Bit);
}

static bool has_recorded(const Tree& tree) {
  if (tree.kind == Tree::Kind::Tensor) return is_recorded(tree.object);
  const auto in = [](const auto& item) { return has_recorded(item.second); };
  return std::ranges::any_of(tree.items, in) || std::ranges::any_of(tree.attributes, in);
}

// An object that holds recorded tensors as its attributes, with them.
static Tree with_attributes(Tree tree, int depth) {
  if (tree.kind != Tree::Kind::Other || depth > 8) {
    for (auto* children : {&tree.items, &tree.attributes})
      for (auto& [name, item] : *children) item = with_attributes(std::move(item), depth + 1);
    return tree;
  }
  const py::object module = py::module_::import("torch.nn").attr("Module");
  if (PyType_Check(tree.object.ptr()) || PyCallable_Check(tree.object.ptr()) ||
      py::isinstance(tree.object, module) || !py::hasattr(tree.object, "__dict__"))
    return tree;
  Tree object = tree;
  object.kind = Tree::Kind::Dataclass;
  for (const auto& [name, value] : py::dict(tree.object.attr("__dict__")))
    object.items.emplace_back(
        py::reinterpret_borrow<py::object>(name),
        with_attributes(tree_of(value, tree.path + ".@" + std::string(py::str(name))), depth + 1));
  return has_recorded(object) ? object : tree;
}

// Leaves keep the numbers of outputs; what holds no recorded tensor stays the object that it is.
static Tree numbered(Tree tree, std::vector<at::Tensor>& outputs) {
  if (tree.kind == Tree::Kind::Tensor && is_recorded(tree.object)) {
    outputs.push_back(THPVariable_Unpack(tree.object.ptr()));
    tree.object = py::int_(outputs.size() - 1);
  } else if (tree.kind == Tree::Kind::Tensor) {
    tree.kind = Tree::Kind::Other;
  }
  for (auto* children : {&tree.items, &tree.attributes})
    for (auto& [name, item] : *children) item = numbered(std::move(item), outputs);
  return tree;
}

static std::string text_of(py::handle value) {
  if (!value) return "nothing";
  if (THPVariable_Check(value.ptr())) {
    std::string text = "a tensor";
    for (const auto size : THPVariable_Unpack(value.ptr()).sizes()) text += " × " + std::to_string(size);
    return text;
  }
  if (is_plain_value(value)) return py::repr(value);
  const std::string type = py::str(py::type::handle_of(value).attr("__name__"));
  const bool is_sized = PyList_Check(value.ptr()) || PyDict_Check(value.ptr()) || PyAnySet_Check(value.ptr());
  return "a " + type + (is_sized ? " of " + std::to_string(py::len(value)) : std::string());
}

// A function or an object may be another one each time and do the same: its code and attributes are followed.
static bool has_text(py::handle value) {
  return !value || is_plain_value(value) || PyList_Check(value.ptr()) || PyDict_Check(value.ptr()) ||
         PyAnySet_Check(value.ptr());
}

static Effect effect_of(const Place& place, const py::object& key, const py::object& value,
                        Effects& effects) {
  Effect effect{
      .place = {.kind = place.kind, .holder = place.holder, .path = place.path, .keys = {}, .values = {}},
      .key = key,
      .value = std::nullopt};
  if (value) {
    Tree tree = with_attributes(tree_of(value), 0);
    if (has_recorded(tree)) {
      effect.value = numbered(std::move(tree), effects.outputs);
      release_containers(*effect.value);
    } else {
      effect.value = Tree{.kind = Tree::Kind::Other, .object = value};
    }
  }
  return effect;
}

static py::object at_key(const std::vector<py::object>& keys, const std::vector<py::object>& values,
                         const py::object& key) {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i].is(key) || keys[i].equal(key)) return values[i];
  return {};
}

// A buffer that was replaced by a tensor of its shape is written into, as others hold it.
static bool is_replaced_buffer(const Watch& watch, const py::object& old, const py::object& now) {
  if (!old || !now || !THPVariable_Check(old.ptr()) || !THPVariable_Check(now.ptr())) return false;
  const at::Tensor &before = THPVariable_Unpack(old.ptr()), &after = THPVariable_Unpack(now.ptr());
  if (before.sizes() != after.sizes() || before.dtype() != after.dtype()) return false;
  return std::ranges::any_of(watch.buffers(), [&](const auto& item) { return item.second.is_same(before); });
}

// What only a new trainer could follow.
static bool is_structure(py::handle value) {
  const py::module_ nn = py::module_::import("torch.nn");
  return py::isinstance(value, py::make_tuple(nn.attr("Parameter"), nn.attr("Module")));
}

static void compare_items(const Watch& watch, const Place& place, const Contents& now, Effects& effects) {
  const auto changed = [&](const py::object& key, const py::object& old, const py::object& value) {
    const std::string path =
        place.path.empty() ? std::string(py::str(key)) : place.path + "." + std::string(py::str(key));
    if (watch.ignores(path)) return;
    if (is_replaced_buffer(watch, old, value)) {
      effects.copies.emplace_back(THPVariable_Unpack(old.ptr()), THPVariable_Unpack(value.ptr()));
      return;
    }
    if (old && value && same_value(old, value)) return;
    if (value && is_structure(value) && effects.structure.empty()) effects.structure = path;
    effects.list.push_back(effect_of(place, key, value, effects));
    const bool is_tensor = value && THPVariable_Check(value.ptr());
    const bool was_tensor = old && THPVariable_Check(old.ptr());
    if (has_text(value) || (is_tensor && was_tensor &&
                            THPVariable_Unpack(old.ptr()).sizes() != THPVariable_Unpack(value.ptr()).sizes()))
      effects.values.emplace_back(path, text_of(old) + " → " + text_of(value));
  };
  for (std::size_t i = 0; i < now.keys.size(); ++i) {
    const py::object old = at_key(place.keys, place.values, now.keys[i]);
    if (old.ptr() != now.values[i].ptr()) changed(now.keys[i], old, now.values[i]);
  }
  for (std::size_t i = 0; i < place.keys.size(); ++i)
    if (place.values[i] && !at_key(now.keys, now.values, place.keys[i]))
      changed(place.keys[i], place.values[i], {});
}

Effects take_back(const Watch& watch) {
  Effects effects;
  for (const auto& place : watch.places()) {
    if (place.kind == Place::Kind::Array && !watch.ignores(place.path) && put_bytes(place))
      effects.array = place.path;
    if (place.kind == Place::Kind::Function || has_bytes(place.kind)) continue;
    const Contents now = contents_of(place);
    const auto identical = [](const py::object& a, const py::object& b) { return a.ptr() == b.ptr(); };
    const bool has_keys = !place.keys.empty() || !now.keys.empty();
    if (std::ranges::equal(now.values, place.values, identical) &&
        (!has_keys || std::ranges::equal(now.keys, place.keys, identical)))
      continue;
    if (has_keys) {
      compare_items(watch, place, now, effects);
    } else if (!watch.ignores(place.path)) {
      py::object whole;
      if (place.kind == Place::Kind::Cell) {
        whole = now.values[0];
      } else {
        py::list list;
        for (const auto& value : now.values) list.append(value);
        whole = std::move(list);
      }
      effects.list.push_back(effect_of(place, {}, whole, effects));
      const bool is_tensor = whole && THPVariable_Check(whole.ptr());
      if (!is_tensor)
        effects.values.emplace_back(
            place.path, (place.kind == Place::Kind::Cell ? text_of(place.values[0])
                                                         : std::to_string(place.values.size()) + " items") +
                            " → " + text_of(whole));
    }
    put(place, {place.keys, place.values});
  }
  return effects;
}

void Effects::apply(const std::vector<at::Tensor>& tensors) const {
  for (const auto& effect : list) {
    py::object value;
    if (effect.value)
      value = object_of(*effect.value, [&](const std::string&, const Tree& leaf) -> py::object {
        if (leaf.kind != Tree::Kind::Tensor) return leaf.object;
        return py::cast(tensors.at(py::cast<std::size_t>(leaf.object)));
      });
    if (effect.key) {
      PyObject* holder = effect.place.holder.ptr();
      const bool by_attribute =
          effect.place.kind == Place::Kind::Type || effect.place.kind == Place::Kind::Slots;
      int failed = 0;
      if (by_attribute)
        failed = value ? PyObject_SetAttr(holder, effect.key.ptr(), value.ptr())
                       : PyObject_DelAttr(holder, effect.key.ptr());
      else
        failed = value ? PyObject_SetItem(holder, effect.key.ptr(), value.ptr())
                       : PyObject_DelItem(holder, effect.key.ptr());
      if (failed != 0) throw py::error_already_set();
    } else if (effect.place.kind == Place::Kind::Cell) {
      put(effect.place, {{}, {value}});
    } else {
      Contents contents;
      for (const auto item : value) contents.values.push_back(py::reinterpret_borrow<py::object>(item));
      put(effect.place, contents);
    }
  }
}

void Changes::check(const Effects& effects, const std::string& sizes) {
  SHOAL_CHECK(effects.structure.empty(), InvalidInput, "capture: the model makes ", effects.structure,
              ", a parameter or module, while it runs. Remedy: call the model once on an example before the "
              "optimizer and "
              "the Trainer are made");
  SHOAL_CHECK(effects.array.empty(), InvalidInput, "capture: the model writes into ", effects.array,
              ", an array that is no tensor, while it runs, and a captured step would not. Remedy: make it a "
              "tensor (a buffer), or, if no result depends on it, Trainer(…, ignores=[\"",
              effects.array, "\"])");
  for (const auto& [path, change] : effects.values) {
    auto& seen = seen_[path + ' ' + sizes];
    const auto arrow = change.find(" → ");
    const auto old = change.substr(0, arrow), now = change.substr(arrow + std::string_view(" → ").size());
    const bool is_first = seen.empty();
    seen.insert(old);
    if (is_first) {
      seen.insert(now);
      continue;
    }
    SHOAL_CHECK(
        seen.contains(now), InvalidInput, "capture: the model changes ", path,
        " while it runs, at each step (", change,
        "), and a captured step would do with it what it did when it was captured. Remedy: count outside of "
        "the model and pass the number in the batch, keep a tensor instead (a buffer, written with add_()), "
        "empty a list in loss_fn; or, if no result depends on it, Trainer(…, ignores=[\"",
        path, "\"])");
  }
}

// ---- Generators

static std::string pickled(const py::object& state) {
  return py::cast<std::string>(py::module_::import("pickle").attr("dumps")(state));
}

static py::object state_of(const py::object& generator) {
  if (py::hasattr(generator, "getstate")) return generator.attr("getstate")();
  if (py::hasattr(generator, "get_state")) return generator.attr("get_state")();
  if (py::hasattr(generator, "bit_generator")) return generator.attr("bit_generator").attr("state");
  // An iterator: how far it is.
  if (py::hasattr(generator, "gi_frame")) {
    const py::object frame = generator.attr("gi_frame");
    if (frame.is_none()) return py::str("at its end");
    return py::make_tuple(frame.attr("f_lasti"), py::repr(frame.attr("f_locals")));
  }
  if (py::hasattr(generator, "tell")) return generator.attr("tell")();
  try {
    return py::module_::import("pickle").attr("dumps")(generator);
  } catch (py::error_already_set&) {
    return py::repr(generator);
  }
}

Generators::Generators(const Watch& watch) {
  const auto add = [&](const std::string& name, const py::object& object) {
    if (watch.ignores(name)) return;
    py::object state = state_of(object);
    std::string bytes = pickled(state);
    list_.push_back({name, object, std::move(state), std::move(bytes)});
  };
  add("random", py::module_::import("random").attr("_inst"));
  const py::dict loaded = py::module_::import("sys").attr("modules");
  if (loaded.contains("numpy.random"))
    add("numpy.random", py::module_::import("numpy.random").attr("mtrand").attr("_rand"));
  for (const auto& [name, object] : watch.generators()) add(name, object);
}

void Generators::restore() const {
  for (const auto& [name, object, state, bytes] : list_) {
    if (py::hasattr(object, "setstate"))
      object.attr("setstate")(state);
    else if (py::hasattr(object, "set_state"))
      object.attr("set_state")(state);
    else if (py::hasattr(object, "bit_generator"))
      object.attr("bit_generator").attr("state") = state;
    // An iterator cannot be set back.
  }
}

void Generators::check(const Watch& watch) const {
  for (const auto& [name, object, state, bytes] : list_) {
    if (pickled(state_of(object)) == bytes) continue;
    const auto where = watch.first_use_of(name == "numpy.random" ? "numpy" : name);
    restore();
    fail(ErrorKind::InvalidInput, "capture: the model draws from ", name, " while it runs",
         where.empty() ? std::string() : ", in " + where,
         ", and a captured step would have that draw for ever. Remedy: draw with torch (torch.rand and the "
         "like follow "
         "the trainer's seed), or draw outside of the model and pass the number in the batch; or, if no "
         "result depends "
         "on it, Trainer(…, ignores=[\"",
         name, "\"])");
  }
}

}  // namespace shoal::python
