// SPDX-License-Identifier: Apache-2.0
// Parameters that are kept in parts are gathered where they are used; small ones a little earlier, together
// with the one that is used before them:
//
//   %3 = shoal::transfer(tensors=[%a], kind="all_gather")         %3, %5 = shoal::transfer(tensors=[%a, %b], …)
//   %4 = mm(%x, %3)                                               %4 = mm(%x, %3)
//   %5 = shoal::transfer(tensors=[%b], kind="all_gather")
//   %6 = mm(%4, %5)                                               %6 = mm(%4, %5)
#pragma once

#include <cstdint>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

// Up to `bytes` of whole tensors at once; larger ones alone. Forward's and backward's do not mix. Where those
// before them are used, so many bytes `ahead` are gathered that are used later.
ir::Graph gather_ahead(const ir::Graph& local, std::int64_t bytes, std::int64_t ahead = 0);

}  // namespace shoal::rewrite
