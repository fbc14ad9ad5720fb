// SPDX-License-Identifier: Apache-2.0
// Ranks add and share numbers, step after step. One can be made to fail, to see
// what comes of it; with --state=FILE they go on where they were:
//
//   shoal run -n 4 --max-restarts=3 example_ranks --fault=kill --at=2:300 --state=FILE
// Four ranks print, from rank 0: "4 ranks, steps 0 to 500: sum 1253057818"
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "shoal/comm/shm/shm.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/elastic/join.h"

using namespace shoal;
using namespace std::chrono_literals;

static std::map<std::string, std::string> options_of(int argc, char** argv) {
  std::map<std::string, std::string> options = {{"steps", "500"}, {"fault", ""},   {"at", "0:0"},
                                                {"state", ""},    {"backend", ""}, {"count", "1000"}};
  for (const std::string& word : std::vector<std::string>(argv + 1, argv + argc))
    if (const auto equals = word.find('='); word.starts_with("--") && equals != std::string::npos)
      options[word.substr(2, equals - 2)] = word.substr(equals + 1);
  return options;
}

// Gives how many elements the rank brings to the step; less than 0: no call.
static std::int64_t meet_with(const std::string& fault, std::int64_t count) {
  if (fault == "kill") raise(SIGKILL);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "segfault") raise(SIGSEGV);
  if (fault == "exit") _exit(3);
  if (fault == "leave") _exit(0);
  if (fault == "exception") throw std::runtime_error("no luck in this step");
  if (fault == "skip") return -1;
  return fault == "count" ? count + 1 : count;
}

int main(int argc, char** argv) {
  auto options = options_of(argc, argv);
  try {
    const auto job = elastic::join(elastic::environment_of(environ));
    const auto [rank, size, local_rank, local_size, starter] = job->place();
    const bool shm = options["backend"] != "gloo" && job->is_one_host();
    auto ranks =
        job->recorded(shm ? comm::shm_communicator(job->store(), rank, size)
                          : comm_c10d::make_gloo(job->store(), {"all", rank, size, job->interface()}));
    std::int64_t first = 0, sum = 0;
    std::ifstream(options["state"]) >> first >> sum;
    const std::int64_t steps = std::stoll(options["steps"]), most = std::stoll(options["count"]);
    const bool is_faulty = job->attempt() == 0 && std::stoi(options["at"]) == rank;
    const std::int64_t faulty_step = std::stoll(options["at"].substr(options["at"].find(':') + 1));
    for (std::int64_t step = first; step < steps; ++step) {
      const elastic::InModule module(job->flight(), "step." + std::to_string(step));
      std::int64_t count = 1 + step % most;
      if (is_faulty && step == faulty_step) count = meet_with(options["fault"], count);
      if (count < 0) continue;
      std::vector<std::int64_t> values(static_cast<std::size_t>(count), step * 10 + rank);
      const comm::Buffer buffer = {values.data(), count, DType::Int64};
      if (step % 3 == 2) ranks->broadcast(buffer, static_cast<int>(step % size))->wait(300s);
      if (step % 3 != 2) ranks->all_reduce(buffer, comm::ReduceOp::Sum)->wait(300s);
      sum += values[0] * count;
      if (rank == 0 && !options["state"].empty()) {
        std::ofstream(options["state"] + ".new") << step + 1 << " " << sum << "\n";
        std::rename((options["state"] + ".new").c_str(), options["state"].c_str());
      }
    }
    ranks->barrier()->wait(300s);
    if (rank == 0) std::printf("%d ranks, steps %ld to %ld: sum %ld\n", size, first, steps, sum);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
