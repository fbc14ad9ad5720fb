// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/worker.h"

#include <doctest/doctest.h>

#include <barrier>
#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "shoal/base/error_test.h"
#include "shoal/ps/client.h"

using namespace shoal;
using namespace shoal::ps;

using Ids = std::vector<std::int64_t>;

static Definition definition() {
  return {.name = "ids",
          .seed = 3,
          .dtype = DType::Float64,
          .shards = 16,
          .parts = {{.width = 2, .optimizer = {.rule = RowRule::Adagrad, .rate = 0.1}}}};
}

namespace {

// A pull that remembers what it gave.
struct Rows {
  Rows(Worker& worker, Ids of, std::int64_t padding = -1)
      : ids(std::move(of)), places(ids.size()), rows(2 * ids.size()) {
    worker.pull(0, ids, padding, places, rows);
  }
  Worker::Pulled with(const std::vector<double>& gradients) const {
    return {.table = 0, .ids = ids, .places = places, .gradients = gradients};
  }
  Ids ids;
  std::vector<std::int32_t> places;
  std::vector<double> rows;
};

}  // namespace

TEST_CASE("rows come by id, and gradients go back by id, each id once") {
  const auto tables = tables_in_process();
  Worker worker(*tables, {});
  worker.add(definition(), 10);
  const Rows before(worker, {7, 3, 7, 9});
  CHECK(before.places == std::vector<std::int32_t>{0, 1, 0, 2});
  CHECK(before.rows[0] == before.rows[4]);
  worker.push(std::array{before.with({1, 1, 2, 2, 3, 3, 4, 4})}, 1, 1);
  const Rows after(worker, {7, 3, 9});
  const double moved[] = {4, 2, 4};
  for (std::size_t i = 0; i < 3; ++i) {
    const double was = before.rows[2 * std::array<std::size_t, 3>{0, 1, 3}[i]];
    CHECK(after.rows[2 * i] == was - 0.1 * moved[i] / (std::sqrt(moved[i] * moved[i]) + 1e-10));
  }
  CHECK(tables->digest(0).second == 3);
}

TEST_CASE("ids that there cannot be are named, and padding has no row") {
  const auto tables = tables_in_process();
  Worker worker(*tables, {});
  worker.add(definition(), 10);
  CHECK(error_of([&] { Rows(worker, {1, 10}); }) ==
        "ps: table \"ids\": there is no id 10; it has ids from 0 to 9");
  CHECK(error_of([&] { Rows(worker, {-1}); }) ==
        "ps: table \"ids\": there is no id -1; it has ids from 0 to 9");
  const Rows padded(worker, {4, 0, 4}, 0);
  CHECK(padded.rows[2] == 0);
  CHECK(padded.places == std::vector<std::int32_t>{0, Worker::kPadding, 0});
  worker.push(std::array{padded.with({1, 1, 1, 1, 1, 1})}, 1, 1);
  CHECK(tables->digest(0).second == 1);
  Definition endless = definition();
  endless.name = "endless";
  worker.add(endless, 0);
  std::vector<std::int32_t> places(1);
  std::vector<double> rows(2);
  worker.pull(1, Ids{(std::int64_t{1} << 62) + 5}, -1, places, rows);
  CHECK(error_of([&] { worker.pull(1, Ids{-7}, -1, places, rows); }) ==
        "ps: table \"endless\": there is no id -7; ids are not negative");
}

// Against a map of sums, in any number of pulls and micro-batches.
TEST_CASE("what is pushed are the sums over all pulls of a step, weighed as its micro-batches are") {
  std::mt19937 random(5);
  const auto tables = tables_in_process();
  Worker worker(*tables, {});
  Definition plain = definition();
  plain.parts[0].optimizer = {.rule = RowRule::Sgd, .rate = 1};
  plain.parts[0].initial = {.rule = InitialRule::Constant, .scale = 0};
  worker.add(plain, 0);
  std::map<std::int64_t, double> wanted;
  for (int step = 0; step < 30; ++step) {
    const int microbatches = 1 + static_cast<int>(random() % 3);
    const bool is_plain = microbatches == 1 && step % 2 == 0;
    const double divisor = is_plain ? 1 : 4;
    for (int part = 0; part < microbatches; ++part) {
      std::vector<Rows> all;
      std::vector<std::vector<double>> gradients;
      const double weight = is_plain ? 1 : part + 0.5;
      for (int pull = 0; pull < 1 + static_cast<int>(random() % 3); ++pull) {
        Ids ids(random() % 20);
        for (auto& id : ids) id = static_cast<std::int64_t>(random() % 30);
        all.emplace_back(worker, ids);
        gradients.emplace_back();
        for (const std::int64_t id : ids) {
          const double g = static_cast<double>(random() % 100) / 10;
          gradients.back().insert(gradients.back().end(), {g, 2 * g});
          wanted[id] -= weight * g / divisor;
        }
      }
      std::vector<Worker::Pulled> pulled;
      for (std::size_t i = 0; i < all.size(); ++i) pulled.push_back(all[i].with(gradients[i]));
      if (is_plain)
        worker.push(pulled, 1, 1);
      else
        worker.add_up(pulled, part == 0, weight);
    }
    if (!is_plain) worker.push_sums(divisor, 1, 1);
  }
  for (const auto& [id, value] : wanted) {
    const Rows row(worker, {id});
    CHECK(row.rows[0] == doctest::Approx(value));
    CHECK(row.rows[1] == doctest::Approx(2 * value));
  }
}

TEST_CASE("a worker whose gradient is not finite stops the step of all, with the reason") {
  const rendezvous::Key key = rendezvous::make_key();
  const Server server(key, {.loops = 2, .all_loops = 2});
  std::array<std::string, 2> told;
  std::barrier both_are_there(2);  // who comes after a round that was refused begins with the next
  const auto run = [&](std::uint32_t number) {
    Client client(key, server.endpoints());
    Worker worker(client, {.worker = number, .workers = 2});
    worker.add(definition(), 10);
    const Rows rows(worker, {1, 2});
    both_are_there.arrive_and_wait();
    std::vector<double> gradients(4, 1);
    if (number == 1) gradients[3] = NAN;
    told[number] = error_of([&] { worker.push(std::array{rows.with(gradients)}, 1, 1); });
    if (number == 0) CHECK(client.digest(0).second == 0);
    gradients[3] = 1;
    worker.push(std::array{rows.with(gradients)}, 1, 1);  // and the next goes on
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  CHECK(told[1] ==
        "ps: table \"ids\": the gradient of key 2 is not finite; nothing was pushed. Is the "
        "learning rate too high?");
  CHECK(told[0] == told[1] + " (of worker 1)");
}
