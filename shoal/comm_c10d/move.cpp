// SPDX-License-Identifier: Apache-2.0
// What each call is to c10d.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "shoal/aten/types.h"
#include "shoal/comm_c10d/c10d_communicator.h"

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

void C10dCommunicator::all_reduce_in_place(at::Tensor tensor, ReduceOp op) const {
  std::vector<at::Tensor> tensors = {tensor};
  auto options = without_limit<c10d::AllreduceOptions>();
  options.reduceOp = c10d_op(op);
  finish(engine_.backend->allreduce(tensors, options));
  if (op == ReduceOp::Average) tensor.div_(size());
}

void C10dCommunicator::move(const Request& request, const Numbered& numbered) {
  const Call& call = numbered.call;
  c10d::Backend& backend = *engine_.backend;
  if (call.count == 0 && call.op != Op::AllToAll && call.op != Op::Barrier) return;
  const bool is_root = call.peer == rank();
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
    case Op::AllReduce: return all_reduce_in_place(out()[0], call.reduce);
    case Op::Gather: {
      auto options = without_limit<c10d::GatherOptions>();
      options.rootRank = call.peer;
      auto tensors = in();
      auto lists = parts(request.out);
      return finish(backend.gather(lists, tensors, options));
    }
    case Op::AllGather: {
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
      // Gloo has none of its own, and LibTorch's on top of it is this all-reduce of a copy.
      at::Tensor sum = in()[0].clone();
      all_reduce_in_place(sum, call.reduce);
      out()[0].copy_(sum.narrow(0, rank() * call.count, call.count));
      return;
    }
    case Op::AllToAll: {
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
