// SPDX-License-Identifier: Apache-2.0
// How a loop keeps the copies of its parts, and is a copy itself.
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
static constexpr std::size_t kMostPassed = 8;        // frames of rows on their way to a new copy
static constexpr auto kBetweenLooks = 100ms;         // for servers that are to have copies
static constexpr std::chrono::seconds kPatience{3};  // with a server that is to come again

// Whether what asks the job's store could; it goes with the job.
static bool has_store(const auto& asks) {
  try {
    asks();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Until the connection to this copy ends.
struct Loop::Hearing {
  Part& part;
  const std::uint64_t link;
  ~Hearing() {
    if (part.links == link) part.heard = nullptr;
  }
};

// A connection to the copy. Whoever is last of its coroutines closes it.
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

// What follows from a newer map.
void Loop::adopt(const ShardMap& map) {
  if (map.number <= map_.number) return;
  const ShardMap before = std::exchange(map_, map);
  const int here = map.loop_at(endpoint_);
  bool lacks_copies = false;
  for (std::uint32_t number = 0; number < map.parts.size(); ++number) {
    const auto [primary, copy] = map.parts[number];
    const bool has_primary = before.number > 0 && before.parts[number].primary == primary;
    const auto at = parts_.find(number);
    if (at != parts_.end() && !has_primary) unlink(*at->second);
    const bool leads = here != ShardMap::kNone && primary == here;
    if (!leads && (here == ShardMap::kNone || copy != here)) {
      if (at == parts_.end() || (at->second->begins && !at->second->leads && has_primary)) continue;
      leave(*at->second);
      at->second->leads = false;
      parts_.erase(at);
      continue;
    }
    PartPtr& part = parts_[number];
    if (part == nullptr) part = make_part(number);
    if (!leads) {
      part->begins = false;
      continue;
    }
    if (!std::exchange(part->leads, true)) part->begins = false;
    if (part->begins && copy == ShardMap::kNone &&
        map.loops[static_cast<std::size_t>(part->copy)] == part->to)
      continue;  // its copy is being made
    if (copy == ShardMap::kNone) {
      leave(*part);
      lacks_copies = true;
      continue;
    }
    part->begins = false;
    part->copy = copy;
    part->to = map.loops[static_cast<std::size_t>(copy)];
    if (!std::exchange(part->has_link, true))
      asio::co_spawn(context_, keep_copy(number, part), asio::detached);
  }
  count_applied();
  for (asio::steady_timer* timer : {&woken_, &recorded_, &copied_}) timer->cancel();
  if (lacks_copies && !std::exchange(finds_copies_, true))
    asio::co_spawn(context_, find_copies(), asio::detached);
}

// Who passed changes on to it is heard no more, and is to see that: it may wait for others, with nothing to pass on.
void Loop::unlink(Part& part) {
  ++part.links;
  asio::error_code ignored;
  if (Socket* const heard = std::exchange(part.heard, nullptr)) std::ignore = heard->close(ignored);
}

// There is no copy of it now.
void Loop::leave(Part& part) {
  part.copy = ShardMap::kNone;
  part.begins = false;
  part.waiting.clear();
  copied_.cancel();
  recorded_.cancel();
}

void Loop::record(Part& part, const wire::Head& head, const Bytes& payload) {
  if (!options_.maps || !Answers::is_history(head.operation)) return;
  if (part.copy == ShardMap::kNone) {
    ++part.history;
    return;
  }
  Bytes frame;
  const auto begin = std::as_bytes(std::span(&head, 1));
  frame.reserve(begin.size() + payload.size());
  frame.insert(frame.end(), begin.begin(), begin.end());
  frame.insert(frame.end(), payload.begin(), payload.end());
  pass(part, std::move(frame));
}

void Loop::pass(Part& part, Bytes frame) {
  ++part.history;
  part.waiting.push_back(std::make_shared<const Bytes>(std::move(frame)));
  recorded_.cancel();
}

// For parts without one, one after the other: on a server that has come anew, or after a while on any.
asio::awaitable<void> Loop::find_copies() {
  const auto since = std::chrono::steady_clock::now();
  for (;;) {
    asio::steady_timer later(context_, kBetweenLooks);
    co_await until_changed(later);
    PartPtr part;
    std::uint32_t number = 0;
    const bool is_there = has_store([&] { adopt(options_.maps->find()); });
    for (const auto& [each, one] : parts_) {
      if (!is_there || !one->leads || one->copy != ShardMap::kNone) continue;
      part = one;
      number = each;
      break;
    }
    if (part == nullptr) break;
    const bool is_fair = std::chrono::steady_clock::now() - since < kPatience;
    const int loop = copy_for(map_, number, is_fair);
    if (loop != ShardMap::kNone && !part->has_link) co_await make_copy(number, part, loop);
  }
  finds_copies_ = false;
}

asio::awaitable<void> Loop::make_copy(std::uint32_t number, PartPtr part, int loop) {
  part->begins = part->has_link = true;
  part->copy = loop;
  part->to = map_.loops[static_cast<std::size_t>(loop)];
  part->there = part->history;
  part->waiting.clear();
  asio::co_spawn(context_, keep_copy(number, part), asio::detached);
  try {
    co_await give_rows(number, part);
  } catch (const std::exception&) {  // no memory for its frames, or the job's store has gone
    if (part->begins) leave(*part);
  }
}

bool Loop::is_given(const Part& part, int loop) { return part.begins && part.leads && part.copy == loop; }

// Until the map says that it has them, or it is not to be the copy any more.
asio::awaitable<void> Loop::give_rows(std::uint32_t number, PartPtr part) {
  const wire::Head head = {.part = static_cast<std::uint16_t>(number), .epoch = options_.epoch};
  const int loop = part->copy;
  const Answers& from = *part->answers;
  std::uint64_t whole = 0;
  do {
    while (is_given(*part, loop) && !from.is_quiet()) co_await until_changed(woken_);
    if (!is_given(*part, loop)) co_return;
    whole = from.num_whole();
    pass(*part, from.state(head));
    for (const auto& [table, shard] : from.shards()) {
      for (Bytes& frame : from.rows(head, table, shard)) pass(*part, std::move(frame));
      while (is_given(*part, loop) && part->waiting.size() > kMostPassed) co_await until_changed(copied_);
      if (!is_given(*part, loop)) co_return;
      if (whole != from.num_whole()) break;
    }
    const std::uint64_t all = part->history;
    while (is_given(*part, loop) && part->there < all) co_await until_changed(copied_);
    if (!is_given(*part, loop)) co_return;
  } while (whole != from.num_whole());
  while (is_given(*part, loop)) adopt(options_.maps->replace(map_, with_copy(map_, number, loop)));
}

// While the part is this loop's and the copy another's: passes changes on, and has the map say where it has gone.
asio::awaitable<void> Loop::keep_copy(std::uint32_t number, PartPtr part) {
  int failures = 0;  // one after the other
  while (part->copy != ShardMap::kNone) {
    const ShardMap map = map_;
    const int copy = part->copy;
    bool is_there = false;
    try {
      is_there = co_await pass_on(number, part);
      failures = 0;
    } catch (const std::exception&) {  // it ended while we met: full, or ending; or it is no server any more
      is_there = ++failures < kMostFailures;
    }
    if (part->copy != copy) continue;
    if (is_there && part->begins) {  // what it was given so far it has lost
      leave(*part);
      break;
    }
    has_store([&] {
      if (is_there)
        adopt(options_.maps->find());
      else if (map_.number == map.number)
        adopt(options_.maps->replace(map, without(map, copy)));
    });
    if (map_.number != map.number) continue;
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
  const int copy = part->copy;
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
                                   .count = part->begins ? 1U : 0U,
                                   .epoch = options_.epoch,
                                   .map = map,
                                   .sequence = part->history - part->waiting.size()},
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
  if (part->copy != copy || part->to != to) co_return true;
  const std::uint64_t done = wire::round_of(there);
  if (done + part->waiting.size() < part->history || done > part->history)
    co_return false;  // of another history
  while (done + part->waiting.size() > part->history) part->waiting.pop_front();
  part->there = done;
  copied_.cancel();
  asio::co_spawn(context_, hear(link, part), asio::detached);
  std::uint64_t sent = done;
  while (!link->is_over && part->copy == copy && part->to == to) {
    if (sent == part->history) {
      co_await until_changed(recorded_);
      continue;
    }
    const auto frame = part->waiting[part->waiting.size() - static_cast<std::size_t>(part->history - sent)];
    asio::error_code gone;
    co_await asio::async_write(link->socket, asio::buffer(*frame), asio::redirect_error(use_awaitable, gone));
    if (gone) break;
    ++sent;
  }
  link->end();
  co_return true;
}

// What the copy has done.
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

// A copy that is to be given all.
Loop::PartPtr Loop::begin_copy(const wire::Head& head) {
  if (head.map > map_.number) adopt(options_.maps->find());
  if (head.map != map_.number || head.part >= map_.parts.size() || map_.loop_at(endpoint_) == ShardMap::kNone)
    return nullptr;
  const auto [primary, copy] = map_.parts[head.part];
  if (copy != ShardMap::kNone || map_.loops[static_cast<std::size_t>(primary)] == endpoint_) return nullptr;
  PartPtr& part = parts_[head.part];
  if (part != nullptr) unlink(*part);
  part = make_part(head.part);
  part->begins = true;
  part->history = head.sequence;
  return part;
}

// Is a copy until the connection ends, which is thrown; returns where it is not to be one.
asio::awaitable<void> Loop::follow(Socket& socket, const wire::Head& head, const Bytes& payload) {
  wire::check_payload(head, payload);
  if (head.epoch != options_.epoch || !options_.maps) co_return;
  const PartPtr part = head.count == 1 ? begin_copy(head) : asked(head, false);
  if (part == nullptr) co_return;
  unlink(*part);
  const std::uint64_t link = part->links;
  part->heard = &socket;
  const Hearing hearing{*part, link};
  wire::Head done = head;
  done.operation = Operation::Done;
  const std::uint64_t history = part->history;
  const Bytes hello = wire::frame(done, std::array{std::as_bytes(std::span(&history, 1))});
  co_await asio::async_write(socket, asio::buffer(hello), use_awaitable);
  const Bytes yes = wire::frame(done, {});
  Bytes begin(sizeof(wire::Head)), change;
  for (;;) {
    co_await asio::async_read(socket, asio::buffer(begin), use_awaitable);
    const wire::Head asks = wire::head_of(begin);
    change.resize(asks.bytes);
    co_await asio::async_read(socket, asio::buffer(change), use_awaitable);
    SHOAL_CHECK(part->links == link && Answers::is_history(asks.operation), PeerLost,
                "ps: who passes changes on is the primary no more");
    part->answers->follow(asks, change);
    ++part->history;
    co_await asio::async_write(socket, asio::buffer(yes), use_awaitable);
  }
}

}  // namespace shoal::ps
