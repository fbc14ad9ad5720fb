// SPDX-License-Identifier: Apache-2.0
#include "shoal/elastic/flight.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace shoal::elastic {

static constexpr std::uint64_t kSlots = 1000;
static constexpr std::uint32_t kMagic = 0x53484c31;

struct Flight::Head {
  std::uint32_t magic;
  std::atomic<std::uint32_t> has_error;
  std::int32_t kind;
  std::atomic<std::uint64_t> num_calls;
  char module[128];
  char error[1024];
};

struct Flight::Slot {
  std::atomic<std::uint64_t> stamp;  // 1 + the place of the call that the rest is of; 0 while it is written
  std::uint64_t number;
  std::int64_t count;
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::int32_t peer;
  comm::Tag tag;
  std::uint8_t op, dtype, reduce;
  std::atomic<std::uint32_t> state;
  char group[32];
  char module[128];
};

struct Flight::Shared {
  Head head;
  Slot slots[kSlots];
};

static std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The end of what does not fit: of a module's path that says more.
template <std::size_t Size>
static void keep(char (&to)[Size], std::string_view text) {
  if (text.size() >= Size) text.remove_prefix(text.size() - Size + 1);
  std::memcpy(to, text.data(), text.size());
  to[text.size()] = '\0';
}

template <std::size_t Size>
static std::string kept(const char (&from)[Size]) {
  return {from, strnlen(from, Size)};
}

Flight::Flight() {
  descriptor_ = memfd_create("shoal-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  SHOAL_CHECK(descriptor_ >= 0, Infeasible,
              "elastic: cannot make the flight recorder's memory: ", std::strerror(errno));
  const bool sized = fchmod(descriptor_, 0600) == 0 && ftruncate(descriptor_, sizeof(Shared)) == 0;
  fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (!sized) close(descriptor_);
  SHOAL_CHECK(sized, Infeasible, "elastic: no memory for the flight recorder: ", std::strerror(errno));
  map();
  shared_->head.magic = kMagic;
}

Flight::Flight(int descriptor) : descriptor_(descriptor) {
  struct stat status = {};
  const bool fits = fstat(descriptor, &status) == 0 && status.st_size == static_cast<off_t>(sizeof(Shared));
  SHOAL_CHECK(
      fits, InvalidInput, "elastic: descriptor ", descriptor,
      " is not a flight recorder that was inherited; has the program the launcher's version of Shoal?");
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  map();
}

Flight::~Flight() {
  munmap(shared_, sizeof(Shared));
  close(descriptor_);
}

void Flight::map() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  const int error = errno;
  if (memory == MAP_FAILED) close(descriptor_);
  SHOAL_CHECK(memory != MAP_FAILED, Infeasible,
              "elastic: cannot map the flight recorder: ", std::strerror(error));
  shared_ = static_cast<Shared*>(memory);
}

void Flight::enter(std::string_view module) {
  const std::lock_guard lock(mutex_);
  keep(shared_->head.module, module);
}

std::uint64_t Flight::begin(const comm::Call& call, std::uint64_t number, std::string_view group,
                            std::string_view module) {
  const std::uint64_t place = shared_->head.num_calls.fetch_add(1);
  Slot& slot = shared_->slots[place % kSlots];
  slot.stamp.store(0);
  slot.number = number;
  slot.count = call.count;
  slot.begin_ns = now_ns();
  slot.end_ns = 0;
  slot.peer = call.peer;
  slot.tag = call.tag;
  slot.op = static_cast<std::uint8_t>(call.op);
  slot.dtype = static_cast<std::uint8_t>(call.dtype);
  slot.reduce = static_cast<std::uint8_t>(call.reduce);
  slot.state.store(static_cast<std::uint32_t>(CallState::UnderWay));
  keep(slot.group, group);
  if (module.empty()) {
    const std::lock_guard lock(mutex_);
    std::memcpy(slot.module, shared_->head.module, sizeof slot.module);
  } else {
    keep(slot.module, module);
  }
  slot.stamp.store(place + 1);
  return place;
}

void Flight::waits(std::uint64_t place) {
  Slot& slot = shared_->slots[place % kSlots];
  if (slot.stamp.load(std::memory_order_relaxed) != place + 1) return;
  slot.state.store(static_cast<std::uint32_t>(CallState::Waiting), std::memory_order_relaxed);
}

void Flight::end(std::uint64_t place, CallState state) {
  Slot& slot = shared_->slots[place % kSlots];
  if (slot.stamp.load() != place + 1) return;  // 1,000 calls ago
  slot.end_ns = now_ns();
  slot.state.store(static_cast<std::uint32_t>(state));
}

std::string Flight::where(std::uint64_t place) const {
  const Slot& slot = shared_->slots[place % kSlots];
  const std::string group = kept(slot.group), module = kept(slot.module);
  if (slot.stamp.load() != place + 1) return "";
  return concat(group.empty() ? "" : ", in group " + group, module.empty() ? "" : ", in " + module);
}

void Flight::failed(ErrorKind kind, std::string_view error) {
  const std::lock_guard lock(mutex_);
  Head& head = shared_->head;
  if (head.has_error.load() != 0) return;
  head.kind = static_cast<std::int32_t>(kind);
  if (error.size() >= sizeof head.error) error = error.substr(0, sizeof head.error - 1);
  keep(head.error, error);
  head.has_error.store(1);
}

std::uint64_t Flight::num_calls() const { return shared_->head.num_calls.load(); }

FlightLog Flight::read() const {
  const Head& head = shared_->head;
  FlightLog log = {.num_calls = head.num_calls.load(), .module = kept(head.module)};
  if (head.has_error.load() != 0) {
    log.kind = static_cast<ErrorKind>(head.kind);
    log.error = kept(head.error);
  }
  const std::uint64_t first = log.num_calls > kSlots ? log.num_calls - kSlots : 0;
  for (std::uint64_t place = first; place < log.num_calls; ++place) {
    const Slot& slot = shared_->slots[place % kSlots];
    if (slot.stamp.load() != place + 1) continue;
    FlightRecord record = {.number = slot.number,
                           .call = {.op = static_cast<comm::Op>(slot.op),
                                    .dtype = static_cast<DType>(slot.dtype),
                                    .count = slot.count,
                                    .reduce = static_cast<comm::ReduceOp>(slot.reduce),
                                    .peer = slot.peer,
                                    .tag = slot.tag},
                           .state = static_cast<CallState>(slot.state.load()),
                           .begin_ns = slot.begin_ns,
                           .end_ns = slot.end_ns,
                           .group = kept(slot.group),
                           .module = kept(slot.module)};
    if (slot.stamp.load() == place + 1) log.records.push_back(std::move(record));
  }
  return log;
}

std::string describe(const FlightRecord& record) {
  return concat("call ", record.number, record.group.empty() ? "" : " of " + record.group, ", ",
                describe(record.call), record.module.empty() ? "" : ", in " + record.module);
}

std::string to_text(const FlightLog& log) {
  std::string text = concat(log.num_calls, " calls, the last ", log.records.size(), ":\n");
  for (const FlightRecord& record : log.records) {
    const bool ended = record.state == CallState::Done || record.state == CallState::Failed;
    text += concat(describe(record), ": ",
                   record.state == CallState::Done     ? "done"
                   : record.state == CallState::Failed ? "failed"
                                                       : "under way");
    if (ended) text += concat(" after ", static_cast<double>(record.end_ns - record.begin_ns) * 1e-3, " us");
    text += '\n';
  }
  if (log.kind) text += concat("error: ", name_of(*log.kind), ": ", log.error, "\n");
  return text;
}

}  // namespace shoal::elastic
