// SPDX-License-Identifier: Apache-2.0
// What stands for a tensor while a model is recorded: a shape and a place in the graph, but no data.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::capture {

// Memory that several tensors may show parts of. Writing through any of them makes a new value of the whole.
struct Alias {
  ir::ValueId value;     // of the whole, now
  ir::ValueId original;  // when it was made
  std::uint32_t version = 0;
};

// One view operator between the whole and what a tensor shows. Argument "self" is filled in at replay.
struct ViewStep {
  c10::OperatorHandle op;
  std::vector<ir::Argument> arguments;
};

struct View {
  std::shared_ptr<Alias> alias;
  std::vector<ViewStep> steps;  // from the whole, in order
  ir::ValueId value;            // what the view showed at `version`
  std::uint32_t version = 0;
};

// Reports the real device, so that model code, the choice of kernels and autograd behave as in a real run;
// its dispatch key is PrivateUse1, so that use after the capture is an error and not a read of nothing.
class RecordedTensor : public c10::TensorImpl {
 public:
  RecordedTensor(View view, at::Tensor meta, c10::Device device, std::uint64_t capture_id);

  View view;
  at::Tensor meta;           // a tensor on the Meta device with the same sizes, strides and dtype
  std::uint64_t capture_id;  // of the recorder that made it
  at::Tensor own_positions;  // of what stands for a nested tensor (nested.h); else undefined

  void take_geometry(at::Tensor new_meta);  // of in-place view operators (t_, squeeze_, …)

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override;

 private:
  c10::Device device_custom() const override { return device_; }
  const char* tensorimpl_type_name() const override { return "shoal::RecordedTensor"; }
  c10::Device device_;
};

// Null if the tensor is a real one.
RecordedTensor* recorded(const at::Tensor& tensor);

}  // namespace shoal::capture
