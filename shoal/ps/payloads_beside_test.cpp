// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/payloads_beside.h"
#include "shoal/base/sanitized.h"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/ps/servers_test.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/connection.h"

using namespace shoal;
using namespace shoal::ps;
using test::Servers;
using namespace std::chrono_literals;

static Definition definition() { return {.name = "ids", .seed = 3, .shards = 16, .parts = {{.width = 4}}}; }

TEST_CASE("requests lie one behind the other, and round again where the oldest have gone") {
  PayloadsBeside beside;
  const std::vector<std::byte> half(kAreaBytes / 2), third(kAreaBytes / 3), small(kLeastBeside - 1),
      large(kAreaBytes + 1);
  CHECK(!beside.put(small));
  CHECK(!beside.put(large));
  CHECK(beside.put(third) == 0);
  CHECK(beside.put(half) == third.size());
  CHECK(!beside.put(third));  // neither behind nor before them
  beside.take_back();
  CHECK(beside.put(third) == 0);
  CHECK(!beside.put(third));
  beside.take_back();
  CHECK(beside.put(half) == third.size());
  beside.take_back();
  beside.take_back();
  CHECK(beside.put(std::vector<std::byte>(kAreaBytes)) == 0);
}

TEST_CASE("payloads arrive as they were put, and nothing is read past them") {
  PayloadsBeside beside;
  comm::shm::Mappings mappings;
  const PayloadsOfClient server(mappings, beside.id());
  std::vector<std::byte> payload(10'000), got(payload.size());
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i % 251);
  const auto place = beside.put(payload);
  server.copy_request(place.value(), got);
  CHECK(got == payload);
  const auto answer = beside.answer(server.put_answer(payload), payload.size());
  CHECK(std::vector(answer.begin(), answer.end()) == payload);
  CHECK_THROWS_AS(server.copy_request(kAreaBytes - 1, got), Error);
  CHECK_THROWS_AS(server.copy_request(kInStream - 5000, got), Error);
  CHECK_THROWS_AS(beside.answer(0, 10), Error);
  CHECK_THROWS_AS(beside.answer(kAreaBytes, kAreaBytes + 1), Error);
  CHECK_THROWS_AS(
      PayloadsOfClient(mappings, {.pid = 1, .descriptor = 0, .inode = 1, .bytes = 2 * kAreaBytes}), Error);
  CHECK_THROWS_AS(PayloadsOfClient(mappings, {.bytes = 4096}), Error);
}

TEST_CASE("rows are those of a table in process, wherever payloads lie, and however many are under way") {
  Table local(definition());
  std::vector<Servers> all;
  all.emplace_back(std::vector<std::uint32_t>{1});
  all.emplace_back(std::vector<std::uint32_t>{2});
  std::vector<std::unique_ptr<Client>> clients;
  for (Servers& servers : all)
    for (const bool shares : {true, false})
      clients.push_back(
          std::make_unique<Client>(servers.key, servers.endpoints, ClientOptions{.shares = shares}));
  std::vector<Client::TableNumber> tables;
  for (std::size_t i = 0; i < clients.size();
       i += 2) {  // the second one of a server reads what the first wrote
    clients[i]->create(definition());
    clients[i + 1]->create(definition());
  }
  // From what goes with its head to what no area has room for.
  for (const std::size_t count : {10UL, 1'000UL, 50'000UL, kIsSanitized ? 60'000UL : 400'000UL}) {
    CAPTURE(count);
    std::vector<std::uint64_t> keys(count);
    std::iota(keys.begin(), keys.end(), count);
    std::vector<float> gradients(4 * count), wanted(gradients.size()), rows(gradients.size());
    std::iota(gradients.begin(), gradients.end(), 0.5F);
    constexpr int kPushes = 12;  // more than an area has room for
    for (int push = 0; push < kPushes; ++push) local.push({.keys = keys, .gradients = gradients});
    local.pull(keys, wanted);
    for (std::size_t i = 0; i < clients.size(); i += 2) {
      for (int push = 0; push < kPushes; ++push)
        clients[i]->send(std::vector<Tables::PushTo>{{0, {.keys = keys, .gradients = gradients}}});
      clients[i]->settle();
      for (const std::size_t reader : {i, i + 1}) {
        clients[reader]->pull(0, keys, rows);
        CHECK(rows == wanted);
      }
    }
  }
}

TEST_CASE("a client that shares what is none goes on without, and one that points outside is shut out") {
  Servers servers({1});
  const Endpoint& to = servers.endpoints[0];
  const auto deadline = rendezvous::deadline_after(10s);
  const auto connection = rendezvous::Connection::admitted({.address = to.address,
                                                            .port = to.port,
                                                            .magic = wire::kMagic,
                                                            .module = "ps",
                                                            .is = "a server",
                                                            .host = "the server"},
                                                           servers.key, deadline);
  const auto write = [&](const auto& bytes) {
    connection->write({reinterpret_cast<const char*>(std::data(bytes)), std::size(bytes)}, deadline);
  };
  const auto answer = [&] {
    std::array<std::byte, sizeof(wire::Head)> begin;
    connection->read(begin, deadline, "an answer");
    const wire::Head head = wire::head_of(begin);
    std::vector<std::byte> payload(head.bytes);
    connection->read(payload, deadline, "the rest of an answer");
    return head.operation;
  };
  const auto share = [](const comm::shm::SegmentId& id) {
    return wire::frame({.operation = wire::Operation::Share, .epoch = 1},
                       std::array{std::as_bytes(std::span(&id, 1))});
  };
  const auto describe = wire::frame({.operation = wire::Operation::Describe, .epoch = 1, .sequence = 1}, {});
  write(share({.pid = 1, .descriptor = 3, .inode = 7, .bytes = 2 * kAreaBytes}));
  CHECK(answer() == wire::Operation::Failed);
  write(describe);
  CHECK(answer() == wire::Operation::Done);
  PayloadsBeside beside;
  write(share(beside.id()));
  CHECK(answer() == wire::Operation::Done);
  const std::uint64_t outside = kAreaBytes - 10;
  write(std::as_bytes(std::span(&outside, 1)).template first<sizeof outside>());
  const std::vector<std::byte> payload(100);
  const auto pull =
      wire::frame({.operation = wire::Operation::Pull, .epoch = 1}, std::array{std::span(payload)});
  write(std::span(pull).first(sizeof(wire::Head)));
  CHECK_THROWS_AS(answer(), Error);
}
