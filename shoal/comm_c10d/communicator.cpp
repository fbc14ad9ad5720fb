// SPDX-License-Identifier: Apache-2.0
// Each call is a job on a lane:
//
//   call ──► lane 0 (collectives)       c10d ─► finish(Work)
//        └─► lane to or from a rank     c10d ─► finish(Work)
//
// The order within a lane is that of the calls. A message to one rank does not wait for those to others: a
// ring in which every rank sends before it receives goes round.
//
// What the ranks call is compared. Where the engine has tags, a call's is made of its number and of what it
// asks for: calls that differ never meet, and all their ranks wait. Whoever has waited for 100 ms shows its
// last calls in the store, and reads those of the rank before it (of several in a row that wait for different
// things two neighbours differ):
//
//   0 ms     rank 1 calls something else
//   < 200    each rank's watch sees that a call is late, and shows its log
//   < 300    one that looks at its neighbour finds the difference, writes it to the store as the group's end
//   < 400    all have read that
//
// Without tags, and for the parts of all_to_all, which may be of any size, the ranks exchange records of
// their calls and compare them before data moves.
//
// A group ends once: by abort(), a wait past its limit, a difference, or a rank that has gone. The first rank
// to see it writes the reason to the store and cuts its connections; that ends the calls of the others, who
// read the reason there.
#include "shoal/comm_c10d/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/comm/call.h"
#include "shoal/comm/call_log.h"
#include "shoal/comm_c10d/lane.h"
#include "shoal/comm_c10d/watch.h"

namespace shoal::comm_c10d {

using comm::Call;
using comm::ConstBuffer;
using comm::Op;
using comm::ReduceOp;
using comm::Request;
using comm::Work;

// Waits are bounded by the caller, who ends the group. c10d adds this to the time of day.
static constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
static constexpr std::chrono::milliseconds kLate{100};
// What a call is made of; messages of the two directions between two ranks go side by side.
enum class Part { Record, Bytes, End };

static c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  if (op == ReduceOp::Min) return c10d::ReduceOp::MIN;
  if (op == ReduceOp::Max) return c10d::ReduceOp::MAX;
  return c10d::ReduceOp::SUM;  // Gloo knows no average: the sum is divided here
}

static bool is_message(Op op) { return op == Op::Send || op == Op::Receive; }

static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

template <class Options>
static Options without_limit() {
  Options options;
  options.timeout = kForever;
  return options;
}

namespace {

using Clock = std::chrono::steady_clock;

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

class TensorMemory final : public comm::Memory {
 public:
  explicit TensorMemory(at::Tensor bytes) : bytes_(std::move(bytes)) {}
  void* data() override { return bytes_.data_ptr(); }
  std::int64_t bytes() const override { return bytes_.numel(); }

 private:
  at::Tensor bytes_;
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

  std::unique_ptr<comm::Memory> allocate(std::int64_t bytes) override;
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason) noexcept override;

  void fail_with(const Error& error) noexcept override;

 private:
  std::unique_ptr<Work> submit(Request request) override;
  void run(LaneWork& work, const Request& request, const Numbered& call);
  void compare(const Request& request, const Numbered& numbered);
  void compare_with_peer(const Numbered& numbered);
  void move(const Request& request, const Numbered& numbered);

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
  void all_reduce_in_place(at::Tensor tensor, ReduceOp op) const;

  const Group group_;
  Engine engine_;
  rendezvous::Store& store_;
  const MakeGroup make_group_;
  std::map<std::vector<int>, int> num_subgroups_;  // made of the same ranks so far

  std::atomic<int> num_under_way_ = 0;
  std::mutex mutex_;  // of what follows
  std::optional<Error> failure_;
  comm::CallLog log_{group_.size};
  std::vector<Clock::time_point> since_ =  // that lane's call is under way
      std::vector<Clock::time_point>(log_.num_lanes(), Clock::time_point::max());

  std::string shown_;  // in the store, as calls_key(rank()); of the watch's thread
  // Last: their threads use the rest.
  Watch watch_{[this] { return !is_idle(); }, [this] { look(); }};
  std::vector<Lane> lanes_;
};

}  // namespace

C10dCommunicator::~C10dCommunicator() {
  if (!is_idle()) abort(concat(group_.name, ": rank ", rank(), " left with calls under way"));
  lanes_.clear();  // while the watch looks: another rank may have ended the group
  watch_.stop();
  if (shown_.empty()) return;
  try {
    store_.remove(calls_key(rank()));
  } catch (const std::exception&) {  // the store has gone
  }
}

std::string C10dCommunicator::what(const Call& call) const {
  return concat(group_.name, ": rank ", rank(), " ", describe(call));
}

