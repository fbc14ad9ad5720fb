// SPDX-License-Identifier: Apache-2.0
// One rank's side of a group: its calls under way, and how it waits for the others.
//
// Nothing runs on its own: a call goes on inside the calls of this communicator and their works' wait() and
// done(), collectives one after the other, messages beside them. Calls of a thread's other groups go on too
// while it waits: whom it waits for may wait for one of these. Who waits looks for a while at what the
// others write and then sleeps on a word of its own, which a rank that has written something looks at; it
// wakes a sleeper. Every few milliseconds a sleeper sees for itself whether its limit has passed and whether
// all ranks still live.
#pragma once

#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/shm/algorithm.h"
#include "shoal/comm/shm/control.h"
#include "shoal/comm/shm/heap.h"
#include "shoal/comm/shm/task.h"
#include "shoal/comm/traffic.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::comm::shm {

// Two of these a rank, from its first large call on: what is filled, read by others and taken again stays in
// the caches.
constexpr std::int64_t kStagingBytes = std::int64_t{1} << 18;

class Group;

// A call under way. Known to its group until it is done.
class Job : public Work {
 public:
  Job(Group& group, const Call& call, std::uint32_t number) : group_(&group), call_(call), number_(number) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() override;
  void wait(std::chrono::nanoseconds limit) override;
  bool done() override;

 private:
  friend class Group;
  Group* group_;  // null when the communicator has ended
  Call call_;
  std::uint32_t number_;  // of the group's collectives, or of the channel's messages; from 1
  Task task_;
  bool finished_ = false;
};

class Group {
 public:
  // A group of ranks that all have this control memory.
  // `num_ranks_here`: of all that share the cores, when this is a subgroup of more.
  Group(std::shared_ptr<Heap> heap, std::shared_ptr<Mapping> memory, int rank, int size, int num_ranks_here);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();  // with calls under way: ends the group

  int rank() const { return rank_; }
  int size() const { return size_; }
  int num_ranks_here() const { return num_ranks_here_; }
  Heap& heap() const { return *heap_; }
  const std::shared_ptr<Heap>& shared_heap() const { return heap_; }
  const Traffic& traffic() const { return traffic_; }

  std::unique_ptr<Work> submit(Request request);
  // From when all ranks are known to be here: notices when one of their processes ends.
  void watch_peers();
  // Ends the group on every rank, unless it has ended. Any thread.
  void end(ErrorKind kind, std::string_view why) noexcept;

 private:
  friend class Job;

  // collective.cpp
  Task collective(Request request, Call call, std::uint32_t number);
  void publish(const Request& request, const Call& call, std::uint32_t number);
  void publish_places(const Request& request, const Call& call, CallSlot& slot);
  bool compare(const Call& call, std::uint32_t number);  // whether the call is small
  void begin_turn(const Request& request, const Call& call, std::uint32_t number);
  struct Elements {
    std::int64_t in, out;
  };
  Elements elements_of(const Call& call, int rank) const;  // what a rank's buffers have to have
  Direct find_buffers(const Algorithm& algorithm, std::uint32_t number);
  std::int64_t staged_pieces(const Algorithm& algorithm);
  void use_piece(std::int64_t piece);
  Until sync();

  // point_to_point.cpp
  Task send(Request request, Call call, std::uint32_t number);
  Task receive(Request request, Call call, std::uint32_t number);
  void post(ChannelEnd& end, const Call& call, std::uint32_t number, int peer);
  void compare_message(int from, int to, std::uint32_t number);

  // Waiting.
  bool advance();      // whether anything moved
  bool advance_all();  // this group, and the thread's others that have calls under way
  void list();         // among those
  void unlist_if_idle() noexcept;
  void wait(Job& job, std::chrono::nanoseconds limit);
  void sleep(rendezvous::Clock::time_point deadline);
  void wake(int rank) noexcept;
  void wake_all() noexcept;
  void check_peers();
  void throw_if_ended() const;
  static std::string what(const Job& job);  // as errors name it
  std::string missing(const Job& job) const;
  void forget(Job& job);

  // While this rank reads or writes other ranks' memory. Throws if the group has ended.
  class Inside {
   public:
    explicit Inside(const Group& group);
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { inside_.store(0, std::memory_order_release); }

   private:
    std::atomic<std::uint32_t>& inside_;
  };
  // When a group has ended: waits until no other rank is in this one's memory, so that it may be used for
  // something else. A rank that is stopped in there is left behind after a second.
  void settle() const noexcept;
  bool has_died(int rank) const;

  // Bytes of any rank, whose memory is mapped when it is first met. Throws Corrupt where it has not as many.
  std::byte* at(Place place, std::int64_t bytes);

  const std::shared_ptr<Heap> heap_;
  const std::shared_ptr<Mapping> memory_;
  const Control control_;
  const int rank_, size_;
  const int num_ranks_here_;
  const bool crowded_;      // ranks have to take turns
  std::vector<int> peers_;  // descriptors of their processes, -1 where there is none to watch

  std::deque<Job*> collectives_;
  std::vector<Job*> messages_;
  std::thread::id listed_by_;
  std::uint32_t num_collectives_ = 0, num_polls_ = 0;
  std::vector<std::uint32_t> num_sent_, num_received_;

  std::vector<std::shared_ptr<Mapping>> mapped_;  // of peers' segments, with their inodes
  std::vector<std::uint64_t> mapped_inodes_;

  // Of the collective that is under way.
  Turn turn_;
  std::vector<std::byte*> staging_, in_, out_, stages_;
  std::vector<const std::int64_t*> in_counts_, out_counts_;
  std::int64_t capacity_ = 0;  // elements of a part in a piece
  std::int64_t num_elements_ = 0;

  std::unique_ptr<Memory> own_staging_;
  std::vector<std::unique_ptr<Memory>> rings_;  // by the rank that messages go to
  Traffic traffic_;
};

}  // namespace shoal::comm::shm
