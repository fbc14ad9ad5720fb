// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/rendezvous/host_store.h"
#include "shoal/rendezvous/memory_store.h"
#include "shoal/rendezvous/tcp_server.h"
#include "shoal/rendezvous/tcp_store.h"

using namespace shoal;
using namespace shoal::rendezvous;
using namespace std::chrono_literals;

static void behaves(Store& store) {
  CHECK(store.num_keys() == 0);
  CHECK_FALSE(store.find("a"));
  store.set("a", "1");
  store.set("a", std::string_view("x\0y", 3));
  CHECK(store.find("a") == std::string("x\0y", 3));
  CHECK(store.get("a", 0s) == std::string("x\0y", 3));
  CHECK(store.add("n", 2) == 2);
  CHECK(store.add("n", -5) == -3);
  CHECK(store.find("n") == "-3");
  store.set("word", "x");
  CHECK_THROWS_WITH_AS(store.add("word", 1),
                       "rendezvous: key \"word\" holds \"x\", which is not a counter; add to another key",
                       Error);
  CHECK(store.remove("word"));
  CHECK(store.compare_and_set("c", "old", "new").empty());
  CHECK_FALSE(store.find("c"));
  CHECK(store.compare_and_set("c", "", "first") == "first");
  CHECK(store.compare_and_set("c", "other", "second") == "first");
  CHECK(store.compare_and_set("c", "first", "second") == "second");
  CHECK(store.num_keys() == 3);  // a, n, c
  CHECK(store.remove("c"));
  CHECK_FALSE(store.remove("c"));
  CHECK_THROWS_WITH_AS(store.get("late", 1ms),
                       "rendezvous: key \"late\" was not set within 0.001 s; has every rank started?", Error);
  std::thread other([&] { store.set("late", "here"); });
  CHECK(store.get("late", 20s) == "here");
  other.join();

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) store.add("sum", 1);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(store.find("sum") == "400");
}

TEST_CASE("a store of threads sets, waits, counts and compares") {
  MemoryStore store;
  behaves(store);
}

TEST_CASE("a store of processes does the same") {
  HostStore store;
  behaves(store);
}

TEST_CASE("a store over TCP does the same, in an epoch of its own") {
  const Key key = make_key();
  TcpServer server(key);
  TcpStore job(key, {.port = server.port(), .epoch = 0, .limit = 20s});
  job.set("a", "the job's");
  TcpStore store(key, {.port = server.port(), .limit = 20s});
  behaves(store);
  CHECK(job.find("a") == "the job's");
}

TEST_CASE("children see what the parent and each other set, and a killed one does no harm") {
  HostStore store;
  store.set("from parent", "yes");
  pid_t children[3];
  for (int i = 0; i < 3; ++i) {
    children[i] = fork();
    if (children[i] == 0) {
      HostStore inherited = HostStore::inherited(dup(store.descriptor()));  // as after exec
      if (inherited.get("from parent", 20s) != "yes") _exit(1);
      inherited.add("ready", 1);
      if (i > 0) _exit(inherited.get("go", 20s) == "on" ? 0 : 2);
      for (;;) inherited.add("noise", 1);  // until it is killed, often inside the lock
    }
  }
  while (store.find("ready") != "3") std::this_thread::yield();
  while (std::stoll(store.find("noise").value_or("0")) < 50) std::this_thread::yield();
  kill(children[0], SIGKILL);
  int status = 0;
  waitpid(children[0], &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(std::stoll(store.get("noise", 1s)) >= 50);
  store.set("go", "on");
  for (int i = 1; i < 3; ++i) {
    waitpid(children[i], &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}

TEST_CASE("a full store says how much was wanted, and keeps what it had") {
  HostStore store(64);
  store.set("a", "1");
  CHECK_THROWS_WITH_AS(
      store.set("b", std::string(100, 'x')),
      "rendezvous: the store is full: 135 bytes wanted, 64 there are; remove keys, or make a "
      "larger store",
      Error);
  CHECK(store.find("a") == "1");
  CHECK_THROWS_WITH_AS(
      HostStore::inherited(-1),
      "rendezvous: descriptor -1 is not a store that was inherited; is it still open, and not "
      "closed on exec?",
      Error);
}
