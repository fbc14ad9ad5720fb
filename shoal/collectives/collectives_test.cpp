// SPDX-License-Identifier: Apache-2.0
// What tests/multi_process/gradients_test.cpp does not see: shapes, types, ties and errors.
#include "shoal/collectives/collectives.h"

#include <ATen/Functions.h>
#include <doctest/doctest.h>

#include <functional>
#include <mutex>

#include "shoal/base/error.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"

using namespace shoal;
using at::Tensor;

// What a function gives on each rank.
static std::vector<Tensor> on_ranks(int size,
                                    const std::function<Tensor(collectives::Ranks, int rank)>& function) {
  std::vector<Tensor> results(static_cast<std::size_t>(size));
  comm::run_as_threads(comm::inproc(size), [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    results[static_cast<std::size_t>(rank)] = function({communicator, std::chrono::seconds(20)}, rank);
  });
  return results;
}

static void check_equal(const std::vector<Tensor>& results, const std::vector<Tensor>& wanted) {
  REQUIRE(results.size() == wanted.size());
  for (std::size_t r = 0; r < results.size(); ++r) {
    CAPTURE(r);
    REQUIRE(results[r].sizes() == wanted[r].sizes());
    CHECK(results[r].equal(wanted[r]));
  }
}

TEST_CASE("tensors of any strides are summed by their elements") {
  const Tensor whole = at::arange(6, at::kDouble).view({2, 3});
  check_equal(on_ranks(2, [&](auto ranks, int rank) { return all_reduce(whole.t() * (rank + 1), ranks); }),
              {whole.t() * 3, whole.t() * 3});
  check_equal(on_ranks(2, [&](auto ranks, int) { return all_gather(whole.t(), ranks); }),
              {at::cat({whole.t(), whole.t()}), at::cat({whole.t(), whole.t()})});
}

TEST_CASE("a tensor without dims is a row where rows are joined") {
  const Tensor wanted = at::arange(3, at::kDouble);
  check_equal(on_ranks(3, [](auto ranks,
                             int rank) { return all_gather(at::scalar_tensor(rank, at::kDouble), ranks); }),
              {wanted, wanted, wanted});
  check_equal(on_ranks(2, [](auto ranks,
                             int rank) { return all_reduce(at::scalar_tensor(rank, at::kDouble), ranks); }),
              {at::ones({}, at::kDouble), at::ones({}, at::kDouble)});
}

TEST_CASE("empty tensors go through every operation, and back") {
  const auto results = on_ranks(2, [](auto ranks, int rank) {
    const Tensor x = at::empty({0, 3}, at::kDouble).requires_grad_();
    Tensor loss = all_reduce(x, ranks).sum() + broadcast(x, ranks, 1).sum() + reduce(x, ranks, 0).sum() +
                  all_gather(x, ranks).sum() + gather(x, ranks, 0).sum() + reduce_scatter(x, ranks).sum() +
                  scatter(x, ranks, 1).sum() + all_to_all(x, ranks).sum();
    loss = loss + (rank == 0 ? send(x, ranks, 1) : receive(x, ranks, 0).sum());
    loss.backward();
    return x.grad();
  });
  check_equal(results, {at::empty({0, 3}, at::kDouble), at::empty({0, 3}, at::kDouble)});
}

TEST_CASE("a group of one rank is the identity, with the identity's gradient") {
  const Tensor start = at::arange(4, at::kDouble);
  const auto results = on_ranks(1, [&](auto ranks, int) {
    const Tensor x = start.clone().requires_grad_();
    Tensor y =
        all_to_all(scatter(reduce_scatter(all_gather(all_reduce(x, ranks), ranks), ranks), ranks, 0), ranks);
    y = gather(reduce(broadcast(y, ranks, 0), ranks, 0), ranks, 0);
    y.backward(start);
    CHECK(y.equal(start));
    return x.grad();
  });
  check_equal(results, {start});
}

TEST_CASE("integers are summed and have no gradient") {
  const auto results = on_ranks(2, [](auto ranks, int rank) {
    const Tensor sum = all_reduce(at::full({2}, rank + 1, at::kLong), ranks);
    CHECK(!sum.requires_grad());
    return sum;
  });
  check_equal(results, {at::full({2}, 3, at::kLong), at::full({2}, 3, at::kLong)});
}

TEST_CASE("ranks that share a maximum share its gradient") {
  const auto results = on_ranks(3, [](auto ranks, int rank) {
    const Tensor x = at::tensor({rank == 0 ? 5.0 : 7.0, 1.0 * rank}, at::kDouble).requires_grad_();
    all_reduce(x, ranks, comm::ReduceOp::Max).sum().backward();
    return x.grad();
  });
  check_equal(results, {at::tensor({0.0, 0.0}, at::kDouble), at::tensor({1.5, 0.0}, at::kDouble),
                        at::tensor({1.5, 3.0}, at::kDouble)});
}

TEST_CASE("what only root has is zeros elsewhere") {
  check_equal(on_ranks(2, [](auto ranks, int) { return reduce(at::ones({2}, at::kDouble), ranks, 1); }),
              {at::zeros({2}, at::kDouble), at::full({2}, 2, at::kDouble)});
  check_equal(on_ranks(2, [](auto ranks, int) { return gather(at::ones({1}, at::kDouble), ranks, 0); }),
              {at::ones({2}, at::kDouble), at::zeros({2}, at::kDouble)});
}

TEST_CASE("rows that cannot be cut into equal parts are an error that names the operation") {
  const auto cut = [](auto operation) {
    on_ranks(2, [&](auto ranks, int) { return operation(at::ones({3}, at::kDouble), ranks); });
  };
  CHECK_THROWS_WITH_AS(cut([](const Tensor& x, auto ranks) { return reduce_scatter(x, ranks); }),
                       "reduce_scatter: dim 0 is 3, not a multiple of 2 ranks", Error);
  CHECK_THROWS_WITH_AS(cut([](const Tensor& x, auto ranks) { return all_to_all(x, ranks); }),
                       "all_to_all: dim 0 is 3, not a multiple of 2 ranks", Error);
  CHECK_THROWS_WITH_AS(cut([](const Tensor& x, auto ranks) { return all_to_all(x, ranks, {1, 1}, {1, 1}); }),
                       "all_to_all: the counts do not add up to dim 0, which is 3", Error);
}
