// SPDX-License-Identifier: Apache-2.0
// A client that lost a connection sends its requests again over a new one; what servers remember of its last
// pushes makes that safe. With a map of the servers, the new one is to who has the part now.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ps/client.h"
#include "shoal/ps/payloads_beside.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/connection.h"

namespace shoal::ps {

// A connection to who has each part of the keys, and the requests that have no answer yet, in their order.
class Lines {
 public:
  // Of an answer, whose payload it borrows.
  using Take = std::function<void(const wire::Head& head, std::span<const std::byte> payload)>;

  Lines(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options);

  std::size_t size() const { return lines_.size(); }
  wire::Head head(std::size_t part, wire::Operation operation, std::uint32_t table, std::size_t count);
  // A frame, and who takes its answer. Answers that may be large are read before anything else is written: else
  // each end could wait until the other reads.
  void send(std::size_t part, std::vector<std::byte> frame, Take take = {},
            std::optional<std::chrono::nanoseconds> limit = {});
  // Until there is no request without an answer; what goes wrong is thrown by the next settle().
  void finish() noexcept;
  // The same. What a server refused is thrown when all are read.
  void settle();

 private:
  struct Request {
    std::vector<std::byte> frame;
    Take take;
    std::chrono::nanoseconds limit;  // of its answer
    bool is_beside = false;          // its payload is not in the connection
  };
  struct Line {
    std::unique_ptr<rendezvous::Connection> connection;
    std::unique_ptr<PayloadsBeside> beside;  // of that, where both ends are on one host
    std::deque<Request> under_way;

    void close() {
      connection.reset();
      beside.reset();
    }
  };

  void read_all();
  void settle(std::size_t part);
  void read_answer(std::size_t part, wire::Head& head);
  void refused(const wire::Head& head);
  void give_up();
  void connect(std::size_t part);
  std::unique_ptr<rendezvous::Connection> connected(int loop, const Endpoint& endpoint) const;
  void adopt(ShardMap map);
  void seal(std::vector<std::byte>& frame) const;
  void send_again(std::size_t part);
  void share(Line& line);
  void write_last(Line& line);
  void write(Line& line, Request& request);
  void read(const Line& line, wire::Head& head);

  const rendezvous::Key key_;
  ShardMap map_;
  const ClientOptions options_;
  std::uint64_t client_ = 0, sequence_ = 0;
  std::vector<Line> lines_;
  std::vector<std::byte> payload_;     // of an answer
  std::span<const std::byte> answer_;  // there, or beside
  std::optional<Error> refusal_;       // the first, until it is thrown
};

}  // namespace shoal::ps
