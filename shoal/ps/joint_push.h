// SPDX-License-Identifier: Apache-2.0
// A push that all workers make together. Its parts wait until the last one is there; then it is one push of
// each key's sum, in the order of the workers, however the parts arrived:
//
//   worker 0   a: 1   b: 2
//   worker 1          b: 5   c: 3     ─►   a: 1   b: 2 + 5   c: 3
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/ps/row_sums.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

class JointPush {
 public:
  // Who made a part, and with which request.
  struct Maker {
    std::uint64_t client = 0, sequence = 0;
    bool tells_others = false;  // wants to know of the keys of the others
  };
  // Of the worker `push.worker`; one that is there already is left out. Throws InvalidInput where it is of
  // another round, or of another number of workers, than those that wait; `table`: for that.
  void add(const Push& push, const Maker& maker, const std::string& table);
  bool is_empty() const { return num_there_ == 0; }
  bool is_complete() const { return !parts_.empty() && num_there_ == parts_.size(); }
  std::uint64_t round() const { return round_; }

  std::vector<Maker> makers() const;
  // The keys of one that has its sum, but for those of the maker's own part.
  std::vector<std::uint64_t> others_of(const Maker& maker) const;

  // Of a complete one, borrowed from it. `width`: of a row.
  Push sum(std::size_t width);
  void clear();

 private:
  struct Part {
    bool is_there = false;
    Maker maker;
    std::vector<std::uint64_t> keys;
    std::vector<std::byte> gradients;
    std::vector<float> shows, clicks;  // of each key
  };
  Push push_of(const Part& part) const;

  std::uint64_t round_ = 0, step_ = 0;
  double rate_ = 1;
  PushOf of_ = PushOf::Gradients;
  bool is_wide_ = false;
  std::vector<Part> parts_;  // by worker
  std::size_t num_there_ = 0;
  RowSums sum_;
};

}  // namespace shoal::ps
