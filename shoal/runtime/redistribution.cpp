// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/redistribution.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <optional>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/sharding/collective.h"

namespace shoal::runtime {

using sharding::Range;
using sharding::Shard;

static std::int64_t length_of(const std::vector<Range>& ranges) {
  std::int64_t length = 0;
  for (const Range& range : ranges) length += range.end - range.begin;
  return length;
}

at::Tensor as_numbers(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool ? tensor.view(at::kByte) : tensor;
}
comm::Buffer buffer_of(const at::Tensor& tensor) {
  const at::Tensor numbers = as_numbers(tensor);
  return {numbers.data_ptr(), numbers.numel(), aten::from_torch(numbers.scalar_type())};
}

at::Tensor part_of(const at::Tensor& whole, const Shard& shard, int index, int count) {
  const auto ranges = part_ranges(shard, whole.size(shard.dim), index, count);
  if (ranges.empty()) return whole.narrow(shard.dim, 0, 0);
  if (ranges.size() == 1) return whole.narrow(shard.dim, ranges[0].begin, ranges[0].end - ranges[0].begin);
  std::vector<at::Tensor> pieces;
  for (const Range& range : ranges)
    pieces.push_back(whole.narrow(shard.dim, range.begin, range.end - range.begin));
  return at::cat(pieces, shard.dim);
}

// The part's elements go to, or come from, their places in the whole.
template <class Copy>
static void for_each_piece(const at::Tensor& whole, const at::Tensor& part, const Shard& shard, int index,
                           int count, const Copy& copy) {
  std::int64_t begin = 0;
  for (const Range& range : part_ranges(shard, whole.size(shard.dim), index, count)) {
    const std::int64_t length = range.end - range.begin;
    copy(whole.narrow(shard.dim, range.begin, length), part.narrow(shard.dim, begin, length));
    begin += length;
  }
}

static std::vector<std::int64_t> shape_of_part(at::IntArrayRef whole, const Shard& shard, int index,
                                               int count) {
  auto shape = whole.vec();
  auto& size = shape[static_cast<std::size_t>(shard.dim)];
  size = length_of(part_ranges(shard, size, index, count));
  return shape;
}

// Whether the parts, one after the other, are the whole.
static bool is_in_order(at::IntArrayRef whole, const Shard& shard, int count) {
  const auto before =
      std::accumulate(whole.begin(), whole.begin() + shard.dim, std::int64_t{1}, std::multiplies<>());
  return before == 1 && shard.outer == 1 && shard.weights.empty() &&
         whole[static_cast<std::size_t>(shard.dim)] % (count * shard.unit) == 0;
}

static std::int64_t elements(at::IntArrayRef shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Elements of the largest part.
static std::int64_t most_elements(at::IntArrayRef whole, const Shard& shard, int count) {
  std::int64_t most = 0;
  for (int index = 0; index < count; ++index)
    most = std::max(most, elements(shape_of_part(whole, shard, index, count)));
  return most;
}

static at::Tensor view_of_flat(const at::Tensor& flat, std::int64_t begin, at::IntArrayRef shape) {
  return flat.narrow(0, begin, elements(shape)).view(shape);
}

void gather_into(at::Tensor& whole, const at::Tensor& part, const Shard& shard, const Group& group) {
  if (whole.numel() == 0) return;
  const int count = group.size();
  auto& communicator = *group.communicator;
  if (whole.is_contiguous() && is_in_order(whole.sizes(), shard, count)) {
    const at::Tensor mine = part.contiguous();
    communicator.all_gather(buffer_of(mine), buffer_of(whole))->wait(group.limit);
    return;
  }
  const std::int64_t most = most_elements(whole.sizes(), shard, count);
  const at::Tensor mine = at::empty({most}, part.options());
  const at::Tensor all = at::empty({most * count}, part.options());
  view_of_flat(mine, 0, part.sizes()).copy_(part);
  communicator.all_gather(buffer_of(mine), buffer_of(all))->wait(group.limit);
  for (int index = 0; index < count; ++index)
    for_each_piece(whole, view_of_flat(all, index * most, shape_of_part(whole.sizes(), shard, index, count)),
                   shard, index, count,
                   [](const at::Tensor& place, const at::Tensor& piece) { place.copy_(piece); });
}

at::Tensor all_gather(const at::Tensor& part, const Cut& cut, const Group& group) {
  auto shape = part.sizes().vec();
  shape[static_cast<std::size_t>(cut.shard.dim)] = cut.whole;
  at::Tensor whole = at::empty(shape, part.options());
  gather_into(whole, part, cut.shard, group);
  return whole;
}

void all_reduce(at::Tensor& tensor, comm::ReduceOp op, const Group& group) {
  if (tensor.numel() == 0) return;
  group.communicator->all_reduce(buffer_of(tensor), op)->wait(group.limit);
}

void broadcast(at::Tensor& tensor, int root, const Group& group) {
  if (tensor.numel() == 0) return;
  at::Tensor contiguous = tensor.contiguous();
  group.communicator->broadcast(buffer_of(contiguous), root)->wait(group.limit);
  if (!contiguous.is_same(tensor)) tensor.copy_(contiguous);
}

}  // namespace shoal::runtime
