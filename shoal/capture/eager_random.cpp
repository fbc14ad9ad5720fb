// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "shoal/aten/operators.h"
#include "shoal/aten/random.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/dispatch.h"
#include "shoal/capture/random.h"

namespace shoal::capture {

static at::Tensor drawn(const Draw& draw, at::TensorOptions options, const aten::RandomStream& stream) {
  const auto number = [&](std::size_t i) { return std::get<double>(draw.arguments.at(i).value); };
  const auto integer = [&](std::size_t i) { return std::get<std::int64_t>(draw.arguments.at(i).value); };
  options = options.dtype(aten::to_torch(draw.dtype));
  if (draw.op == "shoal::bernoulli_tensor") return aten::bernoulli(draw.probabilities, options, stream);
  if (draw.op == "shoal::bernoulli") return aten::bernoulli(number(0), draw.shape, options, stream);
  if (draw.op == "shoal::exponential") return aten::exponential(number(0), draw.shape, options, stream);
  if (draw.op == "shoal::normal") return aten::normal(number(0), number(1), draw.shape, options, stream);
  if (draw.op == "shoal::uniform") return aten::uniform(number(0), number(1), draw.shape, options, stream);
  return aten::randint(integer(0), integer(1), draw.shape, options, stream);
}

class EagerRandom::State final : public Interceptor {
 public:
  State(std::int64_t seed, std::int64_t step)
      : stream_{.seed = static_cast<std::uint64_t>(seed), .step = static_cast<std::uint64_t>(step)},
        interception_(*this) {}

  bool wants_factory(const c10::OperatorHandle& op) override { return is_random(aten::name_of(op.schema())); }

  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const auto& schema = op.schema();
    if (!is_random(schema.name())) return op.callBoxed(stack);
    const auto count = schema.arguments().size();
    const torch::jit::Stack in(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    torch::jit::drop(stack, count);
    const at::Tensor self = !in.empty() && in[0].isTensor() ? in[0].toTensor() : at::Tensor();
    const auto options = self.defined() ? self.options() : at::TensorOptions();
    stream_.ordinal = static_cast<std::uint64_t>(ordinals_.next());
    const auto tensor = drawn(draw_of(schema, in), options, stream_);
    if (schema.name() == "aten::native_dropout") {
      const double p = in[1].toDouble();
      stack.emplace_back(self * tensor * (p == 1 ? 0.0 : 1 / (1 - p)));
      stack.emplace_back(tensor);
    } else if (schema.name().ends_with('_')) {
      stack.emplace_back(self.copy_(tensor));
    } else {
      stack.emplace_back(tensor);
    }
  }

 private:
  aten::RandomStream stream_;
  Ordinals ordinals_;
  Interception interception_;
};

EagerRandom::EagerRandom(std::int64_t seed, std::int64_t step)
    : state_(std::make_unique<State>(seed, step)) {}
EagerRandom::~EagerRandom() = default;

}  // namespace shoal::capture
