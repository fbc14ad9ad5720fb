// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/lines.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shoal/base/text.h"

namespace shoal::ps {

Lines::Lines(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options)
    : key_(key), loops_(std::move(loops)), options_(options), lines_(loops_.size()) {
  const auto random = rendezvous::random_bytes();
  std::memcpy(&client_, random.data(), sizeof client_);
  for (std::size_t loop = 0; loop < loops_.size(); ++loop) connect(loop);
}

wire::Head Lines::head(wire::Operation operation, std::uint32_t table, std::size_t count) {
  return {.operation = operation,
          .table = table,
          .count = static_cast<std::uint32_t>(count),
          .epoch = options_.epoch,
          .client = client_,
          .sequence = ++sequence_};
}

void Lines::send(std::size_t loop, std::vector<std::byte> frame, Take take,
                 std::optional<std::chrono::nanoseconds> limit) {
  Line& line = lines_[loop];
  const bool is_crowded = line.under_way.size() >= wire::kMostUnderWay;
  try {
    if (is_crowded ||
        std::ranges::any_of(line.under_way, [](const Request& each) { return bool{each.take}; }))
      settle(loop);
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
    for (std::size_t loop = 0; loop < loops_.size(); ++loop) settle(loop);
  } catch (...) {
    give_up();
    throw;
  }
}

void Lines::settle(std::size_t loop) {
  Line& line = lines_[loop];
  while (!line.under_way.empty()) {
    wire::Head head;
    try {
      if (!line.connection) send_again(loop);
      read(line, head);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      send_again(loop);
      read(line, head);
    }
    const Request request = std::move(line.under_way.front());
    line.under_way.pop_front();
    if (head.operation != wire::Operation::Done)
      refused(head);
    else if (request.take)
      request.take(head, payload_);
  }
}

void Lines::refused(const wire::Head& head) {
  if (refusal_) return;
  try {
    SHOAL_CHECK(head.operation == wire::Operation::Failed, Corrupt, "ps: a server answered with a request");
    wire::throw_failure(payload_);
  } catch (const Error& error) {
    refusal_ = error;
  }
}

// After an error in the middle: who would take the answers may be gone.
void Lines::give_up() {
  for (Line& line : lines_) {
    if (line.under_way.empty()) continue;
    line.under_way.clear();
    line.connection.reset();  // answers that still come belong to nobody
  }
}

void Lines::connect(std::size_t loop) {
  const Endpoint& endpoint = loops_[loop];
  lines_[loop].connection =
      rendezvous::Connection::admitted({.address = endpoint.address,
                                        .port = endpoint.port,
                                        .magic = wire::kMagic,
                                        .module = "ps",
                                        .is = "a parameter server of this version of Shoal",
                                        .host = "the server"},
                                       key_, rendezvous::deadline_after(options_.limit));
  SHOAL_CHECK(lines_[loop].connection, PeerLost, "ps: server loop ", loop, " at ", endpoint.address, ":",
              endpoint.port, " is out of reach: ", std::strerror(errno));
}

void Lines::send_again(std::size_t loop) {
  connect(loop);
  for (const Request& request : lines_[loop].under_way) write(lines_[loop], request.frame);
}

void Lines::write_last(Line& line) {
  try {
    write(line, line.under_way.back().frame);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::PeerLost) throw;
    line.connection.reset();
  }
}

void Lines::write(const Line& line, const std::vector<std::byte>& frame) {
  line.connection->write({reinterpret_cast<const char*>(frame.data()), frame.size()},
                         rendezvous::deadline_after(options_.limit));
}

void Lines::read(const Line& line, wire::Head& head) {
  const auto deadline = rendezvous::deadline_after(line.under_way.front().limit);
  std::array<std::byte, sizeof(wire::Head)> begin;
  wire::Head sent;
  std::memcpy(&sent, line.under_way.front().frame.data(), sizeof sent);
  line.connection->read(begin, deadline, "an answer");
  head = wire::head_of(begin);
  payload_.resize(head.bytes);
  line.connection->read(payload_, deadline, "the rest of an answer");
  wire::check_payload(head, payload_);
  SHOAL_CHECK(head.sequence == sent.sequence && head.client == sent.client, Corrupt,
              "ps: ", line.connection->where(), " answered what was not asked");
}

}  // namespace shoal::ps
