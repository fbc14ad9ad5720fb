// SPDX-License-Identifier: Apache-2.0
// Requests go out to all loops before the first answer is read. A client that lost a connection sends its
// request again over a new one; what servers remember of its last push makes that safe.
#include "shoal/ps/client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
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

// A connection to each loop, and the requests that have no answer yet, in their order.
class Client::Lines {
 public:
  Lines(const rendezvous::Key& key, std::vector<Endpoint> loops, const ClientOptions& options)
      : key_(key), loops_(std::move(loops)), options_(options), lines_(loops_.size()) {
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
    Line& line = lines_[loop];
    SHOAL_CHECK(line.under_way.size() < wire::kMostUnderWay, Internal, "ps: ", line.under_way.size(),
                " requests to a server have no answer");
    line.under_way.push_back(std::move(frame));
    if (!line.connection) return;  // receive() sends it again
    try {
      write(line, line.under_way.back());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      line.connection.reset();
    }
  }

  // The answer to the oldest one, whose payload is there until the next.
  std::span<const std::byte> receive(std::size_t loop, Head& head) {
    Line& line = lines_[loop];
    try {
      if (!line.connection) send_again(loop);
      read(line, head);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::PeerLost) throw;
      send_again(loop);
      read(line, head);
    }
    line.under_way.pop_front();
    return payload_;
  }
  bool is_owed(std::size_t loop) const { return !lines_[loop].under_way.empty(); }
  // After an error in the middle.
  void give_up() {
    for (Line& line : lines_) {
      if (line.under_way.empty()) continue;
      line.under_way.clear();
      line.connection.reset();  // answers that still come belong to nobody
    }
  }

 private:
  struct Line {
    std::unique_ptr<Connection> connection;
    std::deque<std::vector<std::byte>> under_way;
  };

  void connect(std::size_t loop) {
    const Endpoint& endpoint = loops_[loop];
    lines_[loop].connection = Connection::admitted({.address = endpoint.address,
                                                    .port = endpoint.port,
                                                    .magic = wire::kMagic,
                                                    .module = "ps",
                                                    .is = "a parameter server of this version of Shoal",
                                                    .host = "the server"},
                                                   key_, deadline_after(options_.limit));
    SHOAL_CHECK(lines_[loop].connection, PeerLost, "ps: server loop ", loop, " at ", endpoint.address, ":",
                endpoint.port, " is out of reach: ", std::strerror(errno));
  }
  void send_again(std::size_t loop) {
    connect(loop);
    for (const auto& frame : lines_[loop].under_way) write(lines_[loop], frame);
  }
  void write(const Line& line, const std::vector<std::byte>& frame) {
    line.connection->write({reinterpret_cast<const char*>(frame.data()), frame.size()},
                           deadline_after(options_.limit));
  }
  void read(const Line& line, Head& head) {
    const auto deadline = deadline_after(options_.limit);
    std::array<std::byte, sizeof(Head)> begin;
    Head sent;
    std::memcpy(&sent, line.under_way.front().data(), sizeof sent);
    do {  // past answers to a request that was given up
      line.connection->read(begin, deadline, "an answer");
      head = wire::head_of(begin);
      payload_.resize(head.bytes);
      line.connection->read(payload_, deadline, "the rest of an answer");
      wire::check_payload(head, payload_);
    } while (head.sequence < sent.sequence);
    SHOAL_CHECK(head.sequence == sent.sequence && head.client == sent.client, Corrupt,
                "ps: ", line.connection->where(), " answered what was not asked");
  }

  const rendezvous::Key key_;
  const std::vector<Endpoint> loops_;
  const ClientOptions options_;
  std::uint64_t client_ = 0, sequence_ = 0;
  std::vector<Line> lines_;
  std::vector<std::byte> payload_;
};

namespace {

// What was refused, if anything was: thrown when all answers are read, so that none is left for the next
// request.
class Refusals {
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
  Refusals refusals;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    Head head;
    const auto payload = receive(loop, head);
    refusals.look(head, payload);
    remote.numbers.push_back(head.table);
  }
  refusals.rethrow();
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

static std::size_t number_bytes(const Definition& definition) {
  return is_wide(definition.dtype) ? sizeof(double) : sizeof(float);
}

void Client::pull(TableNumber table, std::span<const std::uint64_t> keys, WritableNumbers rows) {
  const Remote& remote = tables_.at(table);
  SHOAL_CHECK(rows.size() == keys.size() * remote.width &&
                  (keys.empty() || rows.is_wide() == is_wide(remote.definition.dtype)),
              InvalidInput, "ps: a pull of ", keys.size(), " keys of width ", remote.width, " of table ",
              quoted(remote.definition.name), " got room for ", rows.size(), " values in ",
              rows.is_wide() ? "f64" : "f32");
  split(remote, keys);
  for (std::size_t loop = 0; loop < lines_->size(); ++loop)
    if (!keys_[loop].empty())
      lines_->send(loop, wire::frame(lines_->head(Operation::Pull, remote.numbers[loop], keys_[loop].size()),
                                     std::array{std::as_bytes(std::span(keys_[loop]))}));
  Refusals refusals;
  const std::size_t bytes = remote.width * number_bytes(remote.definition);
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    if (keys_[loop].empty()) continue;
    Head head;
    const auto payload = receive(loop, head);
    refusals.look(head, payload);
    if (head.operation != Operation::Done) continue;
    SHOAL_CHECK(payload.size() == keys_[loop].size() * bytes, Corrupt, "ps: a server answered with ",
                payload.size(), " bytes of rows, wanted ", keys_[loop].size() * bytes);
    for (std::size_t i = 0; i < places_[loop].size(); ++i)
      std::memcpy(rows.bytes().data() + places_[loop][i] * bytes, payload.data() + i * bytes, bytes);
  }
  refusals.rethrow();
}

