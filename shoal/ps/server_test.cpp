// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/server.h"

#include <doctest/doctest.h>

#include <asio.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

#include "shoal/base/error_test.h"
#include "shoal/base/text.h"
#include "shoal/ps/client.h"
#include "shoal/ps/servers_test.h"
#include "shoal/ps/wire.h"
#include "shoal/rendezvous/connection.h"

using namespace shoal;
using namespace shoal::ps;
using asio::ip::tcp;
using test::Servers;
using namespace std::chrono_literals;

static Definition definition() {
  return {.name = "ids",
          .seed = 3,
          .shards = 16,
          .parts = {{.width = 3}},
          .scored = true,
          .life = {.decay = 0.5f}};
}

namespace {

// Between a client and a loop: passes all on, or swallows the next answer and ends the connection.
class Relay {
 public:
  explicit Relay(const Endpoint& to) : to_(asio::ip::make_address(to.address), to.port) {
    acceptor_.open(tcp::v4());
    acceptor_.bind({asio::ip::address_v4::loopback(), 0});
    acceptor_.listen();
    endpoint = {.address = "127.0.0.1", .port = acceptor_.local_endpoint().port()};
    asio::co_spawn(context_, accept(), asio::detached);
    thread_ = std::thread([this] { context_.run(); });
  }
  ~Relay() {
    context_.stop();
    thread_.join();
  }
  Endpoint endpoint;
  std::atomic<bool> swallows = false;
  std::atomic<int> num_swallowed = 0;

 private:
  asio::awaitable<void> accept() {
    for (;;) {
      auto inner = std::make_shared<tcp::socket>(context_), outer = std::make_shared<tcp::socket>(context_);
      co_await acceptor_.async_accept(*outer, asio::use_awaitable);
      co_await inner->async_connect(to_, asio::use_awaitable);
      asio::co_spawn(context_, pass(outer, inner, false), asio::detached);
      asio::co_spawn(context_, pass(inner, outer, true), asio::detached);
    }
  }
  asio::awaitable<void> pass(std::shared_ptr<tcp::socket> from, std::shared_ptr<tcp::socket> to,
                             bool is_answer) {
    std::array<char, 4096> bytes;
    try {
      for (;;) {
        const std::size_t got = co_await from->async_read_some(asio::buffer(bytes), asio::use_awaitable);
        if (is_answer && swallows.exchange(false)) {
          ++num_swallowed;
          break;
        }
        co_await asio::async_write(*to, asio::buffer(bytes.data(), got), asio::use_awaitable);
      }
    } catch (const std::exception&) {
      to->close();  // as the other end did
    }
    asio::error_code ignored;
    std::ignore = from->close(ignored);
    std::ignore = to->close(ignored);
  }

  asio::io_context context_{1};
  tcp::acceptor acceptor_{context_};
  tcp::endpoint to_;
  std::thread thread_;
};

}  // namespace

// Pushes and pulls; the same whoever has the table.
template <class PushTo, class PullFrom>
static std::vector<float> train(const PushTo& push, const PullFrom& pull) {
  std::mt19937 random(1);
  std::vector<float> seen;
  for (std::uint64_t step = 0; step < 20; ++step) {
    std::vector<std::uint64_t> keys(1 + random() % 300);
    for (auto& key : keys) key = random() % 5000;
    std::vector<float> rows(keys.size() * 3), gradients(rows.size()), shows(keys.size(), 2),
        clicks(keys.size(), 1);
    pull(keys, rows);
    for (std::size_t i = 0; i < rows.size(); ++i)
      gradients[i] = rows[i] + static_cast<float>(random() % 10) * 0.1f;
    push({.keys = keys, .gradients = gradients, .shows = shows, .clicks = clicks, .step = step, .rate = 0.5});
    seen.insert(seen.end(), rows.begin(), rows.end());
  }
  return seen;
}

