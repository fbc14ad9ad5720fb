// SPDX-License-Identifier: Apache-2.0
// A part of the tables as bytes, for a server that is to have a copy of it.
#include <algorithm>
#include <cstring>
#include <string>

#include "shoal/base/error.h"
#include "shoal/ps/answers.h"

namespace shoal::ps {

static constexpr std::size_t kPieceBytes = 1U << 20;  // of a shard's rows

namespace {

class Packer {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    put_all(std::as_bytes(std::span(&value, 1)));
  }
  void put_all(std::span<const std::byte> some) { bytes.insert(bytes.end(), some.begin(), some.end()); }
  void put_counted(std::span<const std::byte> some) {
    put(std::uint64_t{some.size()});
    put_all(some);
  }
  std::vector<std::byte> bytes;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T take() {
    T value;
    std::memcpy(&value, take_all(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take_all(std::uint64_t size) {
    SHOAL_CHECK(size <= left_.size(), Corrupt, "ps: a copy's bytes are cut short");
    const auto taken = left_.first(static_cast<std::size_t>(size));
    left_ = left_.subspan(static_cast<std::size_t>(size));
    return taken;
  }
  std::span<const std::byte> take_counted() { return take_all(take<std::uint64_t>()); }
  bool is_empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

struct RowsHead {
  std::uint32_t table = 0, shard = 0;
  std::uint32_t is_first = 0;  // of the shard: its candidates come next, and what is there goes
  std::uint32_t zero = 0;
};

struct RowHead {
  std::uint64_t key = 0;
  Usage usage;
  std::uint32_t parts = 0;
};

}  // namespace

static std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

static std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Table::begin_shard(std::uint32_t shard, std::span<const std::byte> candidates) {
  finish_visits();
  std::vector<std::uint64_t> keys;
  for_each_row(shard, [&](const Row& row) { keys.push_back(row.key); });
  for (const std::uint64_t key : keys) erase(key);
  shards_[shard].candidates.take(candidates);
}

bool Answers::is_quiet() const {
  return std::ranges::all_of(joint_, [](const JointPush& joint) { return joint.is_empty(); });
}

static wire::Head as(wire::Operation operation, wire::Head head) {
  head.operation = operation;
  return head;
}

std::vector<std::byte> Answers::state(const wire::Head& head) const {
  Packer all;
  all.put(num_applied_.load());
  all.put(std::uint64_t{refused_ ? refused_->round : 0});
  all.put_counted(bytes_of(refused_ ? refused_->why : ""));
  all.put(std::uint64_t{tables_.size()});
  for (std::size_t table = 0; table < tables_.size(); ++table) {
    all.put_counted(bytes_of(to_text(tables_[table]->definition())));
    all.put(tables_[table]->day());
    all.put_counted(std::as_bytes(std::span(rounds_[table])));
  }
  all.put(std::uint64_t{keeping_.size()});
  for (const std::uint64_t client : keeping_) all.put(client);
  all.put(std::uint64_t{remembered_.size()});
  for (const auto& [client, answered] : remembered_) {
    all.put(client);
    all.put(std::uint64_t{answered.size()});
    for (const Answered& each : answered) {
      all.put(each.sequence);
      all.put_counted(each.reply);
    }
  }
  return wire::frame(as(wire::Operation::State, head), std::array{std::span<const std::byte>(all.bytes)});
}

void Answers::take_state(std::span<const std::byte> payload) {
  Unpacker all(payload);
  num_applied_ = all.take<std::int64_t>();
  const auto round = all.take<std::uint64_t>();
  const std::string why = text_of(all.take_counted());
  refused_.reset();
  if (round > 0) refused_ = {.round = round, .why = why};
  saves_.clear();
  tables_.clear();
  joint_.clear();
  rounds_.clear();
  asked_.clear();
  for (auto tables = all.take<std::uint64_t>(); tables > 0; --tables) {
    const std::uint32_t number = create(all.take_counted());
    SHOAL_CHECK(number + 1 == tables_.size(), Corrupt, "ps: a copy's table is there twice");
    tables_[number]->set_day(all.take<std::uint32_t>());
    const auto rounds = all.take_counted();
    rounds_[number].resize(rounds.size() / sizeof(std::uint64_t));
    if (!rounds.empty())
      std::memcpy(rounds_[number].data(), rounds.data(), rounds_[number].size() * sizeof(std::uint64_t));
  }
  keeping_.clear();
  for (auto clients = all.take<std::uint64_t>(); clients > 0; --clients)
    keeping_.insert(all.take<std::uint64_t>());
  remembered_.clear();
  for (auto clients = all.take<std::uint64_t>(); clients > 0; --clients) {
    Remembered& answered = remembered_[all.take<std::uint64_t>()];
    for (auto count = all.take<std::uint64_t>(); count > 0; --count) {
      const auto sequence = all.take<std::uint64_t>();
      const auto reply = all.take_counted();
      answered.push_back({.sequence = sequence, .reply = {reply.begin(), reply.end()}});
    }
  }
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Answers::shards() const {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> all;
  for (std::uint32_t table = 0; table < tables_.size(); ++table)
    for (std::uint32_t shard = part_; shard < tables_[table]->definition().shards; shard += parts_)
      all.emplace_back(table, shard);
  return all;
}

std::vector<std::vector<std::byte>> Answers::rows(const wire::Head& head, std::uint32_t table,
                                                  std::uint32_t shard) const {
  const Table& from = *tables_[table];
  std::vector<std::vector<std::byte>> pieces;
  Packer piece;
  const auto cut = [&] {
    pieces.push_back(
        wire::frame(as(wire::Operation::Rows, head), std::array{std::span<const std::byte>(piece.bytes)}));
    piece.bytes.clear();
    piece.put(RowsHead{.table = table, .shard = shard});
  };
  piece.put(RowsHead{.table = table, .shard = shard, .is_first = 1});
  piece.put_counted(from.candidates(shard));
  from.for_each_row(shard, [&](const Row& row) {
    piece.put(RowHead{.key = row.key, .usage = row.usage, .parts = row.parts});
    for (const auto& content : row.content) piece.put_all(content);
    if (piece.bytes.size() >= kPieceBytes) cut();
  });
  cut();
  return pieces;
}

void Answers::take_rows(std::span<const std::byte> payload) {
  Unpacker all(payload);
  const auto head = all.take<RowsHead>();
  SHOAL_CHECK(head.table < tables_.size() && head.shard < tables_[head.table]->definition().shards, Corrupt,
              "ps: a copy's rows are of shard ", head.shard, " of table ", head.table,
              ", which there is not");
  Table& to = *tables_[head.table];
  if (head.is_first != 0) to.begin_shard(head.shard, all.take_counted());
  Row row;
  while (!all.is_empty()) {
    const auto [key, usage, parts] = all.take<RowHead>();
    row = {.key = key, .usage = usage, .parts = parts, .content = {}};
    SHOAL_CHECK(to.shard_of(key) == head.shard && parts >> to.definition().parts.size() == 0, Corrupt,
                "ps: a copy's row of key ", key, " is not of its shard, or has parts that there are not");
    for (std::size_t part = 0; part < to.definition().parts.size(); ++part) {
      if (((parts >> part) & 1U) == 0) continue;
      row.content.push_back(all.take_all(to.value_bytes(part)));
      row.content.push_back(all.take_all(to.part_bytes(part) - to.value_bytes(part)));
    }
    to.put(row);
  }
}

}  // namespace shoal::ps
