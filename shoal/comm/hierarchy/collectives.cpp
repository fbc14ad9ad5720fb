// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/hierarchy/collectives.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/reduce.h"

namespace shoal::comm {

// Waits are bounded by the caller, who ends the group.
static constexpr std::chrono::hours kForever{24 * 365};
// What goes over the link at a time while a host works on the next part.
static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

static void finish(const std::unique_ptr<Work>& work) { work->wait(kForever); }

static std::byte* at(const Buffer& buffer, std::int64_t element) {
  return static_cast<std::byte*>(buffer.data) + element * bytes_of(buffer.dtype);
}
static const std::byte* at(const ConstBuffer& buffer, std::int64_t element) {
  return static_cast<const std::byte*>(buffer.data) + element * bytes_of(buffer.dtype);
}
static Buffer part(const Buffer& buffer, std::int64_t first, std::int64_t count) {
  return {count == 0 ? nullptr : at(buffer, first), count, buffer.dtype};
}
static ConstBuffer part(const ConstBuffer& buffer, std::int64_t first, std::int64_t count) {
  return {count == 0 ? nullptr : at(buffer, first), count, buffer.dtype};
}
static void copy(const ConstBuffer& from, const Buffer& to) {
  if (from.count > 0)
    std::memmove(to.data, from.data, static_cast<std::size_t>(from.count * bytes_of(from.dtype)));
}

namespace {

// Elements for the time of a call, in memory of the host's communicator.
class Scratch {
 public:
  Scratch(Communicator& here, std::int64_t count, DType dtype)
      : memory_(here.allocate(std::max<std::int64_t>(count * bytes_of(dtype), 1))),
        buffer_{memory_->data(), count, dtype} {}
  const Buffer& buffer() const { return buffer_; }

 private:
  std::unique_ptr<Memory> memory_;
  Buffer buffer_;
};

struct Piece {
  std::int64_t first, count;
};

std::vector<Piece> pieces_of(const Buffer& buffer) {
  const std::int64_t most = kPieceBytes / bytes_of(buffer.dtype);
  std::vector<Piece> pieces;
  for (std::int64_t first = 0; first < buffer.count; first += most)
    pieces.push_back({first, std::min(most, buffer.count - first)});
  return pieces;
}

// Each piece through the host, over the link (`link`, where this rank has it), and through the host again; the
// link's part of one beside the host's of the next.
template <class Before, class Between, class After>
void in_pieces(const Buffer& buffer, Communicator* link, const Before& before, const Between& between,
               const After& after) {
  std::vector<std::pair<Piece, std::unique_ptr<Work>>> under_way;
  std::size_t done = 0;
  const auto end_one = [&] {
    auto& [piece, work] = under_way[done++];
    if (work) finish(std::exchange(work, nullptr));
    after(part(buffer, piece.first, piece.count));
  };
  try {
    for (const Piece& piece : pieces_of(buffer)) {
      before(part(buffer, piece.first, piece.count));
      under_way.emplace_back(piece,
                             link != nullptr ? between(part(buffer, piece.first, piece.count)) : nullptr);
      if (under_way.size() > done + 2) end_one();
    }
    while (done < under_way.size()) end_one();
  } catch (const Error& error) {
    // Before what is under way is given up: the first reason is that of all hosts.
    if (link != nullptr) link->abort(error.what(), error.kind());
    throw;
  }
}

// What all ranks have to say alike, as it is gathered.
struct Said {
  std::int64_t op = 0, dtype = 0, count = 0, reduce = 0, peer = 0;

