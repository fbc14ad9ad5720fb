// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/programs.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/simulate/measures.h"

using namespace shoal;
using namespace shoal::simulate;

// One byte takes a second, one that crosses a link too; a kernel nothing more.
static cost::Cluster cluster(int hosts, int devices) {
  cost::Cluster made;
  made.kinds.emplace(
      "slow",
      cost::Kind{
          .name = "slow", .memory = 1, .bandwidth = {1, {}}, .arithmetic = {{DType::Float32, {1e9, {}}}}});
  made.hosts = {{"slow", devices, hosts}};
  made.inside = {.latency = 0, .bandwidth = 1};
  made.between = {.latency = 0, .bandwidth = 0.5};
  return made;
}

// %1 = cumsum, an all-reduce of it beside %3 = cumsum, and their sum.
static program::Program step(std::int64_t elements = 1, const std::string& axis = "data") {
  std::string type = "u8[" + std::to_string(elements) + "]";
  return program::from_text(
      "source %0 parameter \"w\" : " + type + "\nbackward:\n%1 : " + type +
      " = aten::cumsum(self=%0)\n%2 : " + type + " = shoal::all_reduce(self=%1, axis=\"" + axis +
      "\", combine=\"sum\")\n%3 : " + type + " = aten::cumsum(self=%0)\nwait %2\n%4 : " + type +
      " = aten::add.Tensor(self=%2, other=%3)\nupdate:\nreturn output \"y\" %4\n");
}

static Ranks kind(std::vector<int> ranks, const program::Program& program) {
  Ranks made = {.ranks = std::move(ranks)};
  append_runs(made.runs, program, 0);
  return made;
}

static constexpr std::int64_t kSecond = 1'000'000'000;

// "all_reduce 2-3", by stream of a rank.
static std::vector<std::string> seconds_of(const Tasks& tasks, int rank, const std::string& stream) {
  std::vector<std::string> all;
  const std::vector<Span> spans = play(tasks);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Task& task = tasks.tasks[i];
    const Stream& on = tasks.streams[static_cast<std::size_t>(task.stream)];
    if (on.rank == rank && on.name == stream && !task.name.empty())
      all.push_back(task.name.substr(task.name.rfind(':') + 1) + ' ' +
                    std::to_string(spans[i].begin / kSecond) + '-' + std::to_string(spans[i].end / kSecond));
  }
  return all;
}

TEST_CASE("a message goes on beside what follows, until it is waited for") {
  const program::Program program = step(2);
  const Tasks tasks = tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, cluster(1, 2));
  CHECK(seconds_of(tasks, 0, "data") == std::vector<std::string>{"all_reduce 4-6"});
  CHECK(seconds_of(tasks, 0, "compute") ==
        std::vector<std::string>{"cumsum 0-4", "cumsum 4-8", "add.Tensor 8-14"});
  CHECK(tasks.streams.size() == 2);  // ranks that run alike are played once
  const auto all = communication(tasks, play(tasks));
  REQUIRE(all.size() == 1);
  CHECK(all[0].moving == 2 * kSecond);
  CHECK(all[0].exposed == 0);
}

TEST_CASE("a step begins with what it takes in no kernel") {
  const program::Program program = step(2);
  cost::Cluster slow = cluster(1, 2);
  slow.kinds.at("slow").step_seconds = 3;
  const Tasks tasks = tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, slow);
  CHECK(seconds_of(tasks, 0, "compute") ==
        std::vector<std::string>{"cumsum 3-7", "cumsum 7-11", "add.Tensor 11-17"});
}

TEST_CASE("between hosts it takes longer, and what computes waits") {
  const program::Program program = step(2);
  const Tasks tasks = tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, cluster(2, 1));
  CHECK(seconds_of(tasks, 0, "data") == std::vector<std::string>{"all_reduce 4-8"});
  cost::Cluster slow = cluster(2, 1);
  slow.between.bandwidth = 0.25;
  const Tasks later = tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, slow);
  CHECK(seconds_of(later, 0, "compute") ==
        std::vector<std::string>{"cumsum 0-4", "cumsum 4-8", "add.Tensor 12-18"});
  CHECK(communication(later, play(later))[0].exposed == 4 * kSecond);
  slow.overlap = 1.5;
  CHECK(seconds_of(tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, slow), 0, "compute")[1] ==
        "cumsum 4-10");
  slow.message_overlap = 4;  // of 8 seconds of it 6 pass beside cumsum, which is 1.5 of them
  const Tasks both = tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, slow);
  CHECK(seconds_of(both, 0, "compute")[1] == "cumsum 4-10");
  CHECK(seconds_of(both, 0, "data") == std::vector<std::string>{"all_reduce 4-16"});
}

