// SPDX-License-Identifier: Apache-2.0
// One instruction made ready to run: its kernel is found and its constant arguments are converted when the
// program is loaded; at run time only tensors are filled in.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "shoal/program/program.h"

namespace shoal::runtime {

struct Slots {
  std::vector<at::Tensor> tensors;  // by slot; undefined where nothing lives
  int microbatch = 0;               // that they are of

  at::Tensor& operator[](std::size_t slot) { return tensors[slot]; }
  const at::Tensor& operator[](std::size_t slot) const { return tensors[slot]; }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(Slots& slots) = 0;
};

// The kernel of a Compute. Throws InvalidInput naming an op that is not loaded, or an argument its schema has
// not.
std::unique_ptr<Kernel> make_kernel(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
