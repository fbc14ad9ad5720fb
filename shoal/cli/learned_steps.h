// SPDX-License-Identifier: Apache-2.0
// Steps of small models that `shoal calibrate` learns from: trained as those of any recipe are, and held against what
// the simulator says of them. Called by all ranks at once.
#pragma once

#include <vector>

#include "shoal/cli/calibration.h"
#include "shoal/cost/cluster.h"
#include "shoal/simulate/comparison.h"

namespace shoal::cli {

// Of steps that each rank trains by itself: sums over the models; then the same of models of which all lies in caches.
std::vector<simulate::Comparison> learned_alone(const Peers& peers, const cost::Cluster& cluster);
// Likewise, of steps that those of a host train together: data parallel, with ZeRO-3 and with tensor parallel.
std::vector<simulate::Comparison> learned_together(const Peers& peers, const cost::Cluster& cluster);

}  // namespace shoal::cli