TEST_CASE("one loop, four, and three servers have the bits of a table in process") {
  Table local(definition());
  const auto wanted =
      train([&](const Push& push) { local.push(push); },
            [&](std::span<const std::uint64_t> keys, std::span<float> rows) { local.pull(keys, rows); });
  local.set_day(2);
  const std::uint64_t digest = (local.shrink(), local.digest());
  for (const std::vector<std::uint32_t>& loops : {std::vector<std::uint32_t>{1}, {4}, {1, 2, 2}}) {
    Servers servers(loops);
    Client client(servers.key, servers.endpoints);
    const auto table = client.create(definition());
    const auto got = train(
        [&](const Push& push) { client.push(table, push); },
        [&](std::span<const std::uint64_t> keys, std::span<float> rows) { client.pull(table, keys, rows); });
    CHECK(got == wanted);
    CHECK(client.shrink(table, 2).rows == local.num_rows());
    CHECK(client.digest(table) == std::pair(digest, local.num_rows()));
  }
}

TEST_CASE("a push whose answer is lost is sent again and applied once, and so is what lies beside it") {
  Servers servers({1});
  Relay relay(servers.endpoints[0]);
  Client client(servers.key, {relay.endpoint});
  const auto table = client.create(definition());
  Table local(definition());
  for (int i = 0; i < 10; ++i) {
    relay.swallows = i % 3 == 0;
    std::vector<std::uint64_t> keys(i < 5 ? 3 : 3000);
    std::iota(keys.begin(), keys.end(), i);
    const std::vector<float> gradients(3 * keys.size(), 0.1f * static_cast<float>(i));
    client.push(table, {.keys = keys, .gradients = gradients});
    local.push({.keys = keys, .gradients = gradients});
  }
  CHECK(relay.num_swallowed == 4);
  CHECK(servers.servers[0]->num_applied() == 10);
  CHECK(client.digest(table).first == local.digest());
  relay.swallows = true;
  client.shrink(table, 0);
  local.shrink();
  CHECK(client.digest(table).first == local.digest());
}

TEST_CASE("a worker that means another table is told which field") {
  Servers servers({2});
  Client client(servers.key, servers.endpoints), other(servers.key, servers.endpoints);
  client.create(definition());
  Definition wider = definition();
  wider.parts[0].width = 8;
  CHECK(
      error_of([&] { other.create(wider); }) ==
      "ps: table \"ids\" is another one on the server than at this worker: parts.0.width is 3, and 8 there");
  const auto table = other.create(definition());  // and goes on
  CHECK(other.digest(table).second == 0);
}

TEST_CASE("a gradient that is not finite reaches no server") {
  Servers servers({2});
  Client client(servers.key, servers.endpoints);
  const auto table = client.create(definition());
  std::vector<std::uint64_t> keys(100);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> gradients(300, 1.0f);
  gradients[250] = INFINITY;
  CHECK(error_of([&] { client.push(table, {.keys = keys, .gradients = gradients}); }) ==
        "ps: table \"ids\": the gradient of key 83 is not finite; nothing was pushed. Is the learning rate "
        "too high?");
  CHECK(client.digest(table).second == 0);
}

TEST_CASE("who has another key is refused, and garbage ends its connection, while others are served") {
  Servers servers({1});
  Client client(servers.key, servers.endpoints);
  const auto table = client.create(definition());
  const std::string where = concat("127.0.0.1:", servers.endpoints[0].port);
  CHECK(error_of([&] { Client(rendezvous::make_key(), servers.endpoints); }) ==
        concat("ps: ", where,
               " refused this process: its key is not the job's; do all hosts have the same key file?"));
  CHECK(servers.servers[0]->num_refused() == 1);
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    rendezvous::Connection line({.address = "127.0.0.1",
                                 .port = servers.endpoints[0].port,
                                 .magic = wire::kMagic,
                                 .module = "ps",
                                 .is = "a server",
                                 .host = "the server"},
                                rendezvous::deadline_after(5s));
    line.shake_hands(servers.key);
    std::string garbage(100, '\0');
    for (char& letter : garbage) letter = static_cast<char>(random());
    line.write(garbage, rendezvous::deadline_after(5s));
    CHECK(error_of([&] {
            line.read(1, rendezvous::deadline_after(5s), "an answer");
          }).find("ended the connection") != std::string::npos);
  }
  CHECK(client.digest(table).second == 0);
}

