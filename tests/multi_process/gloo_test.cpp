// SPDX-License-Identifier: Apache-2.0
// Gloo between processes. As threads: shoal/comm_c10d/gloo_test.cpp.
#include "shoal/comm_c10d/gloo.h"
#include "shoal/base/sanitized.h"

#include <doctest/doctest.h>

#include <csignal>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/conformance.h"
#include "shoal/comm_c10d/of_hosts.h"
#include "shoal/rendezvous/host_store.h"
#include "tests/multi_process/processes.h"

namespace gloo_test {

using namespace shoal;
using namespace std::chrono_literals;

TEST_CASE("gloo conforms, ranks as processes") {
  // Of the types a different one at each size; threads run all of them through the same code.
  constexpr DType kTypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16,
                              DType::Int64,   DType::Int32,   DType::UInt8};
  for (int size = 1; size <= (kIsSanitized ? 4 : 9); ++size) {
    CAPTURE(size);
    rendezvous::HostStore store;
    const auto codes = tests::run_processes(size, [&](int rank) {
      const auto ranks = comm_c10d::make_gloo(store, {.name = "g", .rank = rank, .size = size});
      comm::conform(*ranks, {.dtypes = {kTypes[(size + 4) % 7]},
                             .exact_sums = true,
                             .self_messages = false,
                             .subgroups = size <= 3});
    });
    CHECK(codes == std::vector<int>(static_cast<std::size_t>(size)));
  }
}

// Hosts that are named here, of processes that reach each other on the loopback; of threads and Gloo's stand-in:
// shoal/comm/hierarchy/hierarchy_test.cpp.
TEST_CASE("hosts of several ranks conform, in four types: shared memory within them, Gloo between") {
  std::vector<std::vector<int>> cases = {{0, 1}, {0, 0, 2, 2}, {0, 1, 0, 1}};
  if (!kIsSanitized) {
    cases.push_back({0, 0, 0, 3, 3, 3});
    cases.push_back({0, 0, 2, 2, 4, 4});
  }
  for (const std::vector<int>& first_ranks : cases) {
    const auto size = static_cast<int>(first_ranks.size());
    CAPTURE(comm_c10d::describe_of_hosts(first_ranks));
    CAPTURE(size);
    rendezvous::HostStore store;
    const auto codes = tests::run_processes(size, [&](int rank) {
      const auto ranks = comm_c10d::make_of_hosts(store, {.rank = rank, .first_ranks = first_ranks});
      comm::conform(*ranks, {.dtypes = {DType::Float32, DType::BFloat16, DType::Int64, DType::UInt8},
                             .exact_sums = true,
                             .self_messages = false,
                             .subgroups = size <= 4});
    });
    CHECK(codes == std::vector<int>(static_cast<std::size_t>(size)));
  }
}

TEST_CASE("a rank that is killed is lost to the others, in what they call and what they call next") {
  rendezvous::HostStore store;
  const auto codes = tests::run_processes(3, [&](int rank) {
    const auto ranks = comm_c10d::make_gloo(store, {.name = "g", .rank = rank, .size = 3});
    float value = 1;
    const auto is_lost = [&] {
      try {
        ranks->all_reduce({&value, 1, DType::Float32}, comm::ReduceOp::Sum)->wait(30s);
      } catch (const Error& error) {
        return error.kind() == ErrorKind::PeerLost;
      }
      return false;
    };
    SHOAL_CHECK(!is_lost(), Internal, "lost too early");
    if (rank == 1) std::raise(SIGKILL);
    SHOAL_CHECK(is_lost() && is_lost(), Internal, "no loss was noticed");
  });
  CHECK(codes == std::vector<int>({0, 128 + SIGKILL, 0}));
}

}  // namespace gloo_test
