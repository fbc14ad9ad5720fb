// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/recorded.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

namespace shoal::elastic {
namespace {

class RecordedWork final : public comm::Work {
 public:
  RecordedWork(std::unique_ptr<comm::Work> work, Flight& flight, std::uint64_t place,
               std::chrono::nanoseconds limit)
      : work_(std::move(work)), flight_(flight), place_(place), limit_(limit) {}
  ~RecordedWork() override {
    if (!recorded_) flight_.end(place_, work_->done() ? CallState::Done : CallState::Failed);
  }

  void wait(std::chrono::nanoseconds limit) override {
    try {
      work_->wait(std::min(limit, limit_));
    } catch (const Error& error) {
      note(CallState::Failed);
      flight_.failed(error.kind(), error.what());
      throw;
    }
    note(CallState::Done);
  }
  bool done() override { return work_->done(); }

 private:
  void note(CallState state) {
    if (!std::exchange(recorded_, true)) flight_.end(place_, state);
  }

  const std::unique_ptr<comm::Work> work_;
  Flight& flight_;
  const std::uint64_t place_;
  const std::chrono::nanoseconds limit_;
  bool recorded_ = false;
};

class Recorded final : public comm::RequestCommunicator {
 public:
  Recorded(std::unique_ptr<comm::Communicator> communicator, Flight& flight, std::chrono::nanoseconds limit,
           std::string group)
      : communicator_(std::move(communicator)), flight_(flight), limit_(limit), group_(std::move(group)) {}

  int rank() const override { return communicator_->rank(); }
  int size() const override { return communicator_->size(); }
  std::unique_ptr<comm::Memory> allocate(std::int64_t bytes) override {
    return communicator_->allocate(bytes);
  }
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int> ranks) override {
    std::string name = "[";
    for (const int rank : ranks) name += concat(name.size() == 1 ? "" : ",", rank);
    return recorded(communicator_->subgroup(ranks), flight_, limit_, concat(group_, name, "]"));
  }
  void abort(std::string_view reason) noexcept override { communicator_->abort(reason); }

 private:
  std::unique_ptr<comm::Work> submit(comm::Request request) override {
    comm::Request wanted = request;
    const comm::Call call = comm::checked(wanted, rank(), size());
    const std::uint64_t place = flight_.begin(call, num_calls_++, group_);
    try {
      return std::make_unique<RecordedWork>(comm::forward(*communicator_, request), flight_, place, limit_);
    } catch (const Error& error) {
      flight_.end(place, CallState::Failed);
      flight_.failed(error.kind(), error.what());
      throw;
    }
  }

  const std::unique_ptr<comm::Communicator> communicator_;
  Flight& flight_;
  const std::chrono::nanoseconds limit_;
  const std::string group_;
  std::uint64_t num_calls_ = 0;
};

}  // namespace

std::unique_ptr<comm::Communicator> recorded(std::unique_ptr<comm::Communicator> communicator, Flight& flight,
                                             std::chrono::nanoseconds limit, std::string group) {
  return std::make_unique<Recorded>(std::move(communicator), flight, limit, std::move(group));
}

}  // namespace shoal::elastic
