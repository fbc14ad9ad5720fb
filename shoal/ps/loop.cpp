// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/loop.h"

#include <fcntl.h>

#include <array>
#include <chrono>
#include <cstring>
#include <tuple>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::ps {

using asio::use_awaitable;
using asio::ip::tcp;
using wire::Operation;

Loop::Loop(const rendezvous::Key& key, const ServerOptions& options, std::uint32_t loop, const ColdTier& cold)
    : key_(key), options_(options), cold_(cold), door_(key, wire::kMagic) {
  listen(options.address);
  if (!options.maps) {
    parts_[loop] = make_part(loop);
    parts_[loop]->leads = true;
  }
  const auto serves = [this](tcp::socket socket) {
    asio::co_spawn(context_, serve(std::move(socket)), asio::detached);
  };
  asio::co_spawn(context_, rendezvous::accept_each(acceptor_, serves), asio::detached);
  thread_ = std::thread([this] { context_.run(); });
}

void Loop::see(const ShardMap& map) {
  asio::post(context_, [this, map] { adopt(map); });
}

Loop::~Loop() {
  context_.stop();
  thread_.join();
}

void Loop::listen(const std::string& interface) {
  asio::error_code error;
  const asio::ip::address address = asio::ip::make_address(interface, error);
  SHOAL_CHECK(!error && !address.is_unspecified(), InvalidInput, "ps: ", in_quotes(interface),
              " is not the IP address of one interface");
  const tcp::endpoint endpoint(address, 0);
  acceptor_.open(endpoint.protocol());
  fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
  std::ignore = acceptor_.bind(endpoint, error);
  if (!error) endpoint_ = {.address = interface, .port = acceptor_.local_endpoint().port()};
  if (!error && options_.maps) {  // who was there before has gone
    ShardMap map = options_.maps->find();
    for (int loop = 0; (loop = map.loop_at(endpoint_)) != ShardMap::kNone;)
      map = options_.maps->replace(map, without(map, loop));
  }
  if (!error) std::ignore = acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  SHOAL_CHECK(!error, InvalidInput, "ps: cannot listen on ", interface, ": ", error.message(),
              "; is that an address of this host?");
}

Loop::PartPtr Loop::make_part(std::uint32_t part) {
  const std::uint32_t parts =
      map_.number == 0 ? options_.all_loops : static_cast<std::uint32_t>(map_.parts.size());
  return std::make_shared<Part>(
      std::make_unique<Answers>(part, parts, options_.epoch, [this] { woken_.cancel(); }, &files_, &cold_));
}

asio::awaitable<void> Loop::serve(tcp::socket socket) {
  try {
    fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    socket.set_option(tcp::no_delay(true));
    socket.set_option(asio::socket_base::keep_alive(true));
    const bool known = co_await door_.admits(socket);
    if (!known) co_return;
    Bytes begin(sizeof(wire::Head)), payload, reply;
    std::optional<PayloadsOfClient> beside;
    std::uint64_t place = kInStream;
    for (;;) {
      const auto its_place = [&] { return asio::buffer(&place, beside ? sizeof place : 0); };
      co_await asio::async_read(socket, std::array{its_place(), asio::buffer(begin)}, use_awaitable);
      const wire::Head head = wire::head_of(begin);
      payload.resize(head.bytes);
      if (place == kInStream)
        co_await asio::async_read(socket, asio::buffer(payload), use_awaitable);
      else
        beside->copy_request(place, payload);
      if (head.operation == Operation::Share) {
        reply = shared(head, payload, beside);
        co_await asio::async_write(socket, asio::buffer(reply), use_awaitable);
        continue;
      }
      if (head.operation == Operation::Follow) {
        co_await follow(socket, head, payload);  // returns where it is refused
        older(head, reply);
      } else {
        co_await answer(head, payload, reply);
      }
      const auto its_payload = std::as_bytes(std::span(reply)).subspan(sizeof head);
      // Of errors several may be on their way, and there is room for one answer.
      const bool is_beside = beside && goes_beside(its_payload.size()) &&
                             wire::head_of(std::span(reply).first(sizeof head)).operation == Operation::Done;
      place = is_beside ? beside->put_answer(its_payload) : kInStream;
      const std::size_t follows = is_beside ? sizeof head : reply.size();
      co_await asio::async_write(socket, std::array{its_place(), asio::buffer(reply.data(), follows)},
                                 use_awaitable);
      place = kInStream;
    }
  } catch (const std::exception&) {  // the other end has gone, or does not speak frames
    asio::error_code ignored;
    std::ignore = socket.close(ignored);
  }
}