// What a call does where there is no other rank.
static void move_alone(const Request& request, const Call& call) {
  SHOAL_CHECK(!is_message(call.op), InvalidInput, "comm: ", describe(call),
              ": a rank has no messages for itself");
  if (request.in.data != request.out.data && request.out.count > 0)
    std::memmove(request.out.data, request.in.data,
                 static_cast<std::size_t>(request.in.count * bytes_of(call.dtype)));
}

std::unique_ptr<Work> C10dCommunicator::submit(Request request) {
  const Call call = comm::checked(request, rank(), size());
  if (size() == 1) {
    move_alone(request, call);
    return comm::done_work();
  }
  SHOAL_CHECK(!is_message(call.op) || call.peer != rank(), InvalidInput, what(call),
              ": a rank has no messages for itself");
  Numbered numbered = {.call = call};
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
    if (engine_.calls == Calls::Compared) numbered.number = log_.add(call);
  }
  auto work = std::make_unique<LaneWork>(*this, what(call));
  ++num_under_way_;
  if (engine_.calls == Calls::Bare) {
    run(*work, request, numbered);
    return work;
  }
  watch_.wake();
  lanes_[engine_.messages_beside ? comm::CallLog::lane_of(call) : 0].run(
      [this, &work = *work, request = std::move(request), numbered] { run(work, request, numbered); });
  return work;
}

static std::uint32_t hash_of(const Call& call) {  // FNV-1a
  std::uint32_t hash = 2166136261;
  for (const std::uint64_t word :
       {static_cast<std::uint64_t>(call.op), static_cast<std::uint64_t>(call.dtype),
        static_cast<std::uint64_t>(call.count), static_cast<std::uint64_t>(call.reduce),
        static_cast<std::uint64_t>(call.peer)})
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ static_cast<std::uint8_t>(word >> (8 * byte))) * 16777619;
  return hash;
}

// Different for each part of each of 2^32 / 3 calls that ask for the same; for calls that do not, but with
// one chance in 2^32.
static std::uint32_t tag_of_all(const Numbered& numbered, Part part) {
  constexpr std::uint32_t kOdd = 2654435769;
  const auto place = static_cast<std::uint32_t>(3 * numbered.number + static_cast<std::uint32_t>(part));
  return hash_of(numbered.call) + kOdd * place;
}

void C10dCommunicator::tag_next(const Numbered& numbered, Part part) const {
  // Messages have lanes of their own, and would set it in the middle of a collective.
  if (engine_.tag_next && engine_.calls == Calls::Compared && !is_message(numbered.call.op))
    engine_.tag_next(tag_of_all(numbered, part));
}

int C10dCommunicator::tag_of(const Numbered& message, Part part) const {
  const Call& call = message.call;
  const bool is_upwards = (call.op == Op::Send) == (rank() < call.peer);
  std::uint32_t tag = static_cast<std::uint32_t>(part);
  if (engine_.tag_next &&
      engine_.calls == Calls::Compared)  // c10d takes 31 bits; the last one is for the end
    tag = tag_of_all({{.dtype = call.dtype, .count = call.count}, message.number}, part) >> 3;
  return static_cast<int>(2 * tag + (is_upwards ? 1 : 0));
}

void C10dCommunicator::run(LaneWork& work, const Request& request, const Numbered& numbered) {
  std::optional<Error> error;
  const Call& call = numbered.call;
  const std::size_t lane = comm::CallLog::lane_of(call);
  try {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw Error(*failure_);
      since_[lane] = Clock::now();
    }
    // Engines without tags would mix the data of calls that differ.
    if (engine_.calls == Calls::Compared && is_message(call.op) && !engine_.tag_next)
      compare_with_peer(numbered);
    if (engine_.calls == Calls::Compared && !is_message(call.op) &&
        (!engine_.tag_next || call.op == Op::AllToAll))
      compare(request, numbered);
    move(request, numbered);
  } catch (const Error& caught) {
    error = caught;
  } catch (const std::exception& caught) {
    error = Error(ErrorKind::PeerLost, concat(what(call), ": a rank has gone: ", first_line(caught.what())));
  }
  if (error) {
    if (error->kind() == ErrorKind::PeerLost) look_for_an_end();
    fail_with(*error);
  }
  {
    const std::lock_guard lock(mutex_);
    since_[lane] = Clock::time_point::max();
    if (error) error = failure_;
  }
  --num_under_way_;
  work.finish(std::move(error));
}

static constexpr std::int64_t kFixedWords = 5;

