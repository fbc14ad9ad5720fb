// SPDX-License-Identifier: Apache-2.0
// Above 400 lines: one case for each way in which ranks of a group may end; they share the group.
#include "shoal/comm_c10d/gloo.h"
#include "shoal/base/sanitized.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/conformance.h"
#include "shoal/comm_c10d/nccl.h"
#include "shoal/rendezvous/memory_store.h"

using namespace shoal;
using namespace std::chrono_literals;

// Runs a function on ranks that are threads, and gives back what each threw: "" if nothing.
static std::vector<std::string> run(int size, const std::function<void(comm::Communicator&)>& rank_of,
                                    rendezvous::Store& store) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      std::string& error = errors[static_cast<std::size_t>(rank)];
      try {
        const auto gloo = comm_c10d::make_gloo(store, {.name = "g", .rank = rank, .size = size});
        rank_of(*gloo);
      } catch (const Error& caught) {
        error = concat(name_of(caught.kind()), ": ", caught.what());
      } catch (const std::exception& caught) {
        error = caught.what();
      }
    });
  threads.clear();
  return errors;
}

static const std::vector<std::string> kFine3(3);

TEST_CASE("ranks sum over gloo, and no key stays in the store") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      3,
      [](comm::Communicator& ranks) {
        std::vector<float> values = {1, static_cast<float>(ranks.rank())};
        ranks.all_reduce({values.data(), 2, DType::Float32}, comm::ReduceOp::Sum)->wait(10s);
        SHOAL_CHECK(values == std::vector<float>({3, 3}), Internal, "wrong sum");
      },
      store);
  CHECK(errors == kFine3);
  CHECK(store.num_keys() == 0);
}

TEST_CASE("every rank sends round a ring before it receives") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      3,
      [](comm::Communicator& ranks) {
        const int next = (ranks.rank() + 1) % 3, last = (ranks.rank() + 2) % 3;
        std::int64_t mine = ranks.rank(), its = -1;
        const auto sent = ranks.send({&mine, 1, DType::Int64}, next);
        ranks.receive({&its, 1, DType::Int64}, last)->wait(10s);
        sent->wait(10s);
        SHOAL_CHECK(its == last, Internal, "wrong message");
      },
      store);
  CHECK(errors == kFine3);
}

TEST_CASE("gathers and reduce-scatters of several pieces, the last of them shorter") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      3,
      [](comm::Communicator& ranks) {
        constexpr std::int64_t kCount = 200'003;  // 1.6 MB
        const auto value = [](int rank, std::int64_t place) { return static_cast<double>(7 * place + rank); };
        std::vector<double> mine(kCount), all(3 * kCount), sum(kCount);
        for (std::int64_t i = 0; i < kCount; ++i) mine[static_cast<std::size_t>(i)] = value(ranks.rank(), i);
        ranks.all_gather({mine.data(), kCount, DType::Float64}, {all.data(), 3 * kCount, DType::Float64})
            ->wait(10s);
        for (std::int64_t i = 0; i < 3 * kCount; ++i)
          SHOAL_CHECK(all[static_cast<std::size_t>(i)] == value(static_cast<int>(i / kCount), i % kCount),
                      Internal, "gathered ", i);
        for (std::int64_t i = 0; i < 3 * kCount; ++i)
          all[static_cast<std::size_t>(i)] = value(ranks.rank(), i);
        ranks
            .reduce_scatter({all.data(), 3 * kCount, DType::Float64}, {sum.data(), kCount, DType::Float64},
                            comm::ReduceOp::Sum)
            ->wait(10s);
        for (std::int64_t i = 0; i < kCount; ++i)
          SHOAL_CHECK(sum[static_cast<std::size_t>(i)] == 3 * value(1, ranks.rank() * kCount + i), Internal,
                      "summed ", i);
      },
      store);
  CHECK(errors == kFine3);
}

