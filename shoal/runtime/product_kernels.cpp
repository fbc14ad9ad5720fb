// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/product_kernels.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mm_ops.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "shoal/runtime/allocator.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/typed_kernel.h"

namespace at::native {
// result = beta * result + alpha * mat1 x mat2. ATen exports it and installs no header that says so.
TORCH_API void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                             float alpha);
}  // namespace at::native

namespace shoal::runtime {

using program::Compute;
using program::Program;

static bool is_processor_for_onednn() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel") && at::get_cpu_capability() == "AVX512" && at::hasMKLDNN() &&
         at::globalContext().hasMKL();
#else
  return false;
#endif
}

bool is_faster_by_onednn(std::int64_t rows, std::int64_t inner, std::int64_t columns) {
  static const bool is_processor = is_processor_for_onednn();
  // A call takes 20 us before it multiplies.
  constexpr std::int64_t kLeastSide = 32, kLeastProducts = std::int64_t{1} << 24;
  return is_processor && std::min({rows, inner, columns}) >= kLeastSide &&
         rows * inner * columns >= kLeastProducts;
}

// oneDNN keeps 0.5 MiB for each three sizes that it has met, and batches of many lengths have many. So it multiplies
// what is a multiple of a quarter of a power of two, four sizes an octave, and ATen the rest: less than a quarter.
static std::int64_t part_by_onednn(std::int64_t size) {
  const auto step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)) / 4);
  return size - size % step;
}

// product = left x right, or product + left x right. oneDNN takes at most 0.64 MiB for each thread inside, whatever
// the sizes (2.13, AVX-512).
static void multiply_by_onednn(const at::Tensor& left, const at::Tensor& right, const at::Tensor& product,
                               bool adds) {
  const std::int64_t rows = part_by_onednn(left.size(0)), inner = part_by_onednn(left.size(1));
  const bool is_all = rows == left.size(0) && inner == left.size(1);
  const ScratchScope scratch;
  if (is_all) return at::native::mkldnn_matmul(left, right, product, adds ? 1 : 0, 1);
  at::Tensor above = product.narrow(0, 0, rows);
  const at::Tensor rows_above = left.narrow(0, 0, rows);
  at::native::mkldnn_matmul(rows_above.narrow(1, 0, inner), right.narrow(0, 0, inner), above, adds ? 1 : 0,
                            1);
  if (const std::int64_t more = left.size(1) - inner; more > 0)
    above.addmm_(rows_above.narrow(1, inner, more), right.narrow(0, inner, more));
  if (const std::int64_t more = left.size(0) - rows; more > 0) {
    at::Tensor below = product.narrow(0, rows, more);
    const at::Tensor rows_below = left.narrow(0, rows, more);
    adds ? below.addmm_(rows_below, right) : at::mm_out(below, rows_below, right);
  }
}

static bool may_be_by_onednn(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && at::globalContext().userEnabledMkldnn();
}

void multiply(const at::Tensor& left, const at::Tensor& right, at::Tensor& product) {
  if (may_be_by_onednn(left) && is_faster_by_onednn(left.size(0), left.size(1), right.size(1)))
    multiply_by_onednn(left, right, product, false);
  else
    at::mm_out(product, left, right);
}

namespace {

// mm, and addmm whose numbers are 1, as that of each linear layer.
class Product final : public Kernel {
 public:
  Product(std::unique_ptr<Kernel> by_aten, const Compute& compute, std::uint32_t added, const char* left)
      : by_aten_(std::move(by_aten)),
        added_(added),
        left_(slot_of(compute, left)),
        right_(slot_of(compute, "mat2")),
        outputs_(compute) {}

  void run(Slots& slots) override {
    const at::Tensor &left = slots[left_], &right = slots[right_];
    if (!may_be_by_onednn(left)) return by_aten_->run(slots);
    at::Tensor product = at::empty({left.size(0), right.size(1)}, left.options());
    const bool adds = added_ != kNoSlot;
    if (adds) product.copy_(slots[added_]);
    multiply_by_onednn(left, right, product, adds);
    outputs_.put(slots, std::move(product));
  }

 private:
  std::unique_ptr<Kernel> by_aten_;
  std::uint32_t added_, left_, right_;
  Outputs outputs_;
};

}  // namespace

// Row by row or column by column; of another order oneDNN's call makes a copy.
static bool lies_together(const ir::TensorType& matrix) {
  return (matrix.strides.at(1) == 1 && matrix.strides.at(0) >= matrix.shape.at(1)) ||
         (matrix.strides.at(0) == 1 && matrix.strides.at(1) >= matrix.shape.at(0));
}

static bool is_by_onednn(const Program& program, const Compute& compute, const char* left) {
  const auto& a = program.types.at(slot_of(compute, left));
  const auto& b = program.types.at(slot_of(compute, "mat2"));
  return a.dtype == DType::Float32 && b.dtype == DType::Float32 && lies_together(a) && lies_together(b) &&
         is_faster_by_onednn(a.shape.at(0), a.shape.at(1), b.shape.at(1));
}

std::unique_ptr<Kernel> make_mm(const Program& program, const Compute& compute) {
  auto by_aten = make_typed<at::_ops::mm>(compute);
  if (!is_by_onednn(program, compute, "self")) return by_aten;
  return std::make_unique<Product>(std::move(by_aten), compute, kNoSlot, "self");
}

std::unique_ptr<Kernel> make_addmm(const Program& program, const Compute& compute) {
  auto by_aten = make_typed<at::_ops::addmm>(compute);
  const auto is_one = [&](const char* name) {
    return !has_argument(compute, name) || number_of(compute, name) == 1;
  };
  if (!is_one("beta") || !is_one("alpha") || !is_by_onednn(program, compute, "mat1")) return by_aten;
  return std::make_unique<Product>(std::move(by_aten), compute, slot_of(compute, "self"), "mat1");
}

}  // namespace shoal::runtime
