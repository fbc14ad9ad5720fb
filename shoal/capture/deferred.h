// SPDX-License-Identifier: Apache-2.0
// A model whose tensors have shapes and no memory, and know how they are made: of any size, until a Trainer
// makes each and cuts it, or `materialize` makes them all.
//
//   torch::manual_seed(0);
//   auto model = shoal::deferred_init([] { return Net(); });
//   shoal::materialize(*model);                    // the bits of torch::manual_seed(0); Net()
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "shoal/capture/dispatch.h"

namespace torch::nn {
class Module;
}

namespace shoal {

namespace capture {

// While it lives, what this thread makes in main memory is deferred; tensors of at most 1024 elements are
// made at once.
class Deferral {
 public:
  enum class For { Making, Shapes };  // Shapes: nothing is drawn or kept, and nothing can be made of it
  explicit Deferral(For what = For::Making);  // begins here, on this thread
  ~Deferral();
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

 private:
  std::unique_ptr<Interceptor> interceptor_;
  Interception interception_;
};

}  // namespace capture

// What `make` returns. Its random operators take from PyTorch's generator what they would, and their numbers
// are thrown away: generators are afterwards where they would be, and at most one tensor is in memory at a
// time. What reads values (`item()`, a shape that depends on them) has them made for that.
template <class Make>
auto deferred_init(Make&& make) {
  const capture::Deferral deferral;
  return std::forward<Make>(make)();
}

// A matrix of more rows than any memory has, made under deferred_init: one for each id there may ever be. It
// is given to tables (train/tables.h), and cannot be made. Its size says fewer rows, as PyTorch counts elements
// in 63 bits.
struct Endless {
  enum class Begin { Unknown, Constant, Uniform, Normal };  // the last that was written to all of it
  std::int64_t rows = 0;
  Begin begin = Begin::Unknown;  // what a row begins with
  double first = 0, second = 0;  // the constant; from, to; mean, deviation
};
// What is known of such a matrix; none for any other tensor.
std::optional<Endless> endless_of(const at::Tensor& tensor);

bool is_deferred(const at::Tensor& tensor);  // whether it has no memory yet, and knows how it is made
// Makes it, with all that share its memory, as it would be had it not been deferred; in any order, whatever
// has been drawn since. Nothing happens to a tensor that has memory. Throws InvalidInput, naming `name`, for
// a tensor that is one of shapes alone, or has more rows than memory has room for (Endless).
void materialize(const at::Tensor& tensor, const std::string& name = "tensor");
// Its parameters and buffers, one after the other, and named so. Throws as for one of them.
void materialize(torch::nn::Module& module);

}  // namespace shoal
