// SPDX-License-Identifier: Apache-2.0
// Who may speak with a server of the job. A connection that has not proved the key within a few seconds is
// closed. Where more wait than are kept, the address that most of them come from loses its oldest: a flood
// from one host pushes out nobody else's, and who is pushed out without a word tries again. Who has proved the
// key is never closed.
#pragma once

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string_view>

#include "shoal/rendezvous/key.h"

namespace shoal::rendezvous {

// Of one thread, that of the sockets; outlives the coroutines.
class Door {
 public:
  // The magic, which has 8 bytes, says which protocol is to follow.
  Door(const Key& key, std::string_view magic) : key_(key), magic_(magic) {}
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Whether the other end proves the key, and is given the proof that we know it too.
  asio::awaitable<bool> admits(asio::ip::tcp::socket& socket);
  // Who did not prove the key, so far; a client that is told of its refusal is among them. Any thread.
  std::int64_t num_refused() const { return num_refused_; }

 private:
  static constexpr std::size_t kMostStrangers = 128;

  struct Stranger {
    asio::ip::tcp::socket* socket;
    asio::ip::address from;
  };
  class Waiting;

  void close_one_of_the_most();

  const Key key_;
  const std::string_view magic_;
  std::atomic<std::int64_t> num_refused_ = 0;
  std::list<Stranger> strangers_;  // that have not proved the key yet; the oldest first
};

// Calls `serves` with each connection that comes, as long as the acceptor's context runs.
asio::awaitable<void> accept_each(asio::ip::tcp::acceptor& acceptor,
                                  std::function<void(asio::ip::tcp::socket)> serves);

}  // namespace shoal::rendezvous