  static Said of(const Call& call) {
    return {static_cast<std::int64_t>(call.op), static_cast<std::int64_t>(call.dtype), call.count,
            static_cast<std::int64_t>(call.reduce), call.peer};
  }
  Call call() const {
    return {static_cast<Op>(op), static_cast<DType>(dtype), count, static_cast<ReduceOp>(reduce),
            static_cast<int>(peer)};
  }
};
constexpr std::int64_t kWords = sizeof(Said) / sizeof(std::int64_t);

void compare(Communicator& group, const Call& call, std::uint64_t number, const std::vector<int>& ranks) {
  const Said mine = Said::of(call);
  std::vector<Said> all(ranks.size());
  finish(group.all_gather({&mine, kWords, DType::Int64},
                          {all.data(), kWords * static_cast<std::int64_t>(all.size()), DType::Int64}));
  for (std::size_t i = 1; i < all.size(); ++i)
    if (all[i].call() != all[0].call())
      fail(ErrorKind::InvalidInput, mismatch(number, ranks[0], all[0].call(), ranks[i], all[i].call()));
}

}  // namespace

void OnHosts::compare_here(const Call& call, std::uint64_t number) const {
  if (here.size() > 1) compare(here, call, number, members.of(host()));
}
void OnHosts::compare_hosts(const Call& call, std::uint64_t number) const {
  if (is_first()) compare(*firsts, call, number, members.firsts());
}

void OnHosts::run(const Request& request, const Call& call, std::uint64_t number) const {
  compare_here(call, number);
  // An all-reduce of one piece is compared as a whole where hosts make it, and nothing else begins with one. Of an
  // average hosts make the sum, as of a sum.
  const bool is_compared =
      call.op == Op::AllReduce && call.reduce != ReduceOp::Average && pieces_of(request.out).size() == 1;
  if (!is_compared) compare_hosts(call, number);
  switch (call.op) {
    case Op::Broadcast: return broadcast(request);
    case Op::Reduce: return reduce(request);
    case Op::AllReduce: return all_reduce(request);
    case Op::Gather: return gather(request, false);
    case Op::AllGather: return gather(request, true);
    case Op::Scatter: return scatter(request);
    case Op::ReduceScatter: return reduce_scatter(request);
    case Op::AllToAll: return all_to_all(request, number);
    case Op::Barrier: return barrier();
    case Op::Send:
    case Op::Receive: break;
  }
  fail(ErrorKind::Internal, "comm: a message is no collective of hosts");
}

// Of a sum, in place: the average is divided once, by all ranks.
static void divide(const Buffer& sum, int size) {
  std::byte* const to = at(sum, 0);
  const std::byte* const from = to;
  // The average of a sum and zeros: what the reduction's own arithmetic divides by.
  std::vector<std::byte> zeros(static_cast<std::size_t>(sum.count * bytes_of(sum.dtype)));
  std::vector<const std::byte*> all(static_cast<std::size_t>(size), zeros.data());
  all[0] = from;
  comm::reduce({.dtype = sum.dtype, .op = ReduceOp::Average, .count = sum.count}, all, {{to}});
}

static ReduceOp summing(ReduceOp op) { return op == ReduceOp::Average ? ReduceOp::Sum : op; }

void OnHosts::all_reduce(const Request& request) const {
  const ReduceOp op = summing(request.reduce);
  const int size = static_cast<int>(members.num_ranks());
  in_pieces(
      request.out, firsts, [&](const Buffer& piece) { finish(here.reduce(piece, op, 0)); },
      [&](const Buffer& piece) { return firsts->all_reduce(piece, op); },
      [&](const Buffer& piece) {
        if (is_first() && request.reduce == ReduceOp::Average) divide(piece, size);
        finish(here.broadcast(piece, 0));
      });
}

void OnHosts::broadcast(const Request& request) const {
  const int root_host = members.host_of(request.peer);
  const bool is_roots = host() == root_host;
  in_pieces(
      request.out, firsts,
      [&](const Buffer& piece) {
        if (is_roots) finish(here.broadcast(piece, members.place_of(request.peer)));
      },
      [&](const Buffer& piece) { return firsts->broadcast(piece, root_host); },
      [&](const Buffer& piece) {
        if (!is_roots) finish(here.broadcast(piece, 0));
      });
}

// Others' buffers stay as they are: a first rank that is not root sums up beside its own.
void OnHosts::reduce(const Request& request) const {
  const ReduceOp op = summing(request.reduce);
  const int root_host = members.host_of(request.peer), root = members.place_of(request.peer);
  const bool is_roots = host() == root_host, is_root = rank == request.peer;
  std::unique_ptr<Scratch> beside;
  Buffer sum = request.out;
  if (is_first() && !is_root) {
    beside = std::make_unique<Scratch>(here, sum.count, sum.dtype);
    sum = beside->buffer();
    copy(request.in, sum);
  }
  in_pieces(
      sum, firsts, [&](const Buffer& piece) { finish(here.reduce(piece, op, 0)); },
      [&](const Buffer& piece) { return firsts->reduce(piece, op, root_host); },
      [&](const Buffer& piece) {
        if (is_first() && is_roots && request.reduce == ReduceOp::Average) divide(piece, members.num_ranks());
        if (!is_roots || root == 0) return;
        if (is_first()) finish(here.send(piece, root));
        if (is_root) finish(here.receive(piece, 0));
      });
}

// Parts lie by rank; those of a host one after the other in `blocks`, host by host.
void OnHosts::gather(const Request& request, bool to_all) const {
  const std::int64_t count = request.in.count;
  const DType dtype = request.in.dtype;
  const std::int64_t all = count * members.num_ranks();
  const int root_host = to_all ? -1 : members.host_of(request.peer);
  const bool is_root = to_all || rank == request.peer;
  const bool is_taken = to_all || host() == root_host;  // this host has all parts in the end
  const auto block_of = [&](int of) {
    std::int64_t first = 0;
    for (int before = 0; before < of; ++before) first += count * std::ssize(members.of(before));
    return Piece{first, count * std::ssize(members.of(of))};
  };
  const Piece mine = block_of(host());
  std::unique_ptr<Scratch> blocks, ordered;
  Buffer block;
  if (is_first()) {
    blocks = std::make_unique<Scratch>(here, is_taken ? all : mine.count, dtype);
    block = part(blocks->buffer(), is_taken ? mine.first : 0, mine.count);
  }
  finish(here.gather(request.in, block, 0));
  if (is_first()) {
    std::vector<std::unique_ptr<Work>> works;
    for (int other = 0; other < members.num_hosts(); ++other) {
      if (other == host()) continue;
      const Piece its = block_of(other);
      if (to_all || other == root_host) works.push_back(firsts->send(ConstBuffer(block), other));
      if (is_taken) works.push_back(firsts->receive(part(blocks->buffer(), its.first, its.count), other));
    }
    for (const auto& work : works) finish(work);
  }
  if (!is_taken) return;
  Buffer out = request.out;
  if (is_first()) {
    if (!is_root) {
      ordered = std::make_unique<Scratch>(here, all, dtype);
      out = ordered->buffer();
    }
    for (int other = 0; other < members.num_hosts(); ++other)
      for (std::size_t place = 0; place < members.of(other).size(); ++place)
        copy(part(ConstBuffer(blocks->buffer()),
                  block_of(other).first + static_cast<std::int64_t>(place) * count, count),
             part(out, members.of(other)[place] * count, count));
  }
  if (to_all) return finish(here.broadcast(out, 0));
  if (members.place_of(request.peer) == 0) return;
  if (is_first()) finish(here.send(ConstBuffer(out), members.place_of(request.peer)));
  if (is_root) finish(here.receive(out, 0));
}

void OnHosts::scatter(const Request& request) const {
  const std::int64_t count = request.out.count;
  const DType dtype = request.out.dtype;
  const int root_host = members.host_of(request.peer), root = members.place_of(request.peer);
  const bool is_roots = host() == root_host, is_root = rank == request.peer;
  std::unique_ptr<Scratch> whole, ordered;
  ConstBuffer all = request.in, block;
  if (is_roots && root != 0) {  // to the first rank
    if (is_first()) {
      whole = std::make_unique<Scratch>(here, count * members.num_ranks(), dtype);
      finish(here.receive(whole->buffer(), root));
      all = whole->buffer();
    }
    if (is_root) finish(here.send(request.in, 0));
  }
  if (is_first()) {
    ordered =
        std::make_unique<Scratch>(here, is_roots ? count * members.num_ranks() : count * here.size(), dtype);
    if (is_roots) {
      std::vector<std::unique_ptr<Work>> works;
      std::int64_t first = 0;
      for (int other = 0; other < members.num_hosts(); ++other) {
        const auto& ranks = members.of(other);
        const Buffer its = part(ordered->buffer(), first, count * std::ssize(ranks));
        for (std::size_t place = 0; place < ranks.size(); ++place)
          copy(part(all, ranks[place] * count, count),
               part(its, static_cast<std::int64_t>(place) * count, count));
        first += its.count;
        if (other == host())
          block = its;
        else
          works.push_back(firsts->send(its, other));
      }
      for (const auto& work : works) finish(work);
    } else {
      finish(firsts->receive(ordered->buffer(), root_host));
      block = ordered->buffer();
    }
  }
  finish(here.scatter(block, request.out, 0));
}

// Summed up within each host, then each host sums up what all have for its own ranks.
void OnHosts::reduce_scatter(const Request& request) const {
  const ReduceOp op = summing(request.reduce);
  const std::int64_t count = request.out.count, all = count * members.num_ranks();
  const DType dtype = request.out.dtype;
  std::unique_ptr<Scratch> sums;
  Buffer sum{const_cast<void*>(request.in.data), request.in.count, dtype};  // which stays, but on first ranks
  if (is_first()) {
    sums = std::make_unique<Scratch>(here, all, dtype);
    sum = sums->buffer();
    copy(request.in, sum);
  }
  finish(here.reduce(sum, op, 0));
  ConstBuffer block;
  std::unique_ptr<Scratch> ordered, rows;
  if (is_first()) {
    ordered = std::make_unique<Scratch>(here, all, dtype);
    const std::int64_t mine = count * here.size();
    std::vector<std::int64_t> sends;
    std::int64_t first = 0;
    for (int other = 0; other < members.num_hosts(); ++other) {
      sends.push_back(count * std::ssize(members.of(other)));
      for (const int to : members.of(other)) {
        copy(part(ConstBuffer(sum), to * count, count), part(ordered->buffer(), first, count));
        first += count;
      }
    }
    rows = std::make_unique<Scratch>(here, mine * members.num_hosts(), dtype);
    const std::vector<std::int64_t> receives(sends.size(), mine);
    finish(firsts->all_to_all(ordered->buffer(), rows->buffer(), sends, receives));
    std::vector<const std::byte*> from;
    for (int other = 0; other < members.num_hosts(); ++other)
      from.push_back(at(rows->buffer(), other * mine));
    std::byte* const to = at(rows->buffer(), 0);
    if (mine > 0) comm::reduce({.dtype = dtype, .op = op, .count = mine}, from, {{to}});
    block = part(ConstBuffer(rows->buffer()), 0, mine);
    if (request.reduce == ReduceOp::Average) divide({to, mine, dtype}, members.num_ranks());
  }
  finish(here.scatter(block, request.out, 0));
}

void OnHosts::barrier() const {
  finish(here.barrier());
  if (is_first()) finish(firsts->barrier());
  finish(here.barrier());
}

}  // namespace shoal::comm
