// SPDX-License-Identifier: Apache-2.0
#include "models/rms_norm.h"

#include <torch/types.h>

namespace models {

RmsNormImpl::RmsNormImpl(std::int64_t width, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::ones({width}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
  const at::Tensor mean_square = wide.pow(2).mean(-1, /*keepdim=*/true);
  return weight * (wide * torch::rsqrt(mean_square + eps_)).to(x.scalar_type());
}

}  // namespace models
