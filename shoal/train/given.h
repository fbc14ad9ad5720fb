// SPDX-License-Identifier: Apache-2.0
// Losses and gradients that were made outside of a captured graph, of all ranks together.
#pragma once

#include <vector>

#include "shoal/capture/capture.h"
#include "shoal/train/parts.h"
#include "shoal/train/trainer.h"

namespace shoal::train {

// Called by all ranks at once, with the same parameters: the loss and each gradient become the mean over the
// samples of all ranks; a parameter has a gradient if it has one on any rank. Throws InvalidInput where there
// is no sample.
void reduce(Trainer::Given& given, const std::vector<capture::NamedTensor>& parameters, const Rank& rank);

}  // namespace shoal::train
