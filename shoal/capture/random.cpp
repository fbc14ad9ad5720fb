// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>
#include <optional>
#include <string_view>
#include <utility>

#include "shoal/aten/operators.h"
#include "shoal/aten/types.h"
#include "shoal/aten/whole_draw.h"
#include "shoal/base/error.h"
#include "shoal/capture/operands.h"

namespace shoal::capture {

using Stack = torch::jit::Stack;

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

// Whether the type holds this integer; floating-point ones round it.
static bool fits(std::int64_t value, at::ScalarType type) {
  switch (type) {
    case at::kInt: return std::in_range<std::int32_t>(value);
    case at::kShort: return std::in_range<std::int16_t>(value);
    case at::kChar: return std::in_range<std::int8_t>(value);
    case at::kByte: return std::in_range<std::uint8_t>(value);
    case at::kBool: return value == 0 || value == 1;
    default: return true;
  }
}

bool is_random(const c10::OperatorHandle& op) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded) || neutral_form(aten::name_of(op.schema()))) return false;
  return std::ranges::any_of(op.schema().returns(), [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::TensorType;
  });
}

bool draws(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto& name = schema.arguments()[i].name();
    if ((name == "train" || name == "training") && in[i].isBool() && !in[i].toBool()) return false;
    if ((name == "dropout" || name == "dropout_p") && in[i].isDouble() && in[i].toDouble() == 0) return false;
  }
  return true;
}

namespace {

// The arguments of a call, by their names in the schema.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, const Stack& in) : schema_(schema), in_(in) {}

  const c10::IValue* find(std::string_view name) const {
    for (std::size_t i = 0; i < in_.size(); ++i)
      if (schema_.arguments()[i].name() == name && !in_[i].isNone()) return &in_[i];
    return nullptr;
  }
  at::Tensor tensor(std::string_view name) const {
    const auto* value = find(name);
    return value && value->isTensor() ? value->toTensor() : at::Tensor();
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
  const Stack& in_;
};

class RandomCall {
 public:
  RandomCall(const c10::OperatorHandle& op, const Stack& in, Draws& by)
      : schema_(op.schema()), in_(in), arguments_(schema_, in), by_(by) {
    const auto space = schema_.name().find("::");
    if (schema_.name().starts_with("aten::")) name_ = schema_.name().substr(space + 2);
    if (name_.ends_with('_')) name_.pop_back();
    if (name_.ends_with("_functional")) name_.erase(name_.size() - std::string_view("_functional").size());
    if (name_.ends_with("_like")) name_.erase(name_.size() - std::string_view("_like").size());
    find_type();
  }

  // What the operator's form without side effects returns; RReLU's noise is written.
  std::vector<at::Tensor> results() {
    if (const auto* generator = arguments_.find("generator"))
      if (generator->toGenerator() != at::detail::getDefaultCPUGenerator())
        by_.refuse("gives " + aten::name_of(schema_) +
                       " a generator of its own, which a captured step cannot advance",
                   "leave it out: random numbers then follow the trainer's seed");
    if (name_ == "rrelu_with_noise") return rrelu();
    if (name_ == "native_dropout") return dropout();
    if (at::isComplexType(type_)) return whole();
    if (name_ == "bernoulli") return {bernoulli()};
    if (name_ == "cauchy") return {cauchy()};
    if (name_ == "exponential") return {draw("shoal::exponential", {{"lambda", number("lambd", 1)}})};
    if (name_ == "geometric") return {geometric()};
    if (name_ == "log_normal") return {normal(number("mean", 1), number("std", 2)).exp()};
    if (name_ == "normal" && (arguments_.tensor("mean").defined() || arguments_.tensor("std").defined()))
      return {normal_of_tensors()};
    if (name_ == "normal" || name_ == "randn") return {normal(number("mean", 0), number("std", 1))};
    if (name_ == "randint" && arguments_.tensor("high").defined()) return whole();
    if (name_ == "randint" || name_ == "random") return {randint()};
    if (name_ == "uniform" || name_ == "rand") return {uniform(number("from", 0), number("to", 1))};
    return whole();
  }

