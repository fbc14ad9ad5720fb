// SPDX-License-Identifier: Apache-2.0
// Numbers that a model reads and that keep changing (an annealed weight) become inputs of its graph.
//
//   model.beta       0.1                 0.2                 0.3
//   recorded     mul(%3, other=0.9)  mul(%3, other=0.8)  mul(%3, other=0.7)
//                      └─ follows 1 - beta, as the first two say and the third confirms ─┘
//
// What a number may become is not guessed but traced through the model's own code, with the conditions under
// which that code goes the same way. What cannot be followed so is captured anew for each value, as ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/program/program.h"
#include "shoal/runtime/executor.h"

namespace shoal::train {

using Number = std::variant<std::int64_t, double>;
using Numbers = std::vector<Number>;

// What one run has made of its numbers.
class NumberTrace {
 public:
  virtual ~NumberTrace() = default;
  // All that operators would be given with other numbers, in the order in which it was handed to them; none
  // where the model would go another way.
  virtual std::optional<Numbers> at(const Numbers& numbers) const = 0;
};

// The numbers of a model, in whatever language it is written.
class VaryingNumbers {
 public:
  virtual ~VaryingNumbers() = default;
  virtual Numbers now() = 0;
  // Others to try, likeliest first: what they were before, and nearby.
  virtual std::vector<Numbers> others() = 0;
  // Has the model run with the numbers that it has, and traces them; null if one went where it cannot be
  // followed.
  virtual std::unique_ptr<NumberTrace> trace(const std::function<void()>& run) = 0;
  // Has it run with these.
  virtual void run_with(const Numbers& numbers, const std::function<void()>& run) = 0;
};

// An argument that follows a number: of which node (of a program: instruction), which one.
struct Hole {
  std::size_t node;
  std::size_t argument;
  std::size_t number;  // among those handed to operators
  friend bool operator==(const Hole&, const Hole&) = default;
};

// Where the second differs from the first, if it does so by arguments alone that follow a number.
std::optional<std::vector<Hole>> holes_between(const ir::Graph& first, const Numbers& at_first,
                                               const ir::Graph& second, const Numbers& at_second);
std::optional<std::vector<Hole>> holes_between(const program::Program& first, const Numbers& at_first,
                                               const program::Program& second, const Numbers& at_second);
void fill(ir::Graph& graph, const std::vector<Hole>& holes, const Numbers& values);
void fill(runtime::Executor& executor, const std::vector<Hole>& holes, const Numbers& values);

// A graph whose arguments follow numbers.
class Followed {
 public:
  // From `record`, which records the model once, at three values of each number. Null if some number cannot be
  // followed. `recorded` is what the model gives now.
  static std::unique_ptr<Followed> find(VaryingNumbers& numbers, const ir::Graph& recorded,
                                        const std::function<ir::Graph()>& record);

  // What the holes are to be filled with; none where the graph is another one. The numbers 0, 1 and -1, other
  // signs, integers among fractions and what is not finite have graphs of their own: operators and rewrites
  // treat some of them otherwise.
  std::optional<Numbers> at(const Numbers& numbers) const;
  const std::vector<Hole>& holes() const { return holes_; }

  // Those of the program that is made of the graph. None where numbers alone do not say it.
  std::optional<std::vector<Hole>> holes_in(const ir::Graph& recorded,
                                            const std::function<program::Program(ir::Graph)>& make) const;

 private:
  std::unique_ptr<NumberTrace> trace_;
  Numbers first_, second_, third_;  // the third confirms what the first two say
  std::vector<Hole> holes_;
};

}  // namespace shoal::train