TEST_CASE("a server that has gone is named") {
  auto servers = std::make_unique<Servers>(std::vector<std::uint32_t>{1});
  Client client(servers->key, servers->endpoints);
  const auto table = client.create(definition());
  const std::string where = concat("127.0.0.1:", servers->endpoints[0].port);
  servers.reset();
  CHECK(error_of([&] { client.digest(table); }) ==
        concat("ps: server loop 0 at ", where, " is out of reach: Connection refused"));
}

TEST_CASE("a key that belongs to another loop is refused, and so is an epoch that is over") {
  Servers servers({1, 1});
  Client swapped(servers.key, {servers.endpoints[1], servers.endpoints[0]});
  const auto table = swapped.create(definition());
  std::vector<float> rows(3);
  CHECK(error_of([&] { swapped.pull(table, std::array<std::uint64_t, 1>{5}, rows); }).find("was sent to") !=
        std::string::npos);
  Client late(servers.key, servers.endpoints, {.epoch = 2});
  CHECK(error_of([&] { late.create(definition()); }) == "ps: epoch 2 of this job is over; it is at 1");
}

// Three workers push the same rounds; what comes of it, and what the last of them is told.
TEST_CASE("workers push together: one push of their sums, the same bits with one server and with four") {
  const auto part = [](std::uint32_t worker, std::uint64_t round) {
    std::pair<std::vector<std::uint64_t>, std::vector<float>> made;
    for (std::uint64_t i = 0; i < 40; ++i) made.first.push_back((worker * 13 + i * (round + 1)) % 70);
    for (std::size_t i = 0; i < 120; ++i)
      made.second.push_back(0.1f * static_cast<float>((i * 7 + worker + round) % 11) - 0.3f);
    return made;
  };
  std::vector<std::uint64_t> digests;
  for (const std::vector<std::uint32_t>& loops : {std::vector<std::uint32_t>{1}, {4}, {1, 2, 1}}) {
    Servers servers(loops);
    std::vector<std::thread> workers;
    for (std::uint32_t worker = 0; worker < 3; ++worker)
      workers.emplace_back([&, worker] {
        Client client(servers.key, servers.endpoints);
        const auto table = client.create(definition());
        for (std::uint64_t round = 0; round < 20; ++round) {
          const auto [keys, gradients] = part(worker, round);
          client.push(table, {.keys = keys,
                              .gradients = gradients,
                              .worker = worker,
                              .workers = 3,
                              .round = round + 1,
                              .is_joint = true});
        }
      });
    for (std::thread& worker : workers) worker.join();
    Client client(servers.key, servers.endpoints);
    digests.push_back(client.digest(client.create(definition())).first);
    const std::uint32_t all = std::accumulate(loops.begin(), loops.end(), 0U);
    std::int64_t applied = 0;
    for (const auto& server : servers.servers) applied += server->num_applied();
    CHECK(applied == 20 * all);
  }
  CHECK(digests[0] == digests[1]);
  CHECK(digests[0] == digests[2]);
}

TEST_CASE("a worker that cannot push says so to those that wait, and the next round goes on") {
  Servers servers({2});
  Client one(servers.key, servers.endpoints), other(servers.key, servers.endpoints);
  const auto table = one.create(definition());
  other.create(definition());
  const std::vector<std::uint64_t> keys = {1, 2, 3};
  const std::vector<float> gradients(9, 1);
  Push push = {.keys = keys, .gradients = gradients, .workers = 2, .round = 4, .is_joint = true};
  std::string told;
  std::thread waits([&] { told = error_of([&] { one.push(table, push); }); });
  other.refuse(4, "worker 1: the gradient of key 5 is not finite");
  waits.join();
  CHECK(told == "worker 1: the gradient of key 5 is not finite");
  CHECK(other.digest(table).second == 0);
  push.round = 5;
  Push second = push;
  second.worker = 1;
  std::thread again([&] { one.push(table, push); });
  other.push(table, second);
  again.join();
  CHECK(other.digest(table).second == 3);
}

