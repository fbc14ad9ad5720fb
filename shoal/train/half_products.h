// SPDX-License-Identifier: Apache-2.0
// What this processor multiplies bfloat16 with.
#pragma once

#include <string_view>

namespace shoal::train {

// "AMX" or "AVX-512-BF16"; empty where it has neither, or oneDNN is told not to use them (ONEDNN_MAX_CPU_ISA):
// products are then slower than those of float32, many times so where there is no AVX-512.
std::string_view bfloat16_instructions();

}  // namespace shoal::train
