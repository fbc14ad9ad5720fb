// SPDX-License-Identifier: Apache-2.0
// HiGHS's package on PyPI has its library and no header: what is called of its C interface (highs_c_api.h, stable
// since 1.2) is declared here.
#include "shoal/planner/milp.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "shoal/base/error.h"

#ifndef SHOAL_HIGHS
#define SHOAL_HIGHS ""
#endif

namespace shoal::planner {

namespace {

using HighsInt = int;

struct Highs {
  void* (*create)();
  void (*destroy)(void*);
  HighsInt (*set_bool)(void*, const char*, HighsInt);
  HighsInt (*set_int)(void*, const char*, HighsInt);
  HighsInt (*set_double)(void*, const char*, double);
  HighsInt (*pass_mip)(void*, HighsInt columns, HighsInt rows, HighsInt weights, HighsInt format,
                       HighsInt sense, double offset, const double* costs, const double* column_lows,
                       const double* column_highs, const double* row_lows, const double* row_highs,
                       const HighsInt* starts, const HighsInt* indices, const double* values,
                       const HighsInt* is_whole);
  HighsInt (*run)(void*);
  HighsInt (*status)(const void*);
  HighsInt (*solution)(const void*, double*, double*, double*, double*);
  HighsInt (*double_info)(const void*, const char*, double*);
  HighsInt (*int_info)(const void*, const char*, HighsInt*);
};

}  // namespace

template <class Function>
static void find(void* library, const char* name, Function& function) {
  void* symbol = dlsym(library, name);
  SHOAL_CHECK(symbol != nullptr, InvalidInput, "planner: HiGHS's library has no ", name,
              ". Remedy: pip install highspy==1.15.1");
  function = reinterpret_cast<Function>(symbol);
}

static std::string& said() {
  static std::string path;
  return path;
}
void set_highs_library(const std::string& path) { said() = path; }

static Highs load() {
  void* library = nullptr;
  for (const std::string& path : {said(), std::string(SHOAL_HIGHS), std::string("libhighs.so.1")})
    if (library == nullptr && !path.empty()) library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  SHOAL_CHECK(
      library != nullptr, InvalidInput,
      "planner: to find placements HiGHS is needed, and its library is not there. Remedy: pip install "
      "highspy==1.15.1, or a plan file that says how parameters are cut (parallelism.plan)");
  Highs highs{};
  find(library, "Highs_create", highs.create);
  find(library, "Highs_destroy", highs.destroy);
  find(library, "Highs_setBoolOptionValue", highs.set_bool);
  find(library, "Highs_setIntOptionValue", highs.set_int);
  find(library, "Highs_setDoubleOptionValue", highs.set_double);
  find(library, "Highs_passMip", highs.pass_mip);
  find(library, "Highs_run", highs.run);
  find(library, "Highs_getModelStatus", highs.status);
  find(library, "Highs_getSolution", highs.solution);
  find(library, "Highs_getDoubleInfoValue", highs.double_info);
  find(library, "Highs_getIntInfoValue", highs.int_info);
  return highs;
}

static const Highs& highs() {
  static const Highs loaded = load();
  return loaded;
}

Milp::Variable Milp::add_variable(double cost, bool is_whole) {
  costs_.push_back(cost);
  upper_.push_back(1);
  is_whole_.push_back(is_whole ? 1 : 0);
  return num_variables() - 1;
}

void Milp::add_row(double low, double high, const std::vector<std::pair<Variable, double>>& terms) {
  std::map<Variable, double> weights;
  for (const auto& [variable, weight] : terms) weights[variable] += weight;
  starts_.push_back(static_cast<int>(columns_.size()));
  lows_.push_back(low);
  highs_.push_back(high);
  for (const auto& [variable, weight] : weights)
    if (weight != 0) {
      columns_.push_back(variable);
      weights_.push_back(weight);
    }
}

void Milp::set_costs(const std::vector<std::pair<Variable, double>>& terms) {
  std::ranges::fill(costs_, 0);
  for (const auto& [variable, cost] : terms) costs_[static_cast<std::size_t>(variable)] += cost;
}

Milp::Solution Milp::solve(double gap, double seconds) const {
  constexpr HighsInt kByRows = 2, kMinimise = 1, kOptimal = 7, kOutOfTime = 13, kFeasible = 2;
  const Highs& solver = highs();
  const std::unique_ptr<void, void (*)(void*)> model(solver.create(), solver.destroy);
  solver.set_bool(model.get(), "output_flag", 0);
  solver.set_int(model.get(), "threads", 1);
  // Relaxations of placements are whole, or nearly: searching around them takes longer than it saves.
  for (const char* search : {"rens", "rins", "root_reduced_cost"})
    solver.set_bool(model.get(), concat("mip_heuristic_run_", search).c_str(), 0);
  solver.set_double(model.get(), "mip_rel_gap", gap);
  solver.set_double(model.get(), "mip_abs_gap", 0);
  if (seconds > 0) solver.set_double(model.get(), "time_limit", seconds);
  const std::vector<double> zeros(costs_.size());
  // HiGHS takes what is below 1e-7 for nothing, whatever the unit.
  constexpr double kMost = 1e4;
  double most = 0;
  for (const double cost : costs_) most = std::max(most, std::abs(cost));
  const double scale = most > 0 ? kMost / most : 1;
  std::vector<double> costs = costs_;
  for (double& cost : costs) cost *= scale;
  const HighsInt passed =
      solver.pass_mip(model.get(), num_variables(), num_rows(), static_cast<HighsInt>(columns_.size()),
                      kByRows, kMinimise, 0, costs.data(), zeros.data(), upper_.data(), lows_.data(),
                      highs_.data(), starts_.data(), columns_.data(), weights_.data(), is_whole_.data());
  SHOAL_CHECK(passed != -1, Internal, "planner: HiGHS takes no program of ", num_variables(),
              " variables and ", num_rows(), " rows");
  solver.run(model.get());
  const HighsInt status = solver.status(model.get());
  Solution solution;
  solution.values.resize(costs_.size());
  std::vector<double> duals(costs_.size()), rows(lows_.size()), row_duals(lows_.size());
  const bool is_there =
      solver.solution(model.get(), solution.values.data(), duals.data(), rows.data(), row_duals.data()) != -1;
  solver.double_info(model.get(), "objective_function_value", &solution.cost);
  solver.double_info(model.get(), "mip_dual_bound", &solution.bound);
  solution.cost /= scale;
  solution.bound /= scale;
  HighsInt found = 0;
  solver.int_info(model.get(), "primal_solution_status", &found);
  solution.is_in_time = status != kOutOfTime;
  SHOAL_CHECK(solution.is_in_time || found == kFeasible, Timeout, "planner: no placement was found in ",
              seconds, " s (planner.budget). Remedy: more, or 0: as many as it takes");
  SHOAL_CHECK(is_there && (status == kOptimal || !solution.is_in_time), Infeasible,
              "planner: no placement was found (HiGHS's status ", status, ")");
  return solution;
}

}  // namespace shoal::planner
