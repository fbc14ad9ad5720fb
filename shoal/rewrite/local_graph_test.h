// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shoal/rewrite/buckets.h"
#include "shoal/rewrite/gather_ahead.h"
#include "shoal/rewrite/packing.h"
#include "shoal/rewrite/partition.h"

namespace shoal::rewrite {

// A rank's graph, with messages, as compile (compile/compile.h) makes it.
inline ir::Graph local_graph(const Placed& placed, int rank, std::int64_t bucket_bytes = 25 << 20) {
  const ir::Graph local = gather_ahead(partition(placed, rank), 256 << 10);
  return pack(buckets(local, bucket_bytes), placed.mesh, rank);
}

}  // namespace shoal::rewrite
