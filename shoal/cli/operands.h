// SPDX-License-Identifier: Apache-2.0
// What `shoal calibrate` times kernels on.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace shoal::cli {

using Operands = std::array<at::Tensor, 3>;  // two, and a result

// So many, of so many bytes each, that a step's worth of memory is touched before one comes again: it is in no
// cache of a core's by then.
inline std::vector<Operands> as_in_a_step(std::int64_t bytes, const std::function<at::Tensor()>& make) {
  constexpr std::int64_t kStep = 64 << 20, kMost = 2048;
  std::vector<Operands> all(static_cast<std::size_t>(std::clamp(kStep / bytes, std::int64_t{1}, kMost)));
  for (Operands& each : all)
    for (at::Tensor& tensor : each) tensor = make();
  return all;
}

}  // namespace shoal::cli
