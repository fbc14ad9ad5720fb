// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/settled_math.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <c10/core/InferenceMode.h>

#include <mutex>

namespace shoal::aten {

void settle_math() {
  static std::once_flag once;
  std::call_once(once, [] {
    const c10::InferenceMode no_gradients;
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, at::device(at::kCPU).dtype(dtype));
      for (const auto function :
           {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp, at::expm1, at::log,
            at::log10, at::log1p, at::log2, at::rsqrt, at::sin, at::sqrt, at::tan, at::tanh})
        function(x);
      at::pow(x, x);
    }
  });
}

}  // namespace shoal::aten
