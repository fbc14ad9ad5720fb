// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/settled_math.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sqrt.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"
#include "tests/multi_process/processes.h"

namespace settled_math_test {

using namespace shoal;

// Of this process: so many threads' at one moment, as of ranks that are threads and clip their gradients.
static void take_first_roots() {
  constexpr int kThreads = 4;
  constexpr double kNumber = 0.37475302092;
  std::barrier ready(kThreads);
  std::vector<double> roots(kThreads);
  std::vector<std::jthread> threads;
  for (double& root : roots)
    threads.emplace_back([&] {
      const at::Tensor number = at::full({}, kNumber, at::kDouble);
      aten::settle_math();
      ready.arrive_and_wait();
      root = at::sqrt(number).item<double>();
    });
  threads.clear();
  for (const double root : roots)
    SHOAL_CHECK(root == std::sqrt(kNumber), Internal, "a root is off by ", root / std::sqrt(kNumber) - 1);
}

// By the case below, in a process that has taken none, as all that it forks.
TEST_CASE("first square roots of many processes" * doctest::skip()) {
  for (int i = 0; i < (kIsSanitized ? 20 : 800); ++i)
    REQUIRE(tests::run_processes(1, [](int) { take_first_roots(); }) == std::vector<int>{0});
}

// Without settle_math five processes of 800 had a root that was off.
TEST_CASE("threads that take their first square roots at the same moment all get them right") {
  const auto codes = tests::run_processes(1, [](int) {
    ::execl("/proc/self/exe", "tests", "--no-skip", "--test-case=first square roots of many processes",
            static_cast<char*>(nullptr));
    fail(ErrorKind::Internal, "this program cannot be started again");
  });
  CHECK(codes == std::vector<int>{0});
}

}  // namespace settled_math_test
