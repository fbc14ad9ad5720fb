// SPDX-License-Identifier: Apache-2.0
// Words of a plan's lines that are read (plan.cpp) and written (plan_text.cpp).
#pragma once

#include <string_view>
#include <utility>

#include "shoal/base/dtype.h"
#include "shoal/planner/rates.h"
#include "shoal/rewrite/offload.h"
#include "shoal/rewrite/precision.h"

namespace shoal::compile {

struct Plan;

// Of a plan's lines `actions`, or of the file that its schedule is. None in `rows`: nothing. Throws InvalidInput.
void set_actions(Plan& plan, std::string_view rows, std::string_view name);

inline constexpr std::pair<std::string_view, DType> kFloats[] = {
    {"bfloat16", DType::BFloat16}, {"float16", DType::Float16}, {"float32", DType::Float32}};

inline constexpr rewrite::Master kMasters[] = {rewrite::Master::Float32, rewrite::Master::None,
                                               rewrite::Master::Kahan};

inline constexpr std::pair<std::string_view, bool rewrite::Offload::*> kOffloaded[] = {
    {"parameters", &rewrite::Offload::parameters},
    {"optimizer_state", &rewrite::Offload::optimizer_state},
    {"gradients", &rewrite::Offload::gradients},
    {"activations", &rewrite::Offload::activations}};

inline constexpr std::pair<std::string_view, double planner::Rates::*> kRates[] = {
    {"flops", &planner::Rates::flops},
    {"memory", &planner::Rates::memory},
    {"link", &planner::Rates::link},
    {"latency", &planner::Rates::latency}};

}  // namespace shoal::compile
