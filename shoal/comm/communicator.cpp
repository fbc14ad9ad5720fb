// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/communicator.h"

#include "shoal/base/names.h"

namespace shoal::comm {

static constexpr Names<ReduceOp, 4> kReduceOps = {{
    {ReduceOp::Sum, "sum"},
    {ReduceOp::Average, "average"},
    {ReduceOp::Min, "min"},
    {ReduceOp::Max, "max"},
}};

std::string_view name_of(ReduceOp op) { return name_in(kReduceOps, op); }

}  // namespace shoal::comm
