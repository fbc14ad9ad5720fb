// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/shm/group.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "shoal/base/error.h"

namespace shoal::comm::shm {

using rendezvous::Clock;

// How often a waiting rank looks before it sleeps: some 30 µs, or, where ranks have to take turns on the
// cores, a few turns.
static constexpr int kLooks = 1000;
static constexpr int kCrowdedLooks = 30;
static constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(5);
static constexpr std::chrono::nanoseconds kShortNap = std::chrono::microseconds(200);

static int num_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

static void pause_briefly() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

Group::Group(std::shared_ptr<Heap> heap, std::shared_ptr<Mapping> memory, int rank, int size,
             int num_ranks_here)
    : heap_(std::move(heap)),
      memory_(std::move(memory)),
      control_(memory_->data(), size),
      rank_(rank),
      size_(size),
      num_ranks_here_(std::max(size, num_ranks_here)),
      crowded_(num_ranks_here_ > num_cores()) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  num_sent_.resize(ranks);
  num_received_.resize(ranks);
  for (auto* pointers : {&staging_, &in_, &out_, &stages_}) pointers->resize(ranks);
  in_counts_.resize(ranks);
  out_counts_.resize(ranks);
  rings_.resize(ranks);
  traffic_.pulled.resize(ranks);
  traffic_.pushed.resize(ranks);
  control_.state(rank).pid = getpid();
}

Group::~Group() {
  if (!collectives_.empty() || !messages_.empty())
    end(ErrorKind::PeerLost, concat("comm: rank ", rank_, " has left the group with calls under way"));
  heap_->under_way().remove(*this);
  if (control_.header().ended.load() != 0) settle();
  for (Job* job : collectives_) job->group_ = nullptr;
  for (Job* job : messages_) job->group_ = nullptr;
  control_.state(rank_).left.store(1);
  wake_all();
  for (const int peer : peers_)
    if (peer >= 0) close(peer);
}

void Group::watch_peers() {
  for (int r = 0; r < size_; ++r) {
    const int pid = control_.state(r).pid;
    const long descriptor = pid == getpid() ? -1 : syscall(SYS_pidfd_open, pid, 0);
    peers_.push_back(static_cast<int>(descriptor));
  }
}

std::unique_ptr<Work> Group::submit(Request request) {
  const Call call = checked(request, rank_, size_);
  throw_if_ended();
  std::unique_ptr<Job> job;
  if (call.op == Op::Send || call.op == Op::Receive) {
    const std::size_t peer = static_cast<std::size_t>(call.peer);
    const std::uint32_t number = call.op == Op::Send ? ++num_sent_[peer] : ++num_received_[peer];
    job = std::make_unique<Job>(*this, call, number);
    job->task_ = call.op == Op::Send ? send(std::move(request), call, number)
                                     : receive(std::move(request), call, number);
    messages_.push_back(job.get());
    list();
  } else {
    const std::uint32_t number = ++num_collectives_;
    job = std::make_unique<Job>(*this, call, number);
    job->task_ = collective(std::move(request), call, number);
    collectives_.push_back(job.get());
  }
  advance();
  if (!job->finished_) list();
  return job;
}

void Group::list() {
  if (listed_by_ == std::this_thread::get_id()) return;
  listed_by_ = std::this_thread::get_id();
  heap_->under_way().add(*this);
}
void Group::unlist_if_idle() noexcept {
  if (listed_by_ == std::thread::id() || !collectives_.empty() || !messages_.empty()) return;
  listed_by_ = {};
  heap_->under_way().remove(*this);
}

