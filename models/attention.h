// SPDX-License-Identifier: Apache-2.0
// What the transformers share: how a projection is parted by heads, and back. Shapes: B batch, T time, D
// width of all heads, H heads, K width of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace models {

at::Tensor by_head(const at::Tensor& x_BTD, std::int64_t heads);  // → BHTK
at::Tensor joined(const at::Tensor& x_BHTK);                      // → BTD

// 1 where a key counts, int64 or bool [batch, keys] → bool [batch, 1, 1, keys]; undefined stays so.
at::Tensor mask_of_keys(const at::Tensor& attention_mask_BS);

}  // namespace models
