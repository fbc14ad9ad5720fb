// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/counted.h"

#include <numeric>
#include <string_view>
#include <utility>
#include <variant>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/located.h"

namespace shoal::matrix {

namespace {

std::string counts_of(const std::vector<std::int64_t>& sends, const std::vector<std::int64_t>& receives) {
  std::string text = " (";
  for (const auto count : sends) text += concat(count, ' ');
  for (const auto count : receives) text += concat('<', count);
  return text + ")";
}

std::string line(std::string_view op, DType dtype, std::string_view combine, int ranks, std::int64_t in,
                 std::int64_t out) {
  return concat(op, ' ', name_of(dtype), ' ', combine, " of ", ranks, ": ", in, " -> ", out);
}

class Counted final : public comm::RequestCommunicator, public comm::Located {
 public:
  // `ranks`: those of the group, as numbered in the whole job.
  Counted(std::unique_ptr<comm::Communicator> inner, std::vector<int> ranks, Sent& sent)
      : inner_(std::move(inner)), ranks_(std::move(ranks)), sent_(sent) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool is_asynchronous() const override { return inner_->is_asynchronous(); }
  std::unique_ptr<comm::Memory> allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int> ranks) override {
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(ranks_[static_cast<std::size_t>(rank)]);
    return std::make_unique<Counted>(inner_->subgroup(ranks), std::move(members), sent_);
  }
  void abort(std::string_view reason, ErrorKind kind) noexcept override { inner_->abort(reason, kind); }
  void in_module(std::string_view) override { in_program_ = sent_.step; }

 private:
  std::unique_ptr<comm::Work> submit(comm::Request request) override {
    if (std::exchange(in_program_, -1) == sent_.step) count(request);
    return forward(*inner_, request);
  }

  // Bytes by what the operation means, whatever a program has said.
  void count(const comm::Request& request) {
    const std::int64_t n = size(), in = request.in.count;
    const bool reduces = request.op == comm::Op::AllReduce || request.op == comm::Op::ReduceScatter;
    const DType dtype = request.op == comm::Op::Receive ? request.out.dtype : request.in.dtype;
    std::string text = line(name_of(request.op), dtype, reduces ? name_of(request.reduce) : "", size(), in,
                            request.op == comm::Op::AllReduce ? in : request.out.count);
    std::int64_t elements = 0;  // twice of them, n times
    switch (request.op) {
      case comm::Op::AllReduce: elements = 2 * in * (n - 1); break;
      case comm::Op::ReduceScatter: elements = in * (n - 1); break;
      case comm::Op::AllGather: elements = n * in * (n - 1); break;
      case comm::Op::AllToAll:
        text += counts_of(request.in_counts, request.out_counts);
        for (int other = 0; other < size(); ++other)
          if (other != rank()) elements += n * request.in_counts[static_cast<std::size_t>(other)];
        break;
      case comm::Op::Send: elements = n * in; break;
      case comm::Op::Receive: break;
      default: text += " is no message of a program"; break;
    }
    sent_.calls[ranks_].push_back(std::move(text));
    sent_.bytes += elements * bytes_of(dtype) / n;
  }

  std::unique_ptr<comm::Communicator> inner_;
  std::vector<int> ranks_;
  Sent& sent_;
  int in_program_ = -1;  // the step in which an instruction has last said that it calls
};

}  // namespace

std::unique_ptr<comm::Communicator> counted(std::unique_ptr<comm::Communicator> ranks, Sent& sent) {
  std::vector<int> all(static_cast<std::size_t>(ranks->size()));
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<Counted>(std::move(ranks), std::move(all), sent);
}

void add_said(const program::Program& program, const sharding::Mesh& mesh, int rank, Sent& said) {
  const auto type_of = [&](ir::ValueId slot) -> const ir::TensorType& { return program.types[slot.index]; };
  for (const auto& segment : program.segments)
    for (const auto& instruction : segment.instructions) {
      const auto* compute = std::get_if<program::Compute>(&instruction);
      if (compute == nullptr) continue;
      const ir::Node node{compute->op, compute->arguments, compute->outputs, {}, {}};
      const auto message = sharding::message_of(node, type_of, mesh, rank);
      if (!message) continue;
      std::string text =
          line(name_of(message->kind), message->dtype, message->combine ? name_of(*message->combine) : "",
               message->ranks, message->in, message->out);
      if (message->kind == sharding::Collective::AllToAll)
        text += counts_of(message->sends, message->receives);
      said.calls[mesh.group(rank, {mesh.axis(message->axis)})].push_back(std::move(text));
      said.bytes += message->bytes();
    }
}

}  // namespace shoal::matrix
