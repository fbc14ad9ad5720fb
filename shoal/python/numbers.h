// SPDX-License-Identifier: Apache-2.0
// The numbers of a Python model and of its batches that keep changing: handed to it as objects that are no numbers,
// while a run is traced (python/shoal/_numbers.py).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shoal/python/watch.h"
#include "shoal/train/numbers.h"

namespace shoal::python {

// Floats among the items of batches: one that has had three values is an argument of the graph, and no new graph for
// each.
class BatchNumbers {
 public:
  // Another batch comes.
  void start() { now_.clear(); }
  // One of its items. Whether its value may be any.
  bool note(const std::string& path, const py::object& value);
  // Those that may be, in the order in which they came: the last three values of each, newest first.
  std::vector<std::vector<py::object>> varying() const;
  // Puts others in their place; returns what was.
  std::vector<py::object> replace(const std::vector<py::object>& objects);
  // What an item is now.
  py::object at(const std::string& path, const py::object& given) const;

 private:
  std::map<std::string, std::vector<py::object>> histories_;
  std::vector<std::pair<std::string, py::object>> now_;
};

// Takes the interpreter's lock by itself. Borrows the watch.
class WatchedNumbers final : public train::VaryingNumbers {
 public:
  explicit WatchedNumbers(Watch& watch) : watch_(watch) {}
  train::Numbers now() override;
  std::vector<train::Numbers> others() override;
  std::unique_ptr<train::NumberTrace> trace(const std::function<void()>& run) override;
  void run_with(const train::Numbers& numbers, const std::function<void()>& run) override;

  BatchNumbers& of_batch() { return of_batch_; }
  const BatchNumbers& of_batch() const { return of_batch_; }

 private:
  void hand(const py::list& objects, const std::function<void()>& run);

  Watch& watch_;
  BatchNumbers of_batch_;
};

}  // namespace shoal::python
