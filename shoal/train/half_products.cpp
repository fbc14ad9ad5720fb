// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/half_products.h"

#include <ATen/core/ivalue.h>
#include <ATen/cpu/Utils.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>

namespace shoal::train {

namespace {
struct Instructions {
  std::string_view name;
  std::string_view capability;  // as ATen calls it
  std::string_view level;       // the first of oneDNN's that has them
};
}  // namespace

// The best first.
static constexpr Instructions kOfBFloat16[] = {{"AMX", "amx_bf16", "AVX512_CORE_AMX"},
                                               {"AVX-512-BF16", "avx512_bf16", "AVX512_CORE_BF16"}};
static constexpr Instructions kOfFloat16[] = {{"AMX-FP16", "amx_fp16", "AVX512_CORE_AMX_FP16"},
                                              {"AVX-512-FP16", "avx512_fp16", "AVX512_CORE_FP16"}};

// oneDNN's levels, from the least: https://oneapi-src.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
// Those that it does not name, "ALL" and "DEFAULT", are above.
static constexpr std::string_view kLevels[] = {"SSE41",
                                               "AVX",
                                               "AVX2",
                                               "AVX2_VNNI",
                                               "AVX2_VNNI_2",
                                               "AVX512_CORE",
                                               "AVX512_CORE_VNNI",
                                               "AVX512_CORE_BF16",
                                               "AVX512_CORE_FP16",
                                               "AVX512_CORE_AMX",
                                               "AVX512_CORE_AMX_FP16"};

static std::string_view most_allowed() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* value = std::getenv(name); value != nullptr) return value;
  return "ALL";
}

std::string_view product_instructions(DType dtype) {
  const auto most = std::ranges::find(kLevels, most_allowed());
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto has = [&](const Instructions& each) {
    const auto known = capabilities.find(std::string(each.capability));
    return known != capabilities.end() && known->second.isBool() && known->second.toBool() &&
           std::ranges::find(kLevels, each.level) <= most;
  };
  const std::span<const Instructions> all = dtype == DType::Float16 ? kOfFloat16 : kOfBFloat16;
  const auto found = std::ranges::find_if(all, has);
  return found != all.end() ? found->name : "";
}

}  // namespace shoal::train
