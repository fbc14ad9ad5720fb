// SPDX-License-Identifier: Apache-2.0
// The derivatives of every operation: against finite differences with ranks as threads, and with ranks as
// processes, over each backend, against those of the threads. The function that is differentiated is the sum
// of all ranks' losses, of all ranks' inputs.
#include <ATen/Functions.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>
#include <functional>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"
#include "shoal/collectives/collectives.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/rendezvous/host_store.h"
#include "tests/multi_process/processes.h"

namespace gradients_test {

using namespace shoal;
using namespace shoal::collectives;
using at::Tensor;

static constexpr auto kLimit = std::chrono::seconds(30);
static constexpr std::int64_t kRows = 12;  // parts for 2, 3 and 4 ranks

namespace {
struct Case {
  const char* name;
  Tensor (*function)(const Tensor& x, Ranks ranks);  // of a [12, 1] tensor
};
}  // namespace

static int rank_of(const Ranks& ranks) { return ranks.communicator.rank(); }
static int size_of(const Ranks& ranks) { return ranks.communicator.size(); }
static int last(const Ranks& ranks) { return size_of(ranks) - 1; }

// Of 1 or 2 rows, as both ends see it.
static Tensor uneven_all_to_all(const Tensor& x, Ranks ranks) {
  std::vector<std::int64_t> in, out;
  std::int64_t rows = 0;
  for (int other = 0; other < size_of(ranks); ++other) {
    in.push_back(1 + (rank_of(ranks) + 2 * other) % 3);
    out.push_back(1 + (other + 2 * rank_of(ranks)) % 3);
    rows += in.back();
  }
  return all_to_all(x.narrow(0, 0, rows), ranks, in, out);
}

// As the stages of a pipeline: each multiplies what it gets by its own.
static Tensor pipeline(const Tensor& x, Ranks ranks) {
  Tensor y = x;
  y = y * 0.3;  // keeps products small, and with them the error of finite differences
  if (rank_of(ranks) > 0) y = y * receive(x, ranks, rank_of(ranks) - 1);
  if (rank_of(ranks) < last(ranks)) y = y + send(y, ranks, rank_of(ranks) + 1);
  return y;
}

static const Case kCases[] = {
    {"all_gather", [](const Tensor& x, Ranks r) { return all_gather(x, r); }},
    {"all_reduce average", [](const Tensor& x, Ranks r) { return all_reduce(x, r, ReduceOp::Average); }},
    {"all_reduce max", [](const Tensor& x, Ranks r) { return all_reduce(x, r, ReduceOp::Max); }},
    {"all_reduce min", [](const Tensor& x, Ranks r) { return all_reduce(x, r, ReduceOp::Min); }},
    {"all_reduce sum", [](const Tensor& x, Ranks r) { return all_reduce(x, r); }},
    {"all_to_all", [](const Tensor& x, Ranks r) { return all_to_all(x, r); }},
    {"all_to_all uneven", uneven_all_to_all},
    {"broadcast", [](const Tensor& x, Ranks r) { return broadcast(x, r, last(r)); }},
    {"gather", [](const Tensor& x, Ranks r) { return gather(x, r, last(r)); }},
    {"reduce average", [](const Tensor& x, Ranks r) { return reduce(x, r, 0, ReduceOp::Average); }},
    {"reduce max", [](const Tensor& x, Ranks r) { return reduce(x, r, last(r), ReduceOp::Max); }},
    {"reduce sum", [](const Tensor& x, Ranks r) { return reduce(x, r, 0); }},
    {"reduce_scatter average",
     [](const Tensor& x, Ranks r) { return reduce_scatter(x, r, ReduceOp::Average); }},
    {"reduce_scatter min", [](const Tensor& x, Ranks r) { return reduce_scatter(x, r, ReduceOp::Min); }},
    {"reduce_scatter sum", [](const Tensor& x, Ranks r) { return reduce_scatter(x, r); }},
    {"scatter", [](const Tensor& x, Ranks r) { return scatter(x, r, last(r)); }},
    {"send and receive", pipeline},
    {"two at once",
     [](const Tensor& x, Ranks r) { return all_reduce(x.t() * 0.1 * broadcast(x, r, 0).t(), r); }},
};

// The same on every run, different on every rank.
static Tensor numbers(at::IntArrayRef sizes, int rank, double seed) {
  const Tensor count = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (count * 1.7 + seed + rank * 2.3).sin().view(sizes) + 1.1;
}

static Tensor input_of(int rank) { return numbers({kRows, 1}, rank, 0.4); }

// Not linear, before and after the operation.
static Tensor loss_of(const Case& c, const Tensor& x, Ranks ranks) {
  const Tensor y = c.function(x * x, ranks);
  return (numbers(y.sizes(), rank_of(ranks), 0.9) * y.sin()).sum();
}

static Tensor gradient_of(const Case& c, const Tensor& input, Ranks ranks) {
  const Tensor x = input.detach().clone().requires_grad_();
  loss_of(c, x, ranks).backward();
  return x.grad();
}

// The derivative of the gradient in the direction that numbers(…, 3) is on each rank.
static Tensor second_derivative_of(const Case& c, const Tensor& input, Ranks ranks) {
  const Tensor x = input.detach().clone().requires_grad_();
  const Tensor gradient = torch::autograd::grad({loss_of(c, x, ranks)}, {x}, {}, /*retain_graph=*/true,
                                                /*create_graph=*/true)[0];
  (gradient * numbers({kRows, 1}, rank_of(ranks), 3)).sum().backward();
  return x.grad();
}

using RankTensor = std::function<Tensor(Ranks ranks)>;

static std::vector<Tensor> on_threads(int size, const RankTensor& function) {
  std::vector<Tensor> results(static_cast<std::size_t>(size));
  comm::run_as_threads(comm::inproc(size), [&](comm::Communicator& communicator) {
    results[static_cast<std::size_t>(communicator.rank())] = function({communicator, kLimit});
  });
  return results;
}

static double total(const std::vector<Tensor>& losses) {
  double sum = 0;
  for (const Tensor& loss : losses) sum += loss.item<double>();
  return sum;
}

static void check_close(const Tensor& result, const Tensor& wanted, double tolerance) {
  REQUIRE(result.sizes() == wanted.sizes());
  CHECK((result - wanted).abs().max().item<double>() < tolerance * (1 + wanted.abs().max().item<double>()));
}

TEST_CASE("every gradient is that of finite differences of the sum of all losses") {
  for (const Case& c : kCases)
    for (int size = 2; size <= (kIsSanitized ? 3 : 4); ++size) {
      CAPTURE(std::string(c.name));
      CAPTURE(size);
      const auto gradients =
          on_threads(size, [&](Ranks r) { return gradient_of(c, input_of(rank_of(r)), r); });
      for (int changed = 0; changed < size; ++changed) {
        CAPTURE(changed);
        Tensor wanted = at::empty({kRows, 1}, at::kDouble);
        for (std::int64_t row = 0; row < kRows; ++row) {
          const auto with = [&](double step) {
            return total(on_threads(size, [&](Ranks r) {
              Tensor x = input_of(rank_of(r));
              if (rank_of(r) == changed) x[row] += step;
              return loss_of(c, x, r);
            }));
          };
          constexpr double kStep = 1e-5;
          wanted[row][0] = (with(kStep) - with(-kStep)) / (2 * kStep);
        }
        check_close(gradients[static_cast<std::size_t>(changed)], wanted, 1e-8);
      }
    }
}

TEST_CASE("every second derivative is that of finite differences of gradients") {
  for (const Case& c : kCases)
    for (int size = 2; size <= 4; ++size) {
      CAPTURE(std::string(c.name));
      CAPTURE(size);
      const auto second =
          on_threads(size, [&](Ranks r) { return second_derivative_of(c, input_of(rank_of(r)), r); });
      constexpr double kStep = 1e-5;
      const auto with = [&](double step) {
        return on_threads(size, [&](Ranks r) {
          return gradient_of(c, input_of(rank_of(r)) + step * numbers({kRows, 1}, rank_of(r), 3), r);
        });
      };
      const auto above = with(kStep), below = with(-kStep);
      for (std::size_t rank = 0; rank < second.size(); ++rank) {
        CAPTURE(rank);
        check_close(second[rank], (above[rank] - below[rank]) / (2 * kStep), 1e-8);
      }
    }
}

static std::string bytes_of(const Tensor& tensor) {
  const Tensor whole = tensor.contiguous();
  return {static_cast<const char*>(whole.data_ptr()), whole.nbytes()};
}

static Tensor tensor_of(const std::string& bytes) {
  Tensor tensor = at::empty({kRows, 1}, at::kDouble);
  REQUIRE(bytes.size() == tensor.nbytes());
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

using MakeRanks =
    std::function<std::unique_ptr<comm::Communicator>(rendezvous::Store& store, int rank, int size)>;

// All derivatives, computed by processes, equal those of threads.
static void check_processes(int size, const MakeRanks& make) {
  rendezvous::HostStore store;
  const auto key = [](const Case& c, int rank, const char* order) {
    return concat(c.name, "/", rank, "/", order);
  };
  const auto codes = tests::run_processes(size, [&](int rank) {
    const auto communicator = make(store, rank, size);
    const Ranks ranks(*communicator, kLimit);
    for (const Case& c : kCases) {
      store.set(key(c, rank, "first"), bytes_of(gradient_of(c, input_of(rank), ranks)));
      store.set(key(c, rank, "second"), bytes_of(second_derivative_of(c, input_of(rank), ranks)));
    }
  });
  REQUIRE(codes == std::vector<int>(static_cast<std::size_t>(size)));
  for (const Case& c : kCases) {
    const auto first = on_threads(size, [&](Ranks r) { return gradient_of(c, input_of(rank_of(r)), r); });
    const auto second =
        on_threads(size, [&](Ranks r) { return second_derivative_of(c, input_of(rank_of(r)), r); });
    for (int rank = 0; rank < size; ++rank) {
      CAPTURE(std::string(c.name));
      CAPTURE(rank);
      check_close(tensor_of(store.get(key(c, rank, "first"), kLimit)), first[static_cast<std::size_t>(rank)],
                  1e-14);
      check_close(tensor_of(store.get(key(c, rank, "second"), kLimit)),
                  second[static_cast<std::size_t>(rank)], 1e-14);
    }
  }
}

static constexpr int kMostProcesses = kIsSanitized ? 2 : 4;

TEST_CASE("processes over shared memory have the derivatives that threads have") {
  for (int size = 2; size <= kMostProcesses; ++size)
    check_processes(size, [](rendezvous::Store& store, int rank, int ranks) {
      return comm::shm_communicator(store, rank, ranks, {.job = "gradients"});
    });
}

TEST_CASE("processes over gloo have the derivatives that threads have") {
  for (int size = 2; size <= kMostProcesses; ++size)
    check_processes(size, [](rendezvous::Store& store, int rank, int ranks) {
      return comm_c10d::make_gloo(store, {.name = "gradients", .rank = rank, .size = ranks});
    });
}

}  // namespace gradients_test
