// SPDX-License-Identifier: Apache-2.0
// shoal bench comm: how long the operations of communicators take between processes of this host.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/comm/call.h"

namespace shoal::cli {

// As on the command line.
struct BenchComm {
  std::string op = "all_reduce";
  std::string backend = "shm";
  std::string compare;  // "": nothing
  int ranks = 2;
  std::string sizes = "8,1K,1M,64M";
  std::string dtype = "float32";
  std::string buffers = "allocated";
  std::string format = "text";
  int repeats = 20;
  int rank = -1;   // of a process that the command started; -1: the command itself
  int store = -1;  // the descriptor that it inherited
};

// Throws InvalidInput, with what is valid, where the options are not.
void check(const BenchComm& options);
// Of checked options. Starts the ranks, waits for them, and leaves none behind.
int bench_comm(const BenchComm& options);

// What follows is between the files of this verb.

struct BenchOp {
  std::string_view name;
  comm::Op op;
  // nccl-tests' factor from algorithm to bus bandwidth, between n ranks.
  double (*bus)(double n);
  // What a rank copies at least, for each byte of the larger of input and output: half of all it reads and
  // writes.
  double (*copied)(double n);
};
std::span<const BenchOp> bench_ops();
std::vector<BenchOp> ops_named(const BenchComm& options);
std::vector<std::int64_t> sizes_of(const BenchComm& options);
std::vector<std::string> backends_of(const BenchComm& options);

// One row of the result.
struct BenchRow {
  std::string op;
  std::string backend;
  int ranks = 0;
  std::int64_t bytes = 0;
  double median_us = 0;
  double algorithm_gbps = 0;
  double bus_gbps = 0;
  double bound_us = 0;  // what copying as much as the operation needs takes here
  double share = 0;     // bound_us / median_us
  double times = 0;     // how often this backend is done while the other one is once; 0: no other
};
std::string header_of(const BenchComm& options);
std::string line_of(const BenchRow& row, const BenchComm& options);

// In a process of its own: measures, and prints on rank 0.
int bench_rank(const BenchComm& options);

}  // namespace shoal::cli
