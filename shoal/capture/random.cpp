// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "shoal/aten/operators.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"

namespace shoal::capture {

// Sorted. Names without overload.
static constexpr std::array<std::string_view, 17> kRandom = {
    "aten::bernoulli",      "aten::bernoulli_", "aten::exponential", "aten::exponential_",
    "aten::native_dropout", "aten::normal",     "aten::normal_",     "aten::normal_functional",
    "aten::rand",           "aten::rand_like",  "aten::randint",     "aten::randint_like",
    "aten::randn",          "aten::randn_like", "aten::random_",     "aten::uniform",
    "aten::uniform_"};
static_assert(std::ranges::is_sorted(kRandom));

bool is_random(std::string_view op) {
  return std::ranges::binary_search(kRandom, op.substr(0, op.find('.')));
}

static at::Tensor state_of_generator() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

Ordinals::Ordinals() : before_(state_of_generator()) {}

Ordinals::~Ordinals() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(before_);
}

std::int64_t Ordinals::next() {
  const auto state = state_of_generator();
  std::string key(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  const auto [found, added] = known_.try_emplace(std::move(key), static_cast<std::int64_t>(known_.size()));
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  at::check_generator<at::CPUGeneratorImpl>(generator)->random();  // the state of the next one
  return found->second;
}

namespace {
// The arguments of a call, by their names in the schema.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& in) : schema_(schema), in_(in) {}

  const c10::IValue* find(std::string_view name) const {
    for (std::size_t i = 0; i < in_.size(); ++i)
      if (schema_.arguments()[i].name() == name && !in_[i].isNone()) return &in_[i];
    return nullptr;
  }
  double number(std::string_view name, double otherwise) const {
    const auto* value = find(name);
    return value ? value->toScalar().toDouble() : otherwise;
  }
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const {
    const auto* value = find(name);
    return value ? value->toInt() : otherwise;
  }

 private:
  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& in_;
};
}  // namespace

// Largest range that `random_` fills: all integers that the type holds exactly.
static std::int64_t range_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return std::int64_t{1} << 53;
    case at::kFloat: return (std::int64_t{1} << 24) + 1;
    case at::kHalf: return (1 << 11) + 1;
    case at::kBFloat16: return (1 << 8) + 1;
    case at::kInt: return std::numeric_limits<std::int32_t>::max();
    case at::kShort: return std::numeric_limits<std::int16_t>::max();
    case at::kChar: return std::numeric_limits<std::int8_t>::max();
    case at::kByte: return 256;
    case at::kBool: return 2;
    default: return std::numeric_limits<std::int64_t>::max();
  }
}

Draw draw_of(const c10::FunctionSchema& schema, const torch::jit::Stack& in) {
  const Arguments arguments(schema, in);
  const std::string name = schema.name().substr(schema.name().find("::") + 2);
  const auto is = [&](std::string_view prefix) { return name.starts_with(prefix); };
  SHOAL_CHECK(
      !arguments.find("generator"), InvalidInput, "capture: ", aten::name_of(schema),
      " is given a generator of its own, which a captured step cannot advance; leave it out: random numbers "
      "then follow the trainer's seed");

  at::ScalarType type = c10::get_default_dtype_as_scalartype();
  Draw draw;
  const auto* self = arguments.find("self");
  if (!self) self = arguments.find("input");  // native_dropout
  if (self && self->isTensor()) {
    draw.shape = self->toTensor().sizes().vec();
    type = self->toTensor().scalar_type();
  } else if (const auto* size = arguments.find("size")) {
    draw.shape = size->toIntVector();
    if (is("randint")) type = at::kLong;
  } else {
    fail(ErrorKind::InvalidInput, "capture: ", aten::name_of(schema),
         " draws with tensors of parameters; write it as mean + std * torch::randn_like(mean)");
  }
  if (const auto* dtype = arguments.find("dtype")) type = dtype->toScalarType();
  draw.dtype = aten::from_torch(type);

  if (is("bernoulli") && (!arguments.find("p") || arguments.find("p")->isTensor())) {
    draw.op = "shoal::bernoulli_tensor";
    draw.probabilities = arguments.find("p") ? arguments.find("p")->toTensor() : self->toTensor();
    draw.arguments = {{"p", {}}, {"dtype", draw.dtype}};
    return draw;
  }
  if (is("bernoulli")) {
    draw.op = "shoal::bernoulli";
    draw.arguments = {{"p", arguments.number("p", 0.5)}};
  } else if (is("native_dropout")) {
    draw.op = "shoal::bernoulli";
    draw.dtype = DType::Bool;
    draw.arguments = {{"p", 1 - arguments.number("p", 0.5)}};
  } else if (is("exponential")) {
    draw.op = "shoal::exponential";
    draw.arguments = {{"lambda", arguments.number("lambd", 1)}};
  } else if (is("normal") || is("randn")) {
    draw.op = "shoal::normal";
    draw.arguments = {{"mean", arguments.number("mean", 0)}, {"std", arguments.number("std", 1)}};
  } else if (is("uniform") || name == "rand" || name == "rand_like") {
    draw.op = "shoal::uniform";
    draw.arguments = {{"from", arguments.number("from", 0)}, {"to", arguments.number("to", 1)}};
  } else {  // randint, randint_like, random_
    draw.op = "shoal::randint";
    const auto low = arguments.integer("low", arguments.integer("from", 0));
    const auto high = arguments.integer("high", arguments.integer("to", range_of(type)));
    draw.arguments = {{"low", low}, {"high", high}};
  }
  draw.arguments.push_back({"shape", draw.shape});
  draw.arguments.push_back({"dtype", draw.dtype});
  return draw;
}

}  // namespace shoal::capture
