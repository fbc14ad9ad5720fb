// SPDX-License-Identifier: Apache-2.0
// How tensors came to be, call by call, so that each can be made later, by itself and in any order, with the
// bits that it would have had. A tensor is told by where it lies in a storage, and a storage by its number:
// views, ties and writes through them need nothing of their own.
//
//   call 0   empty([4, 6])            makes 0
//   call 1   uniform_(0)              writes 0, with the generator as it was then
//   call 2   select(0, dim 0)         a view: not on the tape
//   call 3   zero_(0, offset 0, [6])  writes 0
//
// A storage is made from the last call that wrote all of it, and of those after it that write into it; what
// they read of others is made as it was at that call, and let go of.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace shoal::capture {

struct Place {
  std::size_t storage = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;
};

struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // without tensors
  // The tensors of the arguments, in their order: where they lie, or a copy of one that nobody deferred.
  std::vector<std::pair<std::optional<Place>, at::Tensor>> tensors;
  std::vector<Place> made;          // by result
  std::vector<std::size_t> writes;  // storages
  at::Generator generator;          // of a draw, as it was before: its own copy
};

class Tape {
 public:
  std::size_t add_storage(std::size_t bytes);
  void add(Call call);

  // A storage as it is now, in memory of its own.
  c10::Storage made(std::size_t storage) const;

 private:
  struct Stored {
    std::size_t bytes;
    std::vector<std::size_t> calls;  // that make or write it
  };
  using Memo = std::map<std::pair<std::size_t, std::size_t>, c10::Storage>;  // storage, its calls so far

  c10::Storage before(std::size_t storage, std::size_t call, Memo& memo) const;
  c10::Storage run(std::size_t call, std::size_t storage, c10::Storage current, Memo& memo) const;
  bool writes_all(const Call& call, std::size_t storage) const;

  std::vector<Call> calls_;
  std::vector<Stored> storages_;
};

// Whether it writes its first argument, or `out`, without a look at what was there.
bool overwrites(const c10::FunctionSchema& schema);

// The argument with each defined tensor, of lists too, as `change` gives it.
c10::IValue with_tensors(const c10::IValue& value,
                         const std::function<at::Tensor(const at::Tensor&)>& change);

at::Tensor tensor_at(const Place& place, c10::Storage storage);

}  // namespace shoal::capture
