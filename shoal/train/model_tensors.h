// SPDX-License-Identifier: Apache-2.0
// Where the parameters and buffers of a model are: in its module, or in parts on the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shoal/capture/capture.h"
#include "shoal/train/distribution.h"
#include "shoal/train/model_view.h"

namespace shoal::train {

class ModelTensors {
 public:
  using NamedTensors = std::vector<capture::NamedTensor>;

  // Of one of several ranks; borrowed. null: one device.
  explicit ModelTensors(const ModelView& view) { set(view); }
  void set_ranks(Distribution* ranks) { ranks_ = ranks; }
  void set(const ModelView& view);
  // Whether these are the very same tensors under the same names.
  bool are(const ModelView::NamedTensors& parameters, const ModelView::NamedTensors& buffers) const;

  const NamedTensors& parameters() const { return parameters_; }
  // Parameters whose rows are in tables (model_tables.h), beside the others.
  const NamedTensors& tables() const { return tables_; }
  void set_tables(NamedTensors tables) { tables_ = std::move(tables); }
  const NamedTensors& buffers() const { return buffers_; }
  const at::Tensor* find_parameter(const std::string& name) const;  // null: there is none

  // Whether one of them lies somewhere else, or otherwise, than when this was asked last: `.to(dtype)`, say,
  // leaves them other memory, and `w.data = w.data[:5]` the same memory in another shape.
  bool have_moved();

  // Of one of them: what this rank has; the whole, which all ranks ask for at once; and written over.
  at::Tensor kept(const std::string& name, const at::Tensor& tensor) const;
  at::Tensor whole(const std::string& name, const at::Tensor& tensor) const;
  void write(const std::string& name, const at::Tensor& to, const at::Tensor& whole) const;

  std::map<std::string, at::Tensor> copies_of_buffers() const;

 private:
  // Where a tensor lies, and as what.
  struct Place {
    const void* memory = nullptr;
    caffe2::TypeMeta dtype;
    std::vector<std::int64_t> shape, strides;

    bool follow(const at::Tensor& tensor);
  };

  NamedTensors parameters_, tables_, buffers_;
  std::vector<Place> places_;
  Distribution* ranks_ = nullptr;
};

}  // namespace shoal::train
