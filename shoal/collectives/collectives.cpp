// SPDX-License-Identifier: Apache-2.0
// One autograd function for all operations; each is a rule that says what moves forward, and what comes back.
#include "shoal/collectives/collectives.h"

#include <ATen/Functions.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <string_view>
#include <utility>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"

namespace shoal::collectives {

using at::Tensor;
using comm::Buffer;
using comm::ConstBuffer;

namespace {

struct Call;

struct Rule {
  std::string_view name;
  Tensor (*move)(const Tensor& tensor, const Call& call);  // of contiguous elements, without autograd
  Tensor (*derive)(const Tensor& grad, const Call& call);  // of what this file declares
};

struct Call : torch::CustomClassHolder {
  Call(const Rule& what, Ranks with) : rule(what), ranks(with) {}

  const Rule& rule;
  const Ranks ranks;
  ReduceOp op = ReduceOp::Sum;
  int peer = 0;
  std::vector<std::int64_t> in_counts = {};  // rows
  std::vector<std::int64_t> out_counts = {};
  std::vector<std::int64_t> sizes = {};  // of the input
};

}  // namespace

static int size_of(const Call& call) { return call.ranks.communicator.size(); }
static bool is_peer(const Call& call) { return call.ranks.communicator.rank() == call.peer; }

static Buffer buffer_of(const Tensor& tensor) {
  return {
      .data = tensor.data_ptr(), .count = tensor.numel(), .dtype = aten::from_torch(tensor.scalar_type())};
}

static void finish(const Call& call, std::unique_ptr<comm::Work> work) { work->wait(call.ranks.limit); }

static Tensor copy_of(const Tensor& tensor) { return tensor.clone(at::MemoryFormat::Contiguous); }

static Tensor empty_of(const Tensor& tensor, at::IntArrayRef sizes) {
  return at::empty(sizes, tensor.options());
}

// Without memory: one zero, seen everywhere.
static Tensor zeros_of(const Tensor& tensor, at::IntArrayRef sizes) {
  return at::zeros({}, tensor.options()).expand(sizes);
}

// The sizes with `rows` in dim 0.
static std::vector<std::int64_t> with_rows(at::IntArrayRef sizes, std::int64_t rows) {
  std::vector<std::int64_t> result = sizes.vec();
  result.at(0) = rows;
  return result;
}

static std::int64_t rows_of_part(const Tensor& tensor, const Call& call) {
  SHOAL_CHECK(tensor.dim() > 0 && tensor.size(0) % size_of(call) == 0, InvalidInput, call.rule.name,
              ": dim 0 is ", tensor.dim() > 0 ? tensor.size(0) : 1, ", not a multiple of ", size_of(call),
              " ranks");
  return tensor.size(0) / size_of(call);
}

// The gradient of an average is one n-th of that of the sum.
static Tensor scaled(const Tensor& grad, const Call& call) {
  return call.op == ReduceOp::Average ? grad / size_of(call) : grad;
}

static Tensor move_all_reduce(const Tensor& tensor, const Call& call) {
  Tensor result = copy_of(tensor);
  finish(call, call.ranks.communicator.all_reduce(buffer_of(result), call.op));
  return result;
}

static Tensor move_broadcast(const Tensor& tensor, const Call& call) {
  Tensor result = is_peer(call) ? copy_of(tensor) : empty_of(tensor, tensor.sizes());
  finish(call, call.ranks.communicator.broadcast(buffer_of(result), call.peer));
  return result;
}

static Tensor move_reduce(const Tensor& tensor, const Call& call) {
  Tensor result = copy_of(tensor);
  finish(call, call.ranks.communicator.reduce(buffer_of(result), call.op, call.peer));
  return is_peer(call) ? result : zeros_of(tensor, tensor.sizes());
}

static Tensor move_all_gather(const Tensor& tensor, const Call& call) {
  Tensor result = empty_of(tensor, with_rows(tensor.sizes(), tensor.size(0) * size_of(call)));
  const Tensor part = tensor.contiguous();
  finish(call, call.ranks.communicator.all_gather(ConstBuffer(buffer_of(part)), buffer_of(result)));
  return result;
}

static Tensor move_gather(const Tensor& tensor, const Call& call) {
  const auto sizes = with_rows(tensor.sizes(), tensor.size(0) * size_of(call));
  Tensor result = is_peer(call) ? empty_of(tensor, sizes) : zeros_of(tensor, sizes);
  const Tensor part = tensor.contiguous();
  finish(call, call.ranks.communicator.gather(ConstBuffer(buffer_of(part)),
                                              is_peer(call) ? buffer_of(result) : Buffer{}, call.peer));
  return result;
}

static Tensor move_reduce_scatter(const Tensor& tensor, const Call& call) {
  Tensor result = empty_of(tensor, with_rows(tensor.sizes(), rows_of_part(tensor, call)));
  const Tensor whole = tensor.contiguous();
  finish(call,
         call.ranks.communicator.reduce_scatter(ConstBuffer(buffer_of(whole)), buffer_of(result), call.op));
  return result;
}

static Tensor move_scatter(const Tensor& tensor, const Call& call) {
  Tensor result = empty_of(tensor, with_rows(tensor.sizes(), rows_of_part(tensor, call)));
  const Tensor whole = is_peer(call) ? tensor.contiguous() : Tensor();
  finish(call, call.ranks.communicator.scatter(is_peer(call) ? ConstBuffer(buffer_of(whole)) : ConstBuffer{},
                                               buffer_of(result), call.peer));
  return result;
}

static Tensor move_all_to_all(const Tensor& tensor, const Call& call) {
  const std::int64_t rows = std::accumulate(call.out_counts.begin(), call.out_counts.end(), std::int64_t{0});
  Tensor result = empty_of(tensor, with_rows(tensor.sizes(), rows));
  const Tensor whole = tensor.contiguous();
  const std::int64_t row =
      std::accumulate(tensor.sizes().begin() + 1, tensor.sizes().end(), std::int64_t{1}, std::multiplies<>());
  std::vector<std::int64_t> in_counts = call.in_counts, out_counts = call.out_counts;
  for (auto* counts : {&in_counts, &out_counts})
    for (std::int64_t& count : *counts) count *= row;
  finish(call, call.ranks.communicator.all_to_all(ConstBuffer(buffer_of(whole)), buffer_of(result), in_counts,
                                                  out_counts));
  return result;
}

static Tensor move_send(const Tensor& tensor, const Call& call) {
  const Tensor whole = tensor.contiguous();
  finish(call, call.ranks.communicator.send(ConstBuffer(buffer_of(whole)), call.peer));
  return at::zeros({}, tensor.options());
}

static Tensor move_receive(const Tensor& tensor, const Call& call) {
  Tensor result = empty_of(tensor, tensor.sizes());
  finish(call, call.ranks.communicator.receive(buffer_of(result), call.peer));
  return result;
}

// What follows calls the functions of the header, so that autograd goes through these as well.

static ReduceOp sum_or_average(const Call& call) {
  return call.op == ReduceOp::Average ? ReduceOp::Average : ReduceOp::Sum;
}

static Tensor derive_all_reduce(const Tensor& grad, const Call& call) {
  return all_reduce(grad, call.ranks, sum_or_average(call));
}

static Tensor derive_broadcast(const Tensor& grad, const Call& call) {
  return reduce(grad, call.ranks, call.peer);
}

static Tensor derive_reduce(const Tensor& grad, const Call& call) {
  return scaled(broadcast(grad, call.ranks, call.peer), call);
}

static Tensor derive_all_gather(const Tensor& grad, const Call& call) {
  return reduce_scatter(grad, call.ranks);
}

static Tensor derive_gather(const Tensor& grad, const Call& call) {
  return scatter(grad, call.ranks, call.peer);
}

static Tensor derive_reduce_scatter(const Tensor& grad, const Call& call) {
  return scaled(all_gather(grad, call.ranks), call);
}

static Tensor derive_scatter(const Tensor& grad, const Call& call) {
  return gather(grad, call.ranks, call.peer);
}

static Tensor derive_all_to_all(const Tensor& grad, const Call& call) {
  return all_to_all(grad, call.ranks, call.out_counts, call.in_counts);
}

static Tensor derive_send(const Tensor& grad, const Call& call) {
  return receive(grad.expand(call.sizes), call.ranks, call.peer);
}

static Tensor derive_receive(const Tensor& grad, const Call& call) {
  return send(grad, call.ranks, call.peer).expand(call.sizes);
}

static constexpr Rule kAllGather = {"all_gather", move_all_gather, derive_all_gather};
static constexpr Rule kAllReduce = {"all_reduce", move_all_reduce, derive_all_reduce};
static constexpr Rule kAllToAll = {"all_to_all", move_all_to_all, derive_all_to_all};
static constexpr Rule kBroadcast = {"broadcast", move_broadcast, derive_broadcast};
static constexpr Rule kGather = {"gather", move_gather, derive_gather};
static constexpr Rule kReceive = {"receive", move_receive, derive_receive};
static constexpr Rule kReduce = {"reduce", move_reduce, derive_reduce};
static constexpr Rule kReduceScatter = {"reduce_scatter", move_reduce_scatter, derive_reduce_scatter};
static constexpr Rule kScatter = {"scatter", move_scatter, derive_scatter};
static constexpr Rule kSend = {"send", move_send, derive_send};

static bool is_extremum(const Call& call) { return call.op == ReduceOp::Min || call.op == ReduceOp::Max; }

// Of each element of this rank's input, the share of the result's gradient that it gets: 1 / (ranks that have
// the extremum) where it is the extremum. A constant, so the gradient stays linear in `grad`.
static Tensor share_of(const Tensor& input, const Tensor& result, const Call& call) {
  const at::NoGradGuard no_grad;
  Tensor everywhere = result;
  if (&call.rule == &kReduce) everywhere = broadcast(result, call.ranks, call.peer);
  if (&call.rule == &kReduceScatter) everywhere = all_gather(result, call.ranks);
  const Tensor is_it = input.eq(everywhere).to(input.scalar_type());
  return is_it / all_reduce(is_it, call.ranks);
}

namespace {

struct Crossing : torch::autograd::Function<Crossing> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& tensor,
                        const c10::intrusive_ptr<Call>& call) {
    const Tensor result = call->rule.move(tensor, *call);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    if (is_extremum(*call)) context->save_for_backward({tensor, result});
    return result;
  }

  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& grads) {
    const auto capsule = context->saved_data.at("call").toCapsule();
    const Call& call = static_cast<const Call&>(*capsule);
    Tensor grad = call.rule.derive(grads.at(0), call);
    if (is_extremum(call)) {
      const auto saved = context->get_saved_variables();
      grad = grad * share_of(saved[0], saved[1], call);
    }
    return {grad, Tensor()};
  }
};

}  // namespace

