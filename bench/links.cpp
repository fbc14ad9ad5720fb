// SPDX-License-Identifier: Apache-2.0
// A rank for bench/hosts.py, which starts it: collectives between ranks of several hosts, by LibTorch's Gloo as it is
// and by what is chosen for hosts.
//
//   bench/links OP BYTES      OP is all_reduce or all_to_all; a line in is "flat N" or "hosts N", N calls; out goes
//                             JSON, the seconds of each
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/comm_c10d/of_hosts.h"
#include "shoal/elastic/join.h"

namespace {

using Clock = std::chrono::steady_clock;

void run(const std::string& op, std::int64_t bytes) {
  using namespace shoal;
  const auto job = elastic::join(elastic::environment_of(environ));
  const auto& place = job->place();
  const auto flat = comm_c10d::make_gloo(job->store(), {.name = "flat",
                                                        .rank = place.rank,
                                                        .size = place.size,
                                                        .interface = job->interface(),
                                                        .calls = comm_c10d::Calls::Bare});
  const auto hosts = comm_c10d::make_of_hosts(
      job->store(), {.rank = place.rank, .first_ranks = job->first_ranks(), .interface = job->interface()});
  std::cout << nlohmann::json{{"is", comm_c10d::describe_of_hosts(job->first_ranks())}} << std::endl;
  const std::int64_t count = bytes / 4 / place.size * place.size;
  const auto memory = hosts->allocate(bytes), received = hosts->allocate(bytes);
  const comm::Buffer buffer{memory->data(), count, DType::Float32};
  const comm::Buffer out{received->data(), count, DType::Float32};
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string which;
    int calls = 0;
    words >> which >> calls;
    comm::Communicator& ranks = which == "flat" ? *flat : *hosts;
    std::vector<double> seconds;
    for (int i = 0; i < calls; ++i) {
      ranks.barrier()->wait(job->limit());
      const auto begin = Clock::now();
      const auto work = op == "all_reduce" ? ranks.all_reduce(buffer, comm::ReduceOp::Sum)
                                           : ranks.all_to_all(buffer, out, {}, {});
      work->wait(job->limit());
      seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    std::cout << nlohmann::json{{"seconds", seconds}} << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    SHOAL_CHECK(argc == 3, InvalidInput,
                "bench: wanted an operation and a number of bytes; start bench/hosts.py");
    run(argv[1], std::stoll(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
