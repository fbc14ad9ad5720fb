// SPDX-License-Identifier: Apache-2.0
// A client of a TcpServer. A thread that waits for a key has a connection of its own, so that it is in
// nobody's way; connections that are not in use are kept.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shoal/rendezvous/key.h"
#include "shoal/rendezvous/store.h"

namespace shoal::rendezvous {

class Connection;
namespace wire {
struct Request;
struct Reply;
}  // namespace wire

struct TcpStoreOptions {
  std::string address = "127.0.0.1";  // or a host's name
  std::uint16_t port = 0;
  std::uint64_t epoch = 1;
  std::chrono::nanoseconds limit = std::chrono::seconds{60};   // for the server to be there at first
  std::chrono::nanoseconds silence = std::chrono::seconds{3};  // of a server that owes an answer
};

class TcpStore : public Store {
 public:
  // Throws Timeout where nothing listens there, InvalidInput where what does has another key or is no store.
  TcpStore(const Key& key, TcpStoreOptions options);
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;
  ~TcpStore() override;

  // All throw PeerLost where the server has gone, or this epoch is over.
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::nanoseconds limit) override;
  std::optional<std::string> find(std::string_view key) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  std::string compare_and_set(std::string_view key, std::string_view expected,
                              std::string_view desired) override;
  bool remove(std::string_view key) override;
  std::int64_t num_keys() override;

  // Ends what waits here, and whatever is asked from now on: PeerLost.
  void close() noexcept;

 private:
  wire::Reply ask(const wire::Request& request, std::chrono::nanoseconds limit);
  std::unique_ptr<Connection> taken();
  void give_back(std::unique_ptr<Connection> connection);

  const Key key_;
  const TcpStoreOptions options_;
  std::mutex mutex_;  // guards what follows
  bool closed_ = false;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::vector<Connection*> busy_;
};

}  // namespace shoal::rendezvous
