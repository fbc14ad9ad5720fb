// SPDX-License-Identifier: Apache-2.0
// Operators that ATen takes apart by looking into a tensor's memory, taken apart without.
#pragma once

namespace torch {
class Library;
}

namespace shoal::capture {

// Defines shoal::read(Tensor self) -> Tensor: what is in a tensor, which is guarded where a value of the
// graph is read.
void define_read(torch::Library& library);
// Registers those operators; the library is one for aten on AutogradPrivateUse1, the key of what is recorded.
void register_composites(torch::Library& library);

// While it lives and is on, LSTMs that this thread records are taken apart step by step, where they would be layers of
// oneDNN.
class LstmsByStep {
 public:
  explicit LstmsByStep(bool is_on);
  LstmsByStep(const LstmsByStep&) = delete;
  LstmsByStep& operator=(const LstmsByStep&) = delete;
  ~LstmsByStep();

 private:
  const bool before_;
};

}  // namespace shoal::capture