 private:
  // Shape and dtype of the result; of `whole` ones ATen knows.
  void find_type() {
    at::Tensor self = arguments_.tensor("self");
    if (!self.defined()) self = arguments_.tensor("input");  // native_dropout
    type_ = c10::get_default_dtype_as_scalartype();
    if (self.defined()) {
      shape_ = self.sizes().vec();
      type_ = self.scalar_type();
    } else if (const auto* size = arguments_.find("size"); size && size->isIntList()) {
      shape_ = size->toIntVector();
      if (name_ == "randint") type_ = at::kLong;
    }
    if (const at::Tensor out = arguments_.tensor("out"); out.defined()) type_ = out.scalar_type();
    if (const auto* dtype = arguments_.find("dtype")) type_ = dtype->toScalarType();
  }

  double number(std::string_view name, double otherwise) const { return arguments_.number(name, otherwise); }

  at::Tensor draw(const char* op, std::vector<ir::Argument> distribution, at::ScalarType type) {
    Draw draw{.op = op,
              .arguments = std::move(distribution),
              .probabilities = {},
              .shape = shape_,
              .dtype = aten::from_torch(type)};
    draw.arguments.push_back({"shape", draw.shape});
    draw.arguments.push_back({"dtype", draw.dtype});
    return by_.draw(draw);
  }
  at::Tensor draw(const char* op, std::vector<ir::Argument> distribution) {
    return draw(op, std::move(distribution), type_);
  }
  at::Tensor normal(double mean, double deviation) {
    return draw("shoal::normal", {{"mean", mean}, {"std", deviation}});
  }
  at::Tensor uniform(double from, double to) { return draw("shoal::uniform", {{"from", from}, {"to", to}}); }

  template <class... Parts>
  void refuse_parameter(const Parts&... parts) {
    by_.refuse(concat("asks ", aten::name_of(schema_), " for ", parts...), "ask for what PyTorch draws");
  }

  at::Tensor bernoulli() {
    const auto* p = arguments_.find("p");
    if (p && !p->isTensor()) return draw("shoal::bernoulli", {{"p", number("p", 0.5)}});
    if (!p && schema_.overload_name().starts_with("float")) return draw("shoal::bernoulli", {{"p", 0.5}});
    at::Tensor chances = arguments_.tensor(p ? "p" : "self");
    if (chances.sizes() != shape_) chances = chances.expand(shape_);
    Draw draw{.op = "shoal::bernoulli_tensor",
              .arguments = {{"p", {}}, {"dtype", aten::from_torch(type_)}},
              .probabilities = chances,
              .shape = shape_,
              .dtype = aten::from_torch(type_)};
    return by_.draw(draw);
  }

  std::vector<at::Tensor> dropout() {
    const at::Tensor input = arguments_.tensor("input");
    const double p = number("p", 0.5);
    const at::Tensor mask = draw("shoal::bernoulli", {{"p", 1 - p}}, at::kBool);
    return {input.mul(mask).mul(p == 1 ? 0.0 : 1 / (1 - p)), mask};
  }

  at::Tensor cauchy() {
    const double sigma = number("sigma", 1);
    if (!(sigma > 0)) refuse_parameter("a scale of ", sigma);
    return uniform(-0.5, 0.5).mul(std::numbers::pi).tan().mul(sigma).add(number("median", 0));
  }

  // The number of tosses until the first success: the next whole number above a waiting time.
  at::Tensor geometric() {
    const double p = number("p", 0.5);
    if (!(p > 0 && p < 1)) refuse_parameter("a probability of ", p);
    const bool is_small = at::isFloatingType(type_) && type_ != at::kDouble;
    return draw("shoal::exponential", {{"lambda", -std::log1p(-p)}}, is_small ? at::kFloat : at::kDouble)
        .ceil()
        .to(type_);
  }

  at::Tensor normal_of_tensors() {
    const at::Tensor mean = arguments_.tensor("mean");
    const at::Tensor deviation = arguments_.tensor("std");
    type_ = mean.defined() ? mean.scalar_type() : deviation.scalar_type();
    if (at::isComplexType(type_)) return whole().at(0);
    shape_ = !mean.defined()        ? deviation.sizes().vec()
             : !deviation.defined() ? mean.sizes().vec()
                                    : at::infer_size(mean.sizes(), deviation.sizes());
    const at::Tensor standard = normal(0, 1);
    const at::Tensor spread = deviation.defined() ? standard.mul(deviation) : standard.mul(number("std", 1));
    return (mean.defined() ? spread.add(mean) : spread.add(number("mean", 0))).to(type_);
  }

