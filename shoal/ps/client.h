// SPDX-License-Identifier: Apache-2.0
// A worker's side of tables on servers. All loops work on their keys of a request at the same time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shoal/ps/server.h"
#include "shoal/ps/tables.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/key.h"

namespace shoal::ps {

struct ClientOptions {      // of one worker
  std::uint32_t epoch = 1;  // that of the servers
  // Of each answer, and for a lost connection to return.
  std::chrono::nanoseconds limit = std::chrono::seconds{10};
  bool shares = true;  // payloads in memory, with loops on the same host (payloads_beside.h)
  // Where servers with copies have their map. Such a client goes on where a server has gone.
  std::optional<MapKeeper> maps = {};
};

class Lines;

// Every call throws what a server refuses, PeerLost where one has gone or does not answer within the limit,
// and Corrupt where an answer is none.
class Client final : public Tables {
 public:
  // Endpoints of all loops, in their order; with a map, those of the map. Throws PeerLost where one does not
  // listen, InvalidInput where there are none or one has another key.
  Client(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options = {});
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() override;

  TableNumber create(const Definition& definition) override;
  void set_wire(DType dtype) override { in_halves_ = dtype == DType::BFloat16; }
  std::uint64_t last_round(TableNumber table) const override;
  // A connection that ends is made anew once a request: a push that was applied is not applied again.
  using Tables::pull;
  void pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows,
            const After& after) override;
  std::unique_ptr<Pulling> start_pull(TableNumber table, std::span<const std::uint64_t> keys) override;
  void push(std::span<const PushTo> pushes) override;
  void send(std::span<const PushTo> pushes) override;
  void settle() override;
  void push(TableNumber table, const Push& one) { push(std::vector<PushTo>{{table, one}}); }
  void refuse(std::uint64_t round, const std::string& why) override;
  void put(TableNumber table, std::span<const std::uint64_t> keys, Numbers values) override;
  void clear(TableNumber table) override;
  Shrunk shrink(TableNumber table, std::uint32_t day) override;
  void begin_save(TableNumber table, const std::filesystem::path& path, const Saved& as) override;
  Saved last_save(TableNumber table) override;
  std::optional<SaveReport> saved(TableNumber table) override;
  SaveReport load(TableNumber table, const std::filesystem::path& path) override;
  std::pair<std::uint64_t, std::int64_t> digest(TableNumber table) override;
  // A save of values alone, of rows with at least that score: for serving.
  SaveReport export_to(TableNumber table, const std::filesystem::path& path, float min_score);
  // Of each part of the keys, the tables that there are, whoever has created them, in the order of their numbers.
  std::vector<std::vector<TableState>> describe();

 private:
  struct Remote;
  class Arriving;
  // Of some keys, which belong to each part: their places.
  void split(const Remote& remote, std::span<const std::uint64_t> keys);
  void send_push(const PushTo& to);
  void send_pull(const Remote& remote, std::span<const std::uint64_t> keys, const After& after,
                 Arriving& arriving);
  SaveReport save_or_load(TableNumber table, wire::Operation operation, const wire::Note& note);
  template <class Each>
  void ask_all(TableNumber table, wire::Operation operation, std::span<const std::byte> payload,
               std::size_t wanted, const Each& each);

  std::unique_ptr<Lines> lines_;
  bool in_halves_ = false;  // what goes over them, of float32
  std::vector<Remote> tables_;
  std::vector<std::vector<std::uint32_t>> places_;  // by part
  std::vector<std::vector<std::uint64_t>> keys_;
};

}  // namespace shoal::ps
