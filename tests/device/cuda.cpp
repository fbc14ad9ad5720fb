// SPDX-License-Identifier: Apache-2.0
// Compiled only where LibTorch has CUDA; no_cuda.cpp stands for it elsewhere.
#include "tests/device/cuda.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

namespace shoal::device {

std::string name() { return c10::cuda::device_count() == 0 ? "" : at::cuda::getDeviceProperties(0)->name; }

namespace {

// c10 warns of each.
class Counter final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing CUDA operation") != std::string::npos) ++count;
  }
  std::int64_t count = 0;
};

}  // namespace

std::int64_t waits_in(const std::function<void()>& body) {
  auto& state = c10::cuda::warning_state();
  Counter counter;
  const c10::WarningUtils::WarningHandlerGuard guard(&counter);
  const c10::WarningUtils::WarnAlways always(true);
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
  body();
  state.set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  return counter.count;
}

bool is_stand_in() { return false; }

}  // namespace shoal::device
