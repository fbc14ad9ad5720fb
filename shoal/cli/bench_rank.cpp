// SPDX-License-Identifier: Apache-2.0
// What one rank of shoal bench comm does. For every operation and size the backends take turns, a sample
// each, so that what else the machine does meets both; a sample's time is that of the slowest rank.
#include "shoal/cli/bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "shoal/base/error.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/rendezvous/host_store.h"

namespace shoal::cli {

using comm::Buffer;
using comm::ConstBuffer;
using Seconds = std::chrono::duration<double>;

static constexpr std::chrono::seconds kLimit{120};  // of a wait
static constexpr double kSampleSeconds = 2e-3;      // short operations are repeated in a sample
static constexpr double kMostCalls = 1000;

namespace {

// Buffers of one operation and size on one communicator.
struct Buffers {
  std::vector<std::unique_ptr<comm::Memory>> allocated;
  std::vector<std::unique_ptr<std::byte[]>> foreign;
  Buffer in, out;
};

// What is measured on one communicator.
struct Contender {
  std::string name;
  std::unique_ptr<comm::Communicator> communicator;
  Buffers buffers = {};
  std::int64_t calls = 1;            // in a sample
  std::vector<double> samples = {};  // seconds of one call
};

}  // namespace

static std::unique_ptr<comm::Communicator> make_communicator(const std::string& backend, int index,
                                                             rendezvous::Store& store,
                                                             const BenchComm& options) {
  const std::string name = concat("bench-", index, "-", backend);
  if (backend == "shm") return comm::shm_communicator(store, options.rank, options.ranks, {.job = name});
  return comm_c10d::make_gloo(
      store, {.name = name, .rank = options.rank, .size = options.ranks, .calls = comm_c10d::Calls::Bare});
}

// The count of the larger of input and output: as many as fit, at least one for each rank.
static std::int64_t count_of(const BenchOp& op, std::int64_t bytes, DType dtype, int ranks) {
  if (op.op == comm::Op::Barrier) return 0;
  const std::int64_t parts = op.bus(2) == 0.5 ? ranks : 1;  // those that have parts send n - 1 of n
  return std::max<std::int64_t>(bytes / bytes_of(dtype) / parts, 1) * parts;
}

// Written once, since the pages of memory that never was are all one page.
static Buffer buffer_of(Buffers& buffers, comm::Communicator& communicator, std::int64_t count,
                        const BenchComm& options) {
  const DType dtype = *parse_dtype(options.dtype);
  const std::int64_t bytes = std::max<std::int64_t>(count * bytes_of(dtype), 1);
  Buffer buffer = {.count = count, .dtype = dtype};
  if (options.buffers == "allocated") {
    buffers.allocated.push_back(communicator.allocate(bytes));
    buffer.data = buffers.allocated.back()->data();
  } else {
    buffers.foreign.push_back(std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes)));
    buffer.data = buffers.foreign.back().get();
  }
  std::memset(buffer.data, 0, static_cast<std::size_t>(bytes));
  return buffer;
}

static Buffers buffers_for(const BenchOp& op, std::int64_t count, comm::Communicator& communicator,
                           const BenchComm& options) {
  using comm::Op;
  const std::int64_t part = count / options.ranks;
  const bool gathers = op.op == Op::Gather || op.op == Op::AllGather;
  const bool scatters = op.op == Op::Scatter || op.op == Op::ReduceScatter;
  Buffers buffers;
  buffers.in = buffer_of(buffers, communicator, gathers ? part : count, options);
  if (gathers || scatters || op.op == Op::AllToAll)
    buffers.out = buffer_of(buffers, communicator, scatters ? part : count, options);
  return buffers;
}

static void call(const BenchOp& op, comm::Communicator& ranks, const Buffers& buffers) {
  using comm::Op;
  constexpr auto kSum = comm::ReduceOp::Sum;
  const Buffer in = buffers.in, out = buffers.out;
  const auto start = [&]() -> std::unique_ptr<comm::Work> {
    switch (op.op) {
      case Op::Broadcast: return ranks.broadcast(in, 0);
      case Op::Reduce: return ranks.reduce(in, kSum, 0);
      case Op::AllReduce: return ranks.all_reduce(in, kSum);
      case Op::Gather: return ranks.gather(in, out, 0);
      case Op::AllGather: return ranks.all_gather(in, out);
      case Op::Scatter: return ranks.scatter(in, out, 0);
      case Op::ReduceScatter: return ranks.reduce_scatter(in, out, kSum);
      case Op::AllToAll: return ranks.all_to_all(in, out);
      case Op::Send:
      case Op::Receive:
        if (ranks.rank() % 2 == 1) return ranks.receive(in, ranks.rank() - 1);
        if (ranks.rank() + 1 < ranks.size()) return ranks.send(in, ranks.rank() + 1);
        return nullptr;  // the last of an odd number has no partner
      case Op::Barrier: return ranks.barrier();
    }
    return nullptr;
  };
  if (const auto work = start()) work->wait(kLimit);
}

static double seconds_of(const std::function<void()>& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return Seconds(std::chrono::steady_clock::now() - begin).count();
}

// The largest of all ranks, element by element.
static void take_slowest(std::vector<double>& seconds, comm::Communicator& ranks) {
  const Buffer buffer = {
      .data = seconds.data(), .count = static_cast<std::int64_t>(seconds.size()), .dtype = DType::Float64};
  ranks.all_reduce(buffer, comm::ReduceOp::Max)->wait(kLimit);
}

