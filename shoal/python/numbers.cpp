// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/numbers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

namespace shoal::python {

using train::Number;
using train::Numbers;

// None for what is neither, or too long.
static std::optional<Number> number_of(py::handle object) {
  if (PyFloat_CheckExact(object.ptr())) return PyFloat_AS_DOUBLE(object.ptr());
  if (!PyLong_CheckExact(object.ptr())) return std::nullopt;
  int overflow = 0;
  const auto integer = static_cast<std::int64_t>(PyLong_AsLongLongAndOverflow(object.ptr(), &overflow));
  return overflow == 0 ? std::optional<Number>(integer) : std::nullopt;
}

static std::optional<Numbers> numbers_of(py::handle list) {
  Numbers numbers;
  for (const auto item : list) {
    const auto number = number_of(item);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

static py::list list_of(const Numbers& numbers) {
  py::list list;
  for (const auto& number : numbers)
    list.append(std::visit([](auto value) { return py::object(py::cast(value)); }, number));
  return list;
}

namespace {

class PythonTrace final : public train::NumberTrace {
 public:
  explicit PythonTrace(py::object trace) : trace_(std::move(trace)) {}
  ~PythonTrace() override {
    const py::gil_scoped_acquire lock;
    trace_ = {};
  }
  PythonTrace(const PythonTrace&) = delete;
  PythonTrace& operator=(const PythonTrace&) = delete;

  std::optional<Numbers> at(const Numbers& numbers) const override {
    const py::gil_scoped_acquire lock;
    const py::object values = trace_.attr("at")(list_of(numbers));
    if (values.is_none()) return std::nullopt;
    return numbers_of(values);
  }

 private:
  py::object trace_;
};

// For as long as it lives the model and its batch have those objects in place of their numbers.
class Handed {
 public:
  Handed(Watch& watch, BatchNumbers& of_batch, const py::list& objects) : watch_(watch), of_batch_(of_batch) {
    std::vector<py::object> list;
    for (const auto object : objects) list.push_back(py::reinterpret_borrow<py::object>(object));
    const auto begin = list.begin() + std::ssize(watch_.numbers());
    batch_numbers_ = of_batch_.replace({begin, list.end()});
    numbers_ = watch_.replace_numbers({list.begin(), begin});
  }
  ~Handed() {
    watch_.replace_numbers(numbers_);
    of_batch_.replace(batch_numbers_);
  }
  Handed(const Handed&) = delete;
  Handed& operator=(const Handed&) = delete;

 private:
  Watch& watch_;
  BatchNumbers& of_batch_;
  std::vector<py::object> numbers_, batch_numbers_;
};

}  // namespace

bool BatchNumbers::note(const std::string& path, const py::object& value) {
  if (!PyFloat_CheckExact(value.ptr()) || !std::isfinite(PyFloat_AS_DOUBLE(value.ptr()))) return false;
  auto& history = histories_[path];
  std::erase_if(history, [&](const py::object& each) { return same_value(each, value); });
  history.insert(history.begin(), value);
  constexpr std::size_t kEnough = 3;
  if (history.size() < kEnough) return false;
  history.resize(kEnough);
  now_.emplace_back(path, value);
  return true;
}

std::vector<std::vector<py::object>> BatchNumbers::varying() const {
  std::vector<std::vector<py::object>> list;
  for (const auto& [path, value] : now_) list.push_back(histories_.at(path));
  return list;
}

std::vector<py::object> BatchNumbers::replace(const std::vector<py::object>& objects) {
  std::vector<py::object> were;
  for (std::size_t i = 0; i < objects.size(); ++i)
    were.push_back(std::exchange(now_.at(i).second, objects[i]));
  return were;
}

py::object BatchNumbers::at(const std::string& path, const py::object& given) const {
  const auto found = std::ranges::find(now_, path, &std::pair<std::string, py::object>::first);
  return found == now_.end() ? given : found->second;
}

Numbers WatchedNumbers::now() {
  Numbers numbers;
  for (const auto& each : watch_.numbers()) numbers.push_back(number_of(each.values[0]).value());
  for (const auto& values : of_batch_.varying()) numbers.push_back(number_of(values[0]).value());
  return numbers;
}

std::vector<Numbers> WatchedNumbers::others() {
  const py::gil_scoped_acquire lock;
  py::list history;
  for (std::size_t row = 0; row < 3; ++row) {
    py::list values;
    for (const auto& each : watch_.numbers()) values.append(each.values.at(row));
    for (const auto& each : of_batch_.varying()) values.append(each.at(row));
    history.append(values);
  }
  std::vector<Numbers> others;
  for (const auto tried : py::module_::import("shoal._numbers").attr("nearby")(history))
    if (auto numbers = numbers_of(tried)) others.push_back(std::move(*numbers));
  return others;
}

std::unique_ptr<train::NumberTrace> WatchedNumbers::trace(const std::function<void()>& run) {
  const py::gil_scoped_acquire lock;
  py::object trace = py::module_::import("shoal._numbers").attr("Trace")(list_of(now()));
  hand(trace.attr("objects"), run);
  if (py::bool_(trace.attr("is_unseen"))) return nullptr;
  return std::make_unique<PythonTrace>(std::move(trace));
}

void WatchedNumbers::run_with(const Numbers& numbers, const std::function<void()>& run) {
  const py::gil_scoped_acquire lock;
  hand(list_of(numbers), run);
}

void WatchedNumbers::hand(const py::list& objects, const std::function<void()>& run) {
  const Handed handed(watch_, of_batch_, objects);
  const py::gil_scoped_release unlocked;
  run();
}

}  // namespace shoal::python
