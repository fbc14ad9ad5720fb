// SPDX-License-Identifier: Apache-2.0
// Two ranks, a stage of a pipeline each, by programs written by hand: what crosses is sent and received, and
// micro-batches that are under way at once do not get in each other's way.
//
//   rank 0   h = exp(x · a) ──▶        rank 1   loss = sum(h · b)
//            da = dh · h · x  ◀── dh = b         db = h
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "shoal/comm/inproc/inproc.h"
#include "shoal/comm/ranks.h"
#include "shoal/program/program.h"
#include "shoal/runtime/executor.h"
#include "tests/parallel/counted.h"

namespace stages_test {

using namespace shoal;
using ir::Role;

static constexpr std::size_t kMicrobatches = 3;
static constexpr std::size_t kForward = 0, kBackward = 1;

static const std::array<std::string, 2> kStages = {
    R"(source %0 parameter "w" : f64[3]
source %1 input "x" : f64[3]
source %2 gradient "w" : f64[3]
source %3 scalar "one" : f64[]
forward:
%4 : f64[3] = aten::mul.Tensor(self=%1, other=%0)
%5 : f64[3] = aten::exp(self=%4) over %4
free %4
() = shoal::send(self=%5, axis="stage", to=1)
backward:
%6 : f64[3] = shoal::receive(axis="stage", from=1, device=cpu)
wait %6
%7 : f64[3] = aten::mul.Tensor(self=%6, other=%5)
free %5 %6
%8 : f64[3] = aten::mul.Tensor(self=%7, other=%1)
free %7
%2 : f64[3] = shoal::accumulate(sums=[%2], gradients=[%8], keep=%3, weight=%3, divisor=%3)
free %8
return gradient "w" %2
)",
    R"(source %0 parameter "w" : f64[3]
source %2 gradient "w" : f64[3]
source %3 scalar "one" : f64[]
forward 1:
%4 : f64[3] = shoal::receive(axis="stage", from=0, device=cpu)
wait %4
%5 : f64[3] = aten::mul.Tensor(self=%4, other=%0)
%6 : f64[] = aten::sum(self=%5, dtype=none)
free %5
backward 1:
() = shoal::send(self=%0, axis="stage", to=0)
%2 : f64[3] = shoal::accumulate(sums=[%2], gradients=[%4], keep=%3, weight=%3, divisor=%3)
free %4
return loss "loss" %6, gradient "w" %2
)"};

TEST_CASE("two stages with all micro-batches under way at once give the gradients of one device") {
  at::manual_seed(3);
  std::array<at::Tensor, 2> weights = {at::rand({3}, at::kDouble), at::rand({3}, at::kDouble)};
  const at::Tensor x = at::rand({kMicrobatches, 3}, at::kDouble);

  const auto mesh = sharding::mesh_from_text("stage=2");
  std::array<at::Tensor, 2> sums;
  std::array<matrix::Sent, 2> sent, said;
  std::vector<double> losses(kMicrobatches);
  auto ranks = comm::inproc(2);
  for (std::size_t rank = 0; rank < 2; ++rank)
    ranks[rank] = matrix::counted(std::move(ranks[rank]), sent[rank]);
  comm::run_as_threads(std::move(ranks), [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const runtime::Groups groups(mesh, world);
    const auto program = program::from_text(kStages[rank]);
    CHECK(program::to_text(program) == kStages[rank]);
    runtime::Executor executor(program, &groups);
    sums[rank] = at::zeros({3}, at::kDouble);
    executor.bind(Role::Parameter, "w", weights[rank]);
    executor.bind(Role::Gradient, "w", sums[rank]);
    for (std::size_t i = 0; i < kMicrobatches; ++i) {
      if (rank == 0) executor.bind(Role::Input, "x", x[static_cast<std::int64_t>(i)], i);
      executor.bind(Role::Scalar, "one", at::scalar_tensor(1, at::kDouble), i);
      matrix::add_said(program, mesh, world.rank(), said[rank]);
    }
    for (std::size_t i = 0; i < kMicrobatches; ++i) executor.run(kForward, i);
    for (std::size_t i = kMicrobatches; i-- > 0;) executor.run(kBackward, i);
    if (rank == 1)
      for (std::size_t i = 0; i < kMicrobatches; ++i)
        losses[i] = executor.result(Role::Loss, "loss", i).item<double>();
  });

  const at::Tensor h = (x * weights[0]).exp();
  for (std::size_t i = 0; i < kMicrobatches; ++i)
    CHECK(losses[i] == (h[static_cast<std::int64_t>(i)] * weights[1]).sum().item<double>());
  CHECK(at::allclose(sums[0], (weights[1] * h * x).sum(0), 1e-14));
  CHECK(at::allclose(sums[1], h.sum(0), 1e-14));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (auto* each : {&sent[rank], &said[rank]})
      for (auto& [group, calls] : each->calls) std::ranges::sort(calls);
    CHECK(sent[rank] == said[rank]);
  }
  CHECK(sent[0].bytes == kMicrobatches * 3 * 8);
}

}  // namespace stages_test