// Of some of them, one row each.
static void append_rows(std::span<const std::byte> rows, std::span<const std::uint32_t> places,
                        std::size_t bytes, std::vector<std::byte>& to) {
  to.resize(places.size() * bytes);
  for (std::size_t i = 0; i < places.size(); ++i)
    std::memcpy(to.data() + i * bytes, rows.data() + places[i] * bytes, bytes);
}

static std::vector<float> some_of(std::span<const float> all, std::span<const std::uint32_t> places) {
  std::vector<float> some;
  if (!all.empty())
    for (const std::uint32_t place : places) some.push_back(all[place]);
  return some;
}

void Client::send_push(const Remote& remote, const Push& push) {
  split(remote, push.keys);
  std::vector<std::byte> gradients;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    if (keys_[loop].empty() && push.workers == 0) continue;  // of a joint push others wait for each part
    append_rows(push.gradients.bytes(), places_[loop], remote.width * number_bytes(remote.definition),
                gradients);
    const auto shows = some_of(push.shows, places_[loop]), clicks = some_of(push.clicks, places_[loop]);
    Push part = push;
    part.keys = keys_[loop];
    part.gradients = {gradients, is_wide(remote.definition.dtype)};
    part.shows = shows;
    part.clicks = clicks;
    lines_->send(loop, wire::push_frame(
                           lines_->head(Operation::Push, remote.numbers[loop], keys_[loop].size()), part));
  }
}

void Client::push(std::span<const PushTo> pushes) {
  for (const auto& [table, push] : pushes)  // or some loops would have applied it when one refuses
    check(push, tables_.at(table).definition, tables_.at(table).width);
  for (const auto& [table, push] : pushes) send_push(tables_.at(table), push);
  receive_all();
}

void Client::refuse(std::uint64_t round, const std::string& why) {
  for (std::size_t loop = 0; loop < lines_->size(); ++loop)
    lines_->send(loop, wire::refusal_frame(lines_->head(Operation::Refuse, 0, 0), {round, why}));
  receive_all();
}

void Client::put(TableNumber table, std::span<const std::uint64_t> keys, Numbers values) {
  const Remote& remote = tables_.at(table);
  check({.keys = keys, .gradients = values}, remote.definition, remote.width);
  split(remote, keys);
  std::vector<std::byte> rows;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    if (keys_[loop].empty()) continue;
    append_rows(values.bytes(), places_[loop], remote.width * number_bytes(remote.definition), rows);
    lines_->send(loop,
                 wire::rows_frame(lines_->head(Operation::Put, remote.numbers[loop], keys_[loop].size()),
                                  {keys_[loop], {rows, values.is_wide()}}));
  }
  receive_all();
}

std::span<const std::byte> Client::receive(std::size_t loop, wire::Head& head) {
  try {
    return lines_->receive(loop, head);
  } catch (...) {
    lines_->give_up();
    throw;
  }
}

// Answers that have nothing to say but that it was done.
void Client::receive_all() {
  Refusals refusals;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop)
    while (lines_->is_owed(loop)) {
      Head head;
      const auto payload = receive(loop, head);
      refusals.look(head, payload);
    }
  refusals.rethrow();
}

// Asks every loop the same, and gives `each` the payloads.
template <class Each>
void Client::ask_all(TableNumber table, wire::Operation operation, std::span<const std::byte> payload,
                     std::size_t wanted, const Each& each) {
  const auto& numbers = tables_.at(table).numbers;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop)
    lines_->send(loop, wire::frame(lines_->head(operation, numbers[loop], 0), std::array{payload}));
  Refusals refusals;
  for (std::size_t loop = 0; loop < lines_->size(); ++loop) {
    Head head;
    const auto answer = receive(loop, head);
    refusals.look(head, answer);
    if (head.operation != Operation::Done) continue;
    SHOAL_CHECK(answer.size() == wanted, Corrupt, "ps: a server answered with ", answer.size(),
                " bytes, wanted ", wanted);
    each(answer);
  }
  refusals.rethrow();
}

void Client::clear(TableNumber table) {
  ask_all(table, Operation::Clear, {}, 0, [](std::span<const std::byte>) {});
}

Shrunk Client::shrink(TableNumber table, std::uint32_t day) {
  Shrunk all;
  ask_all(table, Operation::Shrink, std::as_bytes(std::span(&day, 1)), sizeof all,
          [&](std::span<const std::byte> answer) {
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
  ask_all(table, Operation::Digest, {}, 2 * sizeof(std::uint64_t), [&](std::span<const std::byte> answer) {
    std::array<std::uint64_t, 2> one;
    std::memcpy(one.data(), answer.data(), sizeof one);
    all.first += one[0];
    all.second += static_cast<std::int64_t>(one[1]);
  });
  return all;
}

}  // namespace shoal::ps
