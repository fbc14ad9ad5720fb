// SPDX-License-Identifier: Apache-2.0
#include "shoal/cost/price.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "shoal/ir/flops.h"
#include "shoal/program/aliases.h"
#include "shoal/program/streams.h"

namespace shoal::cost {

using sharding::Collective;

// Their first input is a table of rows, of which they read what is asked for.
static constexpr std::array<std::string_view, 5> kLookups = {
    "aten::embedding", "aten::gather", "aten::index.Tensor", "aten::index_select", "shoal::embedding"};

double bytes_touched(const program::Instruction& instruction, const program::Program& program) {
  const auto bytes = [&](program::Slot slot) {
    return static_cast<double>(ir::bytes_of(program.types.at(slot.index)));
  };
  if (const auto* copy = std::get_if<program::Copy>(&instruction)) return bytes(copy->from) + bytes(copy->to);
  const auto* compute = std::get_if<program::Compute>(&instruction);
  if (compute == nullptr) return 0;
  const program::Call call = program::call_of(*compute);
  if (program::shares_memory(call, program.types)) return 0;
  double all = 0, made = 0;
  for (const auto& output : compute->outputs)
    if (output) made += bytes(*output);
  const bool looks_up = std::ranges::find(kLookups, compute->op) != kLookups.end();
  const auto inputs = program::inputs_of(call);
  for (std::size_t i = 0; i < inputs.size(); ++i) all += looks_up && i == 0 ? made : bytes(inputs[i]);
  return all + made;
}

const Rate& arithmetic_of(const Kind& kind, DType dtype) {
  const auto found = kind.arithmetic.find(dtype);
  return found == kind.arithmetic.end() ? kind.arithmetic.begin()->second : found->second;
}

double seconds_of(const program::Instruction& instruction, const program::Program& program,
                  const Kind& kind) {
  if (!program::stream_of(instruction).empty()) return 0;
  const double bytes = bytes_touched(instruction, program);
  if (bytes == 0) return 0;
  double seconds = kind.bandwidth.seconds(bytes);
  if (const auto* compute = std::get_if<program::Compute>(&instruction)) {
    const ir::Node node = {.op = compute->op, .arguments = compute->arguments, .outputs = compute->outputs};
    const auto type_of = [&](ir::ValueId slot) -> const ir::TensorType& {
      return program.types.at(slot.index);
    };
    const double operations = ir::work_of(node, type_of).value_or(0);
    const auto inputs = ir::inputs_of(node);
    if (operations > 0 && !inputs.empty())
      seconds =
          std::max(seconds, arithmetic_of(kind, program.types.at(inputs[0].index).dtype).seconds(operations));
    seconds += ir::heads_of(node, type_of) * kind.head_seconds;
    if (const auto slower = kind.slower.find(compute->op); slower != kind.slower.end())
      seconds = slower->second.seconds(seconds);
  }
  return kind.kernel_seconds + seconds;
}

Spread spread_of(const std::vector<int>& ranks, const Cluster& cluster) {
  std::map<int, int> on;  // by host
  for (const int rank : ranks) ++on[cluster.host_of(rank)];
  Spread spread = {.ranks = static_cast<int>(ranks.size()), .hosts = static_cast<int>(on.size())};
  for (const int rank : ranks) {
    const int here = on[cluster.host_of(rank)];
    if (here < spread.on_a_host) continue;
    spread.on_a_host = here;
    spread.devices = std::max(spread.devices, cluster.devices_beside(rank));
  }
  spread.is_near = spread.hosts == 1;
  return spread;
}

// How often the ranks of a group wait for each other in one.
static double rounds_of(Collective kind, int ranks) {
  switch (kind) {
    case Collective::AllReduce: return 2 * (ranks - 1);
    case Collective::ReduceScatter:
    case Collective::AllGather:
    case Collective::AllToAll: return ranks - 1;
    case Collective::Send: return 1;
    case Collective::Receive: return 0;
  }
  return 0;
}

static double slower(const Link& link, Collective kind, double seconds) {
  const auto times = link.slower.find(kind);
  return times == link.slower.end() ? seconds : times->second.seconds(seconds);
}

// `bytes` of each of so many devices at once.
static double seconds_on(const Link& link, Collective kind, double rounds, double bytes, double devices) {
  return slower(link, kind, rounds * link.latency + bytes * (link.is_shared ? devices : 1) / link.bandwidth);
}

double seconds_of(const sharding::Message& message, const Spread& spread, const Cluster& cluster) {
  const auto bytes = static_cast<double>(message.bytes());
  const Collective kind = message.kind;
  const double devices = spread.devices;
  if (kind == Collective::Send || kind == Collective::Receive)
    return seconds_on(spread.is_near ? cluster.inside : cluster.between, kind, rounds_of(kind, 2), bytes,
                      devices);
  if (spread.is_near) return seconds_on(cluster.inside, kind, rounds_of(kind, spread.ranks), bytes, devices);
  // Ranks of a host among themselves, and hosts among themselves.
  const double here = spread.on_a_host, hosts = spread.hosts, others = spread.ranks - 1;
  const auto in = static_cast<double>(message.in * shoal::bytes_of(message.dtype));
  double within = 0, crossing = 0;  // bytes of each rank, and of each host
  switch (kind) {
    case Collective::AllReduce:
      within = 2 * in * (here - 1) / here;
      crossing = 2 * in * (hosts - 1) / hosts;
      break;
    case Collective::ReduceScatter:
      within = in * (here - 1) / here;
      crossing = in * (hosts - 1) / hosts;
      break;
    case Collective::AllGather:
      within = here > 1 ? in * others : 0;
      crossing = in * here * (hosts - 1);
      break;
    default: within = bytes * (here - 1) / others; crossing = bytes * here * (others + 1 - here) / others;
  }
  const double inside =
      here > 1 ? seconds_on(cluster.inside, kind, rounds_of(kind, spread.on_a_host), within, devices) : 0;
  // Each device has its share of that, on a link of its own or with those that speak in other groups.
  const double groups = devices / here;
  const double of_link = cluster.between.is_shared ? crossing * groups : crossing / here;
  return inside + slower(cluster.between, kind,
                         rounds_of(kind, spread.hosts) * cluster.between.latency +
                             of_link / cluster.between.bandwidth);
}

}  // namespace shoal::cost
