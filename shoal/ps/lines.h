// SPDX-License-Identifier: Apache-2.0
// A client that lost a connection sends its requests again over a new one; what servers remember of its last
// pushes makes that safe.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ps/client.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/connection.h"

namespace shoal::ps {

// A connection to each loop, and the requests that have no answer yet, in their order.
class Lines {
 public:
  // Of an answer, whose payload it borrows.
  using Take = std::function<void(const wire::Head& head, std::span<const std::byte> payload)>;

  Lines(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options)
      : key_(key), loops_(std::move(loops)), options_(options), lines_(loops_.size()) {
    const auto random = rendezvous::random_bytes();
    std::memcpy(&client_, random.data(), sizeof client_);
    for (std::size_t loop = 0; loop < loops_.size(); ++loop) connect(loop);
  }

  std::size_t size() const { return loops_.size(); }
  wire::Head head(wire::Operation operation, std::uint32_t table, std::size_t count) {
    return {.operation = operation,
            .table = table,
            .count = static_cast<std::uint32_t>(count),
            .epoch = options_.epoch,
            .client = client_,
            .sequence = ++sequence_};
  }

  // A frame, and who takes its answer. Answers that may be large are read before anything else is written: else
  // each end could wait until the other reads.
  void send(std::size_t loop, std::vector<std::byte> frame, Take take = {},
            std::optional<std::chrono::nanoseconds> limit = {}) {
    Line& line = lines_[loop];
    const bool is_crowded = line.under_way.size() >= wire::kMostUnderWay;
    if (is_crowded ||
        std::ranges::any_of(line.under_way, [](const Request& each) { return bool{each.take}; }))
      settle(loop);
    line.under_way.push_back({std::move(frame), std::move(take), limit.value_or(options_.limit)});
    if (!line.connection) return;  // settle() sends it again
    try {
      write(line, line.under_way.back().frame);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      line.connection.reset();
    }
  }

  // Until there is no request without an answer; what goes wrong is thrown by the next settle().
  void finish() noexcept {
    try {
      read_all();
    } catch (const Error& error) {
      if (!refusal_) refusal_ = error;
    }
  }

  // The same. What a server refused is thrown when all are read.
  void settle() {
    read_all();
    if (const auto refusal = std::exchange(refusal_, std::nullopt)) throw Error(*refusal);
  }

 private:
  struct Request {
    std::vector<std::byte> frame;
    Take take;
    std::chrono::nanoseconds limit;  // of its answer
  };
  struct Line {
    std::unique_ptr<rendezvous::Connection> connection;
    std::deque<Request> under_way;
  };

  void read_all() {
    try {
      for (std::size_t loop = 0; loop < loops_.size(); ++loop) settle(loop);
    } catch (...) {
      give_up();
      throw;
    }
  }
  void settle(std::size_t loop) {
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
  void refused(const wire::Head& head) {
    if (refusal_) return;
    try {
      SHOAL_CHECK(head.operation == wire::Operation::Failed, Corrupt, "ps: a server answered with a request");
      wire::throw_failure(payload_);
    } catch (const Error& error) {
      refusal_ = error;
    }
  }
  // After an error in the middle.
  void give_up() {
    for (Line& line : lines_) {
      if (line.under_way.empty()) continue;
      line.under_way.clear();
      line.connection.reset();  // answers that still come belong to nobody
    }
  }

  void connect(std::size_t loop) {
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
  void send_again(std::size_t loop) {
    connect(loop);
    for (const Request& request : lines_[loop].under_way) write(lines_[loop], request.frame);
  }
  void write(const Line& line, const std::vector<std::byte>& frame) {
    line.connection->write({reinterpret_cast<const char*>(frame.data()), frame.size()},
                           rendezvous::deadline_after(options_.limit));
  }
  void read(const Line& line, wire::Head& head) {
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

  const rendezvous::Key key_;
  const std::vector<Endpoint> loops_;
  const ClientOptions options_;
  std::uint64_t client_ = 0, sequence_ = 0;
  std::vector<Line> lines_;
  std::vector<std::byte> payload_;
  std::optional<Error> refusal_;  // the first, until it is thrown
};

}  // namespace shoal::ps
