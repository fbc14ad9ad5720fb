// SPDX-License-Identifier: Apache-2.0
// What a model's matrix products are, and how fast this machine makes such: of which mfu is the share.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "shoal/cli/recipe.h"

namespace torch::nn {
class Module;
}

namespace shoal::cli {

// Rows and columns of the matrices by which the first rank measures the machine, before the first step.
inline constexpr std::int64_t kMeasuredMatrix = 768;
// Whether a model's matrix products are known, so that the machine is measured.
bool counts_flops(const Recipe& recipe);

// Of forward and backward, by the model's matrix products alone, as torchtitan counts: 6 for each weight and
// token, and attention's two products over the sequence. Where a weight works more or less than once a unit,
// as a convolution's, a table's or an encoder's does, there is no such figure.
std::optional<double> flops_per_unit(const Recipe& recipe, const torch::nn::Module& module);

// The best of a few products of large matrices on the device, in what the recipe's products are.
double measured_peak_flops_per_second(const Recipe& recipe, at::Device device);

// Without those in [[tables]], which have as many as there are ids.
std::int64_t num_parameters(const Recipe& recipe, const torch::nn::Module& module);

}  // namespace shoal::cli
