// SPDX-License-Identifier: Apache-2.0
// Stands for Gloo's header of this name, which LibTorch's packages leave out though their own headers include
// it. Only the method that an inline function of c10d's header calls; contexts are made inside LibTorch
// alone.
#pragma once

#include <chrono>
#include <memory>

#include <gloo/transport/device.h>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
