// SPDX-License-Identifier: Apache-2.0
// Stands for Gloo's header of this name, which LibTorch's packages leave out though their own headers include
// it. c10d's header derives an adapter from it, which nothing here may make: its table of methods would be
// another one than LibTorch's.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous
