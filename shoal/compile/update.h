// SPDX-License-Identifier: Apache-2.0
// Appends an optimizer's update to a captured step.
//
//   before                              after
//   return loss "loss" %7,              %9, %10 = shoal::clip(gradients=[%8], max_norm=1) @backward
//     gradient "w" %8                   %14, %15, %16 =
//                                         shoal::adam(parameters=[%0], gradients=[%8], …) @update
//                                       return loss "loss" %7, gradient "w" %8, output "grad_norm" %9,
//                                         parameter "w" %14, state "w.exp_avg" %15, state "w.exp_avg_sq" %16
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/compile/optimizer.h"
#include "shoal/ir/graph.h"
#include "shoal/rewrite/precision.h"

namespace shoal::compile {

// Parameters that one update node changes: they share settings and have been updated equally often.
struct UpdateGroup {
  std::vector<std::string> parameters;
  std::size_t part = 0;     // of the optimizer parts
  double lr = 0;            // before the schedule
  std::string lr_source;    // f64 scalar
  std::string step_source;  // i64 scalar: which update of these parameters this is, from 1; "" if unused
};

struct Update {
  ir::Graph graph;
  std::vector<UpdateGroup> groups;
};

// What a step does with its gradients; borrowed.
struct UpdateSettings {
  std::span<const OptimizerPart> parts;
  double clip_norm = 0;                                                    // 0: nothing is clipped
  bool finds_norm = false;                                                 // even so
  std::function<std::int64_t(const std::string& parameter)> updates_of{};  // made before; empty: none
  DType numbers = DType::Float32;  // of what an optimizer keeps that is a number
  rewrite::Master master = rewrite::Master::Float32;
};

// The i64 scalar that updates round by chance with: weights of Master::None, state in bfloat16.
inline constexpr std::string_view kRoundingSeed = "rounding.seed";

// Every parameter with a gradient and a part is updated. There is a "grad_norm" with clipping, or where it is asked
// for.
Update append_update(ir::Graph graph, const UpdateSettings& settings);

// What an optimizer keeps of a parameter, and as what: "exp_avg" of "fc.weight" is the state
// "fc.weight.exp_avg". A number is a tensor without dims, of the type `numbers`. Of a parameter in bfloat16
// alone state is float32, and with Master::Kahan the last one is the compensation.
struct Kept {
  std::string suffix;
  ir::TensorType type;
};
std::vector<Kept> kept_by(const Optimizer& optimizer, const ir::TensorType& parameter,
                          DType numbers = DType::Float32, rewrite::Master master = rewrite::Master::Float32);

// What it keeps the state of each element in; none: the parameter's type. Throws InvalidInput for a type that
// there is no state in.
std::optional<DType> state_dtype_of(const Optimizer& optimizer);

// Throws InvalidInput naming an optimizer that keeps its state in the parameter's type alone.
void set_state_dtype(Optimizer& optimizer, DType dtype);

// Throws InvalidInput naming an optimizer that looks at whole tensors.
void check_updates_narrow(const Optimizer& optimizer, rewrite::Master master);

// What of a parameter ranks may not cut where they update it, and keep its state.
enum class Uncut { Elements, Blocks, All };  // Blocks: of elements, sharding/state_blocks.h
Uncut uncut_by(const Optimizer& optimizer, const std::vector<std::int64_t>& shape);

// Of a state in 8 bits: "exp_avg_absmax" of "exp_avg".
std::string name_of_maxima(const std::string& suffix);
// Whether its codes have a sign: those of squares and of other sizes have none.
bool is_signed(std::string_view suffix);

}  // namespace shoal::compile
