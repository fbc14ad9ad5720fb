// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/located.h"
#include "shoal/comm/ranks.h"
#include "shoal/elastic/culprit.h"
#include "shoal/elastic/flight.h"
#include "shoal/elastic/join.h"
#include "shoal/elastic/launcher.h"
#include "shoal/elastic/output.h"
#include "shoal/elastic/place.h"
#include "shoal/elastic/process.h"
#include "shoal/elastic/recorded.h"
#include "shoal/rendezvous/memory_store.h"

using namespace shoal;
using namespace shoal::elastic;
using namespace std::chrono_literals;

// --- Places.

TEST_CASE("the environments of torchrun, mpirun and Slurm are understood") {
  const Place wanted = {.rank = 3, .size = 8, .local_rank = 1, .local_size = 2, .starter = "torchrun"};
  CHECK(place_of({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}) ==
        wanted);
  const Place mpi = place_of({{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK(mpi.rank == 3);
  CHECK(mpi.local_size == 2);
  CHECK(mpi.starter == "mpirun");
  const Place slurm = place_of({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}});
  CHECK(slurm.rank == 1);
  CHECK(slurm.local_size == 2);
  CHECK(place_of({}) == Place{});
  CHECK(place_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"SHOAL_STORE", "a:1"}}).starter == "shoal run");
}

TEST_CASE("an environment that contradicts itself names the variable") {
  CHECK_THROWS_WITH_AS(
      place_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
      "elastic: RANK is 2 and WORLD_SIZE is 2: wanted a rank from 0 to the number of ranks - 1", Error);
  CHECK_THROWS_WITH_AS(
      place_of({{"RANK", "two"}, {"WORLD_SIZE", "2"}}),
      "elastic: the environment variable RANK is \"two\", wanted a number; start the program with "
      "shoal run, torchrun or mpirun, or alone",
      Error);
  CHECK_THROWS_AS(place_of({{"RANK", "0"}}), Error);
}

// --- Meeting.

static Attendant attendant(int rank, int size, int process) {
  return {
      .place = {.rank = rank, .size = size}, .identity = "a", .host = concat("h", rank), .process = process};
}

TEST_CASE("ranks that meet learn each other's hosts") {
  rendezvous::MemoryStore store;
  std::thread other([&] { meet(store, attendant(1, 2, 20), 20s); });
  const Attendance all = meet(store, attendant(0, 2, 10), 20s);
  other.join();
  CHECK(all.hosts == std::vector<std::string>{"h0", "h1"});
}

TEST_CASE("a rank that is there twice, another number of ranks, and ranks that do not come are named") {
  rendezvous::MemoryStore store;
  meet(store, attendant(0, 1, 10), 1s);
  CHECK(error_of([&] { meet(store, attendant(0, 1, 11), 1s); }) ==
        "elastic: two processes are rank 0: process 10 of host h0 and process 11 of host h0; was the program "
        "started twice, or is a node rank given twice?");
  CHECK(error_of([&] { meet(store, attendant(1, 2, 12), 1s); }) ==
        "elastic: rank 0 on host h0 says that there are 1 ranks, rank 1 on host h1 says 2; start all hosts "
        "with "
        "the same numbers");
  rendezvous::MemoryStore other;
  CHECK(error_of([&] { meet(other, attendant(1, 4, 12), 1ms); }) ==
        "elastic: of 4 ranks these did not come within 0.001 s: 0, 2, 3; did they start, and do they call "
        "join?");
}

TEST_CASE("what no rank of this version says is an error that names its key") {
  for (const std::string text :
       {"", "{", "[1]", R"({"size": 2})", R"({"size": "2", "identity": "a", "host": "h"})"}) {
    CAPTURE(text);
    rendezvous::MemoryStore store;
    store.set("join/1", text);
    const std::string error = error_of([&] { meet(store, attendant(0, 2, 10), 1s); });
    CHECK(
        error.starts_with("elastic: what the job's store has under \"join/1\" cannot be read; does another "
                          "version of Shoal take part? "));
  }
}

TEST_CASE("a program that nobody started is a job of one") {
  const auto job = join({});
  CHECK(job->place() == Place{});
  CHECK(job->is_one_host());
  job->store().set("a", "1");
  CHECK(job->store().find("a") == "1");
}

TEST_CASE("processes that torchrun or mpirun started find each other without a file") {
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      int code = 1;
      try {
        const auto job =
            join({{"OMPI_COMM_WORLD_RANK", std::to_string(rank)}, {"OMPI_COMM_WORLD_SIZE", "3"}}, 20s);
        job->store().add("sum", rank);
        job->store().add("here", 1);
        while (job->store().find("here") != "3") std::this_thread::yield();
        code = job->is_one_host() && job->store().find("sum") == "3" ? 0 : 2;
        job->store().add("over", 1);  // rank 0 serves: it stays until all have looked
        while (rank == 0 && job->store().find("over") != "3") std::this_thread::yield();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(code);
    }
    ranks.push_back(process);
  }
  for (const pid_t process : ranks) {
    int status = 0;
    waitpid(process, &status, 0);
    CHECK(how_it_ended(status) == "exit code 0");
  }
}

