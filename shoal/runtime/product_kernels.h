// SPDX-License-Identifier: Apache-2.0
// Products of float32 matrices by the faster of the two libraries that ATen has. Its mm calls MKL, whose best kernels
// are for Intel's processors; oneDNN, which it calls for bfloat16, takes 0.72 to 0.90 of that time on an AMD EPYC with
// AVX-512. The choice is by processor and size: the same on each run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "shoal/program/program.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// Of rows x inner by inner x columns: whether oneDNN is the faster one here.
bool is_faster_by_onednn(std::int64_t rows, std::int64_t inner, std::int64_t columns);

// product = left x right, of any types, by what a program's mm takes.
void multiply(const at::Tensor& left, const at::Tensor& right, at::Tensor& product);

std::unique_ptr<Kernel> make_mm(const program::Program& program, const program::Compute& compute);
std::unique_ptr<Kernel> make_addmm(const program::Program& program, const program::Compute& compute);

}  // namespace shoal::runtime
