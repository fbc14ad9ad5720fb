// SPDX-License-Identifier: Apache-2.0
// The communicator on c10d's engines, as its three sources have it: communicator.cpp (lanes, ends, the
// watch), compare.cpp (whether all ranks call the same) and move.cpp (what each call is to c10d).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/call_log.h"
#include "shoal/comm/lane.h"
#include "shoal/comm_c10d/communicator.h"
#include "shoal/comm_c10d/watch.h"

namespace shoal::comm_c10d {

using comm::Call;
using comm::ConstBuffer;
using comm::Ends;
using comm::Lane;
using comm::LaneWork;
using comm::Op;
using comm::ReduceOp;
using comm::Request;
using comm::Work;

// Waits are bounded by the caller, who ends the group. c10d adds this to the time of day.
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
template <class Options>
Options without_limit() {
  Options options;
  options.timeout = kForever;
  return options;
}

// What a call is made of; messages of the two directions between two ranks go side by side.
enum class Part { Record, Bytes, End };

inline bool is_message(Op op) { return op == Op::Send || op == Op::Receive; }

// A call, and which one of its lane it is.
struct Numbered {
  Call call;
  std::uint64_t number = 0;
};

// What one rank tells others about a call.
struct Record {
  Call call;
  std::vector<std::int64_t> in_counts;
  std::vector<std::int64_t> out_counts;
};

class C10dCommunicator final : public comm::RequestCommunicator, public Ends {
 public:
  C10dCommunicator(Group group, Engine engine, rendezvous::Store& store, MakeGroup make_group)
      : group_(std::move(group)),
        engine_(std::move(engine)),
        store_(store),
        make_group_(std::move(make_group)),
        lanes_(static_cast<std::size_t>(engine_.messages_beside ? 1 + 2 * group_.size : 1)) {}
  ~C10dCommunicator() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size; }
  bool is_asynchronous() const override { return engine_.calls != Calls::Bare || !engine_.device.is_cpu(); }

  std::unique_ptr<comm::Memory> allocate(std::int64_t bytes) override;
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason, ErrorKind kind) noexcept override;

  void fail_with(const Error& error) noexcept override;

 private:
  std::unique_ptr<Work> submit(Request request) override;
  void run(LaneWork& work, const Request& request, const Numbered& call);
  std::vector<Record> compare(const Request& request, const Numbered& numbered);
  void compare_with_peer(const Numbered& numbered);
  // `records`: of all ranks, where they were compared.
  void move(const Request& request, const Numbered& numbered, const std::vector<Record>& records);

  void look() noexcept;
  void look_for_an_end() noexcept;
  void compare_with_others(const comm::CallLog& log, const std::vector<std::size_t>& late);
  bool differs_from(int other, const comm::CallLog& log, const comm::CallLog& its);
  std::string end_key() const { return group_.name + "/end"; }
  std::string calls_key(int rank) const { return concat(group_.name, "/calls/", rank); }

  bool is_idle() const { return num_under_way_ == 0; }
  std::string what(const Call& call) const;
  at::Tensor tensor_of(ConstBuffer buffer) const;
  at::Tensor tensor_of(const Record& record) const;
  std::vector<Record> records_of(const at::Tensor& tensor) const;
  int tag_of(const Numbered& message, Part part) const;
  void tag_next(const Numbered& numbered, Part part) const;
  void finish(const c10::intrusive_ptr<c10d::Work>& work) const;
  void meet() const;
  // `count` elements, `most` in a piece: begins and ends pieces in order, each with one of the places that pieces under
  // way have, from 0.
  void in_pieces(
      std::int64_t count, std::int64_t most,
      const std::function<c10::intrusive_ptr<c10d::Work>(std::int64_t first, std::int64_t place)>& begin,
      const std::function<void(std::int64_t first, std::int64_t place)>& end) const;
  void exchange(std::int64_t count, at::ScalarType dtype,
                const std::function<void(at::Tensor& to_each, std::int64_t first)>& send,
                const std::function<void(const at::Tensor& of_each, std::int64_t first)>& receive) const;
  void gather_parts(const Request& request) const;
  void sum_own_part(const Request& request) const;
  void hand_out(const Request& request, std::int64_t largest) const;

  const Group group_;
  Engine engine_;
  rendezvous::Store& store_;
  const MakeGroup make_group_;
  std::map<std::vector<int>, int> num_subgroups_;  // made of the same ranks so far

  std::atomic<int> num_under_way_ = 0;
  std::mutex mutex_;  // of what follows
  std::optional<Error> failure_;
  comm::CallLog log_{group_.size};
  std::vector<std::chrono::steady_clock::time_point> since_ =  // that lane's call is under way
      std::vector<std::chrono::steady_clock::time_point>(log_.num_lanes(),
                                                         std::chrono::steady_clock::time_point::max());

  std::string shown_;  // in the store, as calls_key(rank()); of the watch's thread
  // Last: their threads use the rest.
  Watch watch_{[this] { return !is_idle(); }, [this] { look(); }};
  std::vector<Lane> lanes_;
};

}  // namespace shoal::comm_c10d
