// SPDX-License-Identifier: Apache-2.0
// Memory for a disk: what forward makes and backward reads, and gradients that wait for the update, lie in a
// file (runtime/file_memory.h) from where they are made. It is read there, so that no number changes.
//
//   %3 = mm(%1, %2)         @forward             %3 = mm(%1, %2)         @forward
//   %4 = gelu(%3)           @forward             %4 = to_file(%3)        @forward        %3 is free
//   …                                            %5 = gelu(%4)           @forward
//   %9 = gelu_backward(%8, %3) @backward         …
//                                                %9 = gelu_backward(%8, %4) @backward
//
// Rajbhandari et al., arXiv:2104.07857 (ZeRO-Infinity), offload the same four kinds. Of parameters and the
// optimizer's state, which are from step to step, the sources say it; no node does.
//
// It works on a rank's graph, after all moves that make values: what recompute drops is not offloaded.
#pragma once

#include <cstdint>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

struct Offload {
  // What lies in the file.
  bool parameters = false;
  bool optimizer_state = false;
  bool gradients = false;
  bool activations = false;
  std::int64_t least = std::int64_t{64} << 10;  // bytes; what is smaller stays in memory
  friend bool operator==(const Offload&, const Offload&) = default;

  // Whether anything does.
  bool has_any() const { return parameters || optimizer_state || gradients || activations; }
  // Whether a tensor of that role and type does, of what is kept from step to step and of sums of gradients.
  bool has(ir::Role role, const ir::TensorType& type) const;
};

// The graph of a rank with copies to the file, which is what later nodes read.
ir::Graph offload(const ir::Graph& local, const Offload& offload);

}  // namespace shoal::rewrite
