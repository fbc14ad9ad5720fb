// SPDX-License-Identifier: Apache-2.0
// Requests go out to all loops before the first answer is read. A client that lost a connection sends its
// request again over a new one; what servers remember of its last push makes that safe.
#include "shoal/ps/client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/connection.h"

namespace shoal::ps {

using rendezvous::Connection;
using rendezvous::deadline_after;
using wire::Head;
using wire::Operation;

struct Client::Remote {
  Definition definition;
  std::size_t width = 0;
  std::vector<std::uint32_t> numbers;  // by loop
};

// A connection to each loop.
class Client::Lines {
 public:
  Lines(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options)
      : key_(key), loops_(std::move(loops)), options_(options), lines_(loops_.size()), sent_(loops_.size()) {
    const auto random = rendezvous::random_bytes();
    std::memcpy(&client_, random.data(), sizeof client_);
    for (std::size_t loop = 0; loop < loops_.size(); ++loop) connect(loop);
  }

  std::size_t size() const { return loops_.size(); }
  Head head(Operation operation, std::uint32_t table, std::size_t count) {
    return {.operation = operation,
            .table = table,
            .count = static_cast<std::uint32_t>(count),
            .epoch = options_.epoch,
            .client = client_,
            .sequence = ++sequence_};
  }

  void send(std::size_t loop, std::vector<std::byte> frame) {
    sent_[loop] = std::move(frame);
    try {
      write(loop);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      lines_[loop].reset();  // receive() sends it again
    }
  }

  // The answer to what was sent last. Its payload, until the next one.
  std::span<const std::byte> receive(std::size_t loop, Head& head) {
    try {
      if (!lines_[loop]) send_again(loop);
      read(loop, head);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      send_again(loop);
      read(loop, head);
    }
    return payload_;
  }

 private:
  void connect(std::size_t loop) {
    const Endpoint& endpoint = loops_[loop];
    lines_[loop] = Connection::admitted({.address = endpoint.address,
                                         .port = endpoint.port,
                                         .magic = wire::kMagic,
                                         .module = "ps",
                                         .is = "a parameter server of this version of Shoal",
                                         .host = "the server"},
                                        key_, deadline_after(options_.limit));
    SHOAL_CHECK(lines_[loop], PeerLost, "ps: server loop ", loop, " at ", endpoint.address, ":",
                endpoint.port, " is out of reach: ", std::strerror(errno));
  }
  void send_again(std::size_t loop) {
    connect(loop);
    write(loop);
  }
  void write(std::size_t loop) {
    lines_[loop]->write({reinterpret_cast<const char*>(sent_[loop].data()), sent_[loop].size()},
                        deadline_after(options_.limit));
  }
  void read(std::size_t loop, Head& head) {
    const auto deadline = deadline_after(options_.limit);
    std::array<std::byte, sizeof(Head)> begin;
    Head sent;
    std::memcpy(&sent, sent_[loop].data(), sizeof sent);
    do {  // past answers to a request that was given up
      lines_[loop]->read(begin, deadline, "an answer");
      head = wire::head_of(begin);
      payload_.resize(head.bytes);
      lines_[loop]->read(payload_, deadline, "the rest of an answer");
      wire::check_payload(head, payload_);
    } while (head.sequence < sent.sequence);
    SHOAL_CHECK(head.sequence == sent.sequence && head.client == sent.client, Corrupt,
                "ps: ", lines_[loop]->where(), " answered what was not asked");
  }

