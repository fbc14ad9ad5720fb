// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/recorded.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shoal/comm/call_log.h"
#include "shoal/comm/located.h"

namespace shoal::elastic {
namespace {

// Writes down how a call failed, and gives the error with where in the model that was.
Error noted(const Error& error, Flight& flight, std::uint64_t place) {
  const Error located(error.kind(), error.what() + flight.where(place));
  flight.end(place, CallState::Failed);
  flight.failed(located.kind(), located.what());
  return located;
}

class RecordedWork final : public comm::Work {
 public:
  RecordedWork(std::unique_ptr<comm::Work> work, Flight& flight, std::uint64_t place,
               std::chrono::nanoseconds limit)
      : work_(std::move(work)), flight_(flight), place_(place), limit_(limit) {}
  ~RecordedWork() override {
    if (!is_recorded_) flight_.end(place_, work_->done() ? CallState::Done : CallState::Failed);
  }

  void wait(std::chrono::nanoseconds limit) override {
    if (!is_recorded_) flight_.waits(place_);
    try {
      work_->wait(std::min(limit, limit_));
    } catch (const Error& error) {
      is_recorded_ = true;
      throw noted(error, flight_, place_);
    }
    if (!std::exchange(is_recorded_, true)) flight_.end(place_, CallState::Done);
  }
  bool done() override { return work_->done(); }

 private:
  const std::unique_ptr<comm::Work> work_;
  Flight& flight_;
  const std::uint64_t place_;
  const std::chrono::nanoseconds limit_;
  bool is_recorded_ = false;
};

class Recorded final : public comm::RequestCommunicator, public comm::Located {
 public:
  Recorded(std::unique_ptr<comm::Communicator> communicator, Flight& flight, std::chrono::nanoseconds limit,
           std::string group)
      : communicator_(std::move(communicator)),
        flight_(flight),
        limit_(limit),
        group_(std::move(group)),
        num_calls_(1 + 2 * static_cast<std::size_t>(communicator_->size())) {}

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  bool is_asynchronous() const override { return communicator_->is_asynchronous(); }
  std::unique_ptr<comm::Memory> allocate(std::int64_t bytes) override {
    return communicator_->allocate(bytes);
  }
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int> ranks) override {
    std::string name = "[";
    for (const int rank : ranks) name += concat(name.size() == 1 ? "" : ",", rank);
    return recorded(communicator_->subgroup(ranks), flight_, limit_, concat(group_, name, "]"));
  }
  void abort(std::string_view reason, ErrorKind kind) noexcept override {
    communicator_->abort(reason, kind);
  }
  void in_module(std::string_view module) override {
    module_ = module;
    flight_.enter(module);  // for a rank that is in no call when others wait for it
  }

 private:
  std::unique_ptr<comm::Work> submit(comm::Request request) override {
    comm::Request wanted = request;
    const comm::Call call = comm::checked(wanted, rank(), size());
    const std::uint64_t number = num_calls_[comm::CallLog::lane_of(call)]++;
    const std::uint64_t place = flight_.begin(call, number, group_, module_);
    try {
      return std::make_unique<RecordedWork>(comm::forward(*communicator_, request), flight_, place, limit_);
    } catch (const Error& error) {
      throw noted(error, flight_, place);
    }
  }

  const std::unique_ptr<comm::Communicator> communicator_;
  Flight& flight_;
  const std::chrono::nanoseconds limit_;
  const std::string group_;
  std::string module_;
  std::vector<std::uint64_t> num_calls_;  // of each lane
};

}  // namespace

std::unique_ptr<comm::Communicator> recorded(std::unique_ptr<comm::Communicator> communicator, Flight& flight,
                                             std::chrono::nanoseconds limit, std::string group) {
  return std::make_unique<Recorded>(std::move(communicator), flight, limit, std::move(group));
}

}  // namespace shoal::elastic
