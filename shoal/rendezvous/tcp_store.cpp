// SPDX-License-Identifier: Apache-2.0
// Plain sockets with a deadline on every step: a client needs no loop and no thread.
#include "shoal/rendezvous/tcp_store.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rendezvous/deadline.h"
#include "shoal/rendezvous/wire.h"

namespace shoal::rendezvous {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

static int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
}

static bool ready(int socket, short events, Clock::time_point deadline) {
  pollfd wanted = {.fd = socket, .events = events, .revents = 0};
  int num = 0;
  do {
    num = poll(&wanted, 1, milliseconds_until(deadline));
  } while (num < 0 && errno == EINTR);
  return num > 0;
}

// A connected socket, or -1 and errno.
static int connected(const sockaddr* address, socklen_t bytes, Clock::time_point deadline) {
  const int socket = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  int error = ::connect(socket, address, bytes) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    error = ETIMEDOUT;
    socklen_t size = sizeof error;
    if (ready(socket, POLLOUT, deadline)) getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return socket;
  ::close(socket);
  errno = error;
  return -1;
}

class TcpStore::Connection {
 public:
  Connection(const TcpStoreOptions& options, Clock::time_point deadline)
      : where_(concat(options.address, ":", options.port)), silence_(options.silence) {
    const addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    addrinfo* found = nullptr;
    const int error =
        getaddrinfo(options.address.c_str(), std::to_string(options.port).c_str(), &hints, &found);
    SHOAL_CHECK(error == 0, InvalidInput, "rendezvous: there is no host ", quoted(options.address), ": ",
                gai_strerror(error));
    socket_ = connected(found->ai_addr, found->ai_addrlen, deadline);
    const int why = errno;
    freeaddrinfo(found);
    errno = why;
    if (socket_ < 0) return;
    const auto set = [&](int level, int name, int value) {
      setsockopt(socket_, level, name, &value, sizeof value);
    };
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, 4000);
    set(IPPROTO_TCP, TCP_NODELAY, 1);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (socket_ >= 0) ::close(socket_);
  }

  bool is_open() const { return socket_ >= 0; }
  void shut() const noexcept { ::shutdown(socket_, SHUT_RDWR); }

  // Both sides prove the key. Throws PeerLost where the other side ends it.
  void shake_hands(const Key& key) {
    const Clock::time_point deadline = deadline_after(5s);
    const std::string hello = read(wire::kHelloBytes, deadline, "its greeting");
    SHOAL_CHECK(hello.starts_with(wire::kMagic), InvalidInput, "rendezvous: what listens on ", where_,
                " is not a store of this version of Shoal; does another program use the port?");
    is_greeted_ = true;
    const std::span<const std::uint8_t> theirs(
        reinterpret_cast<const std::uint8_t*>(hello.data()) + wire::kMagic.size(), 32);
    const Bytes32 nonce = random_bytes(), own = proof(key, "client", theirs, nonce);
    std::string answer(wire::kMagic);
    answer.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
    answer.append(reinterpret_cast<const char*>(own.data()), own.size());
    write(answer, deadline);
    const std::string reply = read(32, deadline, "its proof");
    SHOAL_CHECK(same(proof(key, "server", theirs, nonce),
                     {reinterpret_cast<const std::uint8_t*>(reply.data()), reply.size()}),
                InvalidInput, "rendezvous: ", where_, " does not know the job's key; is it another job's?");
  }

  // The same, for a key that nobody has accepted yet: who greets and then ends it has refused the key.
  void shake_hands_first(const Key& key) {
    try {
      shake_hands(key);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost || !is_greeted_) throw;
      fail(ErrorKind::InvalidInput, "rendezvous: ", where_,
           " refused this process: its key is not the job's; do all hosts have the same key file?");
    }
  }

  wire::Reply ask(const wire::Request& request, std::chrono::nanoseconds limit) {
    write(wire::with_length(wire::to_bytes(request)), deadline_after(silence_));
    const Clock::time_point deadline = deadline_after(limit) + silence_;
    const std::uint32_t length = wire::length_of(read(4, deadline, "an answer"));
    SHOAL_CHECK(length <= wire::kMostBytes, Corrupt, "rendezvous: ", where_, " announced an answer of ",
                length, " bytes");
    return wire::reply_of(read(length, deadline_after(silence_), "the rest of an answer"));
  }

 private:
  std::string read(std::size_t bytes, Clock::time_point deadline, const char* what) {
    std::string all(bytes, '\0');
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t got = ::recv(socket_, all.data() + done, bytes - done, 0);
      if (got > 0) {
        done += static_cast<std::size_t>(got);
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      SHOAL_CHECK(got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK), PeerLost, "rendezvous: ", where_,
                  " ended the connection", got < 0 ? concat(": ", std::strerror(errno)) : "",
                  "; the job's first host has ended, or is out of reach");
      SHOAL_CHECK(ready(socket_, POLLIN, deadline), PeerLost, "rendezvous: ", where_, " did not send ", what,
                  "; the job's first host has stopped, or is out of reach");
    }
    return all;
  }

  void write(std::string_view bytes, Clock::time_point deadline) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
        continue;
      }
      if (sent < 0 && errno == EINTR) continue;
      const bool again =
          sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && ready(socket_, POLLOUT, deadline);
      SHOAL_CHECK(again, PeerLost, "rendezvous: ", where_, " takes no more: ", std::strerror(errno),
                  "; the job's first host has ended, or is out of reach");
    }
  }

  std::string where_;
  std::chrono::nanoseconds silence_;
  int socket_ = -1;
  bool is_greeted_ = false;
};

TcpStore::TcpStore(const Key& key, TcpStoreOptions options) : key_(key), options_(std::move(options)) {
  const Clock::time_point deadline = deadline_after(options_.limit);
  std::chrono::milliseconds pause = 2ms;
  for (;;) {
    auto connection = std::make_unique<Connection>(options_, std::min(deadline, Clock::now() + 2s));
    if (connection->is_open()) {
      connection->shake_hands_first(key_);
      idle_.push_back(std::move(connection));
      return;
    }
    const int error = errno;
    SHOAL_CHECK(Clock::now() < deadline, Timeout, "rendezvous: ", options_.address, ":", options_.port,
                " was not there within ", std::chrono::duration<double>(options_.limit).count(), " s (",
                std::strerror(error), "); is the job's first host up, and is that its address?");
    poll(nullptr, 0, std::min(static_cast<int>(pause.count()), milliseconds_until(deadline)));
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

std::unique_ptr<TcpStore::Connection> TcpStore::taken() {
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
  connection = std::make_unique<Connection>(options_, deadline_after(options_.silence));
  SHOAL_CHECK(connection->is_open(), PeerLost, "rendezvous: ", options_.address, ":", options_.port,
              " is out of reach: ", std::strerror(errno), "; the job's first host has ended");
  connection->shake_hands(key_);
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
              InvalidInput, "rendezvous: the value of key ", quoted(request.key), " is larger than ",
              human_bytes(wire::kMostBytes / 2), "; the store is for small ones");
  std::unique_ptr<Connection> connection = taken();
  wire::Reply reply;
  try {
    reply = connection->ask(request, limit);
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
  SHOAL_CHECK(reply.status == wire::Status::Done, Timeout, "rendezvous: key ", quoted(key),
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
