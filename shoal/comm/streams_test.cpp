// SPDX-License-Identifier: Apache-2.0
#include "shoal/comm/streams.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "shoal/base/error.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/test_ranks.h"

using namespace shoal;
using namespace shoal::comm;
using namespace std::chrono_literals;

namespace {

// A call that says what happens to it, and is done when it is told so.
struct Told final : StreamCall {
  Told(std::string& log, char name) : log_(log), name_(name) {}
  void begin() override { say("begin"); }
  bool done() override { return is_done; }
  void finish() override {
    if (!is_done) say("wait");
    is_done = true;
  }
  void drop() noexcept override { say("drop"); }
  void say(const char* what) { log_ += std::string(log_.empty() ? "" : " ") + what + name_; }

  bool is_done = false;

 private:
  std::string& log_;
  char name_;
};

}  // namespace

TEST_CASE("a call begins when those that it needs are done, and those before it on its stream have begun") {
  std::string log;
  Told a(log, 'A'), b(log, 'B'), c(log, 'C'), d(log, 'D');
  Streams streams({{&a, 0, {}}, {&b, 1, {0}}, {&c, 1, {}}, {&d, 2, {}}});
  for (int row = 0; row < 4; ++row) streams.start(row);
  CHECK(log == "beginA beginD");
  streams.go_on();
  CHECK(log == "beginA beginD");
  a.is_done = true;
  streams.go_on();
  CHECK(log == "beginA beginD beginB beginC");
  streams.wait(3);
  CHECK(log == "beginA beginD beginB beginC waitD");
  for (int row = 0; row < 3; ++row) streams.wait(row);
  CHECK(streams.is_idle());
}

TEST_CASE("who waits for a call first begins all that were started before it") {
  std::string log;
  Told a(log, 'A'), b(log, 'B'), c(log, 'C'), d(log, 'D');
  Streams streams({{&a, 0, {}}, {&b, 1, {0}}, {&c, 2, {}}, {&d, 3, {0}}});
  for (int row = 0; row < 4; ++row) streams.start(row);
  streams.wait(2);
  CHECK(log == "beginA beginC waitA beginB waitC");  // D was started after C
  streams.drop();
  CHECK(log == "beginA beginC waitA beginB waitC dropA dropB");
  CHECK(streams.is_idle());
  streams.start(3);  // what it needs is not under way any more
  CHECK(log.ends_with("beginD"));
}

TEST_CASE("a call that is started twice, or waited for and not started, is an error") {
  std::string log;
  Told a(log, 'A');
  Streams streams({{&a, 0, {}}});
  CHECK_THROWS_WITH_AS(streams.wait(0), "streams: call 0 was not started", Error);
  streams.start(0);
  CHECK_THROWS_WITH_AS(streams.start(0), "streams: call 0 was started twice", Error);
}

namespace {

// Random calls of groups of ranks: each reduces or gathers what an earlier one has made, or new numbers.
struct Drawn {
  int group = 0;
  int needs = -1;  // an earlier call whose result it reads
  bool gathers = false;
  int waits_after = 0;  // so many other calls and computations
};

std::vector<Drawn> drawn(std::mt19937& random, int num_groups) {
  const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
  std::vector<Drawn> calls(static_cast<std::size_t>(2 + below(10)));
  for (std::size_t i = 0; i < calls.size(); ++i)
    calls[i] = {.group = below(num_groups),
                .needs = i > 0 && below(2) == 0 ? below(static_cast<int>(i)) : -1,
                .gathers = below(3) == 0,
                .waits_after = below(6)};
  return calls;
}

using Numbers = std::vector<float>;
constexpr std::int64_t kCount = 24;  // of each call's input: the first elements of another's result

class GroupCall final : public StreamCall {
 public:
  GroupCall(Communicator& group, bool gathers, const Numbers& from, Numbers& to)
      : group_(group), gathers_(gathers), from_(from), to_(to) {}