static double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

static double time_calls(const BenchOp& op, Contender& contender) {
  contender.communicator->barrier()->wait(kLimit);
  return seconds_of([&] {
           for (std::int64_t i = 0; i < contender.calls; ++i)
             call(op, *contender.communicator, contender.buffers);
         }) /
         static_cast<double>(contender.calls);
}

static void warm_up(const BenchOp& op, Contender& contender) {
  contender.calls = 1;
  time_calls(op, contender);
  contender.calls = 3;
  std::vector<double> seconds = {time_calls(op, contender)};
  take_slowest(seconds, *contender.communicator);
  contender.calls = static_cast<std::int64_t>(std::clamp(kSampleSeconds / seconds[0], 1.0, kMostCalls));
}

// Of copying one byte, on all ranks at once, by the slowest of them; within as much memory as a rank's
// buffers have, from one half to the other, since caches hold a part of it.
static double copy_seconds(std::int64_t bytes, comm::Communicator& ranks, int repeats) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes / 2, 1));
  const auto from = ranks.allocate(static_cast<std::int64_t>(size)),
             to = ranks.allocate(static_cast<std::int64_t>(size));
  std::memset(from->data(), 0, size);
  std::memset(to->data(), 0, size);
  const auto calls =
      std::clamp<std::int64_t>((std::int64_t{1} << 22) / std::max<std::int64_t>(bytes, 1), 1, 1000);
  std::vector<double> samples;
  for (int i = 0; i < repeats; ++i) {
    ranks.barrier()->wait(kLimit);
    samples.push_back(seconds_of([&] {
                        for (std::int64_t c = 0; c < calls; ++c) {
                          std::memcpy(to->data(), from->data(), size);
                          __asm__ volatile("" : : "r"(to->data()) : "memory");  // each copy happens
                        }
                      }) /
                      static_cast<double>(calls) / static_cast<double>(size));
  }
  take_slowest(samples, ranks);
  return median(samples);
}

static BenchRow row_of(const BenchOp& op, const Contender& contender, std::int64_t bytes,
                       double byte_seconds) {
  const double n = contender.communicator->size();
  const double seconds = median(contender.samples);
  BenchRow row = {.op = std::string(op.name),
                  .backend = contender.name,
                  .ranks = contender.communicator->size(),
                  .bytes = bytes,
                  .median_us = seconds * 1e6};
  row.algorithm_gbps = static_cast<double>(bytes) / seconds * 1e-9;
  row.bus_gbps = row.algorithm_gbps * op.bus(n);
  row.bound_us = byte_seconds * static_cast<double>(bytes) * op.copied(n) * 1e6;
  row.share = row.bound_us / row.median_us;
  return row;
}

// The median over pairs of samples that were taken one after the other.
static double times_faster(const Contender& first, const Contender& other) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < first.samples.size(); ++i)
    ratios.push_back(other.samples[i] / first.samples[i]);
  return median(ratios);
}

static void measure(const BenchOp& op, std::int64_t wanted_bytes, std::vector<Contender>& contenders,
                    const BenchComm& options) {
  const DType dtype = *parse_dtype(options.dtype);
  const std::int64_t count = count_of(op, wanted_bytes, dtype, options.ranks);
  const std::int64_t bytes = count * bytes_of(dtype);
  for (Contender& contender : contenders) {
    contender.samples.clear();
    contender.buffers = buffers_for(op, count, *contender.communicator, options);
    warm_up(op, contender);
  }
  for (int i = 0; i < options.repeats; ++i)
    for (Contender& contender : contenders) contender.samples.push_back(time_calls(op, contender));
  const Buffers& buffers = contenders[0].buffers;
  const std::int64_t held = (buffers.in.count + buffers.out.count) * bytes_of(dtype);
  const double copied = copy_seconds(held, *contenders[0].communicator, std::min(options.repeats, 10));
  for (Contender& contender : contenders) take_slowest(contender.samples, *contender.communicator);
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    BenchRow row = row_of(op, contenders[i], bytes, copied);
    if (contenders.size() == 2) row.times = times_faster(contenders[i], contenders[1 - i]);
    if (options.rank == 0) std::fputs(line_of(row, options).c_str(), stdout);
  }
  std::fflush(stdout);
  for (Contender& contender : contenders) contender.buffers = {};
}

static int measure_all(const BenchComm& options) {
  rendezvous::HostStore store = rendezvous::HostStore::inherited(options.store);
  std::vector<Contender> contenders;
  for (const std::string& backend : backends_of(options))
    contenders.push_back(
        {.name = backend,
         .communicator = make_communicator(backend, static_cast<int>(contenders.size()), store, options)});
  if (options.rank == 0) std::fputs(header_of(options).c_str(), stdout);
  std::fflush(stdout);
  for (const BenchOp& op : ops_named(options))
    for (const std::int64_t bytes :
         op.op == comm::Op::Barrier ? std::vector<std::int64_t>{0} : sizes_of(options))
      measure(op, bytes, contenders, options);
  SHOAL_CHECK(std::fflush(stdout) == 0 && std::ferror(stdout) == 0, Infeasible,
              "cannot write the results to standard output");
  return 0;
}

int bench_rank(const BenchComm& options) {
  try {
    return measure_all(options);
  } catch (const Error& error) {
    throw Error(error.kind(), concat("rank ", options.rank, ": ", error.what()));
  }
}

}  // namespace shoal::cli
