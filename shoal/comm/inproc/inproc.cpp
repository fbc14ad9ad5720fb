// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/inproc/inproc.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/reduce.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::comm {

namespace {

struct Posted {
  Request request;
  Call call;
};

// One collective call: what each rank that has come asked for.
struct Round {
  std::vector<std::optional<Posted>> ranks;
  int num_posted = 0;
};

// What goes from one rank to another, in order.
struct Channel {
  std::deque<Posted> sends, receives;
  std::uint64_t num_done = 0;
};

// A group, shared by the communicators of its ranks and by their works. The mutex guards all of it.
struct Group {
  explicit Group(int ranks)
      : size(ranks), num_called(static_cast<std::size_t>(ranks)), left(static_cast<std::size_t>(ranks)) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, Round> rounds;  // those that are not done, by number
  std::uint64_t num_done = 0;
  std::vector<std::uint64_t> num_called;  // by each rank
  std::map<std::pair<int, int>, Channel> channels;
  std::vector<bool> left;  // whose communicator has ended
  std::optional<Error> error;
  // Groups that some of their ranks have joined: by ranks and how many times these have made such a group.
  std::map<std::pair<std::vector<int>, int>, std::pair<std::shared_ptr<Group>, int>> joining;
  std::map<std::pair<std::vector<int>, int>, int> num_joined;  // by ranks and rank

  void end(Error why) {
    if (!error) error = std::move(why);
    changed.notify_all();
  }
};

std::byte* bytes_at(const Buffer& buffer, std::int64_t element) {
  return static_cast<std::byte*>(buffer.data) + element * bytes_of(buffer.dtype);
}
const std::byte* bytes_at(const ConstBuffer& buffer, std::int64_t element) {
  return static_cast<const std::byte*>(buffer.data) + element * bytes_of(buffer.dtype);
}

// memmove: a rank's own part may lie in its result.
void copy(const std::byte* from, std::byte* to, std::int64_t count, DType dtype) {
  if (count > 0) std::memmove(to, from, static_cast<std::size_t>(count * bytes_of(dtype)));
}

void reduce_part(const std::vector<Request>& requests, ReduceOp op, std::int64_t first,
                 const std::vector<std::byte*>& to, std::int64_t count) {
  std::vector<const std::byte*> from;
  for (const Request& request : requests) from.push_back(bytes_at(request.in, first));
  reduce({.dtype = requests[0].in.dtype, .op = op, .count = count}, from, to);
}

// The parts of `all_to_all` lie one after the other.
std::int64_t sum_before(const std::vector<std::int64_t>& counts, int rank) {
  std::int64_t sum = 0;
  for (int i = 0; i < rank; ++i) sum += counts[static_cast<std::size_t>(i)];
  return sum;
}

// What each operation means, for all ranks at once.
void perform(const Call& call, const std::vector<Request>& ranks) {
  const int size = static_cast<int>(ranks.size());
  const auto at = [&](int rank) -> const Request& { return ranks[static_cast<std::size_t>(rank)]; };
  const std::int64_t count = call.count;
  std::vector<std::byte*> outs;
  for (const Request& request : ranks) outs.push_back(static_cast<std::byte*>(request.out.data));
  switch (call.op) {
    case Op::Broadcast:
      for (int r = 0; r < size; ++r)
        copy(bytes_at(at(call.peer).in, 0), bytes_at(at(r).out, 0), count, call.dtype);
      break;
    case Op::Reduce:
      reduce_part(ranks, call.reduce, 0, {outs[static_cast<std::size_t>(call.peer)]}, count);
      break;
    case Op::AllReduce: reduce_part(ranks, call.reduce, 0, outs, count); break;
    case Op::Gather:
      for (int r = 0; r < size; ++r)
        copy(bytes_at(at(r).in, 0), bytes_at(at(call.peer).out, r * count), count, call.dtype);
      break;
    case Op::AllGather:
      for (int to = 0; to < size; ++to)
        for (int r = 0; r < size; ++r)
          copy(bytes_at(at(r).in, 0), bytes_at(at(to).out, r * count), count, call.dtype);
      break;
    case Op::Scatter:
      for (int r = 0; r < size; ++r)
        copy(bytes_at(at(call.peer).in, r * count), bytes_at(at(r).out, 0), count, call.dtype);
      break;
    case Op::ReduceScatter:
      for (int r = 0; r < size; ++r)
        reduce_part(ranks, call.reduce, r * count, {outs[static_cast<std::size_t>(r)]}, count);
      break;
    case Op::AllToAll:
      for (int to = 0; to < size; ++to)
        for (int r = 0; r < size; ++r)
          copy(bytes_at(at(r).in, sum_before(at(r).in_counts, to)),
               bytes_at(at(to).out, sum_before(at(to).out_counts, r)),
               at(r).in_counts[static_cast<std::size_t>(to)], call.dtype);
      break;
    case Op::Send:
    case Op::Receive:
    case Op::Barrier: break;
  }
}

// A call of one rank: done when its counter has passed its number.
class InprocWork : public Work {
 public:
  InprocWork(std::shared_ptr<Group> group, const std::uint64_t* num_done, std::uint64_t number,
             std::string what)
      : group_(std::move(group)), num_done_(num_done), number_(number), what_(std::move(what)) {}
  InprocWork(const InprocWork&) = delete;
  InprocWork& operator=(const InprocWork&) = delete;
  ~InprocWork() override {
    const std::lock_guard lock(group_->mutex);
    if (*num_done_ <= number_) group_->end({ErrorKind::PeerLost, "comm: " + what_ + " was not waited for"});
  }