at::Tensor C10dCommunicator::tensor_of(const Record& record) const {
  at::Tensor tensor = at::zeros({kFixedWords + 2 * size()}, at::kLong);
  std::int64_t* words = tensor.data_ptr<std::int64_t>();
  *words++ = static_cast<std::int64_t>(record.call.op);
  *words++ = static_cast<std::int64_t>(record.call.dtype);
  *words++ = record.call.count;
  *words++ = static_cast<std::int64_t>(record.call.reduce);
  *words++ = record.call.peer;
  std::ranges::copy(record.in_counts, words);
  std::ranges::copy(record.out_counts, words + size());
  return tensor.to(engine_.device);
}

std::vector<Record> C10dCommunicator::records_of(const at::Tensor& tensor) const {
  const at::Tensor all = tensor.cpu();
  std::vector<Record> records;
  const std::int64_t* words = all.data_ptr<std::int64_t>();
  for (const std::int64_t* end = words + all.numel(); words < end; words += 2 * size()) {
    Record record;
    record.call.op = static_cast<Op>(*words++);
    record.call.dtype = static_cast<DType>(*words++);
    record.call.count = *words++;
    record.call.reduce = static_cast<ReduceOp>(*words++);
    record.call.peer = static_cast<int>(*words++);
    record.in_counts.assign(words, words + size());
    record.out_counts.assign(words + size(), words + 2 * size());
    records.push_back(std::move(record));
  }
  return records;
}

// The same error on every rank, whichever differ.
static void check_same(const std::vector<Record>& records, std::uint64_t number) {
  for (std::size_t p = 0; p < records.size(); ++p)
    for (std::size_t q = 0; q < records.size(); ++q) {
      const Record &a = records[p], &b = records[q];
      SHOAL_CHECK(a.call == b.call, InvalidInput,
                  comm::mismatch(number, static_cast<int>(p), a.call, static_cast<int>(q), b.call));
      SHOAL_CHECK(a.call.op != Op::AllToAll || a.in_counts[q] == b.out_counts[p], InvalidInput, "comm: call ",
                  number, ": ", describe(a.call), ": rank ", p, " has ", a.in_counts[q],
                  " elements for rank ", q, ", which wants ", b.out_counts[p]);
    }
}

void C10dCommunicator::compare(const Request& request, const Numbered& numbered) {
  at::Tensor mine = tensor_of(Record{numbered.call, request.in_counts, request.out_counts});
  at::Tensor all = at::empty({size() * mine.numel()}, mine.options());
  tag_next(numbered, Part::Record);
  finish(engine_.backend->_allgather_base(all, mine, without_limit<c10d::AllgatherOptions>()));
  try {
    check_same(records_of(all), numbered.number);
  } catch (const Error&) {
    // Every rank sees it, once the records have reached it: nobody cuts the connections before.
    tag_next(numbered, Part::End);
    try {
      meet();
    } catch (const std::exception&) {  // who has left had met everybody
    }
    throw;
  }
}

void C10dCommunicator::compare_with_peer(const Numbered& numbered) {
  const auto& [call, number] = numbered;
  const int peer = call.peer;
  std::vector<at::Tensor> mine = {tensor_of(Record{.call = call})};
  std::vector<at::Tensor> its = {at::empty_like(mine[0])};
  const auto exchange = [&](Part part) {
    const int tag = tag_of(numbered, part);
    const bool is_first = rank() < peer;  // NCCL wants one of the two to send first
    auto first = is_first ? engine_.backend->send(mine, peer, tag) : engine_.backend->recv(its, peer, tag);
    auto second = is_first ? engine_.backend->recv(its, peer, tag) : engine_.backend->send(mine, peer, tag);
    finish(first);
    finish(second);
  };
  exchange(Part::Record);
  const Call other = records_of(its[0]).at(0).call;
  if (call.dtype == other.dtype && call.count == other.count) return;
  try {
    exchange(Part::End);             // both have the records then
  } catch (const std::exception&) {  // the other one has, and left
  }
  throw Error(ErrorKind::InvalidInput, rank() < peer ? comm::mismatch(number, rank(), call, peer, other)
                                                     : comm::mismatch(number, peer, other, rank(), call));
}

// What stands in the store: a difference is the error of every rank, all else is the loss of one.
static constexpr char kDifference = '!', kLoss = ' ';

void C10dCommunicator::fail_with(const Error& error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
  }
  try {
    const char kind = error.kind() == ErrorKind::InvalidInput ? kDifference : kLoss;
    store_.compare_and_set(end_key(), "", concat(kind, error.what()));
  } catch (const std::exception&) {  // the store has gone, and with it who could read there
  }
  try {
    if (engine_.interrupt) engine_.interrupt();
  } catch (const std::exception&) {  // the connections were cut already
  }
}