TEST_CASE("a part whose answer is lost is sent again and counts once") {
  Servers servers({1});
  Relay relay(servers.endpoints[0]);
  Client one(servers.key, {relay.endpoint}), other(servers.key, servers.endpoints);
  const auto table = one.create(definition());
  other.create(definition());
  Table local(definition());
  for (std::uint64_t round = 1; round < 9; ++round) {
    relay.swallows = round % 2 == 0;
    const std::vector<std::uint64_t> keys = {1, 2, 9 + round};
    const std::vector<float> gradients(9, 0.1f);
    const std::vector<float> sums(9, 0.1f + 0.1f);
    Push push = {.keys = keys, .gradients = gradients, .workers = 2, .round = round, .is_joint = true};
    std::thread waits([&] { one.push(table, push); });
    Push second = push;
    second.worker = 1;
    other.push(table, second);
    waits.join();
    local.push({.keys = keys, .gradients = sums});
  }
  CHECK(relay.num_swallowed == 4);
  CHECK(other.digest(table).first == local.digest());
}

TEST_CASE("what servers save is loaded by any number of them, in processes or here") {
  std::string name = (std::filesystem::temp_directory_path() / "shoal_rows_XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(name.data()), path = folder / "users";
  const std::vector<std::uint64_t> keys = [] {
    std::vector<std::uint64_t> some(1000);
    std::iota(some.begin(), some.end(), 0);
    return some;
  }();
  const std::vector<float> gradients(3 * keys.size(), 0.25f);
  std::pair<std::uint64_t, std::int64_t> wanted;
  {
    Servers servers({1, 1});
    Client client(servers.key, servers.endpoints);
    const auto table = client.create(definition());
    CHECK(error_of([&] { client.load(table, path); }) ==
          concat("ps: there are no files ", path.string(), ".0, .1, …: nothing was saved there"));
    client.push(table, {.keys = keys, .gradients = gradients});
    wanted = client.digest(table);
    CHECK(client.save(table, path, 42).rows == 1000);
    CHECK(error_of([&] { client.load(table, path); }).find("rows already; load into a new one") !=
          std::string::npos);
  }
  for (const std::vector<std::uint32_t>& loops : {std::vector<std::uint32_t>{1}, {2, 1}, {1, 2, 2}}) {
    Servers servers(loops);
    Client client(servers.key, servers.endpoints);
    const auto table = client.create(definition());
    CHECK(client.load(table, path).rows == 1000);
    CHECK(client.digest(table) == wanted);
    client.push(table, {.keys = keys, .gradients = gradients});
    CHECK(client.digest(table) != wanted);
  }
  const auto here = tables_in_process();
  const auto table = here->create(definition());
  CHECK(here->load(table, path).rows == 1000);
  CHECK(here->digest(table) == wanted);
  std::filesystem::remove_all(folder);
}

TEST_CASE("rows that are put begin there, and float64 goes through without loss") {
  Definition wide = definition();
  wide.name = "wide";
  wide.dtype = DType::Float64;
  wide.parts[0].optimizer = {.rule = RowRule::Sgd, .rate = 0.5};
  Servers servers({1, 1});
  Client client(servers.key, servers.endpoints);
  const auto table = client.create(wide);
  const std::vector<std::uint64_t> keys = {5, 6, 7};
  std::vector<double> rows(9, 1.0 / 3);
  client.put(table, keys, rows);
  const std::vector<double> gradients(9, 0.1);
  client.push(table, {.keys = keys, .gradients = gradients, .rate = 0.1});
  client.pull(table, keys, rows);
  CHECK(rows == std::vector<double>(9, 1.0 / 3 - 0.5 * 0.1 * 0.1));
  std::vector<float> narrow(9);
  CHECK(error_of([&] { client.pull(table, keys, narrow); }) ==
        "ps: a pull of 3 keys of width 3 of table \"wide\" got room for 9 values in f32");
  CHECK(error_of([&] { client.push(table, {.keys = keys, .gradients = narrow}); }) ==
        "ps: table \"wide\": a push has gradients in f32, and its rows are f64");
}
