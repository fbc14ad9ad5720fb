// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/neutral_kernels.h"

#include <ATen/OpMathType.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/aten/operators.h"
#include "shoal/aten/random.h"
#include "shoal/aten/sparse.h"
#include "shoal/aten/types.h"
#include "shoal/aten/whole_draw.h"
#include "shoal/base/error.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

static std::optional<at::Tensor> optional_tensor_in(const Slots& slots, std::uint32_t slot) {
  return slot == kNoSlot ? std::nullopt : std::optional<at::Tensor>(slots[slot]);
}

static std::optional<double> scale_of(const Compute& compute) {
  if (std::holds_alternative<std::monostate>(argument_of(compute, "scale"))) return std::nullopt;
  return number_of(compute, "scale");
}

// --- Attention on CUDA: flash attention where it can be, and else the memory-efficient one, which knows masks and
// float32. What they return lies as capture/shape_functions.cpp says.

static constexpr std::int64_t kRowsOfStatistics = 32;  // the memory-efficient kernel's come in such blocks
static constexpr std::int64_t kColumnsOfMask = 16;     // and its masks' rows start at such multiples

// Flash attention's kernels, of numbers of 16 bits alone, are for Ampere and later, as is what the hook asks for.
static bool is_flash(const at::Tensor& query, const std::optional<at::Tensor>& mask) {
  return !mask && query.scalar_type() != at::kFloat &&
         at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8();
}

// (B H L K), over memory that is B L H K.
static at::Tensor by_position(const at::Tensor& tensor) {
  return tensor.transpose(1, 2).contiguous().transpose(1, 2);
}

static std::optional<at::Tensor> bias_of(const std::optional<at::Tensor>& mask, const at::Tensor& query,
                                         const at::Tensor& key) {
  if (!mask) return std::nullopt;
  const auto columns = key.size(2);
  auto sizes = mask->sizes().vec();
  if (!sizes.empty()) sizes.back() = columns;
  at::Tensor bias = mask->to(query.scalar_type()).expand(sizes).contiguous();
  if (const auto rest = columns % kColumnsOfMask; rest != 0)
    bias = at::constant_pad_nd(bias, {0, kColumnsOfMask - rest}).slice(-1, 0, columns);
  return bias.expand({query.size(0), query.size(1), query.size(2), columns});
}

static std::tuple<at::Tensor, at::Tensor> attention_on_cuda(const at::Tensor& query, const at::Tensor& key,
                                                            const at::Tensor& value,
                                                            const std::optional<at::Tensor>& mask,
                                                            bool causal, std::optional<double> scale) {
  if (is_flash(query, mask)) {
    auto made = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, causal, false, scale);
    return {by_position(std::get<0>(made)), std::get<1>(made)};
  }
  auto made = at::_scaled_dot_product_efficient_attention(query, key, value, bias_of(mask, query, key),
                                                          /*compute_log_sumexp=*/true, 0.0, causal, scale);
  return {by_position(std::get<0>(made)), std::get<1>(made).slice(2, 0, query.size(2)).contiguous()};
}

namespace {
struct Attended {
  at::Tensor grad, query, key, value, output, logsumexp;
};
}  // namespace

static std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward_on_cuda(
    const Attended& of, const std::optional<at::Tensor>& mask, bool causal, std::optional<double> scale) {
  const auto length = of.query.size(2);
  const auto none = at::zeros({}, of.query.options().dtype(at::kLong));  // the generator's seed and offset
  at::Tensor query, key, value;
  if (is_flash(of.query, mask)) {
    std::tie(query, key, value) = at::_scaled_dot_product_flash_attention_backward(
        of.grad, of.query, of.key, of.value, of.output, of.logsumexp, {}, {}, length, of.key.size(2), 0.0,
        causal, none, none, scale);
  } else {
    at::Tensor logsumexp = of.logsumexp;
    if (const auto rest = length % kRowsOfStatistics; rest != 0)
      logsumexp = at::constant_pad_nd(logsumexp, {0, kRowsOfStatistics - rest},
                                      std::numeric_limits<double>::infinity());
    std::tie(query, key, value, std::ignore) = at::_scaled_dot_product_efficient_attention_backward(
        of.grad, of.query, of.key, of.value, bias_of(mask, of.query, of.key).value_or(at::Tensor()),
        of.output, logsumexp, none, none, 0.0, std::array<bool, 4>{true, true, true, false}, causal, scale);
  }
  return {by_position(query), by_position(key), by_position(value)};
}

