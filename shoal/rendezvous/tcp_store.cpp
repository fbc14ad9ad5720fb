// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/tcp_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rendezvous/connection.h"
#include "shoal/rendezvous/deadline.h"
#include "shoal/rendezvous/wire.h"

namespace shoal::rendezvous {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

static Peer peer_of(const TcpStoreOptions& options) {
  return {.address = options.address,
          .port = options.port,
          .magic = wire::kMagic,
          .module = "rendezvous",
          .is = "a store of this version of Shoal",
          .host = "the job's first host"};
}

static wire::Reply asked(Connection& connection, const wire::Request& request, std::chrono::nanoseconds limit,
                         std::chrono::nanoseconds silence) {
  connection.write(wire::with_length(wire::to_bytes(request)), deadline_after(silence));
  const Clock::time_point deadline = deadline_after(limit) + silence;
  const std::uint32_t length = wire::length_of(connection.read(4, deadline, "an answer"));
  SHOAL_CHECK(length <= wire::kMostBytes, Corrupt, "rendezvous: ", connection.where(),
              " announced an answer of ", length, " bytes");
  return wire::reply_of(connection.read(length, deadline_after(silence), "the rest of an answer"));
}

TcpStore::TcpStore(const Key& key, TcpStoreOptions options) : key_(key), options_(std::move(options)) {
  const Clock::time_point deadline = deadline_after(options_.limit);
  std::chrono::milliseconds pause = 2ms;
  for (;;) {
    if (auto connection = Connection::admitted(peer_of(options_), key_, deadline)) {
      idle_.push_back(std::move(connection));
      return;
    }
    const int error = errno;
    SHOAL_CHECK(Clock::now() < deadline, Timeout, "rendezvous: ", options_.address, ":", options_.port,
                " was not there within ", std::chrono::duration<double>(options_.limit).count(), " s (",
                std::strerror(error), "); is the job's first host up, and is that its address?");
    std::this_thread::sleep_until(std::min(Clock::now() + pause, deadline));
    pause = std::min(2 * pause, 200ms);
  }
}

TcpStore::~TcpStore() = default;

void TcpStore::close() noexcept {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const Connection* connection : busy_) connection->shut();
  idle_.clear();
}

std::unique_ptr<Connection> TcpStore::taken() {
  const auto check_open = [&] {
    SHOAL_CHECK(!closed_, PeerLost, "rendezvous: the store was closed in this process");
  };
  std::unique_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    check_open();
    if (!idle_.empty()) {
      connection = std::move(idle_.back());
      idle_.pop_back();
      busy_.push_back(connection.get());
      return connection;
    }
  }
  connection = Connection::admitted(peer_of(options_), key_, deadline_after(options_.silence));
  SHOAL_CHECK(connection, PeerLost, "rendezvous: ", options_.address, ":", options_.port,
              " is out of reach: ", std::strerror(errno), "; the job's first host has ended");
  const std::lock_guard lock(mutex_);
  check_open();
  busy_.push_back(connection.get());
  return connection;
}

void TcpStore::give_back(std::unique_ptr<Connection> connection) {
  const std::lock_guard lock(mutex_);
  std::erase(busy_, connection.get());
  if (!closed_) idle_.push_back(std::move(connection));
}

wire::Reply TcpStore::ask(const wire::Request& request, std::chrono::nanoseconds limit) {
  SHOAL_CHECK(request.key.size() + request.value.size() + request.expected.size() < wire::kMostBytes / 2,
              InvalidInput, "rendezvous: the value of key ", in_quotes(request.key), " is larger than ",
              human_bytes(wire::kMostBytes / 2), "; the store is for small ones");
  std::unique_ptr<Connection> connection = taken();
  wire::Reply reply;
  try {
    reply = asked(*connection, request, limit, options_.silence);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    std::erase(busy_, connection.get());
    throw;
  }
  give_back(std::move(connection));
  if (reply.status == wire::Status::Failed) throw Error(reply.kind, reply.text);
  return reply;
}

void TcpStore::set(std::string_view key, std::string_view value) {
  ask({.op = wire::Op::Set, .epoch = options_.epoch, .key = std::string(key), .value = std::string(value)},
      0s);
}

std::string TcpStore::get(std::string_view key, std::chrono::nanoseconds limit) {
  const auto bounded = std::clamp<std::chrono::nanoseconds>(limit, 0s, 24h * 365);
  wire::Reply reply =
      ask({.op = wire::Op::Get, .epoch = options_.epoch, .number = bounded.count(), .key = std::string(key)},
          bounded);
  SHOAL_CHECK(reply.status == wire::Status::Done, Timeout, "rendezvous: key ", in_quotes(key),
              " was not set within ", std::chrono::duration<double>(limit).count(),
              " s; has every rank started?");
  return std::move(reply.text);
}

std::optional<std::string> TcpStore::find(std::string_view key) {
  wire::Reply reply = ask({.op = wire::Op::Find, .epoch = options_.epoch, .key = std::string(key)}, 0s);
  if (reply.status == wire::Status::Absent) return std::nullopt;
  return std::move(reply.text);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
  return ask({.op = wire::Op::Add, .epoch = options_.epoch, .number = amount, .key = std::string(key)}, 0s)
      .number;
}

std::string TcpStore::compare_and_set(std::string_view key, std::string_view expected,
                                      std::string_view desired) {
  return ask({.op = wire::Op::CompareAndSet,
              .epoch = options_.epoch,
              .key = std::string(key),
              .value = std::string(desired),
              .expected = std::string(expected)},
             0s)
      .text;
}

bool TcpStore::remove(std::string_view key) {
  return ask({.op = wire::Op::Remove, .epoch = options_.epoch, .key = std::string(key)}, 0s).number != 0;
}

std::int64_t TcpStore::num_keys() {
  return ask({.op = wire::Op::NumKeys, .epoch = options_.epoch}, 0s).number;
}

}  // namespace shoal::rendezvous
