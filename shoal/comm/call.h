// SPDX-License-Identifier: Apache-2.0
// One call of a communicator as a value: what a rank asked for, whether it makes sense, what has to be the
// same on every rank, and how an error shows it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shoal/comm/communicator.h"

namespace shoal::comm {

enum class Op {  // of a communicator
  Broadcast,
  Reduce,
  AllReduce,
  Gather,
  AllGather,
  Scatter,
  ReduceScatter,
  AllToAll,
  Send,
  Receive,
  Barrier
};
std::string_view name_of(Op op);  // "all_reduce"

// All arguments. Where a call has one buffer it is `in` and `out`.
struct Request {
  Op op = Op::Barrier;                   // which call it is
  ConstBuffer in;                        // what this rank gives
  Buffer out;                            // what it gets
  ReduceOp reduce = ReduceOp::Sum;       // of those that reduce
  int peer = 0;                          // root, or the other end
  Tag tag = {};                          // of a message
  std::vector<std::int64_t> in_counts;   // of all_to_all: one for each rank
  std::vector<std::int64_t> out_counts;  // likewise
};

// What has to be equal on all ranks of the call. `count` is that of one part; of all_to_all it is 0, as its
// counts are compared rank by rank.
struct Call {
  Op op = Op::Barrier;              // which it is
  DType dtype = DType::Float32;     // of its elements
  std::int64_t count = 0;           // of elements, as above
  ReduceOp reduce = ReduceOp::Sum;  // where the op has none: Sum
  int peer = 0;                     // where the op has none: 0
  Tag tag = {};                     // likewise
  friend bool operator==(const Call&, const Call&) = default;
};

// "all_reduce(f32 x 1000, sum)", "broadcast(i64 x 3, root 2)", "send(u8 x 1, to 4)", "barrier()",
// "send(f32 x 512, to 1, micro-batch 3, message 2)"
std::string describe(const Call& call);

// Of a send and a receive: whether they are the two ends of one message.
bool is_one_message(const Call& call, const Call& other);

// "comm: call 17: rank 0 all_reduce(f32 x 1000, sum), rank 1 all_reduce(f64 x 1000, sum)". The number is that
// of the communicator's call (of send and receive: of the two ranks').
std::string mismatch(std::uint64_t number, int rank, const Call& call, int other, const Call& other_call);

// The call of this request, its counts filled in where all_to_all's are equal parts. Throws InvalidInput
// where the request cannot be right on this rank, before anything was sent: an element type that is not
// moved, a rank outside the group, a size that does not fit, an average of integers.
Call checked(Request& request, int rank, int size);

// Of all ranks' checked requests of one call: the first pair of ranks whose counts of all_to_all differ, as
// an error says it; else empty.
std::string uneven_counts(std::uint64_t number, std::span<const Request> ranks);
// The same of one pair: what `from` sends to `to`, and what that takes.
std::string uneven_pair(std::uint64_t number, int from, std::int64_t sent, int to, std::int64_t taken);

// This rank's place in a subgroup. Throws InvalidInput where the ranks are none, not in the group, named
// twice, or without this one.
int place_in(std::span<const int> ranks, int rank, int size);

// A communicator whose calls are all one function of a Request: the body of a class that has `submit`. For
// those that treat the calls alike; the functions are the same everywhere and would hide what differs.
class RequestCommunicator : public Communicator {
 public:
  std::unique_ptr<Work> broadcast(Buffer buffer, int root) override;
  std::unique_ptr<Work> reduce(Buffer buffer, ReduceOp op, int root) override;
  std::unique_ptr<Work> all_reduce(Buffer buffer, ReduceOp op) override;
  std::unique_ptr<Work> gather(ConstBuffer in, Buffer out, int root) override;
  std::unique_ptr<Work> all_gather(ConstBuffer in, Buffer out) override;
  std::unique_ptr<Work> scatter(ConstBuffer in, Buffer out, int root) override;
  std::unique_ptr<Work> reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) override;
  std::unique_ptr<Work> all_to_all(ConstBuffer in, Buffer out, std::span<const std::int64_t> in_counts,
                                   std::span<const std::int64_t> out_counts) override;
  std::unique_ptr<Work> send(ConstBuffer buffer, int to, Tag tag) override;
  std::unique_ptr<Work> receive(Buffer buffer, int from, Tag tag) override;
  std::unique_ptr<Work> barrier() override;

 private:
  virtual std::unique_ptr<Work> submit(Request request) = 0;
};

// The call of `request` on another communicator of the same size.
std::unique_ptr<Work> forward(Communicator& to, const Request& request);

// What a collective does in a group of one: its input is its result.
void perform_alone(const Request& request);

// A call that was over before it returned.
std::unique_ptr<Work> done_work();
// What the memory of a communicator is where nothing is shared: pages of this process. Throws InvalidInput for
// fewer than 0 bytes, Infeasible where there is no memory.
std::unique_ptr<Memory> plain_memory(std::int64_t bytes);

}  // namespace shoal::comm
