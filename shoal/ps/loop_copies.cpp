// SPDX-License-Identifier: Apache-2.0
// What a loop does where the map says something new, and how it is a copy itself.
#include <array>
#include <string>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ps/loop.h"

namespace shoal::ps {

using asio::use_awaitable;
using wire::Operation;

// Until the connection to this copy ends.
struct Loop::Hearing {
  Part& part;
  const std::uint64_t link;
  ~Hearing() {
    if (part.links == link) part.heard = nullptr;
  }
};

// What follows from a newer map.
void Loop::adopt(const ShardMap& map) {
  if (map.number <= map_.number) return;
  map_ = map;
  const int here = map.loop_at(endpoint_);
  for (std::uint32_t number = 0; number < map.parts.size(); ++number) follow_map(number, here);
  count_applied();
  for (asio::steady_timer* timer : {&woken_, &recorded_, &copied_}) timer->cancel();
  if (has_to_tend() && !std::exchange(tends_, true)) asio::co_spawn(context_, tend(), asio::detached);
}

void Loop::follow_map(std::uint32_t number, int here) {
  const auto [primary, copy] = map_.parts[number];
  const bool leads = here != ShardMap::kNone && primary == here;
  const auto at = parts_.find(number);
  if (!leads && (here == ShardMap::kNone || copy != here)) {
    if (at == parts_.end()) return;
    const PartPtr part = at->second;
    const bool has_giver = part->is_given && here != ShardMap::kNone &&
                           map_.endpoint_of(map_.tail_of(number)) == part->heard_from;
    if (has_giver) return;  // it is being given the rows still
    unlink(*part);
    leave(*part);
    part->leads = part->holds = false;
    parts_.erase(at);
    return;
  }
  PartPtr& part = parts_[number];
  if (part == nullptr) part = make_part(number);
  part->is_given = false;
  if (part->heard != nullptr && (leads || part->heard_from != map_.endpoint_of(primary))) unlink(*part);
  part->leads = leads;
  part->holds = part->holds && leads;
  const int next = leads ? copy : ShardMap::kNone;
  if (next == ShardMap::kNone) {
    const bool gives_on =
        part->gives && map_.tail_of(number) == here && map_.endpoint_of(part->next) == part->to;
    if (!gives_on) leave(*part);
    return;
  }
  if (part->gives && (part->next != next || part->to != map_.endpoint_of(next))) leave(*part);
  part->gives = part->waits = false;
  part->next = next;
  part->to = map_.endpoint_of(next);
  if (!std::exchange(part->has_link, true)) asio::co_spawn(context_, keep_link(number, part), asio::detached);
}

// Who passed changes on to it is heard no more, and is to see that: it may wait for others, with nothing to pass on.
void Loop::unlink(Part& part) {
  ++part.links;
  asio::error_code ignored;
  if (Socket* const heard = std::exchange(part.heard, nullptr)) std::ignore = heard->close(ignored);
}

// Nobody is to have its changes now.
void Loop::leave(Part& part) {
  part.next = ShardMap::kNone;
  part.gives = part.waits = false;
  part.waiting.clear();
  part.there = part.passed;
  copied_.cancel();
  recorded_.cancel();
}

void Loop::record(Part& part, const wire::Head& head, const Bytes& payload) {
  if (!options_.maps || !Answers::is_history(head.operation) || Answers::is_rows(head.operation)) return;
  ++part.history;
  if (part.next == ShardMap::kNone) return;
  Bytes frame;
  const auto begin = std::as_bytes(std::span(&head, 1));
  frame.reserve(begin.size() + payload.size());
  frame.insert(frame.end(), begin.begin(), begin.end());
  frame.insert(frame.end(), payload.begin(), payload.end());
  pass(part, std::move(frame));
}

void Loop::pass(Part& part, Bytes frame) {
  ++part.passed;
  part.waiting.push_back(std::make_shared<const Bytes>(std::move(frame)));
  recorded_.cancel();
}

// Whether an answer waits for the next one to have done so many frames.
bool Loop::is_awaited(const Part& part, std::uint64_t frame) {
  return part.next != ShardMap::kNone && (!part.gives || part.waits) && part.there < frame;
}

// Who is to be given all, by who has it by the same map.
Loop::PartPtr Loop::begin_copy(const wire::Head& head) {
  if (head.map > map_.number) adopt(options_.maps->find());
  const int here = map_.loop_at(endpoint_);
  if (head.map != map_.number || head.part >= map_.parts.size() || here == ShardMap::kNone) return nullptr;
  const auto [primary, copy] = map_.parts[head.part];
  if (primary == here || copy == here) return nullptr;
  PartPtr& part = parts_[head.part];
  if (part != nullptr) unlink(*part);
  part = make_part(head.part);
  part->is_given = true;
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
  part->heard_from =
      map_.endpoint_of(part->is_given ? map_.tail_of(head.part) : map_.parts[head.part].primary);
  const Hearing hearing{*part, link};
  const auto check_link = [&](bool is_one) {
    SHOAL_CHECK(part->links == link && is_one, PeerLost,
                "ps: who passes changes on is not before this one any more");
  };
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
    check_link(Answers::is_history(asks.operation));
    part->answers->follow(asks, change);
    record(*part, asks, change);
    begin_saves(part);
    const std::uint64_t seen = part->passed;
    while (is_awaited(*part, seen)) {  // the last phase of giving rows
      co_await until_changed(copied_);
      check_link(true);
    }
    co_await asio::async_write(socket, asio::buffer(yes), use_awaitable);
  }
}

}  // namespace shoal::ps
