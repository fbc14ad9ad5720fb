// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/bfloat16.h"

#include <ATen/core/ivalue.h>
#include <ATen/cpu/Utils.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

namespace shoal::train {

// oneDNN's names of what comes before: https://oneapi-src.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
static constexpr std::array kWithout = std::to_array<std::string_view>(
    {"AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI", "SSE41"});

static std::string_view most_allowed() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* value = std::getenv(name); value != nullptr) return value;
  return "ALL";
}

std::string_view bfloat16_instructions() {
  static const std::string_view found = []() -> std::string_view {
    const std::string_view most = most_allowed();
    if (std::ranges::find(kWithout, most) != kWithout.end()) return "";
    const auto capabilities = at::cpu::get_cpu_capabilities();
    const auto has = [&](const std::string& name) {
      const auto known = capabilities.find(name);
      return known != capabilities.end() && known->second.isBool() && known->second.toBool();
    };
    if (has("amx_bf16") && most != "AVX512_CORE_BF16" && most != "AVX512_CORE_FP16") return "AMX";
    return has("avx512_bf16") ? "AVX-512-BF16" : "";
  }();
  return found;
}

}  // namespace shoal::train
