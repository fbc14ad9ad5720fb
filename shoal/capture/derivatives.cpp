// SPDX-License-Identifier: Apache-2.0
// The forward operators are recorded as they are; only the nodes of autograd are others. Where LibTorch's
// formula reads nothing (no zero among the factors, say) the numbers are the same to the bit.
#include "shoal/capture/derivatives.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>

namespace shoal::capture {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

static at::Tensor no_gradient() { return {}; }

namespace {

// max, min, median and nanmedian of all elements: the gradient is shared by all that have that value.
struct OfAll : Function<OfAll> {
  using Op = at::Tensor (*)(const at::Tensor&);
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, Op op) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto value = op(self);
    context->save_for_backward({self, value});
    return value;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto& self = saved[0];
    const auto& value = saved[1];
    const auto mask = (self == value).logical_or(self.isnan().logical_and(value.isnan()));
    return {mask * (grads[0] / mask.sum()), no_gradient()};
  }
};

// A product's gradient is the product of the other factors: the whole divided by the factor, unless there are
// zeros.
struct Product : Function<Product> {
  // Without `dim`: of all elements.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, std::optional<std::int64_t> dim,
                            bool keep, std::optional<at::ScalarType> dtype) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({self});
    context->saved_data["dim"] = dim;
    context->saved_data["keep"] = keep;
    return dim ? at::prod(self, *dim, keep, dtype) : at::prod(self, dtype);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto self = context->get_saved_variables()[0];
    auto grad = grads[0];
    const auto factors = self.to(grad.scalar_type());
    const auto dim = context->saved_data["dim"].toOptional<std::int64_t>();
    if (dim && !context->saved_data["keep"].toBool() && self.dim() > 0) grad = grad.unsqueeze(*dim);
    const auto zero = factors == 0;
    const auto others = at::where(zero, at::ones({}, factors.options()), factors);
    const auto zeros = dim ? zero.sum(*dim, /*keepdim=*/true) : zero.sum();
    const auto product = dim ? others.prod(*dim, /*keepdim=*/true) : others.prod();
    const auto none = at::zeros({}, factors.options());
    const auto slope =
        at::where(zeros == 0, product / others, at::where(zero.logical_and(zeros == 1), product, none));
    return {(grad * slope.conj()).to(self.scalar_type()), no_gradient(), no_gradient(), no_gradient()};
  }
};

static at::Tensor sums_from_the_end(const at::Tensor& tensor, std::int64_t dim) {
  return tensor.flip(dim).cumsum(dim).flip(dim);
}

// Up to the first zero as LibTorch has it; at that zero with the products that it spoils, taken without it;
// none behind.
struct CumulativeProduct : Function<CumulativeProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, std::int64_t dim,
                            std::optional<at::ScalarType> dtype) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto products = at::cumprod(self, dim, dtype);
    context->save_for_backward({self, products});
    context->saved_data["dim"] = dim;
    return products;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto& self = saved[0];
    const auto& products = saved[1];
    const auto dim = context->saved_data["dim"].toInt();
    const auto& grad = grads[0];
    if (self.dim() == 0) return {grad.to(self.scalar_type()), no_gradient(), no_gradient()};
    const auto factors = self.to(grad.scalar_type());
    const auto zero = factors == 0;
    const auto zeros = zero.cumsum(dim);
    const auto first = zero.logical_and(zeros == 1);
    const auto one = at::ones({}, factors.options());
    const auto before = sums_from_the_end(products.conj() * grad, dim) / at::where(zero, one, factors).conj();
    const auto spoilt = at::where(first, one, factors).cumprod(dim).conj();
    const auto at_first = sums_from_the_end(spoilt * grad, dim);
    const auto none = at::zeros({}, factors.options());
    const auto slope = at::where(zeros == 0, before, at::where(first, at_first, none));
    return {slope.to(self.scalar_type()), no_gradient(), no_gradient()};
  }
};