// --- The flight recorder.

TEST_CASE("the recorder keeps the last 1,000 calls, where they were made, and the first error") {
  Flight flight;
  {
    const InModule module(flight, "h.3.mlp");
    for (std::uint64_t i = 0; i < 1500; ++i) {
      const std::uint64_t place =
          flight.begin({.op = comm::Op::AllReduce, .count = static_cast<std::int64_t>(i)}, i, "");
      if (i < 1499) flight.end(place, CallState::Done);
    }
  }
  flight.failed(ErrorKind::PeerLost, "first");
  flight.failed(ErrorKind::Internal, "second");
  const Flight other(dup(flight.descriptor()));  // as the launcher has it
  const FlightLog log = other.read();
  CHECK(log.num_calls == 1500);
  REQUIRE(log.records.size() == 1000);
  CHECK(log.records[0].number == 500);
  CHECK(log.records[998].state == CallState::Done);
  CHECK(describe(log.records[999]) == "call 1499, all_reduce(f32 x 1499, sum), in h.3.mlp");
  CHECK(log.records[999].state == CallState::UnderWay);
  CHECK(log.kind == ErrorKind::PeerLost);
  CHECK(log.error == "first");
  CHECK(log.module.empty());
  CHECK_THROWS_AS(Flight(-1), Error);
}

TEST_CASE("a recorded communicator does what the other does, and writes down calls, groups and errors") {
  std::vector<std::unique_ptr<comm::Communicator>> ranks;
  std::vector<std::unique_ptr<Flight>> flights;
  for (auto& communicator : comm::inproc(2)) {
    flights.push_back(std::make_unique<Flight>());
    ranks.push_back(recorded(std::move(communicator), *flights.back(), 20s));
  }
  const auto function = [](comm::Communicator& group) {
    float value = static_cast<float>(1 + group.rank());
    group.all_reduce({&value, 1, DType::Float32}, comm::ReduceOp::Sum)->wait(20s);
    CHECK(value == 3);
    const int both[] = {0, 1};
    group.subgroup(both)->barrier()->wait(20s);
    double wrong = 0;
    const comm::Buffer buffer =
        group.rank() == 0 ? comm::Buffer{&value, 1, DType::Float32} : comm::Buffer{&wrong, 1, DType::Float64};
    group.all_reduce(buffer, comm::ReduceOp::Sum)->wait(20s);
  };
  CHECK_THROWS_AS(comm::run_as_threads(std::move(ranks), function), Error);
  for (const auto& flight : flights) {
    const FlightLog log = flight->read();
    REQUIRE(log.records.size() == 3);
    CHECK(describe(log.records[0]) == "call 0, all_reduce(f32 x 1, sum)");
    CHECK(log.records[0].state == CallState::Done);
    CHECK(describe(log.records[1]) == "call 0 of [0,1], barrier()");
    CHECK(log.records[2].state == CallState::Failed);
    CHECK(log.kind == ErrorKind::InvalidInput);
    CHECK(log.error.find("rank 0 all_reduce(f32 x 1, sum), rank 1 all_reduce(f64 x 1, sum)") !=
          std::string::npos);
  }
}

TEST_CASE("calls stand in the recorder with where their communicator said that it is, errors too") {
  Flight flight;
  const auto alone = recorded(std::move(comm::inproc(1)[0]), flight, 20s);
  auto* located = dynamic_cast<comm::Located*>(alone.get());
  REQUIRE(located);
  alone->barrier()->wait(20s);
  located->in_module("h.3.attn");
  alone->barrier()->wait(20s);
  CHECK(flight.read().module == "h.3.attn");
  const int self[] = {0};
  const auto part = alone->subgroup(self);
  dynamic_cast<comm::Located&>(*part).in_module("h.3.mlp");
  part->barrier()->wait(20s);
  alone->barrier()->wait(20s);
  alone->abort("enough");
  CHECK(error_of([&] { alone->barrier()->wait(20s); }) == "enough, in h.3.attn");
  located->in_module("");
  CHECK(error_of([&] { alone->barrier()->wait(20s); }) == "enough");

  const FlightLog log = flight.read();
  std::vector<std::string> modules;
  for (const FlightRecord& record : log.records) modules.push_back(record.module);
  CHECK(modules == std::vector<std::string>{"", "h.3.attn", "h.3.mlp", "h.3.attn", "h.3.attn", ""});
  CHECK(log.error == "enough, in h.3.attn");
}

