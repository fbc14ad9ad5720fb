// SPDX-License-Identifier: Apache-2.0
// What the exchanges of all modes have in common.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "shoal/ps/exchange.h"

namespace shoal::ps {

// Counts the batches: the rounds of the pushes.
class Rounds : public Exchange {
 public:
  Rounds(Tables& tables, const ExchangeOptions& options) : tables_(tables), options_(options) {}

  void add(TableNumber table, const Definition&) override {
    batch_ = std::max(batch_, tables_.last_round(table));
    floor_ = flushed_ = begun_ = batch_;
  }
  void flush() override { tables_.settle(); }
  void settle() override {
    flush();
    floor_ = flushed_;
    forget();
  }
  After settled() const override { return after(floor_); }
  void forget() override {}

 protected:
  // Rounds of a run before are done: its workers, however many, push no more.
  After after(std::uint64_t round) const {
    return {.round = round > begun_ ? round : 0, .workers = options_.workers};
  }
  void number(Push& push) const {
    push.worker = options_.worker;
    push.workers = options_.workers;
    push.round = batch_;
  }
  // Sends it as it is.
  void send_alone(TableNumber table, Push push) {
    number(push);
    tables_.send(std::array{Tables::PushTo{.table = table, .push = push}});
  }

  Tables& tables_;
  const ExchangeOptions options_;
  std::uint64_t begun_ = 0;    // how many were done in runs before
  std::uint64_t batch_ = 0;    // how many are done
  std::uint64_t flushed_ = 0;  // with which of them all that this worker has was sent
  std::uint64_t floor_ = 0;    // what is pulled has at least those of all workers up to this one
};

// Those of some keys: copies what `find` has, and has `pull(keys, rows)` read the others together.
class Missing {
 public:
  template <class Find, class Pull>
  void read(std::span<const std::uint64_t> keys, std::span<std::byte> rows, std::size_t row_bytes,
            const Find& find, const Pull& pull) {
    keys_.clear();
    places_.clear();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (const std::byte* const row = find(keys[i])) {
        std::memcpy(rows.data() + i * row_bytes, row, row_bytes);
        continue;
      }
      keys_.push_back(keys[i]);
      places_.push_back(i);
    }
    if (keys_.empty()) return;
    rows_.resize(keys_.size() * row_bytes);
    pull(std::span<const std::uint64_t>(keys_), std::span<std::byte>(rows_));
    for (std::size_t i = 0; i < keys_.size(); ++i)
      std::memcpy(rows.data() + places_[i] * row_bytes, rows_.data() + i * row_bytes, row_bytes);
  }

 private:
  std::vector<std::uint64_t> keys_;
  std::vector<std::size_t> places_;
  std::vector<std::byte> rows_;
};

std::unique_ptr<Exchange> make_half_async(Tables& tables, const ExchangeOptions& options);
std::unique_ptr<Exchange> make_geo(Tables& tables, const ExchangeOptions& options);

}  // namespace shoal::ps
