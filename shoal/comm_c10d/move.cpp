// SPDX-License-Identifier: Apache-2.0
// What each call is to c10d.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/comm/reduce.h"
#include "shoal/comm_c10d/c10d_communicator.h"
#include "shoal/comm_c10d/gloo.h"

namespace shoal::comm_c10d {

static c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  if (op == ReduceOp::Min) return c10d::ReduceOp::MIN;
  if (op == ReduceOp::Max) return c10d::ReduceOp::MAX;
  return c10d::ReduceOp::SUM;  // Gloo knows no average: the sum is divided here
}

at::Tensor C10dCommunicator::tensor_of(ConstBuffer buffer) const {
  const auto options = at::TensorOptions().dtype(aten::to_torch(buffer.dtype)).device(engine_.device);
  if (buffer.count == 0) return at::empty({1}, options).narrow(0, 0, 0);
  return at::from_blob(const_cast<void*>(buffer.data), {buffer.count}, options);
}

void C10dCommunicator::finish(const c10::intrusive_ptr<c10d::Work>& work) const {
  work->wait(kForever);
  if (engine_.device.is_cpu()) return;
  // wait() has only made the stream wait.
  c10::impl::VirtualGuardImpl(engine_.device.type()).getStream(engine_.device).synchronize();
}

void C10dCommunicator::meet() const {
  auto options = without_limit<c10d::BarrierOptions>();
  options.device = engine_.device;
  finish(engine_.backend->barrier(options));
}

// Large messages of Gloo go in small pieces: one of megabytes in both directions at once takes up to twice as long, as what
// a rank sends delays what tells the other that its own has come. Two are under way, so that the link is never idle.
static constexpr std::int64_t kUnderWay = 2;

static std::int64_t elements_of_a_piece(std::int64_t ranks, std::int64_t width, std::int64_t largest) {
  return std::clamp<std::int64_t>(kStageBytes / kUnderWay / (width * ranks), 1,
                                  std::max<std::int64_t>(largest, 1));
}

void C10dCommunicator::in_pieces(
    std::int64_t count, std::int64_t most,
    const std::function<c10::intrusive_ptr<c10d::Work>(std::int64_t first, std::int64_t place)>& begin,
    const std::function<void(std::int64_t first, std::int64_t place)>& end) const {
  std::array<c10::intrusive_ptr<c10d::Work>, kUnderWay> works;
  const std::int64_t pieces = (count + most - 1) / most;
  for (std::int64_t piece = 0; piece < pieces + kUnderWay; ++piece) {
    const std::int64_t place = piece % kUnderWay;
    auto& work = works[static_cast<std::size_t>(place)];
    if (work) {
      finish(work);
      end((piece - kUnderWay) * most, place);
      work.reset();
    }
    if (piece < pieces) work = begin(piece * most, place);
  }
}

// `send` fills what goes to each rank, [ranks, elements of a piece], `receive` has what came of each.
void C10dCommunicator::exchange(
    std::int64_t count, at::ScalarType dtype,
    const std::function<void(at::Tensor& to_each, std::int64_t first)>& send,
    const std::function<void(const at::Tensor& of_each, std::int64_t first)>& receive) const {
  const std::int64_t ranks = size(), most = elements_of_a_piece(ranks, at::elementSize(dtype), count);
  const at::Tensor sent = at::empty({kUnderWay, ranks * most}, dtype), received = at::empty_like(sent);
  const auto piece_in = [&](const at::Tensor& stage, std::int64_t first, std::int64_t place) {
    return stage[place].narrow(0, 0, ranks * std::min(most, count - first));
  };
  std::vector<std::int64_t> even;  // as many for each rank
  in_pieces(
      count, most,
      [&](std::int64_t first, std::int64_t place) {
        at::Tensor from = piece_in(sent, first, place), to = piece_in(received, first, place);
        at::Tensor to_each = from.view({ranks, -1});
        send(to_each, first);
        return engine_.backend->alltoall_base(to, from, even, even, without_limit<c10d::AllToAllOptions>());
      },
      [&](std::int64_t first, std::int64_t place) {
        receive(piece_in(received, first, place).view({ranks, -1}), first);
      });
}

