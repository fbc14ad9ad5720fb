// SPDX-License-Identifier: Apache-2.0
// What `shoal calibrate` measures. Kernels are timed on all ranks at once, since they share the memory and its
// bandwidth; what ops take beside their bytes is learned from steps of small models.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "shoal/comm/communicator.h"
#include "shoal/cost/cluster.h"
#include "shoal/elastic/join.h"

namespace shoal::cli {

struct Sample {
  double seconds = 0;  // the median
  double spread = 0;   // of the middle half of all, as a share of that
};

// The other ranks of the job, if there are.
class Peers {
 public:
  Peers();
  int rank() const { return job_->place().rank; }
  int size() const { return job_->place().size; }
  std::chrono::nanoseconds limit() const { return job_->limit(); }
  comm::Communicator* world() const { return world_.get(); }
  const std::vector<int>& first_ranks() const { return job_->first_ranks(); }
  int of_this_host() const;

  void meet() const;
  double mean(double number) const;                // of all ranks
  double most(double number) const;                // of any of them
  void least(std::vector<double>& numbers) const;  // likewise, of each number: as many on all
  // A call that each rank makes, all at once; as often on each.
  Sample time(const std::function<void()>& call) const;

 private:
  void reduce(double* numbers, std::size_t count, comm::ReduceOp op) const;

  std::unique_ptr<elastic::Job> job_;
  std::unique_ptr<comm::Communicator> world_;
};

struct Calibrated {
  cost::Cluster cluster;
  double worst_spread = 0;
};

// Called by all ranks; the first one says each figure.
Calibrated calibrated(const Peers& peers);

}  // namespace shoal::cli
