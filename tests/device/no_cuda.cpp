// SPDX-License-Identifier: Apache-2.0
// A stand-in for a GPU, where LibTorch was built without CUDA.
//
//   at::add(a, b)      a and b on "cuda:0"
//     └─ fallback      each tensor as a CPU tensor over the same memory
//          └─ at::add of the CPU
//     ┌─ its results   as tensors on "cuda:0" over the memory that was made, or over an argument's for a view
//
// Only what LibTorch hides in its CUDA library alone is written here: copies, reading a value, and the fused
// cells of recurrent networks that it takes there.
// Above 400 lines: all that LibTorch asks of one device.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "tests/device/cuda.h"

namespace shoal::device {

using torch::jit::Stack;

static const c10::Device kDevice(c10::kCUDA, 0);
static thread_local std::int64_t waits = 0;

std::string name() { return "a stand-in in the processor's memory"; }
bool is_stand_in() { return true; }

std::int64_t waits_in(const std::function<void()>& body) {
  waits = 0;
  body();
  return waits;
}

// --- Memory.

static void release(void* owner) { delete static_cast<c10::DataPtr*>(owner); }

// The same bytes, said to be on another device; `memory` lives as long.
static c10::DataPtr as_on(c10::Device device, c10::DataPtr memory) {
  void* const data = memory.get();
  return {data, new c10::DataPtr(std::move(memory)), &release, device};
}

namespace {

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return as_on(kDevice, c10::GetAllocator(c10::kCPU)->allocate(bytes));
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// Page-locked memory: what a copy can be enqueued from.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr memory = c10::GetAllocator(c10::kCPU)->allocate(bytes);
    void* const data = memory.get();
    const std::scoped_lock lock(mutex);
    pinned.insert(data);
    return {data, new c10::DataPtr(std::move(memory)), &unpin, c10::kCPU};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static bool holds(const void* data) {
    const std::scoped_lock lock(mutex);
    return pinned.contains(data);
  }

 private:
  static void unpin(void* owner) {
    const std::scoped_lock lock(mutex);
    pinned.erase(static_cast<c10::DataPtr*>(owner)->get());
    release(owner);
  }
  static inline std::mutex mutex;
  static inline std::set<const void*> pinned;  // guarded by mutex
};

}  // namespace

static DeviceAllocator device_allocator;
static PinnedAllocator pinned_allocator;

// --- The same tensor on the one side and on the other.

static c10::Storage storage_over(const c10::Storage& storage, c10::Device device, c10::Allocator* allocator) {
  auto* owner = new c10::Storage(storage);
  c10::DataPtr memory(
      storage.mutable_data(), owner, [](void* held) { delete static_cast<c10::Storage*>(held); }, device);
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory), allocator,
          /*resizable=*/true};
}

static at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

namespace {

// One call of an operator, on the CPU.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : schema_(op.schema()) {}

  c10::IValue to_cpu(const c10::IValue& value, const c10::Argument& argument) {
    if (value.isTensor()) return cpu_of(value.toTensor(), argument);
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (argument.name() == "pin_memory") return c10::IValue();
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(cpu_of(tensor, argument));
      return list;
    }
    if (value.isList() && value.toListRef().size() > 0 &&
        argument.type()->str().find("Tensor") != std::string::npos) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& item : value.toListRef())
        list.push_back(item.isTensor() ? std::optional(cpu_of(item.toTensor(), argument)) : std::nullopt);
      return list;
    }
    return value;
  }

  // What the operator wrote to an argument's size or memory, where it gave it another.
  void finish() {
    for (auto& [original, alias] : written_) {
      const auto& storage = alias.storage();
      if (storage.data() != original.storage().data()) {
        auto fresh = storage_over(storage, kDevice, &device_allocator);
        const std::size_t bytes = storage.nbytes();
        original.storage().set_data_ptr_noswap(fresh.set_data_ptr(c10::DataPtr()));
        original.storage().set_nbytes(bytes);
      }
      if (original.sizes() != alias.sizes() || original.strides() != alias.strides())
        original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(),
                                                              alias.storage_offset());
    }
  }

  c10::IValue to_device(const c10::IValue& value, const c10::Argument& result) {
    if (value.isTensor()) return device_of(value.toTensor(), result);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(device_of(tensor, result));
      return list;
    }
    ++waits;  // a number, or a truth, that the processor is told
    return value;
  }

 private:
  at::Tensor cpu_of(const at::Tensor& tensor, const c10::Argument& argument) {
    if (!tensor.defined()) return tensor;
    if (tensor.is_cpu()) {
      TORCH_CHECK(tensor.dim() == 0, schema_.operator_name(),
                  ": expected all tensors to be on the same device, but ", argument.name(),
                  " is on the CPU and others are on ", kDevice);
      return tensor;
    }
    TORCH_CHECK(tensor.device() == kDevice, schema_.operator_name(), ": ", argument.name(), " is on ",
                tensor.device());
    auto& storage = on_cpu_[tensor.storage().unsafeGetStorageImpl()];
    if (!storage) storage = storage_over(tensor.storage(), c10::kCPU, c10::GetAllocator(c10::kCPU));
    at::Tensor alias = tensor_over(storage, tensor, c10::DispatchKey::CPU);
    on_device_.emplace(storage.unsafeGetStorageImpl(), tensor.storage());
    if (argument.alias_info() && argument.alias_info()->isWrite()) written_.emplace_back(tensor, alias);
    return alias;
  }

  at::Tensor device_of(const at::Tensor& tensor, const c10::Argument& result) {
    if (!tensor.defined()) return tensor;
    if (result.alias_info() && result.alias_info()->isWrite())
      for (const auto& [original, alias] : written_)
        if (alias.is_same(tensor)) return original;
    auto& storage = on_device_[tensor.storage().unsafeGetStorageImpl()];
    if (!storage) storage = storage_over(tensor.storage(), kDevice, &device_allocator);
    return tensor_over(storage, tensor, c10::DispatchKey::CUDA);
  }

  const c10::FunctionSchema& schema_;
  std::map<c10::StorageImpl*, c10::Storage> on_cpu_, on_device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // original, alias
};

}  // namespace