  const rendezvous::Key key_;
  const std::vector<Endpoint> loops_;
  const ClientOptions options_;
  std::uint64_t client_ = 0, sequence_ = 0;
  std::vector<std::unique_ptr<Connection>> lines_;
  std::vector<std::vector<std::byte>> sent_;
  std::vector<std::byte> payload_;
};

namespace {

// What was refused, if anything was: thrown when all answers are read, so that none is left for the next
// request.
class Refusal {
 public:
  void look(const Head& head, std::span<const std::byte> payload) {
    if (head.operation == Operation::Done || error_) return;
    try {
      SHOAL_CHECK(head.operation == Operation::Failed, Corrupt, "ps: a server answered with a request");
      wire::throw_failure(payload);
    } catch (const Error& error) {
      error_ = error;
    }
  }
  void rethrow() const {
    if (error_) throw Error(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace

Client::Client(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options)
    : places_(loops.size()), keys_(loops.size()) {
  SHOAL_CHECK(!loops.empty(), InvalidInput, "ps: a client wants the servers' endpoints, and got none");
  lines_ = std::make_unique<Lines>(key, std::move(loops), options);
}

Client::~Client() = default;

Client::TableNumber Client::create(const Definition& definition) {
  check(definition);
  const std::string text = to_text(definition);
  Remote remote = {.definition = definition};
  for (const Part& part : definition.parts) remote.width += part.width;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop)
    lines_->send(
        loop, wire::frame(lines_->head(Operation::Create, 0, 0), std::array{std::as_bytes(std::span(text))}));
  Refusal refusal;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    Head head;
    const auto payload = lines_->receive(loop, head);
    refusal.look(head, payload);
    remote.numbers.push_back(head.table);
  }
  refusal.rethrow();
  tables_.push_back(std::move(remote));
  return static_cast<TableNumber>(tables_.size() - 1);
}

void Client::split(const Remote& remote, std::span<const std::uint64_t> keys) {
  for (auto& places : places_) places.clear();
  for (auto& some : keys_) some.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t loop = shard_of(keys[i], remote.definition.shards) % lines_->size();
    places_[loop].push_back(static_cast<std::uint32_t>(i));
    keys_[loop].push_back(keys[i]);
  }
}

void Client::pull(TableNumber table, std::span<const std::uint64_t> keys, std::span<float> rows) {
  const Remote& remote = tables_.at(table);
  SHOAL_CHECK(rows.size() == keys.size() * remote.width, InvalidInput, "ps: a pull of ", keys.size(),
              " keys of width ", remote.width, " got room for ", rows.size(), " values");
  split(remote, keys);
  for (std::size_t loop = 0; loop < lines_->size(); ++loop)
    if (!keys_[loop].empty())
      lines_->send(loop, wire::frame(lines_->head(Operation::Pull, remote.numbers[loop], keys_[loop].size()),
                                     std::array{std::as_bytes(std::span(keys_[loop]))}));
  Refusal refusal;
  const std::size_t bytes = remote.width * sizeof(float);
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    if (keys_[loop].empty()) continue;
    Head head;
    const auto payload = lines_->receive(loop, head);
    refusal.look(head, payload);
    if (head.operation != Operation::Done) continue;
    SHOAL_CHECK(payload.size() == keys_[loop].size() * bytes, Corrupt, "ps: a server answered with ",
                payload.size(), " bytes of rows, wanted ", keys_[loop].size() * bytes);
    for (std::size_t i = 0; i < places_[loop].size(); ++i)
      std::memcpy(rows.data() + places_[loop][i] * remote.width, payload.data() + i * bytes, bytes);
  }
  refusal.rethrow();
}

void Client::push(TableNumber table, const Push& push) {
  const Remote& remote = tables_.at(table);
  check(push, remote.definition.name, remote.width);  // or some loops would have applied it when one refuses
  split(remote, push.keys);
  std::vector<float> gradients, shows, clicks;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    if (keys_[loop].empty()) continue;
    gradients.resize(keys_[loop].size() * remote.width);
    shows.clear();
    clicks.clear();
    for (std::size_t i = 0; i < places_[loop].size(); ++i) {
      const std::size_t from = places_[loop][i];
      std::copy_n(push.gradients.data() + from * remote.width, remote.width,
                  gradients.data() + i * remote.width);
      if (!push.shows.empty()) shows.push_back(push.shows[from]);
      if (!push.clicks.empty()) clicks.push_back(push.clicks[from]);
    }
    lines_->send(loop,
                 wire::push_frame(lines_->head(Operation::Push, remote.numbers[loop], keys_[loop].size()),
                                  {.keys = keys_[loop],
                                   .gradients = gradients,
                                   .shows = shows,
                                   .clicks = clicks,
                                   .step = push.step,
                                   .rate = push.rate}));
  }
  Refusal refusal;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    if (keys_[loop].empty()) continue;
    Head head;
    const auto payload = lines_->receive(loop, head);
    refusal.look(head, payload);
  }
  refusal.rethrow();
}

// Asks every loop the same, and gives `each` the payloads.
template <class Each>
static void ask_all(auto& lines, Operation operation, const std::vector<std::uint32_t>& numbers,
                    std::span<const std::byte> payload, std::size_t wanted, const Each& each) {
  for (std::size_t loop = 0; loop < lines.size(); ++loop)
    lines.send(loop, wire::frame(lines.head(operation, numbers[loop], 0), std::array{payload}));
  Refusal refusal;
  for (std::size_t loop = 0; loop < lines.size(); ++loop) {
    Head head;
    const auto answer = lines.receive(loop, head);
    refusal.look(head, answer);
    if (head.operation != Operation::Done) continue;
    SHOAL_CHECK(answer.size() == wanted, Corrupt, "ps: a server answered with ", answer.size(),
                " bytes, wanted ", wanted);
    each(answer);
  }
  refusal.rethrow();
}

Shrunk Client::shrink(TableNumber table, std::uint32_t day) {
  Shrunk all;
  ask_all(*lines_, Operation::Shrink, tables_.at(table).numbers, std::as_bytes(std::span(&day, 1)),
          sizeof all, [&](std::span<const std::byte> answer) {
            Shrunk one;
            std::memcpy(&one, answer.data(), sizeof one);
            all = {.rows = all.rows + one.rows,
                   .low_score = all.low_score + one.low_score,
                   .unseen = all.unseen + one.unseen,
                   .over_bound = all.over_bound + one.over_bound};
          });
  return all;
}

std::pair<std::uint64_t, std::int64_t> Client::digest(TableNumber table) {
  std::pair<std::uint64_t, std::int64_t> all = {0, 0};
  ask_all(*lines_, Operation::Digest, tables_.at(table).numbers, {}, 2 * sizeof(std::uint64_t),
          [&](std::span<const std::byte> answer) {
            std::array<std::uint64_t, 2> one;
            std::memcpy(one.data(), answer.data(), sizeof one);
            all.first += one[0];
            all.second += static_cast<std::int64_t>(one[1]);
          });
  return all;
}

}  // namespace shoal::ps