static Tensor cross(const Tensor& tensor, c10::intrusive_ptr<Call> call) {
  SHOAL_CHECK(tensor.defined() && tensor.layout() == at::kStrided, InvalidInput, call->rule.name,
              ": wants a ", "strided tensor, got ", tensor.defined() ? "another layout" : "none");
  call->sizes = tensor.sizes().vec();
  return Crossing::apply(tensor, call);
}

// Those that join or cut along dim 0.
static Tensor as_rows(const Tensor& tensor) { return tensor.dim() == 0 ? tensor.view({1}) : tensor; }

at::Tensor all_reduce(const at::Tensor& tensor, Ranks ranks, ReduceOp op) {
  auto call = c10::make_intrusive<Call>(kAllReduce, ranks);
  call->op = op;
  return cross(tensor, std::move(call));
}

at::Tensor broadcast(const at::Tensor& tensor, Ranks ranks, int root) {
  auto call = c10::make_intrusive<Call>(kBroadcast, ranks);
  call->peer = root;
  return cross(tensor, std::move(call));
}

at::Tensor reduce(const at::Tensor& tensor, Ranks ranks, int root, ReduceOp op) {
  auto call = c10::make_intrusive<Call>(kReduce, ranks);
  call->peer = root;
  call->op = op;
  return cross(tensor, std::move(call));
}

