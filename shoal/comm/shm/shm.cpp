// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/shm/shm.h"

#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/held.h"
#include "shoal/comm/shm/group.h"

namespace shoal::comm {

namespace shm {
namespace {

class Shm : public RequestCommunicator, public Counted {
 public:
  // `control` is the first rank's, and null elsewhere.
  Shm(std::unique_ptr<Segment> control, std::unique_ptr<Group> group, std::chrono::nanoseconds limit)
      : control_(std::move(control)), group_(std::move(group)), limit_(limit) {
    if (control_) hold(Holder::Communicators, control_->id().bytes);
  }
  Shm(const Shm&) = delete;
  Shm& operator=(const Shm&) = delete;
  ~Shm() override {
    if (control_) hold(Holder::Communicators, -control_->id().bytes);
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  bool is_asynchronous() const override { return false; }
  std::unique_ptr<Memory> allocate(std::int64_t bytes) override {
    return memory_from(group_->shared_heap(), bytes);
  }
  std::unique_ptr<Communicator> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason, ErrorKind kind) noexcept override { group_->end(kind, reason); }
  Traffic traffic() const override { return group_->traffic(); }

  // All ranks have mapped the control memory when this is over.
  void meet() {
    group_->submit({})->wait(limit_);
    group_->watch_peers();
  }

 private:
  std::unique_ptr<Work> submit(Request request) override;

  std::unique_ptr<Segment> control_;
  std::unique_ptr<Group> group_;
  std::chrono::nanoseconds limit_;
};

std::unique_ptr<Work> Shm::submit(Request request) {
  if (size() > 1 || request.op == Op::Send || request.op == Op::Receive)
    return group_->submit(std::move(request));
  checked(request, 0, 1);
  perform_alone(request);
  return done_work();
}

std::int64_t control_bytes(int size) { return (Control::bytes(size) + 4095) / 4096 * 4096; }

std::unique_ptr<Segment> make_control(const Heap& heap, int size) {
  const std::int64_t bytes = control_bytes(size);
  check_available(bytes);
  auto control = std::make_unique<Segment>(heap.name() + "-control", bytes, *heap.mappings());
  control->commit(0, bytes);
  return control;
}

std::unique_ptr<Shm> join(const std::shared_ptr<Heap>& heap, std::unique_ptr<Segment> control,
                          const SegmentId& id, int rank, int size, int num_ranks_here,
                          std::chrono::nanoseconds limit) {
  std::shared_ptr<Mapping> memory = heap->mappings()->of(id);
  SHOAL_CHECK(memory->bytes() == control_bytes(size), Corrupt, "shm: process ", id.pid, " made ",
              memory->bytes(), " bytes for a group of ", size, " ranks, which takes ", control_bytes(size));
  auto group = std::make_unique<Group>(heap, std::move(memory), rank, size, num_ranks_here);
  auto joined = std::make_unique<Shm>(std::move(control), std::move(group), limit);
  joined->meet();
  return joined;
}

// What the first rank of a subgroup tells the others.
struct Invitation {
  SegmentId control;
  std::uint64_t ranks = 0;  // a hash
};

std::uint64_t hash_of(std::span<const int> ranks) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const int rank : ranks) hash = (hash ^ static_cast<std::uint64_t>(rank)) * 1099511628211U;
  return hash;
}

std::unique_ptr<Communicator> Shm::subgroup(std::span<const int> ranks) {
  const int place = place_in(ranks, rank(), size()), members = static_cast<int>(ranks.size());
  Invitation invitation = {.ranks = hash_of(ranks)};
  const Buffer buffer = {&invitation, sizeof invitation, DType::UInt8};
  std::unique_ptr<Segment> control;
  if (place == 0) {
    control = make_control(group_->heap(), members);
    invitation.control = control->id();
    std::vector<std::unique_ptr<Work>> works;
    for (const int to : ranks.subspan(1)) works.push_back(send(buffer, to, {}));
    for (const std::unique_ptr<Work>& work : works) work->wait(limit_);
  } else {
    receive(buffer, ranks[0], {})->wait(limit_);
    if (invitation.ranks != hash_of(ranks)) {
      group_->end(ErrorKind::InvalidInput, concat("comm: subgroup: rank ", ranks[0], " and rank ", rank(),
                                                  " called it with different ranks"));
    }
  }
  if (invitation.ranks != hash_of(ranks)) barrier();  // throws why
  return join(group_->shared_heap(), std::move(control), invitation.control, place, members,
              group_->num_ranks_here(), limit_);
}

}  // namespace
}  // namespace shm

std::int64_t shm_bytes(int size) { return shm::control_bytes(size) + 2 * shm::kStagingBytes; }

std::unique_ptr<Communicator> shm_communicator(rendezvous::Store& store, int rank, int size,
                                               const ShmOptions& options) {
  SHOAL_CHECK(size > 0 && size <= shm::kMaxRanks && rank >= 0 && rank < size, InvalidInput, "shm: rank ",
              rank, " of ", size, ": wanted at most ", shm::kMaxRanks, " ranks, numbered from 0");
  auto heap =
      std::make_shared<shm::Heap>(concat("shoal-", options.job, "-r", rank),
                                  options.mappings ? options.mappings : std::make_shared<shm::Mappings>());
  const std::string key = "shm/" + options.job + "/control";
  std::unique_ptr<shm::Segment> control;
  shm::SegmentId id;
  if (rank == 0) {
    control = shm::make_control(*heap, size);
    id = control->id();
    store.set(key, std::string_view(reinterpret_cast<const char*>(&id), sizeof id));
  } else {
    const std::string value = store.get(key, options.limit);
    SHOAL_CHECK(value.size() == sizeof id, Corrupt, "shm: the store's ", key, " is not of this version");
    std::memcpy(&id, value.data(), sizeof id);
  }
  auto communicator = shm::join(heap, std::move(control), id, rank, size, size, options.limit);
  if (rank == 0) store.remove(key);
  return communicator;
}

}  // namespace shoal::comm