TEST_CASE("parts of an all-to-all that are of several pieces, of none, and of each rank's own size") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      3,
      [](comm::Communicator& ranks) {
        const int self = ranks.rank();
        // A piece has 1 MiB for all ranks together, 43,690 of these for one: some take a few, some less than one.
        const auto count = [](int from, int to) -> std::int64_t {
          return (from + to) % 3 == 0 ? 0 : 65'000 * from + 131'072 * to + 1;
        };
        const auto value = [](int from, int to, std::int64_t place) {
          return 1e9 * from + 1e8 * to + static_cast<double>(place);
        };
        std::vector<std::int64_t> sends, receives;
        std::vector<double> in, out;
        for (int peer = 0; peer < 3; ++peer) {
          sends.push_back(count(self, peer));
          receives.push_back(count(peer, self));
          for (std::int64_t i = 0; i < sends.back(); ++i) in.push_back(value(self, peer, i));
          out.resize(out.size() + static_cast<std::size_t>(receives.back()));
        }
        ranks
            .all_to_all({in.data(), std::ssize(in), DType::Float64},
                        {out.data(), std::ssize(out), DType::Float64}, sends, receives)
            ->wait(10s);
        auto at = out.begin();
        for (int peer = 0; peer < 3; ++peer)
          for (std::int64_t i = 0; i < receives[static_cast<std::size_t>(peer)]; ++i)
            SHOAL_CHECK(*at++ == value(peer, self, i), Internal, "of ", peer, ": ", i);
      },
      store);
  CHECK(errors == kFine3);
}

using CallFunction = std::function<std::unique_ptr<comm::Work>(comm::Communicator&, float* memory)>;

// What all ranks get, of these calls and of the next one: which is one error. `slowest`: how long it took to
// reach the last rank.
static std::string error_of_all(int size, const CallFunction& call,
                                std::chrono::nanoseconds* slowest = nullptr) {
  rendezvous::MemoryStore store;
  std::mutex mutex;
  std::chrono::nanoseconds most = 0ns;
  const auto errors = run(
      size,
      [&](comm::Communicator& ranks) {
        std::array<float, 64> memory = {};
        ranks.barrier()->wait(10s);
        const auto begin = std::chrono::steady_clock::now();
        std::string first;
        try {
          call(ranks, memory.data())->wait(10s);
        } catch (const Error& error) {
          first = error.what();
        }
        {
          const std::lock_guard lock(mutex);
          most = std::max<std::chrono::nanoseconds>(most, std::chrono::steady_clock::now() - begin);
        }
        try {
          ranks.barrier()->wait(10s);
        } catch (const Error& error) {
          SHOAL_CHECK(first.empty() || first == error.what(), Internal, "first ", first, ", then ",
                      error.what());
          throw;
        }
      },
      store);
  CHECK(errors == std::vector<std::string>(static_cast<std::size_t>(size), errors[0]));
  CHECK(store.num_keys() == 1);  // the reason
  if (slowest) *slowest = most;
  return errors[0];
}

TEST_CASE("a difference reaches every rank within half a second") {
  std::vector<std::chrono::nanoseconds> times(5);
  for (auto& time : times)
    error_of_all(
        3,
        [](comm::Communicator& ranks, float* memory) {
          return ranks.all_reduce({memory, 7 + ranks.rank(), DType::Float32}, comm::ReduceOp::Sum);
        },
        &time);
  std::ranges::sort(times);  // one that another process held up says nothing
  CHECK(times[2] < 500ms * (kIsSanitized ? 10 : 1));
}

