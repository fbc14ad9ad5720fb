// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/call.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "shoal/base/error.h"
#include "shoal/base/held.h"
#include "shoal/base/names.h"
#include "shoal/base/text.h"

namespace shoal::comm {

namespace {
enum class Sizes { Any, OutParts, InParts };  // which side holds the parts of all ranks
struct Row {
  Op op;
  std::string_view name;
  bool reduces;
  bool has_peer;
  Sizes sizes;
};
}  // namespace

// In the order of the enumerators.
static constexpr Row kRows[] = {
    {Op::Broadcast, "broadcast", false, true, Sizes::Any},
    {Op::Reduce, "reduce", true, true, Sizes::Any},
    {Op::AllReduce, "all_reduce", true, false, Sizes::Any},
    {Op::Gather, "gather", false, true, Sizes::OutParts},
    {Op::AllGather, "all_gather", false, false, Sizes::OutParts},
    {Op::Scatter, "scatter", false, true, Sizes::InParts},
    {Op::ReduceScatter, "reduce_scatter", true, false, Sizes::InParts},
    {Op::AllToAll, "all_to_all", false, false, Sizes::Any},
    {Op::Send, "send", false, true, Sizes::Any},
    {Op::Receive, "receive", false, true, Sizes::Any},
    {Op::Barrier, "barrier", false, false, Sizes::Any},
};

static constexpr const Row& row_of(Op op) { return kRows[static_cast<int>(op)]; }
static_assert(row_of(Op::Barrier).op == Op::Barrier && row_of(Op::Scatter).op == Op::Scatter);

std::string_view name_of(Op op) { return row_of(op).name; }

std::string describe(const Call& call) {
  const Row& row = row_of(call.op);
  std::string text(row.name);
  if (call.op == Op::Barrier) return text + "()";
  text += "(" + std::string(name_of(call.dtype));
  if (call.op != Op::AllToAll) text += " x " + std::to_string(call.count);
  if (row.reduces) text += ", " + std::string(name_of(call.reduce));
  if (row.has_peer) {
    text += call.op == Op::Send ? ", to " : call.op == Op::Receive ? ", from " : ", root ";
    text += std::to_string(call.peer);
  }
  if (call.tag.message != 0)
    text += concat(", micro-batch ", call.tag.microbatch, ", message ", call.tag.message);
  return text + ")";
}

bool is_one_message(const Call& call, const Call& other) {
  return call.dtype == other.dtype && call.count == other.count && call.tag == other.tag;
}

std::string mismatch(std::uint64_t number, int rank, const Call& call, int other, const Call& other_call) {
  return concat("comm: call ", number, ": rank ", rank, " ", describe(call), ", rank ", other, " ",
                describe(other_call));
}

static bool is_moved(DType dtype) {
  constexpr DType kMoved[] = {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16,
                              DType::Int64,   DType::Int32,   DType::UInt8};
  return std::ranges::find(kMoved, dtype) != std::end(kMoved);
}

static void check_buffer(Op op, const ConstBuffer& buffer) {
  SHOAL_CHECK(is_moved(buffer.dtype), InvalidInput, "comm: ", name_of(op), " of ", name_of(buffer.dtype),
              ": wanted f64, f32, f16, bf16, i64, i32 or u8; move it as u8, or convert it");
  SHOAL_CHECK(buffer.count >= 0 && (buffer.data || buffer.count == 0), InvalidInput, "comm: ", name_of(op),
              " of ", buffer.count, " elements at ", buffer.data ? "an address" : "null");
}

static void check_counts(Request& request, int size) {
  std::vector<std::int64_t>* const sides[] = {&request.in_counts, &request.out_counts};
  const std::int64_t totals[] = {request.in.count, request.out.count};
  const std::size_t ranks = static_cast<std::size_t>(size);
  if (request.in_counts.empty() && request.out_counts.empty()) {
    SHOAL_CHECK(request.in.count == request.out.count && request.in.count % size == 0, InvalidInput,
                "comm: all_to_all of ", request.in.count, " elements into ", request.out.count, " between ",
                size, " ranks: not equal parts; say how many go to and come from each rank");
    for (auto* counts : sides) counts->assign(ranks, request.in.count / size);
  }
  for (int side = 0; side < 2; ++side) {
    const std::vector<std::int64_t>& counts = *sides[side];
    SHOAL_CHECK(counts.size() == ranks, InvalidInput, "comm: all_to_all with ", counts.size(),
                " counts between ", size, " ranks: wanted one for each");
    for (const std::int64_t count : counts)
      SHOAL_CHECK(count >= 0, InvalidInput, "comm: all_to_all with a count of ", count);
    const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    SHOAL_CHECK(sum == totals[side], InvalidInput, "comm: all_to_all with counts of ", sum,
                " elements in all, but a buffer of ", totals[side]);
  }
}

Call checked(Request& request, int rank, int size) {
  const Row& row = row_of(request.op);
  if (request.op == Op::Barrier) return {};
  SHOAL_CHECK(!row.has_peer || (request.peer >= 0 && request.peer < size), InvalidInput, "comm: ", row.name,
              ": rank ", request.peer, " is outside the group of ", size, " ranks");
  const bool is_root = row.has_peer && request.peer == rank;
  const bool has_in = !(request.op == Op::Scatter && !is_root) && request.op != Op::Receive;
  const bool has_out = !(request.op == Op::Gather && !is_root) && request.op != Op::Send;
  if (has_in) check_buffer(request.op, request.in);
  if (has_out) check_buffer(request.op, request.out);
  SHOAL_CHECK(!has_in || !has_out || request.in.dtype == request.out.dtype, InvalidInput, "comm: ", row.name,
              " from ", name_of(request.in.dtype), " to ", name_of(request.out.dtype),
              ": wanted one element type");
  Call call = {request.op, has_in ? request.in.dtype : request.out.dtype,
               has_in ? request.in.count : request.out.count};
  if (row.has_peer) call.peer = request.peer;
  call.tag = request.tag;
  if (row.reduces) {
    call.reduce = request.reduce;
    SHOAL_CHECK(request.reduce != ReduceOp::Average || is_floating(call.dtype), InvalidInput,
                "comm: ", row.name, " of ", name_of(call.dtype),
                " to their average: wanted a floating type, or another operation");
  }
  if (row.sizes == Sizes::InParts) call.count = request.out.count;
  if (row.sizes != Sizes::Any && has_in && has_out) {
    const std::int64_t parts = row.sizes == Sizes::OutParts ? request.out.count : request.in.count;
    SHOAL_CHECK(parts == call.count * size, InvalidInput, "comm: ", row.name, ": parts of ", call.count,
                " elements of ", size, " ranks: wanted ", call.count * size, " in the other buffer, got ",
                parts);
  }
  if (request.op == Op::AllToAll) {
    check_counts(request, size);
    call.count = 0;
  }
  return call;
}

std::string uneven_pair(std::uint64_t number, int from, std::int64_t sent, int to, std::int64_t taken) {
  return concat("comm: call ", number, ": rank ", from, " all_to_all(", sent, " to rank ", to, "), rank ", to,
                " all_to_all(", taken, " from rank ", from, ")");
}

std::string uneven_counts(std::uint64_t number, std::span<const Request> ranks) {
  if (ranks.empty() || ranks[0].op != Op::AllToAll) return "";
  for (std::size_t from = 0; from < ranks.size(); ++from)
    for (std::size_t to = 0; to < ranks.size(); ++to)
      if (ranks[from].in_counts[to] != ranks[to].out_counts[from])
        return uneven_pair(number, static_cast<int>(from), ranks[from].in_counts[to], static_cast<int>(to),
                           ranks[to].out_counts[from]);
  return "";
}

int place_in(std::span<const int> ranks, int rank, int size) {
  std::vector<int> seen(ranks.begin(), ranks.end());
  std::ranges::sort(seen);
  const auto twice = std::ranges::adjacent_find(seen);
  SHOAL_CHECK(twice == seen.end(), InvalidInput, "comm: subgroup: rank ", *twice, " is named twice");
  SHOAL_CHECK(seen.empty() || (seen.front() >= 0 && seen.back() < size), InvalidInput,
              "comm: subgroup: rank ", seen.front() < 0 ? seen.front() : seen.back(),
              " is outside the group of ", size, " ranks");
  const auto place = std::ranges::find(ranks, rank);
  SHOAL_CHECK(place != ranks.end(), InvalidInput, "comm: subgroup: rank ", rank,
              " calls it, but is not one of its ranks");
  return static_cast<int>(place - ranks.begin());
}

std::unique_ptr<Work> RequestCommunicator::broadcast(Buffer buffer, int root) {
  return submit({.op = Op::Broadcast, .in = buffer, .out = buffer, .peer = root});
}
std::unique_ptr<Work> RequestCommunicator::reduce(Buffer buffer, ReduceOp op, int root) {
  return submit({.op = Op::Reduce, .in = buffer, .out = buffer, .reduce = op, .peer = root});
}
std::unique_ptr<Work> RequestCommunicator::all_reduce(Buffer buffer, ReduceOp op) {
  return submit({.op = Op::AllReduce, .in = buffer, .out = buffer, .reduce = op});
}
std::unique_ptr<Work> RequestCommunicator::gather(ConstBuffer in, Buffer out, int root) {
  return submit({.op = Op::Gather, .in = in, .out = out, .peer = root});
}
std::unique_ptr<Work> RequestCommunicator::all_gather(ConstBuffer in, Buffer out) {
  return submit({.op = Op::AllGather, .in = in, .out = out});
}
std::unique_ptr<Work> RequestCommunicator::scatter(ConstBuffer in, Buffer out, int root) {
  return submit({.op = Op::Scatter, .in = in, .out = out, .peer = root});
}
std::unique_ptr<Work> RequestCommunicator::reduce_scatter(ConstBuffer in, Buffer out, ReduceOp op) {
  return submit({.op = Op::ReduceScatter, .in = in, .out = out, .reduce = op});
}
std::unique_ptr<Work> RequestCommunicator::all_to_all(ConstBuffer in, Buffer out,
                                                      std::span<const std::int64_t> in_counts,
                                                      std::span<const std::int64_t> out_counts) {
  return submit({.op = Op::AllToAll,
                 .in = in,
                 .out = out,
                 .in_counts = {in_counts.begin(), in_counts.end()},
                 .out_counts = {out_counts.begin(), out_counts.end()}});
}
std::unique_ptr<Work> RequestCommunicator::send(ConstBuffer buffer, int to, Tag tag) {
  return submit({.op = Op::Send, .in = buffer, .peer = to, .tag = tag});
}
std::unique_ptr<Work> RequestCommunicator::receive(Buffer buffer, int from, Tag tag) {
  return submit({.op = Op::Receive, .out = buffer, .peer = from, .tag = tag});
}
std::unique_ptr<Work> RequestCommunicator::barrier() { return submit({}); }

std::unique_ptr<Work> forward(Communicator& to, const Request& request) {
  switch (request.op) {
    case Op::Broadcast: return to.broadcast(request.out, request.peer);
    case Op::Reduce: return to.reduce(request.out, request.reduce, request.peer);
    case Op::AllReduce: return to.all_reduce(request.out, request.reduce);
    case Op::Gather: return to.gather(request.in, request.out, request.peer);
    case Op::AllGather: return to.all_gather(request.in, request.out);
    case Op::Scatter: return to.scatter(request.in, request.out, request.peer);
    case Op::ReduceScatter: return to.reduce_scatter(request.in, request.out, request.reduce);
    case Op::AllToAll: return to.all_to_all(request.in, request.out, request.in_counts, request.out_counts);
    case Op::Send: return to.send(request.in, request.peer, request.tag);
    case Op::Receive: return to.receive(request.out, request.peer, request.tag);
    case Op::Barrier: break;
  }
  return to.barrier();
}

void perform_alone(const Request& request) {
  if (request.in.data != request.out.data && request.in.count > 0)
    std::memmove(request.out.data, request.in.data,
                 static_cast<std::size_t>(request.in.count * bytes_of(request.in.dtype)));
}

namespace {

class DoneWork : public Work {
 public:
  void wait(std::chrono::nanoseconds) override {}
  bool done() override { return true; }
};

class PlainMemory : public Memory {
 public:
  explicit PlainMemory(std::int64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, mapped(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHOAL_CHECK(data_ != MAP_FAILED, Infeasible, "comm: no memory for ", human_bytes(bytes));
    hold(Holder::Communicators, bytes_);
  }
  PlainMemory(const PlainMemory&) = delete;
  PlainMemory& operator=(const PlainMemory&) = delete;
  ~PlainMemory() override {
    munmap(data_, mapped());
    hold(Holder::Communicators, -bytes_);
  }
  void* data() override { return data_; }
  std::int64_t bytes() const override { return bytes_; }

 private:
  std::size_t mapped() const { return static_cast<std::size_t>(std::max<std::int64_t>(bytes_, 1)); }

  std::int64_t bytes_;
  void* data_ = nullptr;
};

}  // namespace

std::unique_ptr<Work> done_work() { return std::make_unique<DoneWork>(); }

std::unique_ptr<Memory> plain_memory(std::int64_t bytes) {
  SHOAL_CHECK(bytes >= 0, InvalidInput, "comm: allocate of ", bytes, " bytes");
  return std::make_unique<PlainMemory>(bytes);
}

}  // namespace shoal::comm
