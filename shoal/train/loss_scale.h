// SPDX-License-Identifier: Apache-2.0
// What float16's loss is multiplied by from step to step: dynamic loss scaling (Micikevicius et al.,
// arXiv:1710.03740, section 3.2). It is half as much after an update that overflowed, and twice as much after so
// many in a row that did not. A function of which did: ranks that see the same norms have the same scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "shoal/rewrite/precision.h"

namespace shoal {

// As checkpoints have it.
struct LossScaleState {
  double scale = 0;          // what the loss is multiplied by, a power of two
  std::int64_t updates = 0;  // in a row, since it changed
  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

namespace train {

class LossScale {
 public:
  explicit LossScale(const rewrite::Precision& precision)
      : grows_after_(precision.grows_after), state_{precision.scale, 0} {}

  const LossScaleState& state() const { return state_; }
  void set(const LossScaleState& state);
  at::Tensor tensor() const;  // f32 []

  void count_update();
  // False where so many in a row have overflowed that a smaller scale is no remedy.
  bool count_overflow();
  int overflows() const { return overflows_; }  // in a row

 private:
  std::int64_t grows_after_;
  LossScaleState state_;
  int overflows_ = 0;
};

}  // namespace train
}  // namespace shoal
