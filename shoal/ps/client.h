// SPDX-License-Identifier: Apache-2.0
// A worker's side of tables on servers. All loops work on their keys of a request at the same time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shoal/ps/server.h"
#include "shoal/ps/table.h"
#include "shoal/rendezvous/key.h"

namespace shoal::ps {

struct ClientOptions {
  std::uint64_t epoch = 1;
  std::chrono::nanoseconds limit =
      std::chrono::seconds{10};  // of each answer, and for a lost connection to return
};

// One thread at a time.
class Client {
 public:
  using TableNumber = std::uint32_t;

  // Endpoints of all loops, in their order. Throws PeerLost where one does not listen, InvalidInput where it
  // has another key.
  Client(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options = {});
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client();

  // Makes the table, or finds it. Throws InvalidInput naming the field where the servers have another of the
  // name.
  TableNumber create(const Definition& definition);
  // As those of Table. What a server refuses is thrown here; PeerLost where one has gone. A connection that
  // ends is made anew once a request: a push that was applied is not applied again.
  void pull(TableNumber table, std::span<const std::uint64_t> keys, std::span<float> rows);
  void push(TableNumber table, const Push& push);
  Shrunk shrink(TableNumber table, std::uint32_t day);
  std::pair<std::uint64_t, std::int64_t> digest(TableNumber table);  // and the number of rows

 private:
  class Lines;
  struct Remote;
  // Of some keys, which go to each loop: their places.
  void split(const Remote& remote, std::span<const std::uint64_t> keys);

  std::unique_ptr<Lines> lines_;
  std::vector<Remote> tables_;
  std::vector<std::vector<std::uint32_t>> places_;  // by loop
  std::vector<std::vector<std::uint64_t>> keys_;
};

}  // namespace shoal::ps
