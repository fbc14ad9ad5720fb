// SPDX-License-Identifier: Apache-2.0
// What a placed step is, for people and for tests: how much of its work runs split, what ranks say to each
// other and how many bytes that is, what lies where. What a rank has in memory its program says
// (program/memory.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::rewrite {

// How much of a step is cut along an axis, from 0 to 1.
struct AxisShare {
  std::string axis;
  int ranks = 1;
  double flops = 0;
  double parameter_bytes = 0;  // as parameters are kept between steps
  double busiest = 1;          // the flops of the rank that has most, over their mean
  friend bool operator==(const AxisShare&, const AxisShare&) = default;
};

// What a rank sends in collectives of one kind, as sharding/collective.h says; `count` messages.
struct Traffic {
  std::string module;  // numbers in it are '*'; of gradients, which are reduced many at once: ""
  std::string what;    // "parameters", "activations", "gradients" or "norm"
  std::string op;      // "all_reduce"
  std::string axis;
  ir::Phase phase = ir::Phase::Forward;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// An op that every rank of an axis does in full: along axes that share the batch what depends on the batch,
// along others what has flops.
struct WholeOp {
  std::string module;  // numbers in it are '*'
  std::string op;
  std::string axes;  // along which it runs whole
  std::int64_t count = 0;
  double flops = 0;
  std::int64_t bytes = 0;  // of what it makes
  friend bool operator==(const WholeOp&, const WholeOp&) = default;
};

// A parameter, or what a module hands on, and where it is; those whose paths differ in numbers alone are one
// line.
struct LayerLine {
  std::string path;  // numbers in it are '*'
  bool is_parameter = false;
  sharding::Shape shape;
  sharding::Layout kept;  // of a parameter, between steps
  sharding::Layout used;
  std::vector<std::string> paths;  // of all that are alike, without '*'
  std::int64_t count() const { return static_cast<std::int64_t>(paths.size()); }
  friend bool operator==(const LayerLine&, const LayerLine&) = default;
};

struct Report {
  double flops = 0;               // of all ranks together
  std::vector<AxisShare> shares;  // of axes that have several ranks
  std::vector<LayerLine> layers;  // as the step comes to them
  std::vector<Traffic> traffic;
  std::vector<WholeOp> whole;
  std::vector<std::string> unknown;  // ops whose work no table knows, in alphabetical order
};

// `local`: what partition made of it for a rank.
// Ops are not cut along the pipeline's axis, but dealt out.
Report report_of(const Placed& placed, const ir::Graph& local, int rank, std::string_view pipeline_axis = "");

// Of a step: so many micro-batches, and the update after them.
Report of_step(Report microbatch, std::int64_t num_microbatches, const Report& update);

// Ranks that have equal shapes of everything. What is known of one rank's program and traffic is known of its
// class. Ranks of two stages are of two classes.
struct RankClass {
  std::vector<int> ranks;  // in order
  int first() const { return ranks.front(); }
  friend bool operator==(const RankClass&, const RankClass&) = default;
};
std::vector<RankClass> rank_classes(const Placed& placed, std::string_view pipeline_axis = "");

// `of`: what the report is of, for its heading: "a step", "each of 3 micro-batches".
std::string to_text(const sharding::Mesh& mesh, const Report& report, std::string_view of = "a step");
std::string traffic_text(const Report& report, std::string_view of);

}  // namespace shoal::rewrite
