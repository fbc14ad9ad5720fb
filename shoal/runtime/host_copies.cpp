// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/host_copies.h"

#include <ATen/ops/empty_strided.h>

#include <utility>

#include "shoal/runtime/arguments.h"
#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

namespace {

class HostCopy final : public Kernel {
 public:
  HostCopy(const Compute& compute, at::Device to)
      : self_(slot_of(compute, "self")), to_(to), outputs_(compute) {}

  void run(Slots& slots) override {
    const at::Tensor& self = slots[self_];
    const auto options = self.options().device(to_).pinned_memory(to_.is_cpu() && self.is_cuda());
    at::Tensor copy = at::empty_strided(self.sizes(), self.strides(), options);
    copy.copy_(self);
    outputs_.put(slots, std::move(copy));
  }

 private:
  std::uint32_t self_;
  at::Device to_;
  Outputs outputs_;
};

class FileCopy final : public Kernel {
 public:
  FileCopy(const Compute& compute, FileMemory& files)
      : self_(slot_of(compute, "self")), files_(files), outputs_(compute) {}

  void run(Slots& slots) override {
    const at::Tensor& self = slots[self_];
    at::Tensor copy = files_.empty_strided(self.sizes(), self.strides(), self.scalar_type());
    copy.copy_(self);
    outputs_.put(slots, std::move(copy));
  }

 private:
  std::uint32_t self_;
  FileMemory& files_;
  Outputs outputs_;
};

}  // namespace

std::unique_ptr<Kernel> make_to_host(const Program&, const Compute& compute) {
  return std::make_unique<HostCopy>(compute, at::kCPU);
}
std::unique_ptr<Kernel> make_to_device(const Program&, const Compute& compute) {
  return std::make_unique<HostCopy>(compute, device_of(compute));
}

std::unique_ptr<Kernel> make_to_file(const Compute& compute, FileMemory& files) {
  return std::make_unique<FileCopy>(compute, files);
}

}  // namespace shoal::runtime
