// SPDX-License-Identifier: Apache-2.0
// Each collective is a job on a thread of its own, in the order of the calls: calls of the two communicators, one
// after the other. Before it moves anything a job compares its call, within the host and, where the first call
// between hosts would not do so, between hosts. Whoever sees an error ends both communicators with it, so that it
// is the error of all ranks.
#include "shoal/comm/hierarchy/hierarchy.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/hierarchy/collectives.h"
#include "shoal/comm/hierarchy/members.h"
#include "shoal/comm/lane.h"
#include "shoal/comm/pool.h"

namespace shoal::comm {

namespace {

// A message of one of the communicators, whose failure is that of the whole hierarchy while that is there.
class MessageWork final : public Work {
 public:
  MessageWork(std::unique_ptr<Work> inner, Ends& group, std::set<MessageWork*>& all)
      : inner_(std::move(inner)), group_(&group), all_(&all) {
    all_->insert(this);
  }
  MessageWork(const MessageWork&) = delete;
  MessageWork& operator=(const MessageWork&) = delete;
  ~MessageWork() override {
    if (all_ != nullptr) all_->erase(this);
  }
  void leave() {  // the group goes
    group_ = nullptr;
    all_ = nullptr;
  }

  void wait(std::chrono::nanoseconds limit) override {
    try {
      inner_->wait(limit);
    } catch (const Error& error) {
      if (group_ != nullptr) group_->fail_with(error);
      throw;
    }
  }
  bool done() override { return inner_->done(); }

 private:
  const std::unique_ptr<Work> inner_;
  Ends* group_;
  std::set<MessageWork*>* all_;  // of the group
};

class Hierarchy final : public RequestCommunicator, public Ends {
 public:
  Hierarchy(std::unique_ptr<Communicator> all, std::unique_ptr<Communicator> here, HostMembers members)
      : all_(std::move(all)), here_(std::move(here)), members_(std::move(members)) {
    std::vector<int> mine(static_cast<std::size_t>(here_->size()));
    std::iota(mine.begin(), mine.end(), 0);
    // Who waits for a collective does not let messages go on.
    messages_here_ = with_progress_thread(here_->subgroup(mine));
    if (here_->rank() == 0) firsts_ = all_->subgroup(members_.firsts());
  }
  Hierarchy(const Hierarchy&) = delete;
  Hierarchy& operator=(const Hierarchy&) = delete;
  ~Hierarchy() override {
    for (MessageWork* const message : messages_) message->leave();
    if (num_under_way_ != 0)
      fail_with({ErrorKind::PeerLost, concat("comm: rank ", rank(), " left with calls under way")});
  }

  int rank() const override { return all_->rank(); }
  int size() const override { return all_->size(); }
  bool is_asynchronous() const override { return true; }
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override { return messages_here_->allocate(bytes); }
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason, ErrorKind kind) noexcept override {
    fail_with(Error(kind, std::string(reason)));
  }
  void fail_with(const Error& error) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = error;
    }
    for (Communicator* each : {all_.get(), here_.get(), messages_here_.get(), firsts_.get()})
      if (each != nullptr) each->abort(error.what(), error.kind());
  }

 private:
  std::unique_ptr<Work> submit(Request request) override;
  void run(LaneWork& work, const Request& request, const Call& call, std::uint64_t number);
  void throw_if_ended() {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
  }

  // `here_` and `firsts_` are the lane's, `all_` and `messages_here_` the caller's, for messages.
  const std::unique_ptr<Communicator> all_, here_;
  const HostMembers members_;
  std::unique_ptr<Communicator> messages_here_, firsts_;  // firsts_ on first ranks alone
  std::set<MessageWork*> messages_;                       // that are not freed yet
  std::uint64_t num_calls_ = 0;
  std::atomic<int> num_under_way_ = 0;
  std::mutex mutex_;  // guards failure_
  std::optional<Error> failure_;
  Lane lane_;  // last: its thread uses the rest
};

std::unique_ptr<Work> Hierarchy::submit(Request request) {
  const Call call = checked(request, rank(), size());
  throw_if_ended();
  if (call.op == Op::Send || call.op == Op::Receive) {
    const bool is_near = members_.host_of(call.peer) == members_.host_of(rank());
    if (is_near) request.peer = members_.place_of(call.peer);
    return std::make_unique<MessageWork>(forward(is_near ? *messages_here_ : *all_, request), *this,
                                         messages_);
  }
  const std::uint64_t number = num_calls_++;
  lane_.start();
  auto work = std::make_unique<LaneWork>(
      *this, concat("comm: call ", number, ", ", describe(call), " of rank ", rank()));
  ++num_under_way_;
  lane_.run([this, &work = *work, request = std::move(request), call, number] {
    run(work, request, call, number);
  });
  return work;
}

void Hierarchy::run(LaneWork& work, const Request& request, const Call& call, std::uint64_t number) {
  std::optional<Error> error;
  try {
    throw_if_ended();
    OnHosts{members_, rank(), *here_, firsts_.get()}.run(request, call, number);
  } catch (const Error& caught) {
    error = caught;
  } catch (const std::exception& caught) {
    error = Error(ErrorKind::Internal, caught.what());
  }
  if (error) {
    fail_with(*error);
    const std::lock_guard lock(mutex_);
    error = failure_;
  }
  --num_under_way_;
  work.finish(std::move(error));
}

std::unique_ptr<Communicator> Hierarchy::subgroup(std::span<const int> ranks) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  place_in(ranks, rank(), size());
  SHOAL_CHECK(num_under_way_ == 0, InvalidInput, "comm: subgroup of rank ", rank(),
              ": it has calls under way; wait for them first");
  std::vector<int> here, first_ranks;
  for (const int member : members) {
    if (members_.host_of(member) == members_.host_of(rank())) here.push_back(members_.place_of(member));
    const auto same_host = [&](int other) { return members_.host_of(other) == members_.host_of(member); };
    first_ranks.push_back(static_cast<int>(std::ranges::find_if(members, same_host) - members.begin()));
  }
  if (here.size() == members.size()) return messages_here_->subgroup(here);
  auto between = all_->subgroup(members);
  const HostMembers of_group(first_ranks);
  if (of_group.num_hosts() == static_cast<int>(members.size())) return between;  // one of each host
  return hierarchy(std::move(between), messages_here_->subgroup(here), first_ranks);
}

}  // namespace

std::unique_ptr<Communicator> hierarchy(std::unique_ptr<Communicator> all, std::unique_ptr<Communicator> here,
                                        const std::vector<int>& first_ranks) {
  SHOAL_CHECK(std::cmp_equal(first_ranks.size(), all->size()), InvalidInput, "comm: a hierarchy of ",
              all->size(), " ranks, and the hosts of ", first_ranks.size());
  HostMembers members(first_ranks);
  const int host = members.host_of(all->rank());
  SHOAL_CHECK(
      std::cmp_equal(members.of(host).size(), here->size()) && members.place_of(all->rank()) == here->rank(),
      InvalidInput, "comm: rank ", all->rank(), " is number ", members.place_of(all->rank()), " of ",
      members.of(host).size(), " on its host, and in the host's communicator number ", here->rank(), " of ",
      here->size());
  if (members.num_hosts() == 1) return here;
  return std::make_unique<Hierarchy>(std::move(all), std::move(here), std::move(members));
}

}  // namespace shoal::comm