// Whether another rank has ended the group; then does as it does.
void C10dCommunicator::look_for_an_end() noexcept {
  try {
    if (const auto end = store_.find(end_key()); end && !end->empty())
      fail_with(
          Error(end->front() == kDifference ? ErrorKind::InvalidInput : ErrorKind::PeerLost, end->substr(1)));
  } catch (const std::exception&) {  // no store, no reason
  }
}

// By the watch.
void C10dCommunicator::look() noexcept {
  try {
    std::vector<std::size_t> late;
    std::optional<comm::CallLog> log;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      const Clock::time_point limit = Clock::now() - kLate;
      for (std::size_t lane = 0; lane < since_.size(); ++lane)
        if (since_[lane] <= limit) late.push_back(lane);
      if (!late.empty()) log = log_;
    }
    if (late.empty()) return;
    look_for_an_end();
    if (!engine_.tag_next) return;
    if (std::string text = log->to_text(); text != shown_) {
      store_.set(calls_key(rank()), text);
      shown_ = std::move(text);
    }
    compare_with_others(*log, late);
  } catch (const std::exception&) {  // no store, nothing to compare
  }
}

void C10dCommunicator::compare_with_others(const comm::CallLog& log, const std::vector<std::size_t>& late) {
  const auto shown_by = [&](int other) -> std::optional<comm::CallLog> {
    const auto text = store_.find(calls_key(other));
    if (!text) return std::nullopt;
    return comm::CallLog::from_text(*text, size());
  };
  for (const std::size_t lane : late) {
    if (lane > 0) {
      const int peer = static_cast<int>((lane - 1) / 2);
      if (const auto its = shown_by(peer); its && differs_from(peer, log, *its)) return;
      continue;
    }
    for (int step = 1; step < size(); ++step) {
      const int other = (rank() + size() - step) % size();
      const auto its = shown_by(other);
      if (!its) continue;
      if (differs_from(other, log, *its)) return;
      if (its->num(0) >= log.num(0)) break;  // it has made this call: to compare with the others is its part
    }
  }
}

bool C10dCommunicator::differs_from(int other, const comm::CallLog& log, const comm::CallLog& its) {
  const std::string found =
      rank() < other ? difference(rank(), log, other, its) : difference(other, its, rank(), log);
  if (found.empty()) return false;
  store_.compare_and_set(end_key(), "", concat(kDifference, found));
  look_for_an_end();  // the first one that was found is that of all ranks
  return true;
}

void C10dCommunicator::abort(std::string_view reason) noexcept {
  if (size() > 1) fail_with(Error(ErrorKind::PeerLost, std::string(reason)));
}

at::Tensor C10dCommunicator::tensor_of(ConstBuffer buffer) const {
  const auto options = at::TensorOptions().dtype(aten::to_torch(buffer.dtype)).device(engine_.device);
  if (buffer.count == 0) return at::empty({1}, options).narrow(0, 0, 0);
  return at::from_blob(const_cast<void*>(buffer.data), {buffer.count}, options);
}

void C10dCommunicator::finish(const c10::intrusive_ptr<c10d::Work>& work) const {
  work->wait(kForever);
  if (engine_.device.is_cpu()) return;
  // wait() has only made the stream wait.
  c10::impl::VirtualGuardImpl(engine_.device.type()).getStream(engine_.device).synchronize();
}

void C10dCommunicator::meet() const {
  auto options = without_limit<c10d::BarrierOptions>();
  options.device = engine_.device;
  finish(engine_.backend->barrier(options));
}

void C10dCommunicator::all_reduce_in_place(at::Tensor tensor, ReduceOp op) const {
  std::vector<at::Tensor> tensors = {tensor};
  auto options = without_limit<c10d::AllreduceOptions>();
  options.reduceOp = c10d_op(op);
  finish(engine_.backend->allreduce(tensors, options));
  if (op == ReduceOp::Average) tensor.div_(size());
}

