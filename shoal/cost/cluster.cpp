// SPDX-License-Identifier: Apache-2.0
#include "shoal/cost/cluster.h"

#include <algorithm>

#include "shoal/base/error.h"

namespace shoal::cost {

double Rate::seconds(double amount) const {
  if (amount <= 0) return 0;
  if (shares.empty()) return amount / peak;
  const auto time = [this](const std::pair<double, double>& point) {
    return point.first / (peak * point.second);
  };
  const auto above = std::ranges::lower_bound(shares, amount, {}, &std::pair<double, double>::first);
  if (above == shares.begin()) return amount / (peak * above->second);
  if (above == shares.end()) return amount / (peak * shares.back().second);
  const auto below = above - 1;
  const double part = (amount - below->first) / (above->first - below->first);
  return time(*below) + part * (time(*above) - time(*below));
}

int Cluster::size() const {
  int devices = 0;
  for (const Host& host : hosts) devices += host.devices * host.count;
  return devices;
}

namespace {
struct Found {
  const Host& host;
  int number;  // of all hosts
};
}  // namespace

static Found find(const Cluster& cluster, int rank) {
  int first = 0, number = 0;
  for (const Host& host : cluster.hosts) {
    const int devices = host.devices * host.count;
    if (rank < first + devices) return {host, number + (rank - first) / host.devices};
    first += devices;
    number += host.count;
  }
  fail(ErrorKind::InvalidInput, "rank ", rank, ": the cluster has ", first,
       " devices. Remedy: fewer ranks, or more [[hosts]]");
}

int Cluster::host_of(int rank) const { return find(*this, rank).number; }
const Kind& Cluster::kind_of(int rank) const { return kinds.at(find(*this, rank).host.kind); }
int Cluster::devices_beside(int rank) const { return find(*this, rank).host.devices; }

}  // namespace shoal::cost
