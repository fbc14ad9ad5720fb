// SPDX-License-Identifier: Apache-2.0
// A graph on given tensors, once: for tests and tools. Steps are run with an Executor that is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>

#include "shoal/ir/graph.h"
#include "shoal/runtime/row_kernels.h"

namespace shoal::runtime {

// By role and name, as sources and results are named.
using NamedTensors = std::map<std::pair<ir::Role, std::string>, at::Tensor>;

// The graph's results. Sources are cloned first: what the update changes is in the results alone. Throws what
// Executor throws. `tables`: of one that reads rows of tables.
NamedTensors run(const ir::Graph& graph, const NamedTensors& sources, const RowTables* tables = nullptr);

}  // namespace shoal::runtime
