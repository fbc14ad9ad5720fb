// SPDX-License-Identifier: Apache-2.0
// The numbers of a Python model that keep changing: handed to it as objects that are no numbers, while a run is
// traced (python/shoal/_numbers.py).
#pragma once

#include <memory>
#include <vector>

#include "shoal/python/watch.h"
#include "shoal/train/numbers.h"

namespace shoal::python {

// Takes the interpreter's lock by itself. Borrows the watch.
class WatchedNumbers final : public train::VaryingNumbers {
 public:
  explicit WatchedNumbers(Watch& watch) : watch_(watch) {}
  train::Numbers now() override;
  std::vector<train::Numbers> others() override;
  std::unique_ptr<train::NumberTrace> trace(const std::function<void()>& run) override;
  void run_with(const train::Numbers& numbers, const std::function<void()>& run) override;

 private:
  void hand(const py::list& objects, const std::function<void()>& run);

  Watch& watch_;
};

}  // namespace shoal::python
