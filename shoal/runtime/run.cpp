// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/run.h"

#include "shoal/program/program.h"
#include "shoal/runtime/executor.h"

namespace shoal::runtime {

NamedTensors run(const ir::Graph& graph, const NamedTensors& sources, const RowTables* tables) {
  Executor executor(program::lower(graph), nullptr, nullptr, tables);
  for (const auto& [name, tensor] : sources) executor.bind(name.first, name.second, tensor.detach().clone());
  executor.run_gradients();
  executor.run_update();
  NamedTensors results;
  for (const auto& result : executor.program().results)
    results[{result.role, result.name}] = executor.at(result.slot);
  return results;
}

}  // namespace shoal::runtime
