// SPDX-License-Identifier: Apache-2.0
// A report as a page that any browser opens: each layer's parameters and output as rectangles, in the colours of the
// ranks that have them, and the messages between.
#pragma once

#include <string>
#include <string_view>

#include "shoal/rewrite/report.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

// One file, which loads and runs nothing. Layers whose paths differ in numbers alone are drawn once. `report`: of a
// step.
std::string report_html(const sharding::Mesh& mesh, const Report& report, std::string_view title,
                        std::string_view pipeline_axis = "");

}  // namespace shoal::rewrite