  void wait(std::chrono::nanoseconds limit) override {
    std::unique_lock lock(group_->mutex);
    const auto over = [&] { return *num_done_ > number_ || group_->error; };
    if (!group_->changed.wait_until(lock, rendezvous::deadline_after(limit), over))
      group_->end({ErrorKind::Timeout, concat("comm: ", what_, " was not done within ",
                                              std::chrono::duration<double>(limit).count(), " s")});
    if (*num_done_ <= number_) throw Error(*group_->error);
  }

  bool done() override {
    const std::lock_guard lock(group_->mutex);
    return *num_done_ > number_ || group_->error;
  }

 private:
  std::shared_ptr<Group> group_;
  const std::uint64_t* num_done_;  // in the group
  std::uint64_t number_;
  std::string what_;
};

class Inproc : public RequestCommunicator {
 public:
  Inproc(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  Inproc(const Inproc&) = delete;
  Inproc& operator=(const Inproc&) = delete;
  ~Inproc() override;

  int rank() const override { return rank_; }
  int size() const override { return group_->size; }
  bool is_asynchronous() const override { return true; }  // the last rank to come does all
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override { return plain_memory(bytes); }
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason, ErrorKind kind) noexcept override {
    const std::lock_guard lock(group_->mutex);
    group_->end({kind, std::string(reason)});
  }

 private:
  std::unique_ptr<Work> submit(Request request) override;
  std::unique_ptr<Work> post_collective(Posted posted);
  std::unique_ptr<Work> post_message(Posted posted);
  void check_there(int rank, const Call& call);  // whether it still can come

