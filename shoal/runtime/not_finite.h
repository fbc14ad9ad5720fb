// SPDX-License-Identifier: Apache-2.0
// Where a NaN or an infinity first appears, of what kernels make one after the other. Slow: for a report.
#pragma once

#include "shoal/program/program.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

class FirstNotFinite {
 public:
  // What has just run; borrowed.
  void look_at(const program::Compute& compute, const Slots& slots);
  bool is_found() const { return found_ != nullptr; }  // a NaN: nothing later would change the answer
  const program::Compute* of_all() const { return found_ != nullptr ? found_ : infinite_; }  // null: finite

 private:
  const program::Compute* infinite_ = nullptr;
  const program::Compute* found_ = nullptr;
};

}  // namespace shoal::runtime
