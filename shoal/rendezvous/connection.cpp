// SPDX-License-Identifier: Apache-2.0
#include "shoal/rendezvous/connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rendezvous/handshake.h"

namespace shoal::rendezvous {

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

Connection::Connection(const Peer& peer, Clock::time_point deadline)
    : peer_(peer), where_(concat(peer.address, ":", peer.port)) {
  const addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(peer.address.c_str(), std::to_string(peer.port).c_str(), &hints, &found);
  SHOAL_CHECK(error == 0, InvalidInput, peer.module, ": there is no host ", in_quotes(peer.address), ": ",
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

std::unique_ptr<Connection> Connection::admitted(const Peer& peer, const Key& key,
                                                 Clock::time_point deadline) {
  for (std::chrono::milliseconds pause = 2ms;; pause = std::min(2 * pause, 200ms)) {
    auto connection = std::make_unique<Connection>(peer, std::min(deadline, Clock::now() + 2s));
    if (!connection->is_open()) return nullptr;
    try {
      connection->shake_hands(key);
      return connection;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost || Clock::now() + pause >= deadline) throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

Connection::~Connection() {
  if (socket_ >= 0) ::close(socket_);
}

void Connection::shut() const noexcept { ::shutdown(socket_, SHUT_RDWR); }

void Connection::shake_hands(const Key& key) {
  const Clock::time_point deadline = deadline_after(5s);
  const std::string hello = read(kHelloBytes, deadline, "its greeting");
  SHOAL_CHECK(hello.starts_with(peer_.magic), InvalidInput, peer_.module, ": what listens on ", where_,
              " is not ", peer_.is, "; does another program use the port?");
  const Answerer answerer(key, hello);
  write(answerer.answer(), deadline);
  const std::string proof = read(32, deadline, "its proof");
  SHOAL_CHECK(!Answerer::is_refusal(proof), InvalidInput, peer_.module, ": ", where_,
              " refused this process: its key is not the job's; do all hosts have the same key file?");
  SHOAL_CHECK(answerer.is_right(proof), InvalidInput, peer_.module, ": ", where_,
              " does not know the job's key; is it another job's?");
}

std::string Connection::read(std::size_t bytes, Clock::time_point deadline, const char* what) {
  std::string all(bytes, '\0');
  read(std::as_writable_bytes(std::span(all)), deadline, what);
  return all;
}

void Connection::read(std::span<std::byte> to, Clock::time_point deadline, const char* what) {
  while (!to.empty()) {
    const ssize_t got = ::recv(socket_, to.data(), to.size(), 0);
    if (got > 0) {
      to = to.subspan(static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    SHOAL_CHECK(got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK), PeerLost, peer_.module, ": ", where_,
                " ended the connection", got < 0 ? concat(": ", std::strerror(errno)) : "", "; ", peer_.host,
                " has ended, or is out of reach");
    SHOAL_CHECK(ready(socket_, POLLIN, deadline), PeerLost, peer_.module, ": ", where_, " did not send ",
                what, "; ", peer_.host, " has stopped, or is out of reach");
  }
}

void Connection::write(std::string_view first, std::string_view then, Clock::time_point deadline) {
  while (!first.empty() || !then.empty()) {
    std::array<iovec, 2> parts = {
        {{const_cast<char*>(first.data()), first.size()}, {const_cast<char*>(then.data()), then.size()}}};
    msghdr message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = ::sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (sent > 0) {
      const std::size_t of_first = std::min(first.size(), static_cast<std::size_t>(sent));
      first.remove_prefix(of_first);
      then.remove_prefix(static_cast<std::size_t>(sent) - of_first);
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    const bool again =
        sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && ready(socket_, POLLOUT, deadline);
    SHOAL_CHECK(again, PeerLost, peer_.module, ": ", where_, " takes no more: ", std::strerror(errno), "; ",
                peer_.host, " has ended, or is out of reach");
  }
}

bool Connection::is_of_one_host() const noexcept {
  sockaddr_in here = {}, there = {};
  socklen_t bytes = sizeof here, others = sizeof there;
  return getsockname(socket_, reinterpret_cast<sockaddr*>(&here), &bytes) == 0 &&
         getpeername(socket_, reinterpret_cast<sockaddr*>(&there), &others) == 0 &&
         here.sin_addr.s_addr == there.sin_addr.s_addr;
}

}  // namespace shoal::rendezvous