void C10dCommunicator::move(const Request& request, const Numbered& numbered) {
  const Call& call = numbered.call;
  c10d::Backend& backend = *engine_.backend;
  if (call.count == 0 && call.op != Op::AllToAll && call.op != Op::Barrier) return;
  const bool is_root = call.peer == rank();
  const auto in = [&] { return std::vector<at::Tensor>{tensor_of(request.in)}; };
  const auto out = [&] { return std::vector<at::Tensor>{tensor_of(ConstBuffer(request.out))}; };
  const auto parts = [&](ConstBuffer whole) {  // of all ranks, on root alone
    std::vector<std::vector<at::Tensor>> lists;
    if (is_root) lists.push_back(tensor_of(whole).split(call.count));
    return lists;
  };
  tag_next(numbered, Part::Bytes);
  switch (call.op) {
    case Op::Broadcast: {
      auto options = without_limit<c10d::BroadcastOptions>();
      options.rootRank = call.peer;
      auto tensors = out();
      return finish(backend.broadcast(tensors, options));
    }
    case Op::Reduce: {
      auto options = without_limit<c10d::ReduceOptions>();
      options.reduceOp = c10d_op(call.reduce);
      options.rootRank = call.peer;
      auto tensors = out();
      if (!is_root) tensors[0] = tensors[0].clone();  // Gloo leaves partial sums in the tensors of the others
      finish(backend.reduce(tensors, options));
      if (is_root && call.reduce == ReduceOp::Average) tensors[0].div_(size());
      return;
    }
    case Op::AllReduce: return all_reduce_in_place(out()[0], call.reduce);
    case Op::Gather: {
      auto options = without_limit<c10d::GatherOptions>();
      options.rootRank = call.peer;
      auto tensors = in();
      auto lists = parts(request.out);
      return finish(backend.gather(lists, tensors, options));
    }
    case Op::AllGather: {
      auto from = in(), to = out();
      return finish(backend._allgather_base(to[0], from[0], without_limit<c10d::AllgatherOptions>()));
    }
    case Op::Scatter: {
      auto options = without_limit<c10d::ScatterOptions>();
      options.rootRank = call.peer;
      auto tensors = out();
      auto lists = parts(request.in);
      return finish(backend.scatter(tensors, lists, options));
    }
    case Op::ReduceScatter: {
      // Gloo has none of its own, and LibTorch's on top of it is this all-reduce of a copy.
      at::Tensor sum = in()[0].clone();
      all_reduce_in_place(sum, call.reduce);
      out()[0].copy_(sum.narrow(0, rank() * call.count, call.count));
      return;
    }
    case Op::AllToAll: {
      auto from = in(), to = out();
      auto in_counts = request.in_counts, out_counts = request.out_counts;
      return finish(backend.alltoall_base(to[0], from[0], out_counts, in_counts,
                                          without_limit<c10d::AllToAllOptions>()));
    }
    case Op::Send: {
      auto tensors = in();
      return finish(backend.send(tensors, call.peer, tag_of(numbered, Part::Bytes)));
    }
    case Op::Receive: {
      auto tensors = out();
      return finish(backend.recv(tensors, call.peer, tag_of(numbered, Part::Bytes)));
    }
    case Op::Barrier:
      // Who has everybody's record knows that everybody is there.
      if (engine_.calls == Calls::Bare || engine_.tag_next) meet();
  }
}

std::unique_ptr<comm::Memory> C10dCommunicator::allocate(std::int64_t bytes) {
  if (engine_.device.is_cpu()) return comm::plain_memory(bytes);
  SHOAL_CHECK(bytes >= 0, InvalidInput, "comm: allocate of ", bytes, " bytes");
  return std::make_unique<TensorMemory>(
      at::zeros({bytes}, at::TensorOptions(at::kByte).device(engine_.device)));
}

std::unique_ptr<comm::Communicator> C10dCommunicator::subgroup(std::span<const int> ranks) {
  const std::vector<int> members(ranks.begin(), ranks.end());
  std::string text;
  for (const int member : members) text += concat(text.empty() ? "" : ",", member);
  for (const int member : members)
    SHOAL_CHECK(0 <= member && member < size() && std::ranges::count(members, member) == 1, InvalidInput,
                "comm: subgroup [", text, "]: wanted different ranks between 0 and ", size() - 1);
  const auto self = std::ranges::find(members, rank());
  SHOAL_CHECK(self != members.end(), InvalidInput, "comm: subgroup [", text, "]: rank ", rank(),
              " asks for it and is not in it");
  SHOAL_CHECK(is_idle(), InvalidInput, "comm: subgroup [", text, "]: rank ", rank(),
              " has calls under way; wait for them first");
  return make_group_({.name = concat(group_.name, "/[", text, "]#", num_subgroups_[members]++),
                      .rank = static_cast<int>(self - members.begin()),
                      .size = static_cast<int>(members.size())});
}

std::unique_ptr<comm::Communicator> make_communicator(Group group, Engine engine, rendezvous::Store& store,
                                                      MakeGroup make_group) {
  return std::make_unique<C10dCommunicator>(std::move(group), std::move(engine), store,
                                            std::move(make_group));
}

}  // namespace shoal::comm_c10d
