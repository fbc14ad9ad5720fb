// SPDX-License-Identifier: Apache-2.0
// What an operator returns, found without computing it.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <set>
#include <string>
#include <vector>

namespace shoal::capture {

class ShapeInference {
 public:
  // Results as tensors on the Meta device, lists flattened, undefined where the operator's are. `arguments`
  // are the schema's, tensors on Meta, devices too; `device` is where it will run. Own shape functions come
  // first, then Meta kernels, then CPU stand-ins.
  std::vector<at::Tensor> results(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                                  c10::Device device);

 private:
  std::set<std::string> without_meta_;  // operators whose Meta kernel turned out to be missing
  bool cudnn_ = at::globalContext().userEnabledCuDNN();  // as it will be where a step runs
};

}  // namespace shoal::capture