  void begin() override {
    if (gathers_) {
      to_.resize(static_cast<std::size_t>(kCount * group_.size()));
      work_ = group_.all_gather({from_.data(), kCount, DType::Float32},
                                {to_.data(), kCount * group_.size(), DType::Float32});
    } else {
      to_.assign(from_.begin(), from_.begin() + kCount);
      work_ = group_.all_reduce({to_.data(), kCount, DType::Float32}, ReduceOp::Sum);
    }
  }
  bool done() override { return !work_ || work_->done(); }
  void finish() override {
    if (work_) work_->wait(20s);
    work_.reset();
  }
  void drop() noexcept override { work_.reset(); }

 private:
  Communicator& group_;
  bool gathers_;
  const Numbers& from_;
  Numbers& to_;
  std::unique_ptr<Work> work_;
};

// What all calls of one rank make, on streams or one after the other. It computes between them, for a while.
std::vector<Numbers> played(const std::vector<Drawn>& calls, const std::vector<Communicator*>& groups,
                            int rank, unsigned seed, bool on_streams) {
  std::mt19937 delays(seed + static_cast<unsigned>(rank));
  std::vector<Numbers> fresh(calls.size()), made(calls.size());
  std::vector<std::unique_ptr<GroupCall>> all;
  std::vector<Streams::Row> rows;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Drawn& call = calls[i];
    fresh[i].resize(static_cast<std::size_t>(kCount));
    std::iota(fresh[i].begin(), fresh[i].end(), static_cast<float>(rank) / 3.0F + static_cast<float>(i));
    const Numbers& from = call.needs < 0 ? fresh[i] : made[static_cast<std::size_t>(call.needs)];
    all.push_back(std::make_unique<GroupCall>(*groups[static_cast<std::size_t>(call.group)], call.gathers,
                                              from, made[i]));
    rows.push_back(
        {all.back().get(), call.group, call.needs < 0 ? std::vector<int>{} : std::vector<int>{call.needs}});
  }
  Streams streams(rows);
  std::vector<std::pair<int, int>> due;  // after so many, a row
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    if (!on_streams) {
      all[static_cast<std::size_t>(i)]->begin();
      all[static_cast<std::size_t>(i)]->finish();
      continue;
    }
    streams.start(i);
    due.emplace_back(i + calls[static_cast<std::size_t>(i)].waits_after, i);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(delays() % 40);
    while (std::chrono::steady_clock::now() < until) streams.go_on();
    for (const auto& [after, row] : due)
      if (after == i) streams.wait(row);
    std::erase_if(due, [&](const auto& each) { return each.first == i; });
  }
  for (const auto& [after, row] : due) streams.wait(row);
  return made;
}

}  // namespace

TEST_CASE("1,000 random programs on streams make the bits of the same ones without streams") {
  constexpr int kRanks = 4;
  // All, rows and columns of a mesh: each rank is in three groups.
  const std::vector<std::vector<std::vector<int>>> axes = {
      {{0, 1, 2, 3}}, {{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}};
  const Ranks ranks = shm_ranks(kRanks);
  std::vector<int> wrong(kRanks);
  const auto ends = ends_of(ranks, [&](Communicator& world) {
    std::vector<std::unique_ptr<Communicator>> owned;
    std::vector<Communicator*> groups = {&world};
    for (std::size_t axis = 1; axis < axes.size(); ++axis)
      for (const auto& members : axes[axis])
        if (std::ranges::find(members, world.rank()) != members.end()) {
          owned.push_back(world.subgroup(members));
          groups.push_back(owned.back().get());
        }
    for (unsigned seed = 0; seed < 1000; ++seed) {
      std::mt19937 random(seed);
      const auto calls = drawn(random, static_cast<int>(axes.size()));
      const auto plain = played(calls, groups, world.rank(), seed, false);
      if (played(calls, groups, world.rank(), seed, true) != plain)
        ++wrong[static_cast<std::size_t>(world.rank())];
    }
  });
  CHECK(ends == std::vector<std::string>(kRanks, "ok"));
  CHECK(wrong == std::vector<int>(kRanks, 0));
}
