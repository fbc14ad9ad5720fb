// SPDX-License-Identifier: Apache-2.0
// Machines as a plan is priced for them: kinds of device, hosts that have some of them, and what lies between.
//
//   hosts   of 8 a100        links.devices: between two of a host, each its own or one for all
//     |     of 8 a100        links.hosts: between two hosts, each device its own or one for the host
//     |     of 4 h100
//
// Ranks are dealt out in the order of the file: the first host's devices are ranks 0 to 7.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/dtype.h"
#include "shoal/sharding/collective.h"

namespace shoal::cost {

// How much a second of something, by how much of it there is at once: small calls reach less of the peak, and
// of memory what is small lies in a cache.
struct Rate {
  double peak = 0;
  // (amount, share of the peak), amounts rising. Between two the time is a line, beyond them the share stays.
  std::vector<std::pair<double, double>> shares;
  friend bool operator==(const Rate&, const Rate&) = default;

  double seconds(double amount) const;
};

// How many times as long an op or a message takes as rates and floors say, by how long they say that a call does: what
// is small lies in caches, and has fewer threads.
struct Slower {
  // (seconds, times), seconds rising. Between two the time is a line, beyond them the times stay.
  std::vector<std::pair<double, double>> points;
  Slower(double times) : points{{0, times}} {}  // of calls of any size
  explicit Slower(std::vector<std::pair<double, double>> of_sizes) : points(std::move(of_sizes)) {}
  friend bool operator==(const Slower&, const Slower&) = default;

  double seconds(double said) const;
};

struct Kind {
  std::string name;
  std::int64_t memory = 0;           // bytes
  Rate bandwidth;                    // bytes a second that a kernel reads and writes
  double kernel_seconds = 0;         // the least that one takes
  double head_seconds = 0;           // the least of a head of a sample, where attention takes them one by one
  double step_seconds = 0;           // of a step, in no kernel
  std::map<DType, Rate> arithmetic;  // operations a second of matrix products, attention and convolutions
  std::map<std::string, Slower> slower;  // by op
  friend bool operator==(const Kind&, const Kind&) = default;
};

// One on which all ops take so many times as long.
Kind slowed(Kind kind, double times);

struct Host {
  std::string kind;
  int devices = 1;
  int count = 1;  // such hosts, one after the other
  friend bool operator==(const Host&, const Host&) = default;
};

struct Link {
  double latency = 0;                             // seconds for a message
  double bandwidth = 0;                           // bytes a second in one direction
  bool is_shared = false;                         // by all devices of a host
  bool overlaps = true;                           // what it moves goes on beside what a device computes
  std::map<sharding::Collective, Slower> slower;  // than rounds and bytes say
  friend bool operator==(const Link&, const Link&) = default;
};

struct Cluster {
  std::map<std::string, Kind> kinds;
  std::vector<Host> hosts;
  Link inside, between;
  double overlap = 1;          // how many times as long a kernel takes while a message is under way
  double message_overlap = 1;  // and a message while a kernel is
  std::string machine;  // that was measured: what `shoal calibrate` knows it by; empty: described by a person
  friend bool operator==(const Cluster&, const Cluster&) = default;

  int size() const;             // devices
  int host_of(int rank) const;  // from 0
  const Kind& kind_of(int rank) const;
  int devices_beside(int rank) const;  // of its host, itself among them
};

// Numbers have units: "312 TFLOP/s", "80 GiB", "1.5 us", "100 Gbit/s". Throws InvalidInput with file, line and key for
// a key that nothing reads, a unit that is missing or of another quantity, a rate that is not above 0.
Cluster cluster_from_toml(std::string_view text, const std::string& file);
std::string to_toml(const Cluster& cluster);  // the inverse

}  // namespace shoal::cost