TEST_CASE("collectives and messages under way at the same time do not get in each other's way") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      2,
      [](comm::Communicator& ranks) {
        std::int64_t mine = 0, its = 0, sum = 0;
        for (int turn = 0; turn < 500; ++turn) {
          mine = 2 * turn + ranks.rank();
          sum = mine;
          const auto sent = ranks.send({&mine, 1, DType::Int64}, 1 - ranks.rank());
          const auto added = ranks.all_reduce({&sum, 1, DType::Int64}, comm::ReduceOp::Sum);
          const auto received = ranks.receive({&its, 1, DType::Int64}, 1 - ranks.rank());
          for (const auto& call : {&sent, &added, &received}) (*call)->wait(10s);
          SHOAL_CHECK(sum == 4 * turn + 1 && its == sum - mine, Internal, "wrong in turn ", turn);
        }
      },
      store);
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("ranks that call different things all get the same error, which shows both calls") {
  const std::string error = error_of_all(3, [](comm::Communicator& ranks, float* memory) {
    return ranks.all_reduce({memory, ranks.rank() == 1 ? 4 : 8, DType::Float32}, comm::ReduceOp::Sum);
  });
  CHECK(error.starts_with("invalid input: comm: call 1: rank "));
  CHECK(error.find("rank 1 all_reduce(f32 x 4, sum)") != std::string::npos);
  CHECK(error.find("all_reduce(f32 x 8, sum)") != std::string::npos);
  CHECK(error_of_all(2, [](comm::Communicator& ranks, float* memory) {
          return ranks.rank() == 0 ? ranks.broadcast({memory, 8, DType::Float32}, 0) : ranks.barrier();
        }) == "invalid input: comm: call 1: rank 0 broadcast(f32 x 8, root 0), rank 1 barrier()");
  CHECK(error_of_all(2,
                     [](comm::Communicator& ranks, float* memory) {
                       return ranks.broadcast({memory, 8, DType::Float32}, ranks.rank());
                     }) ==
        "invalid input: comm: call 1: rank 0 broadcast(f32 x 8, root 0), rank 1 broadcast(f32 x 8, root 1)");
}

TEST_CASE("a rank that was through with a call before others called something else gets the error too") {
  // What moves nothing is over at once.
  CHECK(
      error_of_all(2, [](comm::Communicator& ranks, float* memory) {
        return ranks.all_reduce({memory, ranks.rank() == 0 ? 0 : 8, DType::Float32}, comm::ReduceOp::Sum);
      }) == "invalid input: comm: call 1: rank 0 all_reduce(f32 x 0, sum), rank 1 all_reduce(f32 x 8, sum)");
}

TEST_CASE("a rank that leaves out a call is found where it calls something else in its place") {
  const std::string error = error_of_all(4, [](comm::Communicator& ranks, float* memory) {
    for (const std::int64_t count : {8, 16, 32})
      if (ranks.rank() != 2 || count != 16)
        ranks.all_reduce({memory, count, DType::Float32}, comm::ReduceOp::Sum)->wait(10s);
    return ranks.barrier();
  });
  CHECK(error.starts_with("invalid input: comm: call 2: rank "));
  CHECK(error.find("rank 2 all_reduce(f32 x 32, sum)") != std::string::npos);
  CHECK(error.find("all_reduce(f32 x 16, sum)") != std::string::npos);
}

TEST_CASE("parts of all_to_all that do not fit are an error on every rank") {
  CHECK(
      error_of_all(3, [](comm::Communicator& ranks, float* memory) {
        const std::int64_t counts[] = {1, 1, ranks.rank() == 1 ? 2 : 1}, taken[] = {1, 1, 1};
        return ranks.all_to_all({memory, 2 + counts[2], DType::Float32}, {memory + 32, 3, DType::Float32},
                                counts, taken);
      }) == "invalid input: comm: call 1: all_to_all(f32): rank 1 has 2 elements for rank 2, which wants 1");
}

TEST_CASE("a rank that is late is waited for, once the others have shown what they wait for too") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      3,
      [&](comm::Communicator& ranks) {
        float value = 1;
        const comm::Buffer buffer = {&value, 1, DType::Float32};
        while (ranks.rank() == 1 && store.num_keys() < 2) std::this_thread::yield();
        for (int turn = 0; turn < 40; ++turn) ranks.all_reduce(buffer, comm::ReduceOp::Max)->wait(10s);
        ranks.all_reduce(buffer, comm::ReduceOp::Sum)->wait(10s);
        SHOAL_CHECK(value == 3, Internal, "wrong sum");
      },
      store);
  CHECK(errors == kFine3);
  CHECK(store.num_keys() == 0);
}

TEST_CASE("a message of another size than the one that is wanted is an error on both ends") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      2,
      [](comm::Communicator& ranks) {
        std::vector<float> values(8);
        if (ranks.rank() == 0) ranks.send({values.data(), 8, DType::Float32}, 1)->wait(10s);
        if (ranks.rank() == 1) ranks.receive({values.data(), 4, DType::Float32}, 0)->wait(10s);
      },
      store);
  const std::string wanted =
      "invalid input: comm: call 0: rank 0 send(f32 x 8, to 1), rank 1 receive(f32 x 4, from 0)";
  CHECK(errors == std::vector<std::string>(2, wanted));
}

