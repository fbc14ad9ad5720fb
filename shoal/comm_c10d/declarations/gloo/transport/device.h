// SPDX-License-Identifier: Apache-2.0
// Stands for Gloo's header of this name, which LibTorch's packages leave out though their own headers include
// it. Both types are made and destroyed inside LibTorch alone, so no more than their names and destructors is
// needed.
#pragma once

#include <memory>

namespace gloo::transport {

class Device {
 public:
  virtual ~Device() = 0;
};

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
