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

namespace shoal::runtime {

using sharding::Range;
using sharding::Shard;

// As sharding::box_of says it, without the mesh: this is asked for every tensor of every step.
static std::vector<Range> ranges_of(const Shard& shard, std::int64_t whole, int index, int count) {
  const std::int64_t block = whole / shard.outer, units = block / shard.unit;
  const auto begin = [&](std::int64_t i) {
    return (units / count * i + std::min(i, units % count)) * shard.unit;
  };
  std::vector<Range> ranges;
  if (begin(index) == begin(index + 1)) return ranges;
  for (std::int64_t i = 0; i < shard.outer; ++i)
    ranges.push_back({i * block + begin(index), i * block + begin(index + 1)});
  return ranges;
}

static std::int64_t length_of(const std::vector<Range>& ranges) {
  std::int64_t length = 0;
  for (const Range& range : ranges) length += range.end - range.begin;
  return length;
}

// Bytes and truths travel alike.
static at::Tensor as_numbers(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool ? tensor.view(at::kByte) : tensor;
}
static comm::Buffer buffer_of(const at::Tensor& tensor) {
  const at::Tensor numbers = as_numbers(tensor);
  return {numbers.data_ptr(), numbers.numel(), aten::from_torch(numbers.scalar_type())};
}

at::Tensor part_of(const at::Tensor& whole, const Shard& shard, int index, int count) {
  const auto ranges = ranges_of(shard, whole.size(shard.dim), index, count);
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
  for (const Range& range : ranges_of(shard, whole.size(shard.dim), index, count)) {
    const std::int64_t length = range.end - range.begin;
    copy(whole.narrow(shard.dim, range.begin, length), part.narrow(shard.dim, begin, length));
    begin += length;
  }
}

static std::vector<std::int64_t> shape_of_part(at::IntArrayRef whole, const Shard& shard, int index,
                                               int count) {
  auto shape = whole.vec();
  auto& size = shape[static_cast<std::size_t>(shard.dim)];
  size = length_of(ranges_of(shard, size, index, count));
  return shape;
}

// Whether the parts, one after the other, are the whole.
static bool is_in_order(at::IntArrayRef whole, const Shard& shard, int count) {
  const auto before =
      std::accumulate(whole.begin(), whole.begin() + shard.dim, std::int64_t{1}, std::multiplies<>());
  return before == 1 && shard.outer == 1 &&
         whole[static_cast<std::size_t>(shard.dim)] % (count * shard.unit) == 0;
}

static std::int64_t elements(at::IntArrayRef shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Elements of the largest part; the first rank has it.
static std::int64_t most_elements(at::IntArrayRef whole, const Shard& shard, int count) {
  return elements(shape_of_part(whole, shard, 0, count));
}

static at::Tensor flat_view(const at::Tensor& flat, std::int64_t begin, at::IntArrayRef shape) {
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
  flat_view(mine, 0, part.sizes()).copy_(part);
  communicator.all_gather(buffer_of(mine), buffer_of(all))->wait(group.limit);
  for (int index = 0; index < count; ++index)
    for_each_piece(whole, flat_view(all, index * most, shape_of_part(whole.sizes(), shard, index, count)),
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

at::Tensor reduce_scatter(const at::Tensor& whole, const Shard& shard, comm::ReduceOp op,
                          const Group& group) {
  const int count = group.size();
  at::Tensor part = at::empty(shape_of_part(whole.sizes(), shard, group.rank(), count), whole.options());
  if (whole.numel() == 0) return part;
  auto& communicator = *group.communicator;
  if (is_in_order(whole.sizes(), shard, count)) {
    const at::Tensor all = whole.contiguous();
    communicator.reduce_scatter(buffer_of(all), buffer_of(part), op)->wait(group.limit);
    return part;
  }
  const std::int64_t most = most_elements(whole.sizes(), shard, count);
  const at::Tensor all = at::empty({most * count}, whole.options());
  const at::Tensor mine = at::empty({most}, whole.options());
  for (int index = 0; index < count; ++index) {
    const at::Tensor place = flat_view(all, index * most, shape_of_part(whole.sizes(), shard, index, count));
    for_each_piece(whole, place, shard, index, count,
                   [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
    const std::int64_t rest = most - place.numel();  // padding is read, so it is written
    if (rest > 0) all.narrow(0, index * most + place.numel(), rest).zero_();
  }
  communicator.reduce_scatter(buffer_of(all), buffer_of(mine), op)->wait(group.limit);
  part.copy_(flat_view(mine, 0, part.sizes()));
  return part;
}

at::Tensor all_to_all(const at::Tensor& part, const Cut& from, const Cut& to, const Group& group) {
  const int count = group.size(), rank = group.rank();
  if (from.shard.dim == to.shard.dim)  // the same dim cut otherwise
    return part_of(all_gather(part, from, group), to.shard, rank, count).contiguous();
  auto whole = part.sizes().vec();
  whole[static_cast<std::size_t>(from.shard.dim)] = from.whole;
  std::vector<std::int64_t> in_counts, out_counts;
  std::vector<at::Tensor> pieces;
  std::vector<std::vector<std::int64_t>> shapes;
  for (int index = 0; index < count; ++index) {
    pieces.push_back(part_of(part, to.shard, index, count).reshape({-1}));
    in_counts.push_back(pieces.back().numel());
    shapes.push_back(shape_of_part(shape_of_part(whole, from.shard, index, count), to.shard, rank, count));
    out_counts.push_back(elements(shapes.back()));
  }
  const at::Tensor in = at::cat(pieces);
  const at::Tensor out =
      at::empty({std::accumulate(out_counts.begin(), out_counts.end(), std::int64_t{0})}, part.options());
  group.communicator->all_to_all(buffer_of(in), buffer_of(out), in_counts, out_counts)->wait(group.limit);
  at::Tensor made = at::empty(shape_of_part(whole, to.shard, rank, count), part.options());
  std::int64_t begin = 0;
  for (int index = 0; index < count; ++index) {
    const auto& shape = shapes[static_cast<std::size_t>(index)];
    for_each_piece(made, flat_view(out, begin, shape), from.shard, index, count,
                   [](const at::Tensor& place, const at::Tensor& piece) { place.copy_(piece); });
    begin += elements(shape);
  }
  return made;
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

static constexpr std::size_t kSmall = 64 << 10;  // bytes

// The bytes of each rank's part of a contiguous tensor in main memory, where they lie in one piece: from
// which on, and how many. Nothing where they do not.
static std::optional<Range> bytes_of_part(const at::Tensor& whole, const Shard& shard, int index, int count) {
  if (!whole.is_cpu() || !whole.is_contiguous() || shard.outer != 1) return std::nullopt;
  for (int dim = 0; dim < shard.dim; ++dim)
    if (whole.size(dim) != 1) return std::nullopt;
  const auto ranges = ranges_of(shard, whole.size(shard.dim), index, count);
  if (ranges.empty()) return Range{};
  const std::int64_t row = whole.stride(shard.dim) * whole.element_size();
  return Range{ranges[0].begin * row, ranges[0].end * row};
}

// Of none there may be no memory.
static void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

static std::byte* bytes_at(const at::Tensor& flat, std::int64_t element) {
  return static_cast<std::byte*>(flat.data_ptr()) + element * flat.element_size();
}

// Which of them are small, and are so on every rank: by what all ranks know alike.
static std::vector<std::size_t> small_ones(const std::vector<at::Tensor>& wholes) {
  std::vector<std::size_t> small;
  for (std::size_t i = 0; i < wholes.size(); ++i)
    if (wholes[i].numel() > 0 && wholes[i].nbytes() < kSmall) small.push_back(i);
  if (small.size() < 2) small.clear();
  return small;
}

void gather_into(std::vector<at::Tensor>& wholes, const std::vector<at::Tensor>& parts,
                 const std::vector<Shard>& shards, const Group& group) {
  const int count = group.size();
  const auto small = small_ones(wholes);
  for (std::size_t i = 0; i < wholes.size(); ++i)
    if (std::ranges::find(small, i) == small.end()) gather_into(wholes[i], parts[i], shards[i], group);
  if (small.empty()) return;
  std::int64_t most = 0;
  for (const auto i : small) most += most_elements(wholes[i].sizes(), shards[i], count);
  const auto options = wholes[small[0]].options();
  const at::Tensor mine = at::empty({most}, options), all = at::empty({most * count}, options);
  std::int64_t begin = 0;
  for (const auto i : small) {
    if (parts[i].is_cpu() && parts[i].is_contiguous())
      copy_bytes(bytes_at(mine, begin), parts[i].const_data_ptr(),
                 static_cast<std::int64_t>(parts[i].nbytes()));
    else
      flat_view(mine, begin, parts[i].sizes()).copy_(parts[i]);
    begin += most_elements(wholes[i].sizes(), shards[i], count);
  }
  group.communicator->all_gather(buffer_of(mine), buffer_of(all))->wait(group.limit);
  begin = 0;
  for (const auto i : small) {
    for (int index = 0; index < count; ++index) {
      if (const auto bytes = bytes_of_part(wholes[i], shards[i], index, count)) {
        copy_bytes(bytes_at(wholes[i], 0) + bytes->begin, bytes_at(all, index * most + begin),
                   bytes->end - bytes->begin);
        continue;
      }
      const auto shape = shape_of_part(wholes[i].sizes(), shards[i], index, count);
      for_each_piece(wholes[i], flat_view(all, index * most + begin, shape), shards[i], index, count,
                     [](const at::Tensor& place, const at::Tensor& piece) { place.copy_(piece); });
    }
    begin += most_elements(wholes[i].sizes(), shards[i], count);
  }
}

std::vector<at::Tensor> reduce_scatter(const std::vector<at::Tensor>& wholes,
                                       const std::vector<Shard>& shards, comm::ReduceOp op,
                                       const Group& group) {
  const int count = group.size();
  const auto small = small_ones(wholes);
  std::vector<at::Tensor> parts(wholes.size());
  for (std::size_t i = 0; i < wholes.size(); ++i)
    if (std::ranges::find(small, i) == small.end())
      parts[i] = reduce_scatter(wholes[i], shards[i], op, group);
  if (small.empty()) return parts;
  std::int64_t most = 0;
  for (const auto i : small) most += most_elements(wholes[i].sizes(), shards[i], count);
  const auto options = wholes[small[0]].options();
  const at::Tensor all = at::zeros({most * count}, options), mine = at::empty({most}, options);
  std::int64_t begin = 0;
  for (const auto i : small) {
    for (int index = 0; index < count; ++index) {
      if (const auto bytes = bytes_of_part(wholes[i], shards[i], index, count)) {
        copy_bytes(bytes_at(all, index * most + begin), bytes_at(wholes[i], 0) + bytes->begin,
                   bytes->end - bytes->begin);
        continue;
      }
      const auto shape = shape_of_part(wholes[i].sizes(), shards[i], index, count);
      for_each_piece(wholes[i], flat_view(all, index * most + begin, shape), shards[i], index, count,
                     [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
    }
    begin += most_elements(wholes[i].sizes(), shards[i], count);
  }
  group.communicator->reduce_scatter(buffer_of(all), buffer_of(mine), op)->wait(group.limit);
  begin = 0;
  for (const auto i : small) {
    parts[i] = flat_view(mine, begin, shape_of_part(wholes[i].sizes(), shards[i], group.rank(), count));
    begin += most_elements(wholes[i].sizes(), shards[i], count);
  }
  return parts;
}

void all_reduce(std::vector<at::Tensor>& tensors, comm::ReduceOp op, const Group& group) {
  const auto small = small_ones(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (std::ranges::find(small, i) == small.end()) all_reduce(tensors[i], op, group);
  if (small.empty()) return;
  std::vector<at::Tensor> flat;
  for (const auto i : small) flat.push_back(tensors[i].reshape({-1}));
  at::Tensor all = at::cat(flat);
  all_reduce(all, op, group);
  std::int64_t begin = 0;
  for (const auto i : small) {
    tensors[i] = flat_view(all, begin, tensors[i].sizes());
    begin += tensors[i].numel();
  }
}

}  // namespace shoal::runtime