// On a GPU the size of their result is read from the device.
static constexpr std::array<std::string_view, 6> kSizedByData = {
    "aten::_unique2",          "aten::masked_select",      "aten::nonzero",
    "aten::repeat_interleave", "aten::unique_consecutive", "aten::unique_dim"};

// LibTorch's fused optimizers take a GPU's fast path for these alone, and refuse the others.
static void check_one_layout(const c10::FunctionSchema& schema, const Stack& stack, std::size_t first) {
  if (!schema.name().starts_with("aten::_fused_")) return;
  const auto parameters = stack[first].toTensorVector();
  for (std::size_t list = 1; list < schema.arguments().size(); ++list) {
    if (!stack[first + list].isTensorList() || schema.arguments()[list].name() == "state_steps") continue;
    const auto tensors = stack[first + list].toTensorVector();
    for (std::size_t i = 0; i < tensors.size(); ++i)
      TORCH_CHECK(tensors[i].scalar_type() == parameters[0].scalar_type() &&
                      tensors[i].strides() == parameters[i].strides() &&
                      tensors[i].is_non_overlapping_and_dense(),
                  schema.name(), ": params, grads and states must have the same dtype, device and layout: ",
                  schema.arguments()[list].name(), " ", i);
  }
}

static void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::size_t first = stack->size() - schema.arguments().size();
  if (std::ranges::find(kSizedByData, schema.name()) != kSizedByData.end()) ++waits;
  check_one_layout(schema, *stack, first);
  Call call(op);
  for (std::size_t i = 0; i < schema.arguments().size(); ++i)
    (*stack)[first + i] = call.to_cpu((*stack)[first + i], schema.arguments()[i]);
  op.callBoxed(stack);
  call.finish();
  const std::size_t begin = stack->size() - schema.returns().size();
  for (std::size_t i = 0; i < schema.returns().size(); ++i)
    (*stack)[begin + i] = call.to_device((*stack)[begin + i], schema.returns()[i]);
}

static at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu()
             ? tensor
             : tensor_over(storage_over(tensor.storage(), c10::kCPU, c10::GetAllocator(c10::kCPU)), tensor,
                           c10::DispatchKey::CPU);
}

static at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  const bool within = self.is_cuda() && from.is_cuda();
  const auto is_pinned = [](const at::Tensor& tensor) {
    return PinnedAllocator::holds(tensor.storage().data());
  };
  if (!within && !(non_blocking && is_pinned(self.is_cpu() ? self : from))) ++waits;
  on_cpu(self).copy_(on_cpu(from));
  return self;
}

static at::Scalar value_of(const at::Tensor& tensor) {
  ++waits;
  return on_cpu(tensor).item();
}

// --- The LSTM cell, in four gates: in, forget, cell, out. `workspace` is the gates after their functions.
static std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
    const std::optional<at::Tensor>& input_bias, const std::optional<at::Tensor>& hidden_bias) {
  at::Tensor gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias + *hidden_bias;
  const auto parts = gates.chunk(4, 1);
  const auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(),
             out = parts[3].sigmoid();
  const at::Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const std::optional<at::Tensor>& grad_hy, const std::optional<at::Tensor>& grad_cy, const at::Tensor& cx,
    const at::Tensor& cy, const at::Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const auto or_zero = [&](const std::optional<at::Tensor>& grad) {
    return grad && grad->defined() ? *grad : at::zeros_like(cx);
  };
  const at::Tensor tanh_cy = cy.tanh();
  const at::Tensor hy = or_zero(grad_hy);
  const at::Tensor of_cy = or_zero(grad_cy) + hy * out * (1 - tanh_cy * tanh_cy);
  const auto of_sigmoid = [](const at::Tensor& value) { return value * (1 - value); };
  at::Tensor gates = at::cat({of_cy * cell * of_sigmoid(in), of_cy * cx * of_sigmoid(forget),
                              of_cy * in * (1 - cell * cell), hy * tanh_cy * of_sigmoid(out)},
                             1);
  return {gates, of_cy * forget, has_bias ? gates.sum(0) : at::Tensor()};
}