// Of a client that is on this host, as far as it knows.
Loop::Bytes Loop::shared(const wire::Head& head, const Bytes& payload,
                         std::optional<PayloadsOfClient>& beside) {
  wire::check_payload(head, payload);
  try {
    comm::shm::SegmentId id;
    SHOAL_CHECK(payload.size() == sizeof id && !beside, Corrupt, "ps: a client shares memory in ",
                payload.size(), " bytes");
    std::memcpy(&id, payload.data(), sizeof id);
    beside.emplace(mappings_, id);
  } catch (const Error& error) {
    return wire::failure(head, error);
  }
  wire::Head done = head;
  done.operation = Operation::Done;
  return wire::frame(done, {});
}

void Loop::older(const wire::Head& head, Bytes& reply) const {
  wire::Head older = head;
  older.operation = Operation::Older;
  older.map = map_.number;
  older.count = 0;
  reply = wire::frame(older, {});
}

// The part that the frame is about; null where its sender has to look at the map.
Loop::PartPtr Loop::asked(const wire::Head& head, bool of_primary) {
  if (!options_.maps) return head.map == 0 ? parts_.begin()->second : nullptr;
  if (head.map > map_.number) adopt(options_.maps->find());
  if (head.map != map_.number) return nullptr;
  const auto part = parts_.find(head.part);
  return part != parts_.end() && part->second->leads == of_primary && (of_primary || !part->second->is_given)
             ? part->second
             : nullptr;
}

void Loop::count_applied() {
  std::int64_t sum = 0;
  for (const auto& [number, part] : parts_)
    if (part->leads) sum += part->answers->num_applied();
  num_applied_ = sum;
}

asio::awaitable<void> Loop::answer(const wire::Head& head, const Bytes& payload, Bytes& reply) {
  const PartPtr part = asked(head, true);
  while (part != nullptr && part->holds && head.map == map_.number) co_await until_changed(woken_);
  if (part == nullptr || (options_.maps && head.map != map_.number)) {
    older(head, reply);
    co_return;
  }
  bool is_done = part->answers->answer(head, payload, reply);
  record(*part, head, payload);
  count_applied();
  begin_saves(part);
  while (!is_done) {  // it waits for other workers
    co_await until_changed(woken_);
    if (head.map != map_.number) {
      older(head, reply);
      co_return;
    }
    is_done = part->answers->answer(head, payload, reply);
  }
  const std::uint64_t seen = part->passed;
  while (is_awaited(*part, seen)) {
    co_await until_changed(copied_);
    if (head.map != map_.number) {
      older(head, reply);
      co_return;
    }
  }
}

void Loop::begin_saves(const PartPtr& part) {
  if (part->saves || !part->answers->has_saves()) return;
  part->saves = true;
  asio::co_spawn(context_, save_on(part), asio::detached);
}

// In slices, and at rest most of the time: who asks waits for a slice at most.
asio::awaitable<void> Loop::save_on(PartPtr part) {
  constexpr std::size_t kRows = 2048;
  constexpr int kRests = 2;  // as long as the slice took
  for (bool goes_on = true; goes_on;) {
    const auto begin = std::chrono::steady_clock::now();
    goes_on = part->answers->advance_saves(kRows);
    asio::steady_timer rest(context_, kRests * (std::chrono::steady_clock::now() - begin));
    co_await until_changed(rest);
  }
  part->saves = false;
}

asio::awaitable<void> Loop::until_changed(asio::steady_timer& timer) {
  asio::error_code cancelled;
  co_await timer.async_wait(asio::redirect_error(use_awaitable, cancelled));
}

}  // namespace shoal::ps
