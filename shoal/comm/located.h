// SPDX-License-Identifier: Apache-2.0
// A communicator that keeps where in the model its calls are made, for errors and reports. Not every one
// does, so who makes calls asks for it by pointer:
//
//   if (auto* located = dynamic_cast<comm::Located*>(&ranks)) located->in_module("h.3.mlp");
#pragma once

#include <string_view>

namespace shoal::comm {

class Located {
 public:
  virtual ~Located() = default;
  // Where the calls of this communicator are made from now on; "" for nowhere. By the thread that makes them.
  virtual void in_module(std::string_view module) = 0;
};

}  // namespace shoal::comm
