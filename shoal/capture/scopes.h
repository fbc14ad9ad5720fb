// SPDX-License-Identifier: Apache-2.0
// Scopes around code of a model that builds or calls modules: who trains it on several ranks learns from them where
// stages begin and what is split. Alone, and on one device, they do nothing, and no result depends on them.
//
//   torch::Tensor forward(torch::Tensor x) {
//     {
//       auto stage = shoal::replicate(1);           // the pipeline's first stage, one device of each replica
//       x = encoder->forward(x);
//     }
//     auto stage = shoal::replicate(1);             // the second
//     return head->forward(decoder->forward(x));
//   }
//
// The annotations are those of EPL (Jia et al., Whale, USENIX ATC 2022, section 3.1).
#pragma once

#include <cstdint>
#include <optional>

namespace at {
class Tensor;
}

namespace shoal {

// Ends when it is destroyed, in the thread that it began in.
class [[nodiscard]] Scope {
 public:
  enum class Kind { Replicate, Split };  // which of the two functions below
  Scope(Kind kind, int devices);         // as they, with what they throw
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  int number_;
  std::uint64_t watch_ = 0;  // of what is made inside; 0: a scope around this one has it
};

// One stage of a pipeline: what is called inside it, and what reads parameters that were made inside it. Ranks have to
// be so many for each of its replicas, or a multiple; 0: as many as there are. Stages stand in the order in which
// forward comes to them; one that is entered again, in a loop, is another stage. Throws InvalidInput inside `replicate`
// or `split`, and for fewer than 0 devices.
inline Scope replicate(int devices = 0) { return {Scope::Kind::Replicate, devices}; }

// Matrices that are read or made inside are split over so many devices, those of the mesh's axis whose placements are
// found (tensor); 0: as many as it has. How is left to the planner. What is outside is whole on each, and the batch is
// split among them where no other axis has it. Throws InvalidInput inside `split`, and for fewer than 0 devices.
inline Scope split(int devices = 0) { return {Scope::Kind::Split, devices}; }

namespace capture {

struct Entered {  // once
  int number;     // of all scopes of the process, from 1
  int devices;    // as was said; 0: was not
};
// The one of that kind that this thread is in, and (below) that the tensor was made in; none: in none.
std::optional<Entered> scope_of(Scope::Kind kind);
std::optional<Entered> scope_of(Scope::Kind kind, const at::Tensor& tensor);

}  // namespace capture
}  // namespace shoal
