// SPDX-License-Identifier: Apache-2.0
// What this processor multiplies bfloat16 and float16 with.
#pragma once

#include <string_view>

#include "shoal/base/dtype.h"

namespace shoal::train {

// Of bfloat16 "AMX" or "AVX-512-BF16", of float16 "AMX-FP16" or "AVX-512-FP16". Empty where it has none, or oneDNN is
// told not to use them (ONEDNN_MAX_CPU_ISA): products are then slower than those of float32, many times so where
// there is no AVX-512.
std::string_view product_instructions(DType dtype);

}  // namespace shoal::train
