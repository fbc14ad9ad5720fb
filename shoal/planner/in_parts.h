// SPDX-License-Identifier: Apache-2.0
// Parameters of which each rank of the ZeRO axis keeps a part (Question::zero_axis).
#pragma once

#include <optional>
#include <string>

#include "shoal/planner/find.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::planner {

// What of its bytes in that layout the rank keeps that has most of it; nothing where it stays whole.
std::optional<double> share_in_parts(const sharding::Mesh& mesh, const Question& question,
                                     const std::string& parameter, const sharding::Layout& layout,
                                     const sharding::Shape& shape);

// What it takes to gather so many bytes, beside what their gradients take whichever way they are kept: stage 2 sends
// them once a step, after the update.
double seconds_in_parts(const sharding::Mesh& mesh, const Question& question, double bytes);

}  // namespace shoal::planner
