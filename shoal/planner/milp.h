// SPDX-License-Identifier: Apache-2.0
// Mixed-integer linear programs, solved by HiGHS (Huangfu and Hall, Mathematical Programming Computation 10,
// 2018; MIT licence), whose library is loaded when the first one is solved:
//
//   minimise    the sum of cost x variable
//   such that   low <= the sum of weight x variable <= high      for each row
//               0 <= variable <= 1, whole where it is to be
//
// One thread: the same program has the same answer on every rank, unless its time runs out.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace shoal::planner {

class Milp {
 public:
  using Variable = int;

  Variable add_variable(double cost, bool is_whole);
  // Of a variable that comes again, weights are summed.
  void add_row(double low, double high, const std::vector<std::pair<Variable, double>>& terms);
  void forbid(Variable variable) { upper_[static_cast<std::size_t>(variable)] = 0; }

  // All others cost nothing.
  void set_costs(const std::vector<std::pair<Variable, double>>& terms);

  double cost_of(Variable variable) const { return costs_[static_cast<std::size_t>(variable)]; }
  int num_variables() const { return static_cast<int>(costs_.size()); }
  int num_rows() const { return static_cast<int>(lows_.size()); }

  struct Solution {
    std::vector<double> values;
    double cost = 0;
    double bound = 0;        // no solution costs less
    bool is_in_time = true;  // else it is the best that was found by then
  };
  // One that costs at most (1 + gap) of the least. Throws Infeasible where there is none, Timeout where none was found
  // in so many seconds (0: as many as it takes), InvalidInput where there is no HiGHS, and how to get it.
  Solution solve(double gap = 0, double seconds = 0) const;

 private:
  std::vector<double> costs_, upper_;
  std::vector<int> is_whole_;
  std::vector<double> lows_, highs_;
  std::vector<int> starts_, columns_;
  std::vector<double> weights_;
};

// Where HiGHS's library is, if it is neither where it was when Shoal was built nor where the system looks. Before the
// first program is solved.
void set_highs_library(const std::string& path);

}  // namespace shoal::planner
