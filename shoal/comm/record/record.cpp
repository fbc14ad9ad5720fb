// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/record/record.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "shoal/base/error.h"

namespace shoal::comm {

std::string to_text(const RecordedCall& call) {
  std::string text = describe(call.call) + " between";
  for (const int rank : call.group) text += " " + std::to_string(rank);
  return concat(text, ", ", call.in_count, " in, ", call.out_count, " out");
}

namespace {

std::byte* at(const Buffer& buffer, std::int64_t element) {
  return static_cast<std::byte*>(buffer.data) + element * bytes_of(buffer.dtype);
}
const std::byte* at(const ConstBuffer& buffer, std::int64_t element) {
  return static_cast<const std::byte*>(buffer.data) + element * bytes_of(buffer.dtype);
}

class Record : public RequestCommunicator {
 public:
  Record(int rank, std::vector<int> group, std::vector<RecordedCall>& log)
      : rank_(rank), group_(std::move(group)), log_(log) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.size()); }
  bool is_asynchronous() const override { return false; }
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override { return plain_memory(bytes); }
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) override {
    const int place = place_in(ranks, rank_, size());
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(group_[static_cast<std::size_t>(rank)]);
    return std::make_unique<Record>(place, std::move(members), log_);
  }
  void abort(std::string_view reason, ErrorKind kind) noexcept override {
    if (!ended_) ended_ = Error(kind, std::string(reason));
  }

 private:
  std::unique_ptr<Work> submit(Request request) override;

  int rank_;
  std::vector<int> group_;
  std::vector<RecordedCall>& log_;
  std::optional<Error> ended_;
};

std::unique_ptr<Work> Record::submit(Request request) {
  const Call call = checked(request, rank_, size());
  if (ended_) throw Error(*ended_);
  log_.push_back({group_, call, request.in.count, request.out.count});

  // Where this rank's own part lies on each side; all else that comes is zeros.
  std::int64_t in_first = 0, out_first = 0, count = 0;
  const bool is_root = call.peer == rank_;
  switch (call.op) {
    case Op::Reduce:
    case Op::AllReduce:
    case Op::Send:
    case Op::Barrier: return done_work();
    case Op::Broadcast: count = is_root ? call.count : 0; break;
    case Op::Gather:
      if (!is_root) return done_work();
      [[fallthrough]];
    case Op::AllGather:
      out_first = rank_ * call.count;
      count = call.count;
      break;
    case Op::Scatter:
      in_first = rank_ * call.count;
      count = is_root ? call.count : 0;
      break;
    case Op::ReduceScatter:
      in_first = rank_ * call.count;
      count = call.count;
      break;
    case Op::AllToAll:
      in_first =
          std::accumulate(request.in_counts.begin(), request.in_counts.begin() + rank_, std::int64_t{0});
      out_first =
          std::accumulate(request.out_counts.begin(), request.out_counts.begin() + rank_, std::int64_t{0});
      count = std::min(request.in_counts[static_cast<std::size_t>(rank_)],
                       request.out_counts[static_cast<std::size_t>(rank_)]);
      break;
    case Op::Receive: break;
  }
  const std::size_t width = static_cast<std::size_t>(bytes_of(call.dtype));
  const auto zero = [&](std::int64_t first, std::int64_t end) {
    if (end > first) std::memset(at(request.out, first), 0, static_cast<std::size_t>(end - first) * width);
  };
  if (count > 0)  // memmove: the part may be where it belongs already
    std::memmove(at(request.out, out_first), at(request.in, in_first),
                 static_cast<std::size_t>(count) * width);
  zero(0, out_first);
  zero(out_first + count, request.out.count);
  return done_work();
}

}  // namespace

std::unique_ptr<Communicator> record(int rank, int size, std::vector<RecordedCall>& log) {
  SHOAL_CHECK(size > 0 && rank >= 0 && rank < size, InvalidInput, "comm: rank ", rank, " of ", size);
  std::vector<int> group(static_cast<std::size_t>(size));
  std::iota(group.begin(), group.end(), 0);
  return std::make_unique<Record>(rank, std::move(group), log);
}

}  // namespace shoal::comm