at::Tensor all_gather(const at::Tensor& tensor, Ranks ranks) {
  return cross(as_rows(tensor), c10::make_intrusive<Call>(kAllGather, ranks));
}

at::Tensor gather(const at::Tensor& tensor, Ranks ranks, int root) {
  auto call = c10::make_intrusive<Call>(kGather, ranks);
  call->peer = root;
  return cross(as_rows(tensor), std::move(call));
}

at::Tensor reduce_scatter(const at::Tensor& tensor, Ranks ranks, ReduceOp op) {
  auto call = c10::make_intrusive<Call>(kReduceScatter, ranks);
  call->op = op;
  return cross(tensor, std::move(call));
}

at::Tensor scatter(const at::Tensor& tensor, Ranks ranks, int root) {
  auto call = c10::make_intrusive<Call>(kScatter, ranks);
  call->peer = root;
  return cross(tensor, std::move(call));
}

at::Tensor all_to_all(const at::Tensor& tensor, Ranks ranks, const std::vector<std::int64_t>& in_counts,
                      const std::vector<std::int64_t>& out_counts) {
  auto call = c10::make_intrusive<Call>(kAllToAll, ranks);
  const Tensor rows = as_rows(tensor);
  const auto num_ranks = static_cast<std::size_t>(size_of(*call));
  call->in_counts = in_counts;
  call->out_counts = out_counts;
  for (auto* counts : {&call->in_counts, &call->out_counts})
    if (counts->empty()) counts->assign(num_ranks, rows_of_part(rows, *call));
  SHOAL_CHECK(
      std::accumulate(call->in_counts.begin(), call->in_counts.end(), std::int64_t{0}) == rows.size(0),
      InvalidInput, "all_to_all: the counts do not add up to dim 0, which is ", rows.size(0));
  return cross(rows, std::move(call));
}

at::Tensor send(const at::Tensor& tensor, Ranks ranks, int to) {
  auto call = c10::make_intrusive<Call>(kSend, ranks);
  call->peer = to;
  return cross(tensor, std::move(call));
}

at::Tensor receive(const at::Tensor& like, Ranks ranks, int from) {
  auto call = c10::make_intrusive<Call>(kReceive, ranks);
  call->peer = from;
  return cross(like, std::move(call));
}

}  // namespace shoal::collectives
