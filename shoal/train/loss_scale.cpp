// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/loss_scale.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"

namespace shoal::train {

static constexpr int kMostOverflows = 20;                        // in a row: a scale that is a millionth
static constexpr double kLargest = 0x1p62, kSmallest = 0x1p-63;  // that float32 gradients can do with

void LossScale::set(const LossScaleState& state) {
  int exponent = 0;
  SHOAL_CHECK(std::frexp(state.scale, &exponent) == 0.5 && state.scale >= kSmallest &&
                  state.scale <= kLargest && state.updates >= 0,
              InvalidInput, "trainer: a loss scale of ", state.scale, " after ", state.updates,
              " updates is none that a trainer had: it is a power of two");
  state_ = state;
  overflows_ = 0;
}

at::Tensor LossScale::tensor() const { return at::scalar_tensor(state_.scale, at::kFloat); }

void LossScale::count_update() {
  overflows_ = 0;
  if (++state_.updates < grows_after_) return;
  state_ = {std::min(2 * state_.scale, kLargest), 0};
}

bool LossScale::count_overflow() {
  if (++overflows_ == kMostOverflows) return false;
  state_ = {std::max(state_.scale / 2, kSmallest), 0};
  return true;
}

}  // namespace shoal::train
