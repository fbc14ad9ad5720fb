// SPDX-License-Identifier: Apache-2.0
// A picture of how the loss fell, as SVG: opens in any browser, reads in any diff.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::observe {

struct Point {
  std::int64_t step = 0;
  double loss = 0;
};

// The losses of steps as a line, drawn through at most a few hundred means; validation losses as dots. What
// is not finite is left out.
std::string loss_curve(const std::vector<Point>& training, const std::vector<Point>& validation,
                       const std::string& title);

}  // namespace shoal::observe
