// SPDX-License-Identifier: Apache-2.0
// What is answered to frames that ask for a part of the tables: its rows, and what its clients changed last.
// No socket, no clock: who is given the same changes in the same order is the same, answers and bits, which is
// how a copy is one.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/ps/cold_store.h"
#include "shoal/ps/joint_push.h"
#include "shoal/ps/save.h"
#include "shoal/ps/table.h"
#include "shoal/ps/wire.h"

namespace shoal::ps {

// One thread, but for num_applied().
class Answers {
 public:
  // Of all shards, those whose number modulo `parts` is `part`. `wakes` is called when something that
  // waited for others may have its answer. `files`: where tables are saved, borrowed; null: nowhere. `cold`: where rows lie
  // that memory has no room for, borrowed; null: nowhere.
  Answers(
      std::uint32_t part, std::uint32_t parts, std::uint32_t epoch, std::function<void()> wakes = [] {},
      FileSystem* files = nullptr, const ColdTier* cold = nullptr)
      : part_(part), parts_(parts), epoch_(epoch), wakes_(std::move(wakes)), files_(files), cold_(cold) {}

  // The answer to a frame whose head was looked at, into `reply`: a frame too, of an error if need be. False:
  // it waits for pushes of other workers, to be asked again when something was woken. Throws
  // Corrupt where the payload is not what was sent: then the connection is of no more use.
  bool answer(const wire::Head& head, std::span<const std::byte> payload, std::vector<std::byte>& reply);

  // What the primary of this part was asked, of a kind that is_history(), of this its copy.
  void follow(const wire::Head& head, std::span<const std::byte> payload);
  static bool is_history(wire::Operation operation);
  // Those that only who is being made a copy follows.
  static bool is_rows(wire::Operation operation) {
    return operation == wire::Operation::State || operation == wire::Operation::Rows;
  }

  // To make a copy of this, in frames that it is to follow: first the state, at a moment when no joint push waits;
  // then the rows of each shard, which the copy has from then on. Changes in between go there as all do. Where
  // one was of a whole table, it begins again.
  bool is_quiet() const;
  std::uint64_t num_whole() const { return num_whole_; }  // changes of whole tables
  std::vector<std::byte> state(const wire::Head& head) const;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> shards() const;  // table, shard
  std::vector<std::vector<std::byte>> rows(const wire::Head& head, std::uint32_t table,
                                           std::uint32_t shard) const;

  // Saves that go on: so many rows more of each; whether there are others still. Begins where a frame asks for one.
  bool advance_saves(std::size_t rows);
  bool has_saves() const;

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
  void begin_save(const wire::Head& head, const wire::Note& note);
  bool saved(const wire::Head& head, std::uint64_t origin, SaveReport& report);
  SaveReport save_or_load(const wire::Head& head, const wire::Note& note);
  std::vector<TableState> states() const;
  void remember(std::uint64_t client, std::uint64_t sequence, std::vector<std::byte> reply);
  void take_state(std::span<const std::byte> payload);
  void take_rows(std::span<const std::byte> payload);
  void check_keys(const Table& table, std::span<const std::uint64_t> keys) const;

  const std::uint32_t part_, parts_;
  const std::uint32_t epoch_;
  const std::function<void()> wakes_;
  FileSystem* const files_;
  const ColdTier* const cold_;
  std::vector<std::unique_ptr<Table>> tables_;
  struct Save {
    ps::Saved as;
    std::string path;
    std::unique_ptr<Saving> saving;  // until it is whole
    std::optional<SaveReport> report;
    std::string failure;
    void look();  // whether it is
  };
  std::map<std::uint32_t, Save> saves_;             // by table: the last one
  std::vector<JointPush> joint_;                    // by table
  std::vector<std::vector<std::uint64_t>> rounds_;  // by table and worker: the last that is applied
  struct Asked {                                    // how many rows so far
    std::uint64_t pulled = 0, pushed = 0;
  };
  std::vector<Asked> asked_;         // by table
  std::set<std::uint64_t> keeping_;  // clients that keep rows until somebody writes them
  struct Refused {
    std::uint64_t round = 0;
    std::string why;
  };
  std::optional<Refused> refused_;                            // the last round that was
  std::unordered_map<std::uint64_t, Remembered> remembered_;  // by client
  std::atomic<std::int64_t> num_applied_ = 0;
  std::uint64_t num_whole_ = 0;
  std::vector<float> rows_;  // of a pull that is rounded
};

}  // namespace shoal::ps
