// SPDX-License-Identifier: Apache-2.0
// The device that these tests run on. Where LibTorch has CUDA it is the first GPU (cuda.cpp). Where it has
// not, it is a stand-in (no_cuda.cpp): tensors say that they are on CUDA, their memory is the processor's,
// and each operator is computed by the CPU's kernel. A stand-in is as strict as a GPU about which tensors
// meet.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shoal::device {

// Empty where there is none: LibTorch has CUDA, and the machine has no GPU.
std::string name();
// Whether its memory is the processor's.
bool is_stand_in();

// How often the processor waited for the device while `body` ran: values read, and copies that are not
// enqueued. On this thread alone.
std::int64_t waits_in(const std::function<void()>& body);

}  // namespace shoal::device