TEST_CASE("a message begins when all of its group have come to it, and ends for all at once") {
  const program::Program small = step(2), large = step(4);
  const Tasks tasks = tasks_of({kind({0}, small), kind({1}, large)}, {{{"data", 2}}}, cluster(1, 2));
  CHECK(seconds_of(tasks, 0, "data") == std::vector<std::string>{"all_reduce 8-10"});
  CHECK(seconds_of(tasks, 1, "data") == std::vector<std::string>{"all_reduce 8-12"});
  CHECK(seconds_of(tasks, 0, "compute")[2] == "add.Tensor 10-16");
}

TEST_CASE("ranks whose group lies otherwise are of another kind") {
  // Ranks 0 and 1 are a pair on one host, 2 and 3 are on two.
  cost::Cluster uneven = cluster(1, 3);
  uneven.hosts.push_back({"slow", 1, 1});
  const program::Program program = step(2, "tensor");
  const Tasks tasks = tasks_of({kind({0, 1, 2, 3}, program)}, {{{"data", 2}, {"tensor", 2}}}, uneven);
  CHECK(seconds_of(tasks, 0, "tensor") == std::vector<std::string>{"all_reduce 4-6"});
  CHECK(seconds_of(tasks, 2, "tensor") == std::vector<std::string>{"all_reduce 4-8"});
}

TEST_CASE("faster devices wait for slower ones") {
  cost::Cluster mixed = cluster(1, 1);
  mixed.kinds.emplace("fast", mixed.kinds.at("slow")).first->second.bandwidth.peak = 2;
  mixed.kinds.at("fast").name = "fast";
  mixed.hosts.push_back({"fast", 1, 1});
  const program::Program program = step(2);
  const Tasks tasks = tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, mixed);
  CHECK(seconds_of(tasks, 1, "compute") ==
        std::vector<std::string>{"cumsum 0-2", "cumsum 2-4", "add.Tensor 8-11"});
}

TEST_CASE("micro-batches go one after the other, and more ranks than devices are refused") {
  const program::Program program = step(1);
  Ranks ranks = kind({0, 1}, program);
  append_runs(ranks.runs, program, 1);
  const Tasks tasks = tasks_of({ranks}, {{{"data", 2}}}, cluster(1, 2));
  CHECK(seconds_of(tasks, 0, "compute").size() == 6);
  CHECK(seconds_of(tasks, 0, "data") == std::vector<std::string>{"all_reduce 2-3", "all_reduce 9-10"});
  CHECK_THROWS_WITH_AS(tasks_of({ranks}, {{{"data", 2}}}, cluster(1, 1)),
                       doctest::Contains("has 2 ranks, and the cluster 1 devices"), Error);
}

TEST_CASE("a cluster whose rates make no step end is refused") {
  cost::Cluster slow = cluster(1, 2);
  slow.inside.bandwidth = 1e-9;
  const program::Program program = step(1);
  CHECK_THROWS_WITH_AS(tasks_of({kind({0, 1}, program)}, {{{"data", 2}}}, slow),
                       doctest::Contains("shoal::all_reduce would take 1e+09 s, more than a day"), Error);
}

static program::Program sending() {
  return program::from_text(
      "source %0 parameter \"w\" : u8[3]\nforward:\n%1 : u8[3] = aten::cumsum(self=%0)\n"
      "() = shoal::send(self=%1, axis=\"stage\", to=1)\nreturn output \"y\" %1\n");
}
static program::Program receiving() {
  return program::from_text(
      "forward:\n%0 : u8[3] = shoal::receive(axis=\"stage\", from=0, device=cpu)\nwait %0\n"
      "%1 : u8[3] = aten::cumsum(self=%0)\nreturn output \"y\" %1\n");
}

TEST_CASE("stages whose devices differ otherwise than those of the stage before receive what these send") {
  cost::Cluster mixed = cluster(1, 3);
  mixed.kinds.emplace("fast", mixed.kinds.at("slow")).first->second.name = "fast";
  mixed.hosts.push_back({"fast", 2, 1});
  mixed.hosts.push_back({"slow", 3, 1});
  const program::Program sends = sending(), receives = receiving();
  const Tasks tasks = tasks_of({kind({0, 1, 2, 3}, sends), kind({4, 5, 6, 7}, receives)},
                               {{{"stage", 2}, {"data", 4}}}, mixed);
  for (const int rank : {4, 5}) CHECK(seconds_of(tasks, rank, "compute").size() == 1);
}

TEST_CASE("what is received is there when it was sent and has crossed") {
  const program::Program sends = sending(), receives = receiving();
  const Tasks tasks = tasks_of({kind({0}, sends), kind({1}, receives)}, {{{"stage", 2}}}, cluster(1, 2));
  const auto sent = seconds_of(tasks, 0, "stage to 1");
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].starts_with("send "));
  CHECK(seconds_of(tasks, 1, "compute").back() ==
        "cumsum " + sent[0].substr(sent[0].find('-') + 1) + '-' +
            std::to_string(std::stoi(sent[0].substr(sent[0].find('-') + 1)) + 6));
}