bool Group::advance() {
  bool moved = false;
  try {
    while (!collectives_.empty()) {
      Job& job = *collectives_.front();
      if (!job.task_.advance()) break;
      moved = true;
      if (!job.task_.done()) continue;
      job.finished_ = true;
      collectives_.pop_front();
    }
    for (std::size_t i = 0; i < messages_.size();) {
      Job& job = *messages_[i];
      if (!job.task_.advance()) {
        ++i;
        continue;
      }
      moved = true;
      if (!job.task_.done()) continue;
      job.finished_ = true;
      messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    unlist_if_idle();
  } catch (const Error& error) {
    end(error.kind(), error.what());
  } catch (const std::exception& error) {
    end(ErrorKind::Internal, error.what());
  }
  return moved;
}

bool Group::advance_all() {
  bool moved = advance();
  for (Group* other : heap_->under_way().of_this_thread())
    if (other != this) moved |= other->advance();
  return moved;
}

void Group::wait(Job& job, std::chrono::nanoseconds limit) {
  advance();
  if (job.finished_) return;
  const Clock::time_point deadline = rendezvous::deadline_after(limit);
  int looks = 0;
  while (!job.finished_) {
    if (advance_all() || job.finished_) {
      looks = 0;
      continue;
    }
    throw_if_ended();
    if (++looks < (crowded_ ? kCrowdedLooks : kLooks)) {
      if (crowded_) {
        sched_yield();
      } else {
        pause_briefly();
      }
      continue;
    }
    sleep(deadline);
    if (advance_all() || job.finished_) {
      looks = 0;
      continue;
    }
    throw_if_ended();
    if (Clock::now() >= deadline) {
      end(ErrorKind::Timeout, concat(what(job), ": rank ", rank_, " waited ",
                                     std::chrono::duration<double>(limit).count(), " s for ", missing(job)));
      throw_if_ended();
      fail(ErrorKind::Timeout, what(job), ": another rank has ended the group, and died before it said why");
    }
  }
}

// Either this rank sees what a peer wrote, or the peer sees that it sleeps: both write first and then look,
// in one order for all.
void Group::sleep(Clock::time_point deadline) {
  RankState& state = control_.state(rank_);
  state.sleeping.store(1, std::memory_order_seq_cst);
  bool ready = control_.header().ended.load() != 0;
  if (!collectives_.empty()) ready = ready || collectives_.front()->task_.ready();
  for (const Job* job : messages_) ready = ready || job->task_.ready();
  bool napped = false;
  if (!ready) {
    // What moves another group's calls wakes nobody here.
    const auto others = heap_->under_way().of_this_thread();
    const bool is_alone = others.empty() || (others.size() == 1 && others[0] == this);
    const auto left = std::clamp<std::chrono::nanoseconds>(
        deadline - Clock::now(), std::chrono::nanoseconds{0}, is_alone ? kNap : kShortNap);
    const timespec nap = {.tv_sec = 0, .tv_nsec = left.count()};
    syscall(SYS_futex, &state.sleeping, FUTEX_WAIT, 1, &nap, nullptr, 0);
    napped = state.sleeping.load() == 1;  // nobody woke it
  }
  state.sleeping.store(0);
  if (napped) check_peers();
}

void Group::wake(int rank) noexcept {
  RankState& state = control_.state(rank);
  if (state.sleeping.load(std::memory_order_seq_cst) == 0 || state.sleeping.exchange(0) == 0) return;
  syscall(SYS_futex, &state.sleeping, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Group::wake_all() noexcept {
  for (int r = 0; r < size_; ++r)
    if (r != rank_) wake(r);
}

// A rank that has gone, and with whom a call that has not moved since has to do.
void Group::check_peers() {
  std::vector<bool> wanted(static_cast<std::size_t>(size_), !collectives_.empty());
  for (const Job* job : messages_) wanted[static_cast<std::size_t>(job->call_.peer)] = true;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || !wanted[static_cast<std::size_t>(r)]) continue;
    const bool dead = has_died(r);
    const bool left = control_.state(r).left.load() != 0;
    if (!dead && !left) continue;
    if (advance()) return;  // what it did last was enough, perhaps for all that was wanted of the others too
    end(ErrorKind::PeerLost,
        left ? concat("comm: rank ", r, " has left the group")
             : concat("comm: rank ", r, " (process ", control_.state(r).pid, ") has ended"));
    return;
  }
}

void Group::end(ErrorKind kind, std::string_view why) noexcept {
  Header& header = control_.header();
  std::uint32_t no = 0;
  if (header.ended.compare_exchange_strong(no, 1)) {
    header.kind = static_cast<std::int32_t>(kind);
    const std::size_t length = std::min(why.size(), sizeof header.why - 1);
    std::memcpy(header.why, why.data(), length);
    header.why[length] = '\0';
    header.ended.store(2);
  }
  for (int r = 0; r < size_; ++r) wake(r);
}

void Group::throw_if_ended() const {
  const Header& header = control_.header();
  if (header.ended.load() != 2) return;
  settle();
  const bool is_known = header.kind >= 0 && header.kind <= static_cast<std::int32_t>(ErrorKind::Internal);
  throw Error(is_known ? static_cast<ErrorKind>(header.kind) : ErrorKind::Corrupt,
              std::string(header.why, strnlen(header.why, sizeof header.why)));
}

bool Group::has_died(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  pollfd process = {.fd = r < peers_.size() ? peers_[r] : -1, .events = POLLIN, .revents = 0};
  return process.fd >= 0 && poll(&process, 1, 0) == 1;
}

// As in `sleep`: either this rank sees that the group has ended, or who ended it sees that it is inside.
Group::Inside::Inside(const Group& group) : inside_(group.control_.progress(group.rank_).inside) {
  inside_.store(1, std::memory_order_seq_cst);
  if (group.control_.header().ended.load() == 0) return;
  inside_.store(0);
  group.throw_if_ended();
  fail(ErrorKind::PeerLost, "comm: the group has ended");
}

void Group::settle() const noexcept {
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds{1};
  for (int r = 0; r < size_; ++r)
    while (r != rank_ && control_.progress(r).inside.load() != 0 && !has_died(r) && Clock::now() < deadline)
      sched_yield();
}

std::string Group::what(const Job& job) {
  const bool message = job.call_.op == Op::Send || job.call_.op == Op::Receive;
  if (!message && job.number_ < kFirstCall) return "comm: the first meeting of a group";
  return concat("comm: call ", job.number_ - (message ? 1 : kFirstCall), ", ", describe(job.call_));
}

std::string Group::missing(const Job& job) const {
  if (job.call_.op == Op::Send || job.call_.op == Op::Receive) return concat("rank ", job.call_.peer);
  std::string ranks;
  for (int r = 0; r < size_; ++r)
    if (static_cast<std::int32_t>(control_.slot(r, job.number_).number.load() - job.number_) < 0)
      ranks += concat(ranks.empty() ? "rank " : ", ", r);
  return ranks.empty() ? "the others to go on" : ranks;
}

void Group::forget(Job& job) {
  std::erase(collectives_, &job);
  std::erase(messages_, &job);
  unlist_if_idle();
  end(ErrorKind::PeerLost, concat(what(job), ": rank ", rank_, " did not wait for it"));
  settle();
}

std::byte* Group::at(const Place place, std::int64_t bytes) {
  const auto known = std::ranges::find(mapped_inodes_, place.segment.inode);
  const auto i = static_cast<std::size_t>(known - mapped_inodes_.begin());
  if (known == mapped_inodes_.end()) {
    mapped_.push_back(heap_->mappings()->of(place.segment));
    mapped_inodes_.push_back(place.segment.inode);
  }
  const Mapping& mapping = *mapped_[i];
  SHOAL_CHECK(
      place.offset >= 0 && bytes >= 0 && bytes <= mapping.bytes() && place.offset <= mapping.bytes() - bytes,
      Corrupt, "shm: process ", place.segment.pid, " says that ", bytes, " bytes are at byte ", place.offset,
      " of shared memory that has ", mapping.bytes());
  return mapping.data() + place.offset;
}

Job::~Job() {
  if (group_ && !finished_) group_->forget(*this);
}

void Job::wait(std::chrono::nanoseconds limit) {
  if (finished_) return;
  SHOAL_CHECK(group_, PeerLost, Group::what(*this), ": its communicator ended before it was waited for");
  group_->wait(*this, limit);
}

bool Job::done() {
  if (finished_ || !group_) return true;
  group_->advance();
  if (finished_ || group_->control_.header().ended.load() == 2) return true;
  if (++group_->num_polls_ % 256 == 0) group_->check_peers();
  return group_->control_.header().ended.load() == 2;
}

}  // namespace shoal::comm::shm