TEST_CASE("collectives and messages are numbered apart, as errors number them") {
  std::vector<std::unique_ptr<comm::Communicator>> ranks;
  std::vector<std::unique_ptr<Flight>> flights;
  for (auto& communicator : comm::inproc(2)) {
    flights.push_back(std::make_unique<Flight>());
    ranks.push_back(recorded(std::move(communicator), *flights.back(), 20s));
  }
  comm::run_as_threads(std::move(ranks), [](comm::Communicator& group) {
    std::uint8_t byte = 0;
    for (int turn = 0; turn < 2; ++turn) {
      const comm::Tag tag = {.microbatch = 3, .message = static_cast<std::uint16_t>(turn)};
      if (group.rank() == 0) group.send({&byte, 1, DType::UInt8}, 1, tag)->wait(20s);
      if (group.rank() == 1) group.receive({&byte, 1, DType::UInt8}, 0, tag)->wait(20s);
      group.barrier()->wait(20s);
    }
  });
  std::vector<std::string> calls;
  for (const FlightRecord& record : flights[1]->read().records) calls.push_back(describe(record));
  CHECK(calls == std::vector<std::string>{"call 0, receive(u8 x 1, from 0)", "call 0, barrier()",
                                          "call 1, receive(u8 x 1, from 0, micro-batch 3, message 1)",
                                          "call 1, barrier()"});
}

TEST_CASE("that a rank waits for a call, and does nothing else, stands in its recorder") {
  auto ranks = comm::inproc(2);
  Flight flight;
  const auto waiting = recorded(std::move(ranks[1]), flight, 20s);
  std::uint8_t byte = 0;
  const auto state = [&] { return flight.read().records.at(0).state; };
  const auto work = waiting->receive({&byte, 1, DType::UInt8}, 0);
  CHECK(flight.num_calls() == 1);
  CHECK(state() == CallState::UnderWay);
  std::string error;
  std::jthread waits([&] { error = error_of([&] { work->wait(20s); }); });
  while (state() == CallState::UnderWay) std::this_thread::yield();
  CHECK(state() == CallState::Waiting);
  std::uint8_t sent = 3;
  ranks[0]->send({&sent, 1, DType::UInt8}, 1)->wait(20s);
  waits.join();
  CHECK(error.empty());
  CHECK(state() == CallState::Done);
  for (int call = 0; call < 1000; ++call) flight.begin({}, 0, "");
  flight.waits(0);  // which is not kept any more
  CHECK(flight.read().records.back().state == CallState::UnderWay);
}

// --- Processes and output.

TEST_CASE("output is cut into lines with the rank before each, and the last ones are kept") {
  Lines lines("[1] ", 2);
  CHECK(lines.take("a\nb") == "[1] a\n");
  CHECK(lines.take("c\nd\ne") == "[1] bc\n[1] d\n");
  CHECK(lines.rest() == "[1] e\n");
  CHECK(lines.rest().empty());
  CHECK(lines.take("frame #0: main\n") == "[1] frame #0: main\n");
  CHECK(lines.last() == std::deque<std::string>{"d", "e"});  // what an error was, not where in LibTorch
  CHECK(lines.take(std::string(70000, 'x')).size() == 70005);
}

TEST_CASE("a program that is not there is said to be so before anything runs") {
  CHECK_THROWS_WITH_AS(
      start({.words = {"/no/such/program"}}),
      "run: cannot start /no/such/program: No such file or directory; is it a program, and in PATH?", Error);
}

TEST_CASE("what is left below a process is ended, orphans of orphans too") {
  constexpr ssize_t kBytes = sizeof(pid_t);
  int ready[2] = {-1, -1}, known[2] = {-1, -1};
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(known) == 0);
  const int code = run_guarded([&] {
    const pid_t child = fork();
    if (child == 0) {
      setsid();
      if (fork() == 0) {
        setsid();
        const pid_t self = getpid();
        if (write(ready[1], &self, kBytes) != kBytes) _exit(1);
        for (;;) pause();
      }
      _exit(0);
    }
    pid_t orphan = 0;  // it has to be there when this ends
    return read(ready[0], &orphan, kBytes) == kBytes && write(known[1], &orphan, kBytes) == kBytes ? 7 : 1;
  });
  CHECK(code == 7);
  pid_t orphan = 0;
  REQUIRE(read(known[0], &orphan, kBytes) == kBytes);
  CHECK(kill(orphan, 0) == -1);
  CHECK(errno == ESRCH);
  for (const int end : {ready[0], ready[1], known[0], known[1]}) close(end);
  const auto killed = []() -> int {
    std::raise(SIGKILL);
    return 0;
  };
  CHECK(run_guarded(killed) == 128 + SIGKILL);
}

TEST_CASE("a launch that makes no sense names the option") {
  CHECK(error_of([] { check({.command = {"a"}, .ranks = 0}); }) ==
        "run: --nproc-per-node is 0, wanted 1 to 1024");
  CHECK(error_of([] { check({.command = {"a"}, .num_hosts = 2, .host = 2}); }) ==
        "run: --node-rank is 2, wanted 0 to --nnodes - 1, which is 1");
  CHECK(error_of([] {
          check({.command = {"a"}, .num_hosts = 2, .master_port = 1});
        }).starts_with("run: with several hosts --key-file has to be given"));
  CHECK(error_of([] { check({}); }) == "run: no program; write it after the options");
}
