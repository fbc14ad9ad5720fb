// SPDX-License-Identifier: Apache-2.0
// Rows and gradients that go over the wire in bfloat16.
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "shoal/ps/client.h"
#include "shoal/ps/row_optimizer.h"
#include "shoal/ps/servers_test.h"
#include "shoal/ps/worker.h"

using namespace shoal;
using namespace shoal::ps;
using test::Servers;

static std::vector<float> rounded(const std::vector<float>& numbers) {
  std::vector<std::uint16_t> halves(numbers.size());
  std::vector<float> back(numbers.size());
  narrow_to_nearest(numbers, halves);
  widen(halves, back);
  return back;
}

static std::vector<float> drawn(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers;
  for (std::size_t i = 0; i < count; ++i)
    numbers.push_back(static_cast<float>(random() % 100000) * 0.00017f - 8);
  return numbers;
}

TEST_CASE("to the nearest: of two as near the one that is even") {
  const std::vector<float> numbers = {1, 1.00390625f, 1.01171875f, 1.0039062f, -1.00390625f, 0, 3e38f};
  CHECK(rounded(numbers) == std::vector<float>{1, 1, 1.015625f, 1, -1, 0, rounded({3e38f})[0]});
  for (const float number : drawn(1000, 3)) {
    const float near = rounded({number})[0];
    CHECK(std::abs(near - number) <= std::abs(number) / 256);
  }
}

TEST_CASE("in halves the servers get rounded gradients and the worker rounded rows, whatever the servers") {
  Definition ids = test::summed();
  ids.parts = {{.width = 3}};  // an odd number of halves
  ids.scored = true;
  const std::vector<std::uint64_t> keys = {5, 1, 9, 70, 4, 12, 8};
  for (const std::vector<std::uint32_t>& loops : {std::vector<std::uint32_t>{1}, {1, 2}}) {
    Servers servers(loops);
    Client client(servers.key, servers.endpoints);
    client.set_wire(DType::BFloat16);
    const auto table = client.create(ids);
    Table wanted(ids);
    std::vector<float> rows(3 * keys.size()), exact(rows.size());
    for (std::uint32_t step = 0; step < 20; ++step) {
      const std::vector<float> gradients = drawn(rows.size(), step), near = rounded(gradients);
      const std::vector<float> shows(keys.size(), 2);
      client.push(table, {.keys = keys, .gradients = gradients, .shows = shows});
      wanted.push({.keys = keys, .gradients = near, .shows = shows});
      client.pull(table, keys, rows);
      wanted.pull(keys, exact);
      REQUIRE(rows == rounded(exact));
      const auto pulling = client.start_pull(table, keys);
      const auto bytes = pulling->wait();
      REQUIRE(std::ranges::equal(bytes, std::as_bytes(std::span(rows))));
    }
    CHECK(client.digest(table).first == wanted.digest());
    client.push(table, {.keys = keys, .gradients = exact, .of = PushOf::Differences});  // whole
    wanted.push({.keys = keys, .gradients = exact, .of = PushOf::Differences});
    CHECK(client.digest(table).first == wanted.digest());
  }
}

TEST_CASE("tables of float64 go whole, and rows that are looked at are as they are") {
  Servers servers({1});
  Client client(servers.key, servers.endpoints);
  Worker worker(client, {.wire = DType::BFloat16});
  Definition wide = test::summed();
  wide.dtype = DType::Float64;
  const std::vector<double> third = {1.0 / 3};
  const std::vector<std::int64_t> ids = {0};
  const auto of_doubles = worker.add(wide, 0);
  worker.put(of_doubles, ids, third);
  std::vector<double> row(1);
  std::vector<std::int32_t> places(1);
  worker.pull(of_doubles, ids, -1, places, row);
  CHECK(row == third);
  Definition narrow = test::summed();
  narrow.name = "narrow";
  const auto of_floats = worker.add(narrow, 0);
  const std::vector<float> third_in_float = {1.0f / 3};
  worker.put(of_floats, ids, third_in_float);
  std::vector<float> seen(1);
  worker.pull(of_floats, ids, -1, places, seen);
  CHECK(seen == rounded(third_in_float));
  worker.read(of_floats, 0, seen);
  CHECK(seen == third_in_float);
}
