// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/without_trace.h"

#include <vector>

namespace shoal {

at::Tensor without_trace(const torch::nn::Module& module, const std::function<at::Tensor()>& act) {
  const std::vector<at::Tensor> buffers = module.buffers();
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : buffers) before.push_back(buffer.defined() ? buffer.clone() : buffer);
  at::Tensor result = act();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].defined()) at::Tensor(buffers[i]).copy_(before[i]);
  return result;
}

}  // namespace shoal