TEST_CASE("a message that was left out is told within half a second, by its tag and that of the next one") {
  rendezvous::MemoryStore store;
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run(
      2,
      [](comm::Communicator& ranks) {
        std::vector<float> values(8);
        for (std::uint16_t microbatch = 0; microbatch < 4; ++microbatch) {
          const comm::Tag tag = {microbatch, 1};
          if (ranks.rank() == 0 && microbatch != 2)
            ranks.send({values.data(), 8, DType::Float32}, 1, tag)->wait(60s);
          if (ranks.rank() == 1) ranks.receive({values.data(), 8, DType::Float32}, 0, tag)->wait(60s);
        }
      },
      store);
  const std::string wanted =
      "invalid input: comm: call 2: rank 0 send(f32 x 8, to 1, micro-batch 3, message 1), rank 1 "
      "receive(f32 x 8, from 0, micro-batch 2, message 1)";
  CHECK(errors == std::vector<std::string>(2, wanted));
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
}

TEST_CASE("a wait past its limit ends the group, and the reason reaches the other ranks") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      3,
      [](comm::Communicator& ranks) {
        float value = 1;
        const comm::Buffer buffer = {&value, 1, DType::Float32};
        // Rank 2 calls only once the others have given up.
        if (ranks.rank() == 2) try {
            ranks.receive(buffer, 1)->wait(30s);
          } catch (const Error&) {
          }
        ranks.all_reduce(buffer, comm::ReduceOp::Sum)->wait(ranks.rank() == 0 ? 300ms : 30s);
      },
      store);
  CHECK(errors[0] == "timeout: g: rank 0 all_reduce(f32 x 1, sum): not done after 0.3 s");
  CHECK(errors[1] == "peer lost: g: rank 0 all_reduce(f32 x 1, sum): not done after 0.3 s");
  CHECK(errors[2] == errors[1]);
}

TEST_CASE("abort ends the calls of every rank with its reason") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      2,
      [](comm::Communicator& ranks) {
        float value = 1;
        if (ranks.rank() == 1) ranks.abort("enough");
        ranks.receive({&value, 1, DType::Float32}, 1 - ranks.rank())->wait(30s);
      },
      store);
  CHECK(errors == std::vector<std::string>(2, "peer lost: enough"));
}

TEST_CASE("a communicator that ends with calls under way ends those of the others") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      2,
      [](comm::Communicator& ranks) {
        float value = 1;
        const auto work = ranks.receive({&value, 1, DType::Float32}, 1 - ranks.rank());
        if (ranks.rank() == 0) work->wait(30s);
      },
      store);
  CHECK(errors == std::vector<std::string>(
                      {"peer lost: g: rank 1 receive(f32 x 1, from 0): given up before it was done", ""}));
}

TEST_CASE("subgroups of the same ranks, one after the other, are groups of their own") {
  rendezvous::MemoryStore store;
  const auto errors = run(
      3,
      [](comm::Communicator& ranks) {
        if (ranks.rank() == 1) return;
        const std::vector<int> members = {2, 0};
        for (int i = 0; i < 2; ++i) {
          const auto part = ranks.subgroup(members);
          SHOAL_CHECK(part->size() == 2 && part->rank() == (ranks.rank() == 2 ? 0 : 1), Internal,
                      "wrong rank");
          std::int32_t value = 10 + ranks.rank();
          part->broadcast({&value, 1, DType::Int32}, 0)->wait(10s);
          SHOAL_CHECK(value == 12, Internal, "wrong value");
        }
      },
      store);
  CHECK(errors == kFine3);
}

TEST_CASE("a rank that does not come is waited for no longer than the limit") {
  rendezvous::MemoryStore store;
  try {
    comm_c10d::make_gloo(store, {.name = "g", .rank = 0, .size = 2, .limit = 100ms});
    FAIL("made without the other rank");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Timeout);
    CHECK(std::string(error.what()).starts_with("gloo: group g: rank 0 could not connect to all ranks: "));
  }
}

