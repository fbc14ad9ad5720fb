// SPDX-License-Identifier: Apache-2.0
// What a loop answers to frames: its tables and what its clients changed last. No socket, no clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shoal/ps/table.h"
#include "shoal/ps/wire.h"

namespace shoal::ps {

// One thread, but for num_applied().
class Answers {
 public:
  // Of all loops' shards, those whose number modulo `loops` is `loop`.
  Answers(std::uint32_t loop, std::uint32_t loops, std::uint64_t epoch)
      : loop_(loop), loops_(loops), epoch_(epoch) {}

  // The answer to a frame whose head was looked at, into `reply`: a frame too, of an error if need be. Throws
  // Corrupt where the payload is not what was sent: then the connection is of no more use.
  void answer(const wire::Head& head, std::span<const std::byte> payload, std::vector<std::byte>& reply);

  std::int64_t num_applied() const { return num_applied_; }

 private:
  // The last push or shrink of a client and what it was answered.
  struct Last {
    std::uint64_t sequence = 0;
    std::vector<std::byte> reply;
  };

  void answer_checked(const wire::Head& head, std::span<const std::byte> payload,
                      std::vector<std::byte>& reply);
  std::uint32_t create(std::span<const std::byte> text);
  Table& table(const wire::Head& head);
  void push(const wire::Head& head, std::span<const std::byte> payload);
  void check_keys(const Table& table, std::span<const std::uint64_t> keys) const;

  const std::uint32_t loop_, loops_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::unordered_map<std::uint64_t, Last> last_;  // by client
  std::atomic<std::int64_t> num_applied_ = 0;
};

}  // namespace shoal::ps
