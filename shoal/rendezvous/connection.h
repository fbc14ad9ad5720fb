// SPDX-License-Identifier: Apache-2.0
// A client's end of a TCP connection: a plain socket with a deadline on every step, so that a client needs no
// loop and no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shoal/rendezvous/deadline.h"
#include "shoal/rendezvous/key.h"

namespace shoal::rendezvous {

// Who is called, and how errors speak of it.
struct Peer {
  std::string address;  // or a host's name
  std::uint16_t port = 0;
  std::string_view magic;   // what its hello begins with
  std::string_view module;  // who calls: "rendezvous"
  std::string_view is;      // "a store of this version of Shoal"
  std::string_view host;    // what has ended if it is silent: "the job's first host"
};

// One thread; shut() any.
class Connection {
 public:
  // Connected, and both sides have proved the key. Who is pushed out at a crowded door (door.h) tries again
  // until the deadline. Null where nothing listens, and errno says why. Throws as shake_hands().
  static std::unique_ptr<Connection> admitted(const Peer& peer, const Key& key, Clock::time_point deadline);

  // Where nothing listens it is not open, and errno says why.
  Connection(const Peer& peer, Clock::time_point deadline);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  bool is_open() const { return socket_ >= 0; }
  void shut() const noexcept;
  const std::string& where() const { return where_; }
  bool is_of_one_host() const noexcept;  // both ends have one address

  // Both sides prove the key. Throws InvalidInput where they have not the same; PeerLost where the other side
  // ends it, which it also does when too many wait at its door: one may try again.
  void shake_hands(const Key& key);

  // All throw PeerLost where the other side has gone, or is silent until the deadline.
  std::string read(std::size_t bytes, Clock::time_point deadline, const char* what);
  void read(std::span<std::byte> to, Clock::time_point deadline, const char* what);
  void write(std::string_view bytes, Clock::time_point deadline) { write(bytes, {}, deadline); }
  void write(std::string_view first, std::string_view then, Clock::time_point deadline);

 private:
  Peer peer_;
  std::string where_;
  int socket_ = -1;
};

}  // namespace shoal::rendezvous
