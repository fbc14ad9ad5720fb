// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "shoal/aten/random.h"
#include "shoal/aten/types.h"
#include "shoal/aten/whole_draw.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/capture/dispatch.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/random.h"
#include "shoal/capture/with_cudnn.h"

namespace shoal::capture {

static at::Tensor drawn(const Draw& draw, c10::Device device, const aten::RandomStream& stream) {
  const auto number = [&](std::size_t i) { return std::get<double>(draw.arguments.at(i).value); };
  const auto integer = [&](std::size_t i) { return std::get<std::int64_t>(draw.arguments.at(i).value); };
  const auto options = at::TensorOptions(device).dtype(aten::to_torch(draw.dtype));
  if (draw.op == "shoal::bernoulli_tensor") return aten::bernoulli(draw.probabilities, options, stream);
  if (draw.op == "shoal::bernoulli") return aten::bernoulli(number(0), draw.shape, options, stream);
  if (draw.op == "shoal::exponential") return aten::exponential(number(0), draw.shape, options, stream);
  if (draw.op == "shoal::normal") return aten::normal(number(0), number(1), draw.shape, options, stream);
  if (draw.op == "shoal::uniform") return aten::uniform(number(0), number(1), draw.shape, options, stream);
  return aten::randint(integer(0), integer(1), draw.shape, options, stream);
}

class EagerRandom::State final : public Interceptor, private Draws {
 public:
  State(std::int64_t seed, std::int64_t step)
      : stream_{.seed = static_cast<std::uint64_t>(seed), .step = static_cast<std::uint64_t>(step)},
        interception_(*this) {}

  bool wants_factory(const c10::OperatorHandle& op) override { return is_random(op); }

  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const auto in = torch::jit::last(stack, op.schema().arguments().size());
    if (!is_random(op) || !draws(op.schema(), in)) return op.callBoxed(stack);
    device_ = device_of(op.schema(), in);
    call_random(op, stack, *this);
  }

 private:
  at::Tensor draw(const Draw& draw) override { return drawn(draw, device_, next()); }
  std::vector<at::Tensor> draw_whole(const c10::OperatorHandle& op,
                                     const torch::jit::Stack& arguments) override {
    return aten::draw_whole(op, arguments, next(), device_);
  }
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) override {
    fail(ErrorKind::InvalidInput, "random: this ", what, ". Remedy: ", remedy);
  }

  const aten::RandomStream& next() {
    stream_.ordinal = static_cast<std::uint64_t>(ordinals_.next());
    return stream_;
  }

  WithCudnn without_{false};       // its recurrent layers draw what nobody can give them
  c10::Device device_ = at::kCPU;  // of the call that draws
  aten::RandomStream stream_;
  Ordinals ordinals_;
  Interception interception_;
};

EagerRandom::EagerRandom(std::int64_t seed, std::int64_t step)
    : state_(std::make_unique<State>(seed, step)) {}
EagerRandom::~EagerRandom() = default;

}  // namespace shoal::capture
