// SPDX-License-Identifier: Apache-2.0
// How changes are passed on to the next one: over one connection, which is made anew where it ends.
#include <fcntl.h>

#include <array>
#include <chrono>
#include <string>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ps/loop.h"
#include "shoal/rendezvous/handshake.h"

namespace shoal::ps {

using asio::use_awaitable;
using asio::ip::tcp;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using wire::Operation;

static constexpr int kMostFailures = 100;

// A connection to the next one. Whoever is last of its coroutines closes it.
struct Loop::Link {
  explicit Link(asio::io_context& context) : socket(context) {}
  void end() {
    asio::error_code ignored;
    is_over = true;
    std::ignore = socket.close(ignored);
  }
  Socket socket;
  bool is_over = false;
};

// While there is a next one: passes changes on, and has the map say where it has gone.
asio::awaitable<void> Loop::keep_link(std::uint32_t number, PartPtr part) {
  int failures = 0;  // one after the other
  while (part->next != ShardMap::kNone) {
    const ShardMap map = map_;
    const int next = part->next;
    bool is_there = false;
    try {
      is_there = co_await pass_on(number, part);
      failures = 0;
    } catch (const std::exception&) {  // it ended while we met: full, or ending; or it is no server any more
      is_there = ++failures < kMostFailures;
    }
    if (part->next != next) continue;
    if (is_there && part->gives) {  // what it was given so far it has lost
      leave(*part);
      break;
    }
    const bool has_store = [&] {
      try {
        if (is_there)
          adopt(options_.maps->find());
        else if (map_.number == map.number)
          adopt(options_.maps->replace(map, without(map, next)));
        return true;
      } catch (const std::exception&) {
        return false;  // it has gone, and the job with it
      }
    }();
    if (has_store && map_.number != map.number) continue;
    asio::steady_timer later(context_, 2ms);
    co_await until_changed(later);
  }
  part->has_link = false;
}

asio::awaitable<bool> Loop::shake_hands(Socket& socket) const {
  std::string hello(rendezvous::kHelloBytes, '\0'), proof(32, '\0');
  co_await asio::async_read(socket, asio::buffer(hello), use_awaitable);
  if (!hello.starts_with(wire::kMagic)) co_return false;
  const rendezvous::Answerer answerer(key_, hello);
  co_await asio::async_write(socket, asio::buffer(answerer.answer()), use_awaitable);
  co_await asio::async_read(socket, asio::buffer(proof), use_awaitable);
  co_return answerer.is_right(proof);
}

// Until the connection ends or is of no more use. False: there is nobody.
asio::awaitable<bool> Loop::pass_on(std::uint32_t number, PartPtr part) {
  const std::uint32_t map = map_.number;
  const Endpoint to = part->to;
  const int next = part->next;
  const bool gives = part->gives;
  const auto link = std::make_shared<Link>(context_);
  asio::steady_timer limit(context_, 5s);
  limit.async_wait([link](asio::error_code cancelled) {
    if (!cancelled) link->end();
  });
  asio::error_code refused;
  co_await link->socket.async_connect({asio::ip::make_address(to.address), to.port},
                                      asio::redirect_error(use_awaitable, refused));
  if (refused) co_return false;
  fcntl(link->socket.native_handle(), F_SETFD, FD_CLOEXEC);
  link->socket.set_option(tcp::no_delay(true));
  link->socket.set_option(asio::socket_base::keep_alive(true));
  const bool is_known = co_await shake_hands(link->socket);
  if (!is_known) co_return false;
  const Bytes hello = wire::frame({.operation = Operation::Follow,
                                   .part = static_cast<std::uint16_t>(number),
                                   .count = gives ? 1U : 0U,
                                   .epoch = options_.epoch,
                                   .map = map,
                                   .sequence = part->base},
                                  {});
  co_await asio::async_write(link->socket, asio::buffer(hello), use_awaitable);
  Bytes begin(sizeof(wire::Head));
  co_await asio::async_read(link->socket, asio::buffer(begin), use_awaitable);
  limit.cancel();
  const wire::Head head = wire::head_of(begin);
  if (head.operation != Operation::Done) co_return true;  // there is a newer map
  Bytes there(head.bytes);
  co_await asio::async_read(link->socket, asio::buffer(there), use_awaitable);
  wire::check_payload(head, there);
  if (part->next != next || part->to != to || part->gives != gives) co_return true;
  const std::uint64_t done = wire::round_of(there);
  if (!gives) {
    if (done > part->history || part->history - done > part->waiting.size())
      co_return false;  // of another history
    while (part->history - done < part->waiting.size()) part->waiting.pop_front();
    part->there = part->passed - part->waiting.size();
    copied_.cancel();
  }
  asio::co_spawn(context_, hear(link, part), asio::detached);
  std::uint64_t sent = part->there;
  while (!link->is_over && part->next == next && part->to == to) {
    if (sent == part->passed) {
      co_await until_changed(recorded_);
      continue;
    }
    const auto frame = part->waiting[part->waiting.size() - static_cast<std::size_t>(part->passed - sent)];
    asio::error_code gone;
    co_await asio::async_write(link->socket, asio::buffer(*frame), asio::redirect_error(use_awaitable, gone));
    if (gone) break;
    ++sent;
  }
  link->end();
  co_return true;
}

// What the next one has done.
asio::awaitable<void> Loop::hear(std::shared_ptr<Link> link, PartPtr part) {
  Bytes begin(sizeof(wire::Head));
  while (!link->is_over) {
    asio::error_code gone;
    co_await asio::async_read(link->socket, asio::buffer(begin), asio::redirect_error(use_awaitable, gone));
    if (gone || link->is_over || part->waiting.empty()) break;
    part->waiting.pop_front();
    ++part->there;
    copied_.cancel();
  }
  link->end();
  recorded_.cancel();
}

}  // namespace shoal::ps
