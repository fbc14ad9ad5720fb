// SPDX-License-Identifier: Apache-2.0
// The thread takes calls from a queue and makes them at once, whether or not earlier ones are done: a send
// must not keep the receive behind it from starting. Then it asks each in turn whether it is done; where none
// is for a while it sleeps a little between looks, or until a call comes.
#include "shoal/comm/pool.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/rendezvous/deadline.h"

namespace shoal::comm {

namespace {

constexpr int kLooks = 200;
constexpr std::chrono::microseconds kNap{50};

// What the thread and the works share: kept until both are through with it.
struct Progress {
  struct Entry {
    std::uint64_t number = 0;
    Request request;
  };
  struct Ticket {
    bool over = false;
    std::exception_ptr error;
  };

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::deque<Entry> queue;                  // not yet made
  std::map<std::uint64_t, Ticket> tickets;  // of works that exist
  std::uint64_t num_calls = 0;
  std::string abort_reason;  // for the thread to abort with
  bool stop = false;

  void close(std::uint64_t number, std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex);
      if (const auto ticket = tickets.find(number); ticket != tickets.end())
        ticket->second = {true, std::move(error)};
    }
    changed.notify_all();
  }
};

class ProgressWork : public Work {
 public:
  ProgressWork(std::shared_ptr<Progress> progress, std::uint64_t number, std::string what)
      : progress_(std::move(progress)), number_(number), what_(std::move(what)) {}
  ProgressWork(const ProgressWork&) = delete;
  ProgressWork& operator=(const ProgressWork&) = delete;
  ~ProgressWork() override {
    std::unique_lock lock(progress_->mutex);
    if (!ticket().over) give_up(lock, "comm: " + what_ + " was not waited for");
    progress_->tickets.erase(number_);
  }

  void wait(std::chrono::nanoseconds limit) override {
    std::unique_lock lock(progress_->mutex);
    const auto over = [&] { return ticket().over; };
    if (!progress_->changed.wait_until(lock, rendezvous::deadline_after(limit), over)) {
      const std::string why = concat("comm: ", what_, " was not done within ",
                                     std::chrono::duration<double>(limit).count(), " s");
      give_up(lock, why);
      ticket().error = std::make_exception_ptr(Error(ErrorKind::Timeout, why));
    }
    if (ticket().error) std::rethrow_exception(ticket().error);
  }

  bool done() override {
    const std::lock_guard lock(progress_->mutex);
    return ticket().over;
  }

 private:
  Progress::Ticket& ticket() { return progress_->tickets.at(number_); }

  // Returns when the thread has left the buffers, which may go away then.
  void give_up(std::unique_lock<std::mutex>& lock, const std::string& why) {
    progress_->abort_reason = why;
    progress_->changed.notify_all();
    progress_->changed.wait(lock, [&] { return ticket().over; });
  }

  std::shared_ptr<Progress> progress_;
  std::uint64_t number_;
  std::string what_;
};

class WithThread : public RequestCommunicator {
 public:
  explicit WithThread(std::unique_ptr<Communicator> inner)
      : inner_(std::move(inner)), progress_(std::make_shared<Progress>()), thread_([this] { run(); }) {}
  WithThread(const WithThread&) = delete;
  WithThread& operator=(const WithThread&) = delete;
  ~WithThread() override {
    {
      const std::lock_guard lock(progress_->mutex);
      progress_->stop = true;
      for (const auto& [number, ticket] : progress_->tickets)
        if (!ticket.over) progress_->abort_reason = "comm: a communicator ended with calls under way";
    }
    progress_->changed.notify_all();
    thread_.join();
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool is_asynchronous() const override { return true; }
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override { return inner_->allocate(bytes); }
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) override {
    return inner_->subgroup(ranks);
  }
  void abort(std::string_view reason, ErrorKind kind) noexcept override { inner_->abort(reason, kind); }

 private:
  struct Active {
    std::uint64_t number;
    std::unique_ptr<Work> work;
  };

  std::unique_ptr<Work> submit(Request request) override {
    const Call call = checked(request, rank(), size());
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(progress_->mutex);
      number = progress_->num_calls++;
      progress_->tickets.try_emplace(number);
      progress_->queue.push_back({number, std::move(request)});
    }
    progress_->changed.notify_all();
    return std::make_unique<ProgressWork>(progress_, number, concat("call ", number, ", ", describe(call)));
  }

  void run() {
    std::vector<Active> active;
    int looks = 0;
    while (!take_calls(active, looks)) {
      bool moved = false;
      for (std::size_t i = 0; i < active.size();) {
        if (!active[i].work->done()) {
          ++i;
          continue;
        }
        std::exception_ptr error;
        try {
          active[i].work->wait(std::chrono::nanoseconds{0});
        } catch (...) {
          error = std::current_exception();
        }
        const std::uint64_t number = active[i].number;
        active.erase(active.begin() + static_cast<std::ptrdiff_t>(i));
        progress_->close(number, error);
        moved = true;
      }
      looks = moved ? 0 : looks + 1;
    }
  }

  // Starts what has been asked for meanwhile; whether this is the end.
  bool take_calls(std::vector<Active>& active, int& looks) {
    std::deque<Progress::Entry> fresh;
    std::string abort_reason;
    bool stop = false;
    {
      std::unique_lock lock(progress_->mutex);
      const auto called = [&] {
        return progress_->stop || !progress_->queue.empty() || !progress_->abort_reason.empty();
      };
      if (active.empty()) progress_->changed.wait(lock, called);
      if (looks > kLooks) progress_->changed.wait_for(lock, kNap, called);
      fresh.swap(progress_->queue);
      abort_reason.swap(progress_->abort_reason);
      stop = progress_->stop;
    }
    if (!abort_reason.empty()) inner_->abort(abort_reason);
    for (Progress::Entry& entry : fresh) {
      looks = 0;
      try {
        active.push_back({entry.number, forward(*inner_, entry.request)});
      } catch (...) {
        progress_->close(entry.number, std::current_exception());
      }
    }
    return stop && active.empty();
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Progress> progress_;
  std::thread thread_;  // last: it starts when the rest is there
};

}  // namespace

std::unique_ptr<Communicator> with_progress_thread(std::unique_ptr<Communicator> inner) {
  return std::make_unique<WithThread>(std::move(inner));
}

std::vector<std::unique_ptr<Communicator>> make_pool(Communicator& parent, int count) {
  SHOAL_CHECK(count > 0, InvalidInput, "comm: a pool of ", count, " communicators");
  std::vector<int> all(static_cast<std::size_t>(parent.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::unique_ptr<Communicator>> pool;
  for (int i = 0; i < count; ++i) pool.push_back(with_progress_thread(parent.subgroup(all)));
  return pool;
}

}  // namespace shoal::comm
