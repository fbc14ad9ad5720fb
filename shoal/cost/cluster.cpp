// SPDX-License-Identifier: Apache-2.0
#include "shoal/cost/cluster.h"

#include <algorithm>

#include "shoal/base/error.h"

namespace shoal::cost {

// At a point, or on the line between two; beyond them it is as much for each of the amount as at the nearest. `time` of
// an amount and of what its point has beside it.
template <typename Time>
static double on_line(const std::vector<std::pair<double, double>>& points, double amount, Time time) {
  const auto above = std::ranges::lower_bound(points, amount, {}, &std::pair<double, double>::first);
  if (above == points.begin()) return time(amount, above->second);
  if (above == points.end()) return time(amount, points.back().second);
  const auto below = above - 1;
  const double part = (amount - below->first) / (above->first - below->first);
  const double from = time(below->first, below->second);
  return from + part * (time(above->first, above->second) - from);
}

double Rate::seconds(double amount) const {
  if (amount <= 0) return 0;
  if (shares.empty()) return amount / peak;
  return on_line(shares, amount, [this](double of, double share) { return of / (peak * share); });
}

double Slower::seconds(double said) const {
  return on_line(points, said, [](double of, double times) { return of * times; });
}

Kind slowed(Kind kind, double times) {
  kind.bandwidth.peak /= times;
  kind.kernel_seconds *= times;
  kind.head_seconds *= times;
  for (auto& [dtype, rate] : kind.arithmetic) rate.peak /= times;
  for (auto& [op, slower] : kind.slower)
    for (auto& point : slower.points) point.first *= times;
  return kind;
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
