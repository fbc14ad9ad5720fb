// SPDX-License-Identifier: Apache-2.0
// Which of a trainer's tensors lie in a file, and the file.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/offload.h"
#include "shoal/runtime/file_memory.h"

namespace shoal::train {

class Offloading {
 public:
  Offloading() = default;  // none do
  // `folder`: "" is kOffloadFolder. Throws as FileMemory does.
  Offloading(const rewrite::Offload& offload, const std::string& folder);

  runtime::FileMemory* files() const { return files_.get(); }  // null: there is nothing to offload
  // A new tensor of this role, not initialised.
  at::Tensor empty(ir::Role role, const ir::TensorType& type, at::TensorOptions options) const;
  // One that is there; its storage goes, with all that lies in it.
  void take_in(ir::Role role, const at::Tensor& tensor) const;
  bool has(ir::Role role, const at::Tensor& tensor) const;

 private:
  rewrite::Offload offload_;
  std::unique_ptr<runtime::FileMemory> files_;
};

}  // namespace shoal::train