// Dropout is an op of its own before capture gets here, so ATen's own is always off, and its generator
// unused.
std::unique_ptr<Kernel> make_attention(const Program&, const Compute& compute) {
  return kernel_of([query = slot_of(compute, "query"), key = slot_of(compute, "key"),
                    value = slot_of(compute, "value"), mask = optional_slot_of(compute, "attn_mask"),
                    causal = truth_of(compute, "is_causal"), scale = scale_of(compute),
                    outputs = Outputs(compute)](Slots& slots) {
    const at::Tensor& q = slots[query];
    if (q.numel() == 0) {  // a rank without samples or heads: ATen's kernel divides by their number
      auto sizes = q.sizes().vec();
      const std::vector<std::int64_t> rows(sizes.begin(), sizes.end() - 1);
      sizes.back() = slots[value].size(-1);
      const auto exact = q.options().dtype(at::toOpMathType(q.scalar_type()));
      outputs.put(slots, std::tuple(at::zeros(sizes, q.options()), at::zeros(rows, exact)));
      return;
    }
    if (q.is_cpu()) {
      outputs.put(slots,
                  at::_scaled_dot_product_flash_attention_for_cpu(q, slots[key], slots[value], 0.0, causal,
                                                                  optional_tensor_in(slots, mask), scale));
      return;
    }
    outputs.put(slots, attention_on_cuda(q, slots[key], slots[value], optional_tensor_in(slots, mask), causal,
                                         scale));
  });
}

std::unique_ptr<Kernel> make_attention_backward(const Program&, const Compute& compute) {
  return kernel_of([grad = slot_of(compute, "grad_output"), query = slot_of(compute, "query"),
                    key = slot_of(compute, "key"), value = slot_of(compute, "value"),
                    output = slot_of(compute, "output"), logsumexp = slot_of(compute, "logsumexp"),
                    mask = optional_slot_of(compute, "attn_mask"), causal = truth_of(compute, "is_causal"),
                    scale = scale_of(compute), outputs = Outputs(compute)](Slots& slots) {
    const at::Tensor& q = slots[query];
    if (q.numel() == 0) {
      outputs.put(slots,
                  std::tuple(at::zeros_like(q), at::zeros_like(slots[key]), at::zeros_like(slots[value])));
      return;
    }
    if (q.is_cpu()) {
      outputs.put(slots, at::_scaled_dot_product_flash_attention_for_cpu_backward(
                             slots[grad], q, slots[key], slots[value], slots[output], slots[logsumexp], 0.0,
                             causal, optional_tensor_in(slots, mask), scale));
      return;
    }
    outputs.put(slots, attention_backward_on_cuda(
                           {slots[grad], q, slots[key], slots[value], slots[output], slots[logsumexp]},
                           optional_tensor_in(slots, mask), causal, scale));
  });
}

std::unique_ptr<Kernel> make_batch_norm(const Program&, const Compute& compute) {
  return kernel_of([input = slot_of(compute, "input"), weight = optional_slot_of(compute, "weight"),
                    bias = optional_slot_of(compute, "bias"), mean = slot_of(compute, "running_mean"),
                    variance = slot_of(compute, "running_var"), training = truth_of(compute, "training"),
                    momentum = number_of(compute, "momentum"), eps = number_of(compute, "eps"),
                    outputs = Outputs(compute)](Slots& slots) {
    at::Tensor new_mean = slots[mean].clone();
    at::Tensor new_variance = slots[variance].clone();
    auto made = at::native_batch_norm(slots[input], optional_tensor_in(slots, weight),
                                      optional_tensor_in(slots, bias), new_mean, new_variance, training,
                                      momentum, eps);
    outputs.put(slots,
                std::tuple(std::move(std::get<0>(made)), std::move(std::get<1>(made)),
                           std::move(std::get<2>(made)), std::move(new_mean), std::move(new_variance)));
  });
}

std::unique_ptr<Kernel> make_expect(const Program&, const Compute& compute) {
  return kernel_of([self = slot_of(compute, "self"), condition = slot_of(compute, "condition"),
                    expected = truth_of(compute, "expected"), otherwise = text_of(compute, "otherwise"),
                    outputs = Outputs(compute)](Slots& slots) {
    SHOAL_CHECK(slots[condition].item<bool>() == expected, InvalidInput, otherwise);
    outputs.put(slots, slots[self].clone());
  });
}

std::unique_ptr<Kernel> make_sparse_mm(const Program&, const Compute& compute) {
  return kernel_of([indices = slot_of(compute, "indices"), values = slot_of(compute, "values"),
                    dense = slot_of(compute, "dense"), rows = integer_of(compute, "rows"),
                    outputs = Outputs(compute)](Slots& slots) {
    outputs.put(slots, aten::sparse_mm(slots[indices], slots[values], slots[dense], rows));
  });
}

namespace {

// What all random ops share: which numbers, of what kind, and where.
class Randomness {
 public:
  Randomness(const Program& program, const Compute& compute)
      : seed_(slot_of(compute, "seed")),
        step_(slot_of(compute, "step")),
        ordinal_(integer_of(compute, "ordinal")) {
    const std::vector<std::int64_t>*whole = nullptr, *box = nullptr;
    for (const auto& argument : compute.arguments) {
      if (const auto* dtype = std::get_if<DType>(&argument.value)) dtype_ = aten::to_torch(*dtype);
      if (const auto* list = std::get_if<std::vector<std::int64_t>>(&argument.value)) {
        if (argument.name == "shape") shape_ = *list;
        if (argument.name == "whole") whole = list;
        if (argument.name == "box") box = list;
      }
    }
    SHOAL_CHECK((whole == nullptr) == (box == nullptr), InvalidInput, compute.op,
                ": got one of the arguments whole and box, wanted both or none");
    if (whole != nullptr) stretches_ = aten::stretches_of(*whole, *box);
    for (const auto& source : program.sources)
      if (source.role == ir::Role::Parameter || (source.role == ir::Role::Input && like_ == kNoSlot)) {
        like_ = source.slot.index;
        if (source.role == ir::Role::Parameter) break;
      }
  }