  std::shared_ptr<Group> group_;
  int rank_;
};

std::unique_ptr<Work> Inproc::submit(Request request) {
  const Call call = checked(request, rank_, size());
  const std::lock_guard lock(group_->mutex);
  if (group_->error) throw Error(*group_->error);
  if (call.op == Op::Send || call.op == Op::Receive) return post_message({std::move(request), call});
  return post_collective({std::move(request), call});
}

void Inproc::check_there(int rank, const Call& call) {
  if (!group_->left[static_cast<std::size_t>(rank)]) return;
  group_->end(
      {ErrorKind::PeerLost, concat("comm: ", describe(call), ": rank ", rank, " has left the group")});
  throw Error(*group_->error);
}

std::unique_ptr<Work> Inproc::post_collective(Posted posted) {
  const std::uint64_t number = group_->num_called[static_cast<std::size_t>(rank_)]++;
  const std::string what = concat("call ", number, ", ", describe(posted.call), " of rank ", rank_, ",");
  Round& round = group_->rounds[number];
  round.ranks.resize(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r)
    if (!round.ranks[static_cast<std::size_t>(r)]) check_there(r, posted.call);
  const Call call = posted.call;
  round.ranks[static_cast<std::size_t>(rank_)] = std::move(posted);
  if (++round.num_posted == size()) {
    std::vector<Request> requests;
    std::string difference;
    for (int r = 0; r < size(); ++r) {
      const Call &first = round.ranks[0]->call, &other = round.ranks[static_cast<std::size_t>(r)]->call;
      if (difference.empty() && other != first) difference = mismatch(number, 0, first, r, other);
      requests.push_back(round.ranks[static_cast<std::size_t>(r)]->request);
    }
    if (difference.empty()) difference = uneven_counts(number, requests);
    if (!difference.empty()) {
      group_->end({ErrorKind::InvalidInput, difference});
      throw Error(*group_->error);
    }
    perform(call, requests);
    group_->rounds.erase(number);
    ++group_->num_done;
    group_->changed.notify_all();
  }
  return std::make_unique<InprocWork>(group_, &group_->num_done, number, what);
}

std::unique_ptr<Work> Inproc::post_message(Posted posted) {
  const bool sends = posted.call.op == Op::Send;
  const int peer = posted.call.peer;
  check_there(peer, posted.call);
  const auto [from, to] = sends ? std::pair(rank_, peer) : std::pair(peer, rank_);
  Channel& channel = group_->channels[{from, to}];
  auto& mine = sends ? channel.sends : channel.receives;
  const std::uint64_t number = channel.num_done + mine.size();
  const std::string what = concat("call ", number, ", ", describe(posted.call), " of rank ", rank_, ",");
  mine.push_back(std::move(posted));
  if (!channel.sends.empty() && !channel.receives.empty()) {
    const Posted sent = std::move(channel.sends.front()), received = std::move(channel.receives.front());
    channel.sends.pop_front();
    channel.receives.pop_front();
    if (!is_one_message(sent.call, received.call)) {
      group_->end({ErrorKind::InvalidInput, mismatch(number, from, sent.call, to, received.call)});
      throw Error(*group_->error);
    }
    copy(bytes_at(sent.request.in, 0), bytes_at(received.request.out, 0), sent.call.count, sent.call.dtype);
    ++channel.num_done;
    group_->changed.notify_all();
  }
  return std::make_unique<InprocWork>(group_, &channel.num_done, number, what);
}

std::unique_ptr<Communicator> Inproc::subgroup(std::span<const int> ranks) {
  const int place = place_in(ranks, rank_, size());
  const std::vector<int> members(ranks.begin(), ranks.end());
  const std::lock_guard lock(group_->mutex);
  if (group_->error) throw Error(*group_->error);
  const std::pair key(members, group_->num_joined[{members, rank_}]++);
  auto& [group, num_there] = group_->joining[key];
  if (!group) group = std::make_shared<Group>(static_cast<int>(members.size()));
  auto joined = std::make_unique<Inproc>(group, place);
  if (++num_there == static_cast<int>(members.size())) group_->joining.erase(key);
  return joined;
}

Inproc::~Inproc() {
  const std::lock_guard lock(group_->mutex);
  group_->left[static_cast<std::size_t>(rank_)] = true;
  bool missed = !group_->rounds.empty();
  for (const auto& [ends, channel] : group_->channels)
    if (ends.first == rank_ || ends.second == rank_)
      missed = missed || !channel.sends.empty() || !channel.receives.empty();
  if (missed) group_->end({ErrorKind::PeerLost, concat("comm: rank ", rank_, " has left the group")});
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> inproc(int size) {
  SHOAL_CHECK(size > 0, InvalidInput, "comm: a group of ", size, " ranks");
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_unique<Inproc>(group, rank));
  return ranks;
}

}  // namespace shoal::comm
