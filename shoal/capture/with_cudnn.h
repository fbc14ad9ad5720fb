// SPDX-License-Identifier: Apache-2.0
// cuDNN allowed or not while this lives, for all threads as LibTorch has it.
#pragma once

#include <ATen/Context.h>

namespace shoal::capture {

class WithCudnn {
 public:
  explicit WithCudnn(bool is_on) { at::globalContext().setUserEnabledCuDNN(is_on); }
  ~WithCudnn() { at::globalContext().setUserEnabledCuDNN(before_); }
  WithCudnn(const WithCudnn&) = delete;
  WithCudnn& operator=(const WithCudnn&) = delete;

 private:
  bool before_ = at::globalContext().userEnabledCuDNN();
};

}  // namespace shoal::capture
