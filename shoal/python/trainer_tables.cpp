// SPDX-License-Identifier: Apache-2.0
// What a Python trainer has of tables.
#include "shoal/python/python_trainer.h"

namespace shoal::python {

std::vector<std::string> Options::table_patterns() const {
  std::vector<std::string> patterns;
  if (parallelism)
    for (const auto& table : parallelism->plan.tables) patterns.push_back(table.parameters);
  for (const auto& placement : tables.placements) patterns.push_back(placement.parameters);
  return patterns;
}

std::unique_ptr<ps::Tables> PythonTrainer::tables_for(const Options& options) const {
  if (world_.is_none() || !options.has_tables()) return nullptr;
  auto& world = py::cast<World&>(world_);
  const py::gil_scoped_release unlocked;
  return world.tables();
}

at::Tensor PythonTrainer::rows(const std::string& parameter, const std::optional<at::Tensor>& ids) {
  const py::gil_scoped_release unlocked;
  return ids ? trainer_.rows(parameter, *ids) : trainer_.rows(parameter);
}

std::map<std::string, std::map<std::string, std::int64_t>> PythonTrainer::end_day(std::uint32_t day) {
  std::map<std::string, std::map<std::string, std::int64_t>> all;
  const py::gil_scoped_release unlocked;
  for (const auto& [name, shrunk] : trainer_.end_day(day))
    all[name] = {{"rows", shrunk.rows},
                 {"low_score", shrunk.low_score},
                 {"unseen", shrunk.unseen},
                 {"over_bound", shrunk.over_bound}};
  return all;
}

void PythonTrainer::set_rows(const std::string& parameter, const at::Tensor& ids, const at::Tensor& values) {
  const py::gil_scoped_release unlocked;
  trainer_.set_rows(parameter, ids, values);
}

}  // namespace shoal::python
