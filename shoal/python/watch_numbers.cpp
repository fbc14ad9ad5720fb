// SPDX-License-Identifier: Apache-2.0
// Numbers that keep changing: what has had three values is an argument of the graph, and no new graph for
// each.
#include <algorithm>

#include "shoal/python/watch_python.h"

namespace shoal::python {

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
      note_version(place);
    }
  }
  return were;
}

}  // namespace shoal::python
