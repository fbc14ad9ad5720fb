// SPDX-License-Identifier: Apache-2.0
// Each call is a job on a lane:
//
//   call ──► lane 0 (collectives)       c10d ─► finish(Work)
//        └─► lane to or from a rank     c10d ─► finish(Work)
//
// The order within a lane is that of the calls. A message to one rank does not wait for those to others: a
// ring in which every rank sends before it receives goes round.
//
// Where the engine has tags, whoever has waited for 100 ms shows its last calls in the store, and reads
// those of the rank before it (of several in a row that wait for different things two neighbours differ):
//
//   0 ms     rank 1 calls something else
//   < 200    each rank's watch sees that a call is late, and shows its log
//   < 300    one that looks at its neighbour finds the difference, writes it to the store as the group's end
//   < 400    all have read that
//
// A group ends once: by abort(), a wait past its limit, a difference, or a rank that has gone. The first rank
// to see it writes the reason to the store and cuts its connections; that ends the calls of the others, who
// read the reason there.
#include "shoal/comm_c10d/communicator.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shoal/comm_c10d/c10d_communicator.h"

namespace shoal::comm_c10d {

using Clock = std::chrono::steady_clock;

static constexpr std::chrono::milliseconds kLate{100};
static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

C10dCommunicator::~C10dCommunicator() {
  if (!is_idle())
    abort(concat(group_.name, ": rank ", rank(), " left with calls under way"), ErrorKind::PeerLost);
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
  comm::Lane& lane = lanes_[engine_.messages_beside ? comm::CallLog::lane_of(call) : 0];
  if (engine_.calls != Calls::Bare) lane.start();
  auto work = std::make_unique<LaneWork>(*this, what(call));
  ++num_under_way_;
  if (engine_.calls == Calls::Bare) {
    run(*work, request, numbered);
    return work;
  }
  watch_.wake();
  lane.run([this, &work = *work, request = std::move(request), numbered] { run(work, request, numbered); });
  return work;
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
    std::vector<Record> records;
    if (engine_.calls == Calls::Compared && !is_message(call.op) &&
        (!engine_.tag_next || call.op == Op::AllToAll))
      records = compare(request, numbered);
    move(request, numbered, records);
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

// What stands in the store: a difference is the error of every rank, all else is the loss of one, or what
// abort() says.
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

void C10dCommunicator::abort(std::string_view reason, ErrorKind kind) noexcept {
  if (size() > 1) fail_with(Error(kind, std::string(reason)));
}

namespace {

class TensorMemory final : public comm::Memory {
 public:
  explicit TensorMemory(at::Tensor bytes) : bytes_(std::move(bytes)) {}
  void* data() override { return bytes_.data_ptr(); }
  std::int64_t bytes() const override { return bytes_.numel(); }

 private:
  at::Tensor bytes_;
};

}  // namespace

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
