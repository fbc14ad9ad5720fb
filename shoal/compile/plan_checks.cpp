// SPDX-License-Identifier: Apache-2.0
// What parts of a plan must not say, whoever has made it.
#include <algorithm>
#include <cmath>

#include "shoal/base/error.h"
#include "shoal/compile/plan.h"

namespace shoal::compile {

void check(const rewrite::Recompute& recompute) {
  using enum rewrite::RecomputeMode;
  const auto& [mode, modules, bytes, collectives] = recompute;
  SHOAL_CHECK((mode == Auto) == (bytes > 0), InvalidInput, "recompute: ",
              mode == Auto ? "auto is to fit in so many bytes of activations, and none are said "
                             "(recompute.bytes)"
                           : concat("bytes are for auto alone, and the mode is ", name_of(mode)));
  SHOAL_CHECK(modules.empty() || mode == Full || mode == Selective, InvalidInput,
              "recompute: modules are for full and selective, and the mode is ", name_of(mode),
              "; leave one of them out");
  SHOAL_CHECK(!collectives || mode == Full || mode == Selective, InvalidInput,
              "recompute: collectives are for full and selective, and the mode is ", name_of(mode),
              "; leave one of them out");
}

void check(const rewrite::Precision& precision) {
  const auto& [compute, lower, full, scale, grows_after, master, reduce] = precision;
  SHOAL_CHECK(compute == DType::Float32 || compute == DType::BFloat16 || compute == DType::Float16,
              InvalidInput, "precision: products are computed in bfloat16, float16 or float32, not in ",
              name_of(compute));
  for (const std::string& op : lower)
    SHOAL_CHECK(std::ranges::find(full, op) == full.end(), InvalidInput, "precision: ", op,
                " is to be lower, and full; leave one of them out");
  const rewrite::Precision defaults;
  SHOAL_CHECK(compute == DType::Float16 || (scale == defaults.scale && grows_after == defaults.grows_after),
              InvalidInput,
              "precision: scale and grows_after are of float16, whose loss is scaled, and products are in ",
              name_of(compute), "; leave them out");
  SHOAL_CHECK(master == rewrite::Master::Float32 || compute == DType::BFloat16, InvalidInput,
              "precision: master=", name_of(master), " keeps weights in bfloat16, and products are in ",
              name_of(compute), "; compute in bfloat16, or leave master out");
  SHOAL_CHECK(reduce == DType::Float32 || reduce == DType::BFloat16 || reduce == DType::Float16, InvalidInput,
              "precision: gradients are reduced in bfloat16, float16 or float32, not in ", name_of(reduce));
  SHOAL_CHECK(reduce != DType::Float16 || compute == DType::Float16, InvalidInput,
              "precision: reduce=float16 is for gradients of a loss that is scaled, and products are in ",
              name_of(compute),
              ", whose loss is not: small gradients would be nothing. Remedy: "
              "reduce=bfloat16, or products in float16");
  int exponent = 0;
  SHOAL_CHECK(std::frexp(scale, &exponent) == 0.5 && std::abs(exponent) < 64, InvalidInput,
              "precision: the scale is ", scale,
              "; it is a power of two, so that nothing is rounded, from 2^-63 to 2^62");
  SHOAL_CHECK(grows_after > 0, InvalidInput, "precision: the scale grows after ", grows_after,
              " updates; it is 1 at least");
}

void check(const Planner& planner) {
  SHOAL_CHECK(planner.kept >= 0, InvalidInput, "planner: kept is ", planner.kept,
              " bytes; it is 0 at least, which is any");
  const auto& rates = planner.rates;
  for (const double rate : {rates.flops, rates.memory, rates.link})
    SHOAL_CHECK(rate > 0 && std::isfinite(rate), InvalidInput, "planner: a rate is ", rate,
                "; flops, memory and link are above 0, in operations and bytes a second");
  SHOAL_CHECK(rates.latency >= 0 && std::isfinite(rates.latency), InvalidInput, "planner: the latency is ",
              rates.latency, " s; it is 0 at least");
  SHOAL_CHECK(planner.budget >= 0 && std::isfinite(planner.budget), InvalidInput, "planner: the budget is ",
              planner.budget, " s; it is 0 at least, which is as many as it takes");
}

void check(const rewrite::Offload& offload) {
  SHOAL_CHECK(offload.least >= 0, InvalidInput, "offload: what is smaller than ", offload.least,
              " bytes stays in memory; it is 0 at least");
  SHOAL_CHECK(offload.has_any() || offload == rewrite::Offload(), InvalidInput,
              "offload: it says how small what stays in memory is, and not what goes: parameters, "
              "optimizer_state, gradients, activations");
}

}  // namespace shoal::compile