struct MaskedFill : Function<MaskedFill> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, const at::Tensor& mask,
                            const at::Tensor& value) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({mask});
    return at::masked_fill(self, mask, value);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto mask = context->get_saved_variables()[0];
    const auto none = at::zeros({}, grads[0].options());
    return {grads[0].masked_fill(mask, 0), no_gradient(), at::where(mask, grads[0], none).sum()};
  }
};

}  // namespace

template <OfAll::Op op>
static at::Tensor of_all(const at::Tensor& self) {
  return OfAll::apply(self, op);
}

static at::Tensor prod(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return Product::apply(self, std::optional<std::int64_t>(), false, dtype);
}
static at::Tensor prod_dim(const at::Tensor& self, std::int64_t dim, bool keep,
                           std::optional<at::ScalarType> dtype) {
  return Product::apply(self, std::optional(dim), keep, dtype);
}

static at::Tensor cumprod(const at::Tensor& self, std::int64_t dim, std::optional<at::ScalarType> dtype) {
  return CumulativeProduct::apply(self, dim, dtype);
}
static at::Tensor& cumprod_in_place(at::Tensor& self, std::int64_t dim, std::optional<at::ScalarType> dtype) {
  return self.copy_(at::cumprod(self, dim, dtype));
}

static at::Tensor masked_fill(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  return MaskedFill::apply(self, mask, value);
}
static at::Tensor& masked_fill_in_place(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  return self.copy_(at::masked_fill(self, mask, value));
}

// x[mask] = v, where v is as wide as a row or less: which rows there are need not be known.
static std::optional<at::Tensor> filled(const at::Tensor& self,
                                        const c10::List<std::optional<at::Tensor>>& indices,
                                        const at::Tensor& values, bool accumulate) {
  if (accumulate || indices.size() != 1 || !indices.get(0)) return std::nullopt;
  auto mask = *indices.get(0);
  if (!mask.defined() || mask.scalar_type() != at::kBool || mask.dim() > self.dim()) return std::nullopt;
  const auto row = self.dim() - mask.dim();
  if (values.dim() > row + 1 || (values.dim() == row + 1 && values.size(0) != 1)) return std::nullopt;
  while (mask.dim() < self.dim()) mask = mask.unsqueeze(-1);
  const auto value = values.dim() > row ? values.squeeze(0) : values;
  return at::where(mask, value.to(self.options()), self);
}

// The kernel that autograd has for ATen's own tensors; below it, operators are recorded as ever.
static void as_elsewhere(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradCPU).callBoxed(op, keys, stack);
}

static void index_put(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto in = torch::jit::last(*stack, 4);
  const at::Tensor self = in[0].toTensor();
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& index : in[1].toListRef())
    indices.push_back(index.isTensor() ? std::optional(index.toTensor()) : std::nullopt);
  const auto result = filled(self, indices, in[2].toTensor(), in[3].toBool());
  if (!result) return as_elsewhere(op, keys, stack);
  torch::jit::drop(*stack, 4);
  stack->emplace_back(op.schema().name().ends_with('_') ? self.copy_(*result) : *result);
}

void register_derivatives(torch::Library& library) {
  library.impl("max", of_all<at::max>);
  library.impl("min", of_all<at::min>);
  library.impl("median", of_all<at::median>);
  library.impl("nanmedian", of_all<at::nanmedian>);
  library.impl("prod", prod);
  library.impl("prod.dim_int", prod_dim);
  library.impl("cumprod", cumprod);
  library.impl("cumprod_", cumprod_in_place);
  library.impl("masked_fill.Tensor", masked_fill);
  library.impl("masked_fill_.Tensor", masked_fill_in_place);
  library.impl("index_put", torch::CppFunction::makeFromBoxedFunction<&index_put>());
  library.impl("index_put_", torch::CppFunction::makeFromBoxedFunction<&index_put>());
}

}  // namespace shoal::capture