// The local addresses, as the kernel writes them, of this process's sockets that wait for connections.
static std::set<std::string> listening_addresses() {
  std::set<std::string> sockets, addresses;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      if (state == "0A" && sockets.contains(inode)) addresses.insert(local.substr(0, local.find(':')));
    }
  }
  return addresses;
}

TEST_CASE("gloo listens on the loopback interface alone") {
  rendezvous::MemoryStore store;
  std::mutex mutex;
  std::set<std::string> addresses;
  const auto errors = run(
      2,
      [&](comm::Communicator& ranks) {
        const std::lock_guard lock(mutex);
        addresses.merge(listening_addresses());
        SHOAL_CHECK(ranks.size() == 2, Internal, "wrong size");
      },
      store);
  CHECK(errors == std::vector<std::string>(2));
  CHECK(!addresses.empty());
  for (const std::string& address : addresses)
    CHECK((address == "0100007F" || address == "00000000000000000000000001000000"));
}

TEST_CASE("an interface that is not there is named") {
  rendezvous::MemoryStore store;
  CHECK_THROWS_WITH_AS(
      comm_c10d::make_gloo(store, {.name = "g", .rank = 0, .size = 2, .interface = "nowhere0"}),
      doctest::Contains("gloo: cannot listen on the interface nowhere0"), Error);
}

TEST_CASE("bare calls give the same results") {
  rendezvous::MemoryStore store;
  std::vector<std::jthread> threads;
  std::vector<std::vector<float>> results(2);
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto gloo = comm_c10d::make_gloo(
          store, {.name = "g", .rank = rank, .size = 2, .calls = comm_c10d::Calls::Bare});
      std::vector<float> in(4, static_cast<float>(rank + 1)), out(2);
      gloo->reduce_scatter({in.data(), 4, DType::Float32}, {out.data(), 2, DType::Float32},
                           comm::ReduceOp::Average)
          ->wait(10s);
      results[static_cast<std::size_t>(rank)] = out;
    });
  threads.clear();
  CHECK(results == std::vector<std::vector<float>>(2, std::vector<float>(2, 1.5F)));
}

#ifndef USE_C10D_NCCL  // what LibTorch's own files for CMake say
TEST_CASE("without CUDA there is no nccl, and the error says so") {
  rendezvous::MemoryStore store;
  CHECK_THROWS_WITH_AS(comm_c10d::make_nccl(store, {.name = "g"}), doctest::Contains("built without CUDA"),
                       Error);
}
#endif

static constexpr std::array kTypes = {DType::Float64, DType::Float16, DType::BFloat16,
                                      DType::Int64,   DType::Int32,   DType::UInt8};

static void check_conforms(int size, comm::Conformance options) {
  options.exact_sums = true;  // Gloo sums in an order of its own, and in 16 bits
  options.self_messages = false;
  CAPTURE(size);
  rendezvous::MemoryStore store;
  CHECK(run(
            size, [&](comm::Communicator& ranks) { comm::conform(ranks, options); }, store) ==
        std::vector<std::string>(static_cast<std::size_t>(size)));
}

TEST_CASE("gloo conforms, ranks as threads") {
  for (int size = 1; size <= 3; ++size) check_conforms(size, {.large = 20001});
  for (int size = 4; size <= 9; ++size)
    check_conforms(size, {.dtypes = {kTypes[static_cast<std::size_t>(size - 4)]}, .subgroups = false});
}

TEST_CASE("gloo conforms with every type at every size" * doctest::skip()) {  // takes minutes
  for (int size = 1; size <= 9; ++size) check_conforms(size, {});
}

TEST_CASE("random sequences of calls over gloo end with every bit right") {
  for (int size = 2; size <= 4; ++size) {
    CAPTURE(size);
    rendezvous::MemoryStore store;
    CHECK(run(
              size,
              [&](comm::Communicator& ranks) {
                comm::random_calls(ranks, static_cast<std::uint64_t>(size), 100,
                                   {.exact_sums = true, .self_messages = false});
              },
              store) == std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}
