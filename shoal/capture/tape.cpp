// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/tape.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "shoal/aten/memory.h"
#include "shoal/aten/operators.h"
#include "shoal/aten/whole_draw.h"
#include "shoal/base/error.h"

namespace shoal::capture {

// In-place operators that give every element a value and read none.
static constexpr std::string_view kOverwriting[] = {
    "aten::bernoulli_.float", "aten::cauchy_",      "aten::copy_",        "aten::exponential_",
    "aten::fill_.Scalar",     "aten::fill_.Tensor", "aten::geometric_",   "aten::log_normal_",
    "aten::normal_",          "aten::random_",      "aten::random_.from", "aten::random_.to",
    "aten::uniform_",         "aten::zero_",
};
static_assert(std::ranges::is_sorted(kOverwriting), "kOverwriting: keep it in alphabetical order");

bool overwrites(const c10::FunctionSchema& schema) {
  if (std::ranges::binary_search(kOverwriting, std::string_view(aten::name_of(schema)))) return true;
  return std::ranges::any_of(schema.arguments(),
                             [](const c10::Argument& argument) { return argument.is_out(); });
}

c10::IValue with_tensors(const c10::IValue& value,
                         const std::function<at::Tensor(const at::Tensor&)>& change) {
  const auto changed = [&](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
  if (value.isTensor()) return changed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(changed(tensor));
    return list;
  }
  if (!value.isOptionalTensorList()) return value;
  c10::List<std::optional<at::Tensor>> list;
  for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
    list.push_back(tensor ? std::optional(changed(*tensor)) : std::nullopt);
  return list;
}

at::Tensor tensor_at(const Place& place, c10::Storage storage) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(place.dtype).device(storage.device()));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(place.sizes, place.strides, place.offset);
  return tensor;
}

std::size_t Tape::add_storage(std::size_t bytes) {
  storages_.push_back({bytes, {}});
  return storages_.size() - 1;
}

void Tape::add(Call call) {
  std::vector<std::size_t> touched = call.writes;
  for (const Place& place : call.made) touched.push_back(place.storage);
  std::ranges::sort(touched);
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (const std::size_t storage : touched) storages_[storage].calls.push_back(calls_.size());
  calls_.push_back(std::move(call));
}

c10::Storage Tape::made(std::size_t storage) const {
  // Below autograd and autocast, and with nobody who intercepts.
  c10::impl::LocalDispatchKeySet plain{c10::impl::PODLocalDispatchKeySet{}};
  plain.excluded_ =
      plain.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  const c10::impl::ForceDispatchKeyGuard guard(plain);
  Memo memo;
  return before(storage, calls_.size(), memo);
}

bool Tape::writes_all(const Call& call, std::size_t storage) const {
  if (!overwrites(call.op.schema()) || call.tensors.empty()) return false;
  const auto lies_there = [&](const auto& tensor) {
    return tensor.first && tensor.first->storage == storage;
  };
  if (std::ranges::count_if(call.tensors, lies_there) != 1) return false;
  const Place& place = *std::ranges::find_if(call.tensors, lies_there)->first;
  std::int64_t last = 1, elements = 1;  // of the furthest element, and in all
  for (std::size_t dim = 0; dim < place.sizes.size(); ++dim) {
    last += (place.sizes[dim] - 1) * place.strides[dim];
    elements *= place.sizes[dim];
  }
  const auto bytes = static_cast<std::int64_t>(storages_[storage].bytes);
  const auto each = static_cast<std::int64_t>(c10::elementSize(place.dtype));
  return std::ranges::find(call.writes, storage) != call.writes.end() && place.offset == 0 &&
         last == elements && elements * each == bytes;
}

c10::Storage Tape::before(std::size_t storage, std::size_t call, Memo& memo) const {
  const auto& calls = storages_[storage].calls;
  const auto end = std::ranges::lower_bound(calls, call);
  auto first = end;
  while (first != calls.begin() && !writes_all(calls_[*std::prev(first)], storage)) --first;
  if (first != calls.begin()) --first;
  c10::Storage current;
  for (auto at = first; at != end; ++at) current = run(*at, storage, std::move(current), memo);
  return current;
}

static c10::Storage memory_of(std::size_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::GetAllocator(at::kCPU), true);
}

c10::Storage Tape::run(std::size_t number, std::size_t storage, c10::Storage current, Memo& memo) const {
  const Call& call = calls_[number];
  const bool writes = std::ranges::find(call.writes, storage) != call.writes.end();
  if (writes && !current) current = memory_of(storages_[storage].bytes);
  auto next = call.tensors.begin();
  const auto tensor_of = [&](const at::Tensor&) {
    const auto& [place, known] = *next++;
    if (!place) return known;
    if (writes && place->storage == storage) return tensor_at(*place, current);
    // What it writes besides is thrown away, and is nobody else's.
    if (std::ranges::find(call.writes, place->storage) != call.writes.end())
      return tensor_at(*place, before(place->storage, number, memo));
    const auto& calls = storages_[place->storage].calls;
    auto& read_of = memo[{place->storage, std::ranges::lower_bound(calls, number) - calls.begin()}];
    if (!read_of) read_of = before(place->storage, number, memo);
    return tensor_at(*place, read_of);
  };
  torch::jit::Stack stack;
  std::vector<at::Tensor> read;
  for (const c10::IValue& argument : call.arguments) {
    stack.push_back(
        with_tensors(argument, [&](const at::Tensor& hole) { return read.emplace_back(tensor_of(hole)); }));
  }
  if (call.generator.defined())  // a copy: the next run of this call draws the same
    stack[*aten::generator_argument(call.op.schema())] = call.generator.clone();
  call.op.callBoxed(stack);
  if (writes) return current;
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack)
    with_tensors(value, [&](const at::Tensor& tensor) { return results.emplace_back(tensor); });
  const auto which = std::ranges::find(call.made, storage, &Place::storage) - call.made.begin();
  const Place& place = call.made[static_cast<std::size_t>(which)];
  const at::Tensor& result = results.at(static_cast<std::size_t>(which));
  const bool lies_so = result.sizes() == place.sizes && result.strides() == place.strides &&
                       result.storage_offset() == 0 && result.storage().nbytes() == storages_[storage].bytes;
  if (lies_so && std::ranges::none_of(
                     read, [&](const at::Tensor& tensor) { return aten::share_storage(tensor, result); }))
    return result.storage();
  SHOAL_CHECK(result.sizes() == place.sizes && result.scalar_type() == place.dtype, Internal,
              "deferred_init: ", aten::name_of(call.op.schema()), " makes another shape than it said");
  current = memory_of(storages_[storage].bytes);
  tensor_at(place, current).copy_(result);
  return current;
}

}  // namespace shoal::capture
