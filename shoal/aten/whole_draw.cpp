// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/whole_draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/DispatchKeySet.h>

#include <utility>

#include "shoal/aten/operators.h"
#include "shoal/base/error.h"

namespace shoal::aten {

std::optional<std::size_t> generator_argument(const c10::FunctionSchema& schema) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    c10::TypePtr type = schema.arguments()[i].type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (type->kind() == c10::TypeKind::GeneratorType) return i;
  }
  return std::nullopt;
}

static at::Generator generator_of(const RandomStream& stream) {
  const auto words =
      philox({0, static_cast<std::uint32_t>(stream.step >> 32) << 16,
              static_cast<std::uint32_t>(stream.ordinal), static_cast<std::uint32_t>(stream.step)},
             {static_cast<std::uint32_t>(stream.seed), static_cast<std::uint32_t>(stream.seed >> 32)});
  return at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{words[0]} << 32 | words[1]);
}

static c10::IValue on_cpu(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().to(at::kCPU);
  if (value.isDevice()) return c10::Device(at::kCPU);
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.to(at::kCPU));
  return list;
}

std::vector<at::Tensor> draw_whole(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                   const RandomStream& stream, c10::Device device) {
  const auto& schema = op.schema();
  const auto generator = generator_argument(schema);
  SHOAL_CHECK(generator, InvalidInput, "random: ", name_of(schema), " takes no generator");
  for (std::size_t i = 0; i < arguments.size(); ++i)
    arguments[i] = schema.arguments()[i].name() == "pin_memory" ? c10::IValue() : on_cpu(arguments[i]);
  arguments.at(*generator) = generator_of(stream);
  op.callBoxed(arguments);
  std::vector<at::Tensor> results;
  for (const auto& value : arguments) {
    SHOAL_CHECK(value.isTensor(), InvalidInput, "random: ", name_of(schema), " returns a ", value.tagKind(),
                ", not tensors alone");
    results.push_back(value.toTensor().contiguous().to(device));
  }
  return results;
}

}  // namespace shoal::aten
