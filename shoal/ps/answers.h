// SPDX-License-Identifier: Apache-2.0
// What a loop answers to frames: its tables and what its clients changed last. No socket, no clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "shoal/ps/joint_push.h"
#include "shoal/ps/table.h"
#include "shoal/ps/wire.h"

namespace shoal::ps {

// One thread, but for num_applied().
class Answers {
 public:
  // Of all loops' shards, those whose number modulo `loops` is `loop`. `wakes` is called when something that
  // waited for others may have its answer. `files`: where tables are saved, borrowed; null: nowhere.
  Answers(
      std::uint32_t loop, std::uint32_t loops, std::uint64_t epoch, std::function<void()> wakes = [] {},
      FileSystem* files = nullptr)
      : loop_(loop), loops_(loops), epoch_(epoch), wakes_(std::move(wakes)), files_(files) {}

  // The answer to a frame whose head was looked at, into `reply`: a frame too, of an error if need be. False:
  // it waits for pushes of other workers, to be asked again when something was woken. Throws
  // Corrupt where the payload is not what was sent: then the connection is of no more use.
  bool answer(const wire::Head& head, std::span<const std::byte> payload, std::vector<std::byte>& reply);

  std::int64_t num_applied() const { return num_applied_; }

 private:
  // Requests of a client that changed something, and what they were answered: as many as a client has under way
  // at most, the last one at the end.
  struct Answered {
    std::uint64_t sequence = 0;
    std::vector<std::byte> reply;
  };
  using Remembered = std::deque<Answered>;

  bool answer_again(const wire::Head& head, std::vector<std::byte>& reply) const;
  bool answer_checked(const wire::Head& head, std::span<const std::byte> payload,
                      std::vector<std::byte>& reply);
  std::uint32_t create(std::span<const std::byte> text);
  Table& table(const wire::Head& head);
  bool pull(const wire::Head& head, std::span<const std::byte> payload, std::vector<std::byte>& reply);
  bool push(const wire::Head& head, std::span<const std::byte> payload);
  void push_jointly(std::uint32_t table);
  void put(const wire::Head& head, std::span<const std::byte> payload);
  void refuse(const wire::Note& refusal);
  SaveReport save_or_load(const wire::Head& head, const wire::Note& note);
  void remember(std::uint64_t client, std::uint64_t sequence, std::vector<std::byte> reply);
  void check_keys(const Table& table, std::span<const std::uint64_t> keys) const;

  const std::uint32_t loop_, loops_;
  const std::uint64_t epoch_;
  const std::function<void()> wakes_;
  FileSystem* const files_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<JointPush> joint_;                    // by table
  std::vector<std::vector<std::uint64_t>> rounds_;  // by table and worker: the last that is applied
  struct Refused {
    std::uint64_t round = 0;
    std::string why;
  };
  std::optional<Refused> refused_;                            // the last round that was
  std::unordered_map<std::uint64_t, Remembered> remembered_;  // by client
  std::atomic<std::int64_t> num_applied_ = 0;
};

}  // namespace shoal::ps
