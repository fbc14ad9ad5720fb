// SPDX-License-Identifier: Apache-2.0
// A recipe's step, compiled for ranks that need not be there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shoal/cli/forecast.h"
#include "shoal/cli/memory_choice.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/recipe.h"
#include "shoal/compile/compile.h"
#include "shoal/compile/optimizer.h"
#include "shoal/rewrite/report.h"

namespace shoal::cli {

// Its parts borrow from each other: it stays where it is made.
class PlannedStep {
 public:
  // `print_after`: compile::Settings.
  PlannedStep(const Recipe& recipe, int ranks, const std::string& print_after = "");
  PlannedStep(const PlannedStep&) = delete;
  PlannedStep& operator=(const PlannedStep&) = delete;

  const Recipe& recipe() const { return choice_.recipe; }
  const std::string& choice() const { return choice_.text; }  // of memory.auto
  const StepSizes& sizes() const { return sizes_; }
  std::int64_t elements() const { return elements_; }  // of parameters
  int threads() const { return threads_; }             // of a rank
  const compile::Whole& whole() const { return whole_; }
  const compile::Compiled& first() const { return first_; }  // of the first rank
  // Of several micro-batches `whole` is one, and an update of their sums comes after them.
  bool is_in_one() const { return settings_.then == compile::Then::Update; }

  // Of the first rank: what is compiled, the update after it, and the step that they make.
  rewrite::Report report() const;
  rewrite::Report update_report() const;
  rewrite::Report step_report() const;

  Forecast forecast() const;  // of the first rank
  // One of each kind of rank, after the other; the most that any has in memory.
  Phase most(const std::function<void(const rewrite::RankClass&, const Forecast&)>& look) const;

 private:
  MemoryChoice choice_;
  int threads_;
  Parallelism parallelism_;
  StepSizes sizes_;
  std::int64_t elements_ = 0, captured_ = 0;
  OptimizerPart part_;
  compile::Settings settings_;
  compile::Whole whole_;
  compile::Compiled first_;
};

}  // namespace shoal::cli
