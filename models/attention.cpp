// SPDX-License-Identifier: Apache-2.0
#include "models/attention.h"

#include <ATen/Functions.h>

namespace models {

at::Tensor by_head(const at::Tensor& x_BTD, std::int64_t heads) {
  return x_BTD.view({x_BTD.size(0), x_BTD.size(1), heads, x_BTD.size(2) / heads}).transpose(1, 2);
}

at::Tensor joined(const at::Tensor& x_BHTK) { return x_BHTK.transpose(1, 2).flatten(2); }

at::Tensor mask_of_keys(const at::Tensor& attention_mask_BS) {
  return attention_mask_BS.defined() ? attention_mask_BS.to(at::kBool).unsqueeze(1).unsqueeze(1)
                                     : at::Tensor();
}

}  // namespace models