  const std::vector<std::int64_t>& shape() const { return shape_; }
  at::TensorOptions options(const Slots& slots) const {
    return at::TensorOptions(dtype_).device(like_ == kNoSlot ? at::Device(at::kCPU) : slots[like_].device());
  }
  aten::RandomStream stream(const Slots& slots) const {
    return {.seed = static_cast<std::uint64_t>(*slots[seed_].const_data_ptr<std::int64_t>()),
            .step = static_cast<std::uint64_t>(*slots[step_].const_data_ptr<std::int64_t>()),
            .ordinal = static_cast<std::uint64_t>(ordinal_),
            .stretches = stretches_};
  }

 private:
  std::uint32_t seed_;
  std::uint32_t step_;
  std::int64_t ordinal_;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<std::int64_t> shape_;
  std::vector<aten::Stretch> stretches_;  // of a part of a larger tensor
  std::uint32_t like_ = kNoSlot;          // a parameter or input, whose device is the program's
};

}  // namespace

std::unique_ptr<Kernel> make_bernoulli(const Program& program, const Compute& compute) {
  return kernel_of([random = Randomness(program, compute), p = number_of(compute, "p"),
                    outputs = Outputs(compute)](Slots& slots) {
    outputs.put(slots, aten::bernoulli(p, random.shape(), random.options(slots), random.stream(slots)));
  });
}

std::unique_ptr<Kernel> make_bernoulli_tensor(const Program& program, const Compute& compute) {
  return kernel_of([random = Randomness(program, compute), p = slot_of(compute, "p"),
                    outputs = Outputs(compute)](Slots& slots) {
    outputs.put(slots, aten::bernoulli(slots[p], random.options(slots), random.stream(slots)));
  });
}

std::unique_ptr<Kernel> make_exponential(const Program& program, const Compute& compute) {
  return kernel_of([random = Randomness(program, compute), lambda = number_of(compute, "lambda"),
                    outputs = Outputs(compute)](Slots& slots) {
    outputs.put(slots,
                aten::exponential(lambda, random.shape(), random.options(slots), random.stream(slots)));
  });
}

std::unique_ptr<Kernel> make_normal(const Program& program, const Compute& compute) {
  return kernel_of([random = Randomness(program, compute), mean = number_of(compute, "mean"),
                    deviation = number_of(compute, "std"), outputs = Outputs(compute)](Slots& slots) {
    outputs.put(slots,
                aten::normal(mean, deviation, random.shape(), random.options(slots), random.stream(slots)));
  });
}

std::unique_ptr<Kernel> make_random(const Program& program, const Compute& compute) {
  const auto* name = std::get_if<std::string>(&argument_of(compute, "op"));
  SHOAL_CHECK(name != nullptr, InvalidInput, compute.op, ": argument op is not a name");
  const auto op = aten::find_operator(*name);
  SHOAL_CHECK(op, InvalidInput, "operator ", *name, " is not loaded: load the library that registers it");
  std::vector<ir::Attribute> arguments;
  for (const auto& parameter : op->schema().arguments())
    arguments.push_back(parameter.name() == "generator" ? ir::Attribute() : argument_for(compute, parameter));
  return kernel_of([random = Randomness(program, compute), op = *op, arguments = std::move(arguments),
                    outputs = Outputs(compute)](Slots& slots) {
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < arguments.size(); ++i)
      stack.push_back(aten::ivalue_of(arguments[i], op.schema().arguments()[i],
                                      [&](ir::ValueId slot) { return slots[slot.index]; }));
    outputs.put(slots,
                aten::draw_whole(op, std::move(stack), random.stream(slots), random.options(slots).device()));
  });
}

std::unique_ptr<Kernel> make_randint(const Program& program, const Compute& compute) {
  return kernel_of([random = Randomness(program, compute), low = integer_of(compute, "low"),
                    high = integer_of(compute, "high"), outputs = Outputs(compute)](Slots& slots) {
    outputs.put(slots, aten::randint(low, high, random.shape(), random.options(slots), random.stream(slots)));
  });
}

std::unique_ptr<Kernel> make_uniform(const Program& program, const Compute& compute) {
  return kernel_of([random = Randomness(program, compute), from = number_of(compute, "from"),
                    to = number_of(compute, "to"), outputs = Outputs(compute)](Slots& slots) {
    outputs.put(slots, aten::uniform(from, to, random.shape(), random.options(slots), random.stream(slots)));
  });
}

}  // namespace shoal::runtime
