// SPDX-License-Identifier: Apache-2.0
// Which ranks of a group are on which host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shoal::comm {

class HostMembers {
 public:
  // `first_ranks`: for each rank the first rank of its host.
  explicit HostMembers(const std::vector<int>& first_ranks) {
    for (int rank = 0; rank < static_cast<int>(first_ranks.size()); ++rank) {
      const int first = first_ranks[static_cast<std::size_t>(rank)];
      const auto known = std::ranges::find(firsts_, first);
      const auto host = static_cast<std::size_t>(known - firsts_.begin());
      if (known == firsts_.end()) {
        firsts_.push_back(first);
        members_.emplace_back();
      }
      host_.push_back(static_cast<int>(host));
      place_.push_back(static_cast<int>(members_[host].size()));
      members_[host].push_back(rank);
    }
  }

  int num_ranks() const { return static_cast<int>(host_.size()); }
  int num_hosts() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& firsts() const { return firsts_; }  // by host
  const std::vector<int>& of(int host) const { return members_[static_cast<std::size_t>(host)]; }
  int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  int place_of(int rank) const { return place_[static_cast<std::size_t>(rank)]; }  // among those of its host
  bool are_alike() const {  // as many ranks on each host
    return std::ranges::all_of(members_, [&](const auto& each) { return each.size() == members_[0].size(); });
  }

 private:
  std::vector<int> firsts_;
  std::vector<std::vector<int>> members_;
  std::vector<int> host_, place_;  // by rank
};

}  // namespace shoal::comm
