// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/lines.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "shoal/base/text.h"

namespace shoal::ps {

Lines::Lines(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options)
    : key_(key), options_(options) {
  const auto random = rendezvous::random_bytes();
  std::memcpy(&client_, random.data(), sizeof client_);
  if (options_.maps) map_ = options_.maps->find();
  if (map_.number == 0) {
    for (int loop = 0; loop < static_cast<int>(loops.size()); ++loop) map_.parts.push_back({.primary = loop});
    map_.loops = std::move(loops);
  }
  lines_.resize(map_.parts.size());
  for (std::size_t part = 0; part < lines_.size(); ++part) connect(part);
}

wire::Head Lines::head(std::size_t part, wire::Operation operation, std::uint32_t table, std::size_t count) {
  return {.operation = operation,
          .part = static_cast<std::uint16_t>(part),
          .table = table,
          .count = static_cast<std::uint32_t>(count),
          .epoch = options_.epoch,
          .map = map_.number,
          .client = client_,
          .sequence = ++sequence_};
}

void Lines::send(std::size_t part, std::vector<std::byte> frame, Take take,
                 std::optional<std::chrono::nanoseconds> limit) {
  Line& line = lines_[part];
  const bool is_crowded = line.under_way.size() >= wire::kMostUnderWay;
  try {
    if (is_crowded ||
        std::ranges::any_of(line.under_way, [](const Request& each) { return bool{each.take}; }))
      settle(part);
    seal(frame);
    line.under_way.push_back({std::move(frame), std::move(take), limit.value_or(options_.limit)});
    if (line.connection) write_last(line);  // else settle() sends it again
  } catch (...) {
    give_up();
    throw;
  }
}

void Lines::finish() noexcept {
  try {
    read_all();
  } catch (const Error& error) {
    if (!refusal_) refusal_ = error;
  } catch (const std::exception& error) {
    if (!refusal_) refusal_ = Error(ErrorKind::Infeasible, concat("ps: ", error.what()));
  }
}

void Lines::settle() {
  read_all();
  if (const auto refusal = std::exchange(refusal_, std::nullopt)) throw Error(*refusal);
}

void Lines::read_all() {
  try {
    for (std::size_t part = 0; part < lines_.size(); ++part) settle(part);
  } catch (...) {
    give_up();
    throw;
  }
}

void Lines::settle(std::size_t part) {
  Line& line = lines_[part];
  while (!line.under_way.empty()) {
    wire::Head head;
    read_answer(part, head);
    const Request request = std::move(line.under_way.front());
    line.under_way.pop_front();
    if (request.is_beside) line.beside->take_back();
    if (head.operation != wire::Operation::Done)
      refused(head);
    else if (request.take)
      request.take(head, answer_);
  }
}

// Of the first request under way, which is sent again where its connection ends: once; with a map until the
// answer's limit, as each time another server may have gone.
void Lines::read_answer(std::size_t part, wire::Head& head) {
  Line& line = lines_[part];
  const auto deadline = rendezvous::deadline_after(line.under_way.front().limit);
  for (bool is_first = true;; is_first = false) {
    try {
      if (!line.connection) send_again(part);
      read(line, head);
      if (head.operation != wire::Operation::Older) return;
    } catch (const Error& error) {
      const bool tries_again = map_.number > 0 ? rendezvous::Clock::now() < deadline : is_first;
      if (error.kind() != ErrorKind::PeerLost || !tries_again) throw;
    }
    line.close();
    if (map_.number == 0) continue;
    SHOAL_CHECK(rendezvous::Clock::now() < deadline, Timeout, "ps: part ", part,
                " of the tables has no server ", "that says it has it, and the map is at ", map_.number);
    const std::uint32_t seen = map_.number;
    adopt(options_.maps->find());
    if (map_.number == seen) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Lines::refused(const wire::Head& head) {
  if (refusal_) return;
  try {
    SHOAL_CHECK(head.operation == wire::Operation::Failed, Corrupt, "ps: a server answered with a request");
    wire::throw_failure(answer_);
  } catch (const Error& error) {
    refusal_ = error;
  }
}

// After an error in the middle: who would take the answers may be gone.
void Lines::give_up() {
  for (Line& line : lines_) {
    if (line.under_way.empty()) continue;
    line.under_way.clear();
    line.close();  // answers that still come belong to nobody
  }
}

std::unique_ptr<rendezvous::Connection> Lines::connected(int loop, const Endpoint& endpoint) const {
  const rendezvous::Peer peer = {.address = endpoint.address,
                                 .port = endpoint.port,
                                 .magic = wire::kMagic,
                                 .module = "ps",
                                 .is = "a parameter server of this version of Shoal",
                                 .host = "the server"};
  std::unique_ptr<rendezvous::Connection> connection;
  try {
    connection = rendezvous::Connection::admitted(peer, key_, rendezvous::deadline_after(options_.limit));
  } catch (const Error& error) {
    // Where there is a map, who is in it has the key: another one has the port now.
    if (map_.number == 0 || error.kind() != ErrorKind::InvalidInput) throw;
    return nullptr;
  }
  SHOAL_CHECK(connection || map_.number > 0, PeerLost, "ps: server loop ", loop, " at ", endpoint.address,
              ":", endpoint.port, " is out of reach: ", std::strerror(errno));
  return connection;
}

// To who has the part; one where nobody listens has gone, and the map is to say so.
void Lines::connect(std::size_t part) {
  const auto deadline = rendezvous::deadline_after(options_.limit);
  for (;;) {
    const int loop = map_.parts[part].primary;
    SHOAL_CHECK(
        loop != ShardMap::kNone, Infeasible, "ps: the servers that had part ", part,
        " of the tables have gone, its copy too, and its rows are lost. Remedy: go on from a checkpoint");
    const Endpoint endpoint = map_.loops[static_cast<std::size_t>(loop)];
    lines_[part].close();
    lines_[part].connection = connected(loop, endpoint);
    if (lines_[part].connection) {
      try {
        return share(lines_[part]);
      } catch (const Error& error) {  // it ended just now
        lines_[part].close();
        const bool tries_again = map_.number > 0 && rendezvous::Clock::now() < deadline;
        if (error.kind() != ErrorKind::PeerLost || !tries_again) throw;
        continue;
      }
    }
    adopt(options_.maps->replace(map_, without(map_, loop)));
  }
}

// Requests go to who has their part now. Those under way all go again, as a server that does a later one before an
// earlier one would refuse this.
void Lines::adopt(ShardMap map) {
  if (map.number <= map_.number) return;
  for (std::size_t part = 0; part < lines_.size(); ++part)
    if (!lines_[part].under_way.empty() ||
        map.endpoint_of(map.parts[part].primary) != map_.endpoint_of(map_.parts[part].primary))
      lines_[part].close();
  map_ = std::move(map);
}

// It was made with another map.
void Lines::seal(std::vector<std::byte>& frame) const {
  wire::Head head;
  std::memcpy(&head, frame.data(), sizeof head);
  if (head.map == map_.number) return;
  head.map = map_.number;
  wire::seal(frame, head);
}

void Lines::send_again(std::size_t part) {
  connect(part);
  for (Request& request : lines_[part].under_way) {
    seal(request.frame);
    write(lines_[part], request);
  }
}

// Payloads lie in memory from now on, if the server is here and sees it.
void Lines::share(Line& line) {
  if (!options_.shares || !line.connection->is_of_one_host()) return;
  std::unique_ptr<PayloadsBeside> beside;
  try {
    beside = std::make_unique<PayloadsBeside>();
  } catch (const Error&) {  // there is no memory for it
    return;
  }
  const auto deadline = rendezvous::deadline_after(options_.limit);
  const auto frame =
      wire::frame({.operation = wire::Operation::Share, .epoch = options_.epoch, .client = client_},
                  std::array{std::as_bytes(std::span(&beside->id(), 1))});
  line.connection->write({reinterpret_cast<const char*>(frame.data()), frame.size()}, deadline);
  std::array<std::byte, sizeof(wire::Head)> begin;
  line.connection->read(begin, deadline, "whether it shares memory");
  const wire::Head head = wire::head_of(begin);
  payload_.resize(head.bytes);
  line.connection->read(payload_, deadline, "why it shares no memory");
  wire::check_payload(head, payload_);
  if (head.operation == wire::Operation::Done) line.beside = std::move(beside);
}

void Lines::write_last(Line& line) {
  try {
    write(line, line.under_way.back());
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::PeerLost) throw;
    line.close();
  }
}

void Lines::write(Line& line, Request& request) {
  const auto deadline = rendezvous::deadline_after(options_.limit);
  std::span<const std::byte> bytes = request.frame;
  std::optional<std::uint64_t> place;
  if (line.beside) {
    place = line.beside->put(bytes.subspan(sizeof(wire::Head)));
    if (place) bytes = bytes.first(sizeof(wire::Head));
  }
  request.is_beside = place.has_value();
  const std::uint64_t said = place.value_or(kInStream);
  const auto text = [](std::span<const std::byte> some) {
    return std::string_view(reinterpret_cast<const char*>(some.data()), some.size());
  };
  if (!line.beside) return line.connection->write(text(bytes), deadline);
  line.connection->write(text(std::as_bytes(std::span(&said, 1))), text(bytes), deadline);
}

void Lines::read(const Line& line, wire::Head& head) {
  const auto deadline = rendezvous::deadline_after(line.under_way.front().limit);
  std::array<std::byte, sizeof(std::uint64_t) + sizeof(wire::Head)> begin;
  const auto room = line.beside ? std::span(begin) : std::span(begin).last(sizeof(wire::Head));
  wire::Head sent;
  std::memcpy(&sent, line.under_way.front().frame.data(), sizeof sent);
  line.connection->read(room, deadline, "an answer");
  head = wire::head_of(room.last(sizeof(wire::Head)));
  std::uint64_t place = kInStream;
  if (line.beside) std::memcpy(&place, begin.data(), sizeof place);
  if (place == kInStream) {
    payload_.resize(head.bytes);
    line.connection->read(payload_, deadline, "the rest of an answer");
    answer_ = payload_;
  } else {
    answer_ = line.beside->answer(place, head.bytes);
  }
  wire::check_payload(head, answer_);
  SHOAL_CHECK(head.sequence == sent.sequence && head.client == sent.client, Corrupt,
              "ps: ", line.connection->where(), " answered what was not asked");
}

}  // namespace shoal::ps
