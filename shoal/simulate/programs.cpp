// SPDX-License-Identifier: Apache-2.0
// A message is two tasks on its stream: `arrives` takes no time, and what moves starts when all of the group have
// arrived, so it begins and ends at once on all of them.
#include "shoal/simulate/programs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/cost/price.h"
#include "shoal/program/aliases.h"
#include "shoal/program/memory.h"
#include "shoal/program/streams.h"
#include "shoal/sharding/collective.h"

namespace shoal::simulate {

// Of a task; a sum of many of them stays a number of nanoseconds.
static std::int64_t nanoseconds(double seconds, const std::string& name) {
  constexpr double kMost = 1e5;
  SHOAL_CHECK(seconds <= kMost, InvalidInput, "simulate: ", name, " would take ", seconds,
              " s, more than a day. Remedy: larger rates in the cluster's file");
  return std::llround(seconds * 1e9);
}

void append_runs(std::vector<Run>& runs, const program::Program& program, int microbatch) {
  for (std::size_t segment = 0; segment < program.segments.size(); ++segment)
    runs.push_back({&program, segment, microbatch});
}

namespace {

struct Kind {
  int first = 0;
  const std::vector<Run>* runs = nullptr;
  std::int64_t memory = 0;               // beside programs
  std::vector<cost::Spread> spreads;     // by axis
  std::vector<std::vector<int>> groups;  // by axis: ranks
};

struct Arrival {
  int arrives = 0, moves = 0;  // tasks
};

struct Received {
  int from;  // a kind
  std::string axis;
  int coordinate;    // the receiver's number on it
  std::size_t kind;  // the receiver's
  int task;
};

class Maker {
 public:
  Maker(const std::vector<Ranks>& kinds, const sharding::Mesh& mesh, const cost::Cluster& cluster)
      : mesh_(mesh), cluster_(cluster), kind_of_(at(mesh.size()), -1) {
    SHOAL_CHECK(cluster.size() >= mesh.size(), InvalidInput, "simulate: the mesh ", to_text(mesh), " has ",
                mesh.size(), " ranks, and the cluster ", cluster.size(),
                " devices. Remedy: fewer ranks, or more [[hosts]]");
    split(kinds);
  }

  Tasks make() {
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) add(kind);
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) connect(kind);
    connect_receives();
    return std::move(tasks_);
  }

 private:
  // What one micro-batch has of a program.
  using Instance = std::pair<const program::Program*, int>;
  struct Sent {
    int task;
    std::size_t number;  // of those from the one to the other
  };