  at::Tensor randint() {
    const auto low = arguments_.integer("low", arguments_.integer("from", 0));
    const auto high = arguments_.integer("high", arguments_.integer("to", range_of(type_)));
    if (!fits(low, type_) || !fits(high - 1, type_))
      refuse_parameter("numbers from ", low, " to ", high, ", more than ", type_, " holds");
    return draw("shoal::randint", {{"low", low}, {"high", high}});
  }

  // The slope of what is negative, drawn for each element; what is left is the identity.
  std::vector<at::Tensor> rrelu() {
    const at::Tensor self = arguments_.tensor("self");
    const at::Tensor noise = arguments_.tensor("noise");
    const double lower = number("lower", 0), upper = number("upper", 0);
    const bool is_functional = schema_.name().ends_with("_functional");
    if (!arguments_.find("training")->toBool()) {
      const auto result = at::leaky_relu(self, (lower + upper) / 2);
      return is_functional ? std::vector{result, noise.clone()} : std::vector{result};
    }
    const auto slope = at::where(self.le(0), uniform(lower, upper), 1.0);
    if (is_functional) return {self.mul(slope), slope};
    const auto result = self.mul(slope);
    noise.copy_(slope);
    return {result};
  }

  std::vector<at::Tensor> whole() {
    const auto op = form_with_generator();
    if (!op)
      by_.refuse(
          "calls " + aten::name_of(schema_) + ", a random operator that no generator can be given to",
          "give it an argument `Generator? generator=None` and a form without side effects, or build it "
          "from rand, randn, randint, bernoulli or dropout");
    Stack arguments;
    for (const auto& wanted : op->schema().arguments()) {
      const auto* given = wanted.name() == "generator" ? nullptr : arguments_.find(wanted.name());
      arguments.push_back(given ? *given : wanted.default_value() ? *wanted.default_value() : c10::IValue());
    }
    return by_.draw_whole(*op, arguments);
  }

  // The same operator, writing nothing, with a place for a generator: randperm.generator, normal_functional.
  std::optional<c10::OperatorHandle> form_with_generator() const {
    std::string base = schema_.name(), overload = schema_.overload_name();
    if (base.ends_with('_')) base.pop_back();
    if (overload.ends_with("out")) overload.erase(overload.size() - 3);
    if (overload.ends_with('_')) overload.pop_back();
    const auto named = [](const std::string& name, const std::string& of) {
      return of.empty() ? name : name + "." + of;
    };
    for (const auto& name :
         {named(base, overload), named(base, overload.empty() ? "generator" : overload + "_generator"),
          named(base + "_functional", overload)}) {
      const auto op = aten::find_operator(name);
      if (op && aten::generator_argument(op->schema()) && !op->schema().is_mutable() &&
          std::ranges::all_of(op->schema().returns(), [](const c10::Argument& result) {
            return result.type()->kind() == c10::TypeKind::TensorType;
          }))
        return op;
    }
    return std::nullopt;
  }

  const c10::FunctionSchema& schema_;
  const Stack& in_;
  Arguments arguments_;
  Draws& by_;
  std::string
      name_;  // of the distribution: "normal" for normal_, normal_functional, normal.out; empty: not ATen's
  std::vector<std::int64_t> shape_;
  at::ScalarType type_ = at::kFloat;
};

}  // namespace

void call_random(const c10::OperatorHandle& op, Stack& stack, Draws& by) {
  const auto& schema = op.schema();
  const auto in = torch::jit::pop(stack, schema.arguments().size());
  const auto results = RandomCall(op, in, by).results();
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (!alias || !alias->isWrite()) {
      stack.emplace_back(results.at(i));
      continue;
    }
    for (std::size_t j = 0; j < in.size(); ++j) {
      const auto* written = schema.arguments()[j].alias_info();
      if (!written || *written != *alias) continue;
      const at::Tensor target = in[j].toTensor();
      if (target.sizes() != results.at(i).sizes())
        by.refuse("calls " + aten::name_of(schema) + " into a tensor of another shape",
                  "use what it returns instead of out=");
      target.copy_(results[i]);
      stack.emplace_back(target);
    }
  }
}

}  // namespace shoal::capture