void C10dCommunicator::gather_parts(const Request& request) const {
  const at::Tensor in = tensor_of(request.in), out = tensor_of(ConstBuffer(request.out)).view({size(), -1});
  exchange(
      request.in.count, in.scalar_type(),
      [&](at::Tensor& to_each, std::int64_t first) { to_each.copy_(in.narrow(0, first, to_each.size(1))); },
      [&](const at::Tensor& of_each, std::int64_t first) {
        out.narrow(1, first, of_each.size(1)).copy_(of_each);
      });
}

// Each rank sums its own part up, in the order of ranks. LibTorch's is an all-reduce of a copy: each byte twice.
void C10dCommunicator::sum_own_part(const Request& request) const {
  const at::Tensor in = tensor_of(request.in).view({size(), -1});
  const std::int64_t width = bytes_of(request.out.dtype);
  exchange(
      request.out.count, in.scalar_type(),
      [&](at::Tensor& to_each, std::int64_t first) { to_each.copy_(in.narrow(1, first, to_each.size(1))); },
      [&](const at::Tensor& of_each, std::int64_t first) {
        std::vector<const std::byte*> parts;
        for (int rank = 0; rank < size(); ++rank)
          parts.push_back(static_cast<const std::byte*>(of_each.select(0, rank).data_ptr()));
        std::byte* const sum = static_cast<std::byte*>(request.out.data) + first * width;
        comm::reduce({.dtype = request.out.dtype, .op = request.reduce, .count = of_each.size(1)}, parts,
                     {{sum}});
      });
}

// Copies between a piece of all that is for, or of, each rank, and where these pieces lie together: calls
// copy(elements of it, its place in all, its place in the piece), and gives back how many elements each rank has there.
template <class Copy>
static std::vector<std::int64_t> for_each_piece(const std::vector<std::int64_t>& counts, std::int64_t first,
                                                std::int64_t most, const Copy& copy) {
  std::vector<std::int64_t> pieces;
  for (std::int64_t begin = 0, place = 0; const std::int64_t count : counts) {
    pieces.push_back(std::clamp<std::int64_t>(count - first, 0, most));
    if (pieces.back() > 0) copy(pieces.back(), begin + first, place);
    begin += count;
    place += pieces.back();
  }
  return pieces;
}

// An all-to-all whose largest part, of any rank for any other, has so many elements.
void C10dCommunicator::hand_out(const Request& request, std::int64_t largest) const {
  const at::Tensor in = tensor_of(request.in), out = tensor_of(ConstBuffer(request.out));
  const std::int64_t most = elements_of_a_piece(size(), in.element_size(), largest);
  const at::Tensor sent = at::empty({kUnderWay, size() * most}, in.options()),
                   received = at::empty_like(sent);
  in_pieces(
      largest, most,
      [&](std::int64_t first, std::int64_t place) {
        std::vector<std::int64_t> sends = for_each_piece(
            request.in_counts, first, most, [&](std::int64_t count, std::int64_t from, std::int64_t to) {
              sent[place].narrow(0, to, count).copy_(in.narrow(0, from, count));
            });
        std::vector<std::int64_t> receives = for_each_piece(request.out_counts, first, most, [](auto...) {});
        at::Tensor from = sent[place].narrow(0, 0, std::reduce(sends.begin(), sends.end()));
        at::Tensor to = received[place].narrow(0, 0, std::reduce(receives.begin(), receives.end()));
        return engine_.backend->alltoall_base(to, from, receives, sends,
                                              without_limit<c10d::AllToAllOptions>());
      },
      [&](std::int64_t first, std::int64_t place) {
        for_each_piece(request.out_counts, first, most,
                       [&](std::int64_t count, std::int64_t to, std::int64_t from) {
                         out.narrow(0, to, count).copy_(received[place].narrow(0, from, count));
                       });
      });
}

static std::int64_t largest_part(const std::vector<Record>& records) {
  std::int64_t largest = 0;
  for (const Record& record : records) largest = std::max(largest, std::ranges::max(record.in_counts));
  return largest;
}

