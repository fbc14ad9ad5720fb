// SPDX-License-Identifier: Apache-2.0
// The micro-batches of a step through this rank's stage of a pipeline, in the order of a schedule.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shoal/observe/trace.h"
#include "shoal/schedule/schedule.h"
#include "shoal/train/batch.h"
#include "shoal/train/runnable.h"

namespace shoal::train {

// Throws InvalidInput naming those there are where the name is none, and where the ranks of this mesh cannot run
// it.
schedule::Timeline timeline_of(const std::string& schedule, int stages, std::size_t microbatches);

// One batch in so many parts along the samples' dims, the larger ones first; whole where nothing is cut. Throws
// InvalidInput where there are fewer samples than parts.
std::vector<Batch> microbatches_of(const Batch& batch, std::int64_t count, const compile::Plan& plan);
// So many, or as many as there are samples.
std::int64_t most_microbatches(const Batch& batch, std::int64_t count, const compile::Plan& plan);

// The outputs of the whole batch from those of its micro-batches: what has a dim of samples first. Throws
// InvalidInput naming one that has not.
std::map<std::string, at::Tensor> joined(const std::vector<std::map<std::string, at::Tensor>>& outputs,
                                         const std::vector<Batch>& microbatches, const compile::Plan& plan);

// Forward and backward of each, its number the executor's; `after` when both are done.
void run_stage(const schedule::Timeline& timeline, int rank, const std::vector<Runnable*>& microbatches,
               observe::Trace* trace, const std::function<void(std::size_t)>& after);

}  // namespace shoal::train