// --- The GRU cell, in three gates: reset, update, new. `workspace` has them, the state and the new gate's
// part of it.
static std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                                   const at::Tensor& hidden_gates, const at::Tensor& hx,
                                                   const std::optional<at::Tensor>& input_bias,
                                                   const std::optional<at::Tensor>& hidden_bias) {
  const auto with = [](const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
    return (bias && bias->defined() ? gates + *bias : gates).chunk(3, 1);
  };
  const auto of_input = with(input_gates, input_bias), of_hidden = with(hidden_gates, hidden_bias);
  const at::Tensor reset = (of_input[0] + of_hidden[0]).sigmoid(),
                   update = (of_input[1] + of_hidden[1]).sigmoid();
  const at::Tensor fresh = (of_input[2] + reset * of_hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, of_hidden[2]}, 1)};
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const auto &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &of_hidden = parts[4];
  const at::Tensor of_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const at::Tensor of_update = grad_hy * (hx - fresh) * update * (1 - update);
  const at::Tensor of_reset = of_fresh * of_hidden * reset * (1 - reset);
  const at::Tensor input_gates = at::cat({of_reset, of_update, of_fresh}, 1);
  const at::Tensor hidden_gates = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  const auto bias = [&](const at::Tensor& gates) { return has_bias ? gates.sum(0) : at::Tensor(); };
  return {input_gates, hidden_gates, grad_hy * update, bias(input_gates), bias(hidden_gates)};
}

// --- Fused attention. Statistics of the memory-efficient one come in blocks of 32 rows, as on a GPU.

static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& bias, bool, double, bool is_causal, std::optional<double> scale) {
  const auto of_bias = bias && bias->defined() ? bias : std::nullopt;
  SHOAL_CHECK(!of_bias || (of_bias->sizes().back() == key.size(2) && of_bias->dim() == 4 &&
                           of_bias->stride(2) % 16 == 0),
              Internal, "a mask of shape ", concat(of_bias->sizes()), " is not what a GPU's kernel takes");
  auto [output, statistics] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, of_bias, scale);
  const auto rest = (32 - query.size(2) % 32) % 32;
  return {output, at::constant_pad_nd(statistics.contiguous(), {0, rest}, INFINITY), at::Tensor(),
          at::Tensor()};
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& output, const at::Tensor& statistics, const at::Tensor&,
    const at::Tensor&, double, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  SHOAL_CHECK(statistics.size(2) % 32 == 0, Internal, "statistics of ", statistics.size(2), " rows");
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, query, key, value, output, statistics.slice(2, 0, query.size(2)), 0.0, is_causal,
      bias.defined() ? std::optional(bias) : std::nullopt, scale);
  return {of_query, of_key, of_value, at::Tensor()};
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                  at::Tensor, at::Tensor>
flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double,
                bool is_causal, bool, std::optional<double> scale) {
  auto [output, statistics] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, std::nullopt, scale);
  return {output,        statistics.contiguous(),
          at::Tensor(),  at::Tensor(),
          query.size(2), key.size(2),
          at::Tensor(),  at::Tensor(),
          at::Tensor()};
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& output, const at::Tensor& statistics, const at::Tensor&, const at::Tensor&,
    std::int64_t, std::int64_t, double, bool is_causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, query, key, value, output, statistics,
                                                                  0.0, is_causal, std::nullopt, scale);
}

// --- What LibTorch asks of a device.

namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::kCUDA;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { ++waits; }
  void synchronizeDevice(c10::DeviceIndex) const override { ++waits; }

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};

// The registry wants this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  int getNumGPUs() const override { return 1; }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::holds(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
};

}  // namespace

}  // namespace shoal::device

namespace at {
using shoal::device::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace shoal::device {

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
REGISTER_ALLOCATOR(c10::DeviceType::CUDA, &device_allocator)

static std::int64_t attention_written_out(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                          const std::optional<at::Tensor>&, double, bool,
                                          std::optional<double>, bool) {
  return static_cast<std::int64_t>(sdp::SDPBackend::math);
}
static const bool attention_is_chosen = [] {
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention_written_out);
  return true;
}();

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("copy_", copy);
  library.impl("_local_scalar_dense", value_of);
  library.impl("_scaled_dot_product_efficient_attention", efficient_attention);
  library.impl("_scaled_dot_product_efficient_attention_backward", efficient_attention_backward);
  library.impl("_scaled_dot_product_flash_attention", flash_attention);
  library.impl("_scaled_dot_product_flash_attention_backward", flash_attention_backward);
  library.impl("_thnn_fused_gru_cell", gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
}

}  // namespace shoal::device