void C10dCommunicator::move(const Request& request, const Numbered& numbered,
                            const std::vector<Record>& records) {
  const Call& call = numbered.call;
  c10d::Backend& backend = *engine_.backend;
  if (call.count == 0 && call.op != Op::AllToAll && call.op != Op::Barrier) return;
  const bool is_root = call.peer == rank();
  const bool is_gloo = engine_.device.is_cpu() && engine_.calls != Calls::Bare;  // and not to measure against
  const auto in = [&] { return std::vector<at::Tensor>{tensor_of(request.in)}; };
  const auto out = [&] { return std::vector<at::Tensor>{tensor_of(ConstBuffer(request.out))}; };
  const auto parts = [&](ConstBuffer whole) {  // of all ranks, on root alone
    std::vector<std::vector<at::Tensor>> lists;
    if (is_root) lists.push_back(tensor_of(whole).split(call.count));
    return lists;
  };
  tag_next(numbered, Part::Bytes);
  switch (call.op) {
    case Op::Broadcast: {
      auto options = without_limit<c10d::BroadcastOptions>();
      options.rootRank = call.peer;
      auto tensors = out();
      return finish(backend.broadcast(tensors, options));
    }
    case Op::Reduce: {
      auto options = without_limit<c10d::ReduceOptions>();
      options.reduceOp = c10d_op(call.reduce);
      options.rootRank = call.peer;
      auto tensors = out();
      if (!is_root) tensors[0] = tensors[0].clone();  // Gloo leaves partial sums in the tensors of the others
      finish(backend.reduce(tensors, options));
      if (is_root && call.reduce == ReduceOp::Average) tensors[0].div_(size());
      return;
    }
    case Op::AllReduce: {
      auto options = without_limit<c10d::AllreduceOptions>();
      options.reduceOp = c10d_op(call.reduce);
      auto tensors = out();
      finish(backend.allreduce(tensors, options));
      if (call.reduce == ReduceOp::Average) tensors[0].div_(size());
      return;
    }
    case Op::Gather: {
      auto options = without_limit<c10d::GatherOptions>();
      options.rootRank = call.peer;
      auto tensors = in();
      auto lists = parts(request.out);
      return finish(backend.gather(lists, tensors, options));
    }
    case Op::AllGather: {
      if (is_gloo) return gather_parts(request);
      auto from = in(), to = out();
      return finish(backend._allgather_base(to[0], from[0], without_limit<c10d::AllgatherOptions>()));
    }
    case Op::Scatter: {
      auto options = without_limit<c10d::ScatterOptions>();
      options.rootRank = call.peer;
      auto tensors = out();
      auto lists = parts(request.in);
      return finish(backend.scatter(tensors, lists, options));
    }
    case Op::ReduceScatter: {
      if (is_gloo) return sum_own_part(request);
      auto options = without_limit<c10d::ReduceScatterOptions>();
      options.reduceOp = c10d_op(call.reduce);
      auto from = in(), to = out();
      finish(backend._reduce_scatter_base(to[0], from[0], options));
      if (call.reduce == ReduceOp::Average) to[0].div_(size());
      return;
    }
    case Op::AllToAll: {
      if (is_gloo) return hand_out(request, largest_part(records));
      auto from = in(), to = out();
      auto in_counts = request.in_counts, out_counts = request.out_counts;
      return finish(backend.alltoall_base(to[0], from[0], out_counts, in_counts,
                                          without_limit<c10d::AllToAllOptions>()));
    }
    case Op::Send: {
      auto tensors = in();
      return finish(backend.send(tensors, call.peer, tag_of(numbered, Part::Bytes)));
    }
    case Op::Receive: {
      auto tensors = out();
      return finish(backend.recv(tensors, call.peer, tag_of(numbered, Part::Bytes)));
    }
    case Op::Barrier:
      // Who has everybody's record knows that everybody is there.
      if (engine_.calls == Calls::Bare || engine_.tag_next) meet();
  }
}

}  // namespace shoal::comm_c10d