  void split(const std::vector<Ranks>& given) {
    using Spreads = std::vector<std::tuple<int, int, int, int>>;
    std::map<std::tuple<std::size_t, std::string, Spreads>, std::size_t> known;
    for (std::size_t i = 0; i < given.size(); ++i)
      for (const int rank : given[i].ranks) {
        Kind kind = {.first = rank, .runs = &given[i].runs, .memory = given[i].memory};
        Spreads spreads;
        for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
          kind.groups.push_back(mesh_.group(rank, {axis}));
          kind.spreads.push_back(cost::spread_of(kind.groups.back(), cluster_));
          const cost::Spread& spread = kind.spreads.back();
          spreads.emplace_back(spread.ranks, spread.hosts, spread.on_a_host, spread.devices);
        }
        const auto [row, is_new] =
            known.try_emplace({i, cluster_.kind_of(rank).name, spreads}, kinds_.size());
        if (is_new) kinds_.push_back(std::move(kind));
        kind_of_[at(rank)] = static_cast<int>(row->second);
      }
    SHOAL_CHECK(std::ranges::find(kind_of_, -1) == kind_of_.end(), Internal, "simulate: a rank of no kind");
    arrivals_.resize(kinds_.size());
  }

  int stream(int rank, const std::string& name) {
    const auto [row, is_new] = streams_.try_emplace({rank, name}, static_cast<int>(tasks_.streams.size()));
    if (is_new)
      tasks_.streams.push_back({rank, name, name == "compute" ? cluster_.overlap : cluster_.message_overlap});
    return row->second;
  }
  int add_task(int stream, std::string name, double seconds, std::vector<int> after, std::int64_t bytes) {
    const std::int64_t duration = nanoseconds(seconds, name);
    tasks_.tasks.push_back({stream, std::move(name), duration, std::move(after), bytes});
    return static_cast<int>(tasks_.tasks.size()) - 1;
  }

  const program::Order& order(const program::Program& program) {
    auto row = orders_.find(&program);
    if (row == orders_.end()) row = orders_.emplace(&program, program::order_of(program)).first;
    return row->second;
  }

  // What it makes above what it reads: after each instruction, by segment.
  struct Memory {
    std::int64_t sources = 0;
    std::vector<std::vector<std::int64_t>> made;
  };
  const Memory& memory(const program::Program& program) {
    const auto [row, is_new] = memories_.try_emplace(&program);
    Memory& memory = row->second;
    if (!is_new) return memory;
    const program::Memory all = program::memory_of(program, 1);  // threads take what is given back at once
    memory.sources = all.sources.total();
    for (std::size_t segment = 0; segment < program.segments.size(); ++segment) {
      auto& made = memory.made.emplace_back();
      std::size_t next = 0;
      for (const program::Instruction& instruction : program.segments[segment].instructions) {
        const bool is_free = std::holds_alternative<program::Free>(instruction);
        made.push_back(is_free ? 0 : all.uses[segment][next].after - memory.sources);
        next += is_free ? 0 : 1;
      }
    }
    return memory;
  }

  void add(std::size_t number) {
    const Kind& kind = kinds_[number];
    std::map<Instance, std::int64_t> held;  // above what programs read
    std::int64_t memory_now = kind.memory;
    if (!kind.runs->empty()) memory_now += memory(*kind.runs->front().program).sources;
    std::map<Instance, std::vector<int>> made;  // the task that ends one of Order::tasks, by its number there
    std::optional<int> computed;
    if (const double seconds = cluster_.kind_of(kind.first).step_seconds; seconds > 0)
      computed = add_task(stream(kind.first, "compute"), "", seconds, {}, 0);
    for (const auto& [program, segment, microbatch] : *kind.runs) {
      const program::Order& tasks = order(*program);
      std::vector<int>& ends = made.try_emplace({program, microbatch}, tasks.tasks.size(), -1).first->second;
      for (std::size_t i = 0; i < tasks.tasks.size(); ++i) {
        const program::Task& task = tasks.tasks[i];
        if (task.segment != segment) continue;
        const program::Instruction& instruction = program->segments[segment].instructions[task.instruction];
        std::vector<int> after;
        for (const int other : task.after)
          if (ends[at(other)] >= 0) after.push_back(ends[at(other)]);
        if (computed) after.push_back(*computed);
        const auto message = message_in(instruction, *program, kind.first);
        if (!program::stream_of(instruction).empty()) {
          const std::string& name = tasks.streams[at(task.stream)];
          ends[i] = add_message(number, name, std::get<program::Compute>(instruction).op, message,
                                std::move(after));
          continue;
        }
        ends[i] = add_kernel(number, instruction, *program, message, std::move(after));
        computed = ends[i];
        std::int64_t& here = held[{program, microbatch}];
        const std::int64_t made_now = memory(*program).made[segment][task.instruction];
        memory_now += made_now - std::exchange(here, made_now);
        tasks_.tasks[at(*computed)].memory = memory_now;
      }
    }
  }

  std::optional<sharding::Message> message_in(const program::Instruction& instruction,
                                              const program::Program& program, int rank) const {
    const auto* compute = std::get_if<program::Compute>(&instruction);
    if (compute == nullptr || !sharding::is_collective(compute->op)) return std::nullopt;
    const ir::Node node = {.op = compute->op, .arguments = compute->arguments, .outputs = compute->outputs};
    return sharding::message_of(
        node, [&](ir::ValueId slot) -> const ir::TensorType& { return program.types.at(slot.index); }, mesh_,
        rank);
  }

  int add_message(std::size_t number, const std::string& name, const std::string& op,
                  const std::optional<sharding::Message>& message, std::vector<int> after) {
    const Kind& kind = kinds_[number];
    const int on = stream(kind.first, name);
    const int arrives = add_task(on, message ? "" : op, 0, std::move(after), 0);
    if (!message) return arrives;
    if (message->kind == sharding::Collective::Receive) {
      const int moves = add_task(on, op, 0, {}, 0);
      const auto& group = kind.groups[at(mesh_.axis(message->axis))];
      const auto self = std::ranges::find(group, kind.first) - group.begin();
      receives_.push_back(
          {kind_of_[at(group[at(message->peer)])], message->axis, static_cast<int>(self), number, moves});
      return moves;
    }
    const auto axis = at(mesh_.axis(name));
    const double seconds = cost::seconds_of(*message, kind.spreads[axis], cluster_);
    const int moves = add_task(on, op, seconds, {}, message->bytes());
    arrivals_[number][axis].push_back({arrives, moves});
    return moves;
  }

  int add_kernel(std::size_t number, const program::Instruction& instruction, const program::Program& program,
                 const std::optional<sharding::Message>& message, std::vector<int> after) {
    const Kind& kind = kinds_[number];
    const cost::Kind& device = cluster_.kind_of(kind.first);
    const int on = stream(kind.first, "compute");
    const auto bytes = static_cast<std::int64_t>(cost::bytes_touched(instruction, program));
    const auto* compute = std::get_if<program::Compute>(&instruction);
    std::string name;  // as the executor's trace has it; a Wait is what lies between two
    if (compute != nullptr) name = compute->op;
    if (std::holds_alternative<program::Copy>(instruction)) name = "copy";
    const double seconds = cost::seconds_of(instruction, program, device);
    const int task = add_task(on, std::move(name), seconds, std::move(after), bytes);
    if (message && message->kind == sharding::Collective::Send) {
      const auto axis = at(mesh_.axis(message->axis));
      const int peer = kind.groups[axis][at(message->peer)];
      cost::Spread spread = kind.spreads[axis];
      spread.is_near = cluster_.host_of(kind.first) == cluster_.host_of(peer);
      const int link = stream(kind.first, concat(message->axis, " to ", peer));
      const int moves =
          add_task(link, "send", cost::seconds_of(*message, spread, cluster_), {task}, message->bytes());
      sends_[{static_cast<int>(number), message->axis, message->peer}].push_back(moves);
    }
    return task;
  }

  void connect(std::size_t number) {
    for (auto& [axis, list] : arrivals_[number]) {
      std::set<int> members;
      for (const int rank : kinds_[number].groups[axis]) members.insert(kind_of_[at(rank)]);
      for (const int member : members) {
        const auto& theirs = arrivals_[at(member)][axis];
        SHOAL_CHECK(theirs.size() == list.size(), Internal, "simulate: rank ", kinds_[number].first,
                    " sends ", list.size(), " messages along ", mesh_.axes[axis].name, ", and rank ",
                    kinds_[at(member)].first, " of its group ", theirs.size());
        for (std::size_t i = 0; i < list.size(); ++i)
          tasks_.tasks[at(list[i].moves)].after.push_back(theirs[i].arrives);
      }
    }
  }

  void connect_receives() {
    std::map<std::tuple<std::size_t, int, std::string>, std::size_t> taken;
    for (const auto& [from, axis, coordinate, to, task] : receives_) {
      const auto& sent = sends_[{from, axis, coordinate}];
      const std::size_t number = taken[{to, from, axis}]++;
      SHOAL_CHECK(number < sent.size(), Internal, "simulate: rank ", kinds_[to].first, " receives ",
                  number + 1, " times from rank ", kinds_[at(from)].first, " along ", axis, ", which sends ",
                  sent.size());
      tasks_.tasks[at(task)].after.push_back(sent[number]);
    }
  }

  const sharding::Mesh& mesh_;
  const cost::Cluster& cluster_;
  std::vector<int> kind_of_;  // by rank
  std::vector<Kind> kinds_;
  std::vector<std::map<std::size_t, std::vector<Arrival>>> arrivals_;  // by kind, then axis
  // By the sender's kind, and the axis and the receiver's number on it.
  std::map<std::tuple<int, std::string, int>, std::vector<int>> sends_;
  std::vector<Received> receives_;
  std::map<std::pair<int, std::string>, int> streams_;
  std::map<const program::Program*, program::Order> orders_;
  std::map<const program::Program*, Memory> memories_;
  Tasks tasks_;
};

}  // namespace

Tasks tasks_of(const std::vector<Ranks>& kinds, const sharding::Mesh& mesh, const cost::Cluster& cluster) {
  return Maker(kinds, mesh, cluster).make();
}

}  // namespace shoal::simulate
