// SPDX-License-Identifier: Apache-2.0
// The micro-batches of a step through the stages of a pipeline: which there are, and in which order.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "shoal/compile/plan.h"
#include "shoal/schedule/schedule.h"
#include "shoal/train/batch.h"

namespace shoal::train {

// One batch in so many parts along the samples' dims, the larger ones first; whole where nothing is cut. Throws
// InvalidInput where there are fewer samples than parts.
std::vector<Batch> microbatches_of(const Batch& batch, std::int64_t count, const compile::Plan& plan);
// So many, or as many as there are samples.
std::int64_t most_microbatches(const Batch& batch, std::int64_t count, const compile::Plan& plan);

// The outputs of the whole batch from those of its micro-batches: what has a dim of samples first. Throws
// InvalidInput naming one that has not.
std::map<std::string, at::Tensor> joined(const std::vector<std::map<std::string, at::Tensor>>& outputs,
                                         const std::vector<Batch>& microbatches, const compile::Plan& plan);

}  // namespace shoal::train
