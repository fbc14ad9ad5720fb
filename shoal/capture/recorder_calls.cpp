// SPDX-License-Identifier: Apache-2.0
// What becomes of one operator call: which kind it is, and the nodes and writes that it leaves.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "shoal/aten/memory.h"
#include "shoal/aten/operators.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/random.h"
#include "shoal/capture/recorder.h"
#include "shoal/capture/views.h"

namespace shoal::capture {

using ir::ValueId;
using Stack = torch::jit::Stack;

// Operators that change arguments without saying so in their schema.
namespace {
struct UnmarkedMutator {
  std::string_view op;
  std::string_view functional;
  std::array<std::size_t, 2> written;
  std::size_t only_if;  // a bool argument
};
}  // namespace
static constexpr UnmarkedMutator kUnmarkedMutators[] = {
    {"aten::native_batch_norm", "aten::_native_batch_norm_legit_functional", {3, 4}, 5},
};

std::vector<std::size_t> Recorder::written_by(const OpInfo& info, c10::ArrayRef<c10::IValue> in) {
  for (const auto& [name, functional, written, only_if] : kUnmarkedMutators)
    if (info.name == name && in[only_if].toBool() && in[written[0]].isTensor() &&
        in[written[0]].toTensor().defined())
      return {written.begin(), written.end()};
  return info.written;
}

static bool is_tensor_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  const auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::TensorType;
}

// Whether every argument that both have is of one type: pow_.Scalar is a tensor to a number, pow.Scalar the
// other way.
static bool takes_the_same(const c10::FunctionSchema& writing, const c10::FunctionSchema& pure) {
  return std::ranges::all_of(pure.arguments(), [&](const c10::Argument& argument) {
    const auto index = writing.argumentIndexWithName(argument.name());
    return !index || *writing.arguments()[static_cast<std::size_t>(*index)].type() == *argument.type();
  });
}

const Recorder::OpInfo& Recorder::info_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  auto name = aten::name_of(schema);
  if (const auto found = infos_.find(name); found != infos_.end()) return found->second;
  OpInfo info{.name = name, .dynamic_shape = op.hasTag(at::Tag::dynamic_output_shape)};
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite()) info.written.push_back(i);
  }
  bool is_view = false;
  for (const auto& result : schema.returns())
    is_view = is_view || (result.alias_info() && !result.alias_info()->isWrite());

  info.is_random = is_random(op);
  if (op.hasTag(at::Tag::inplace_view)) {
    info.kind = OpInfo::Kind::InPlaceView;
  } else if (!info.written.empty()) {
    info.kind = OpInfo::Kind::Write;
    const auto base = schema.name();
    std::vector<std::string> candidates;
    if (base.ends_with('_')) {
      candidates.push_back(base.substr(0, base.size() - 1));
      if (!schema.overload_name().empty()) {
        candidates.push_back(candidates.back() + ".Tensor_" + schema.overload_name());  // pow_.Scalar
        candidates.front() += "." + schema.overload_name();
      }
    } else if (schema.overload_name().ends_with("out")) {
      auto overload = schema.overload_name().substr(0, schema.overload_name().size() - 3);
      if (overload.ends_with('_')) overload.pop_back();
      candidates =
          overload.empty() ? std::vector{base, base + ".Tensor"} : std::vector{base + "." + overload};
    } else {
      candidates.push_back(base + "_functional");  // _native_batch_norm_legit
    }
    for (const auto& candidate : candidates) {
      const auto found = aten::find_operator(candidate);
      if (!info.functional && found && takes_the_same(schema, found->schema())) info.functional = found;
    }
  } else if (is_view) {
    info.kind = OpInfo::Kind::View;
  } else if (op.hasTag(at::Tag::data_dependent_output)) {
    info.kind = OpInfo::Kind::Reads;
  }
  return infos_.emplace(std::move(name), std::move(info)).first->second;
}

// What they find in memory would make the constant another one each time.
static bool leaves_memory_as_it_is(std::string_view op) {
  return op == "aten::empty.memory_format" || op == "aten::empty_strided" || op == "aten::empty_like" ||
         op == "aten::new_empty" || op == "aten::new_empty_strided";
}

// Zeros without memory, which backward formulas give; what reads them would find nothing there.
static bool makes_zeros_without_memory(std::string_view op) { return op == "aten::_efficientzerotensor"; }

bool Recorder::wants_factory(const c10::OperatorHandle& op) {
  const auto& info = info_of(op);
  return info.is_random || leaves_memory_as_it_is(info.name) || makes_zeros_without_memory(info.name);
}

void Recorder::call(const c10::OperatorHandle& op, Stack& stack) {
  const OpInfo& info = info_of(op);
  try {
    record_call(info, op, stack);
  } catch (const Error& error) {
    const std::string_view text = error.what();
    const bool is_said = text.starts_with("capture: ") || error.kind() != ErrorKind::InvalidInput;
    const Error told =
        is_said
            ? error
            : Error(error.kind(), concat("capture: the model calls ", info.name, ", ", where(), ": ", text));
    if (!refusal_) refusal_ = told;
    throw told;
  }
}

void Recorder::record_call(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto count = op.schema().arguments().size();
  if (is_of_sparse(info, torch::jit::last(stack, count))) return record_sparse(info, op, stack);
  const bool draws = info.is_random && capture::draws(op.schema(), torch::jit::last(stack, count));
  bool touches = draws;
  for (const auto& value : torch::jit::last(stack, count))
    for_each_tensor(value, [&](const at::Tensor& tensor) { touches = touches_value(tensor) || touches; });
  // A write to a tensor that lasts is part of the step, whatever is written.
  if (!touches && request_.writes_constant)
    for (const auto i : info.written)
      for_each_tensor(torch::jit::peek(stack, i, count), [&](const at::Tensor& tensor) {
        touches = request_.writes_constant(tensor) || touches;
      });
  if (!touches) return compute(info, op, stack);
  if (draws || (info.is_random && info.name.starts_with("aten::rrelu"))) return record_random(op, stack);
  switch (info.kind) {
    case OpInfo::Kind::Functional: return record(info, op, stack);
    case OpInfo::Kind::View: return record_view(info, op, stack);
    case OpInfo::Kind::InPlaceView: return record_in_place_view(info, op, stack);
    case OpInfo::Kind::Write: return record_write(info, op, stack);
    case OpInfo::Kind::Reads: return record_read(info, op, stack);
  }
}

// Nothing of the model or batch is involved: done now, once.
void Recorder::compute(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto in = torch::jit::last(stack, op.schema().arguments().size());
  for (const auto i : written_by(info, in))
    for_each_tensor(in[i], [&](const at::Tensor& tensor) {
      check_write(tensor);
      keep_constants_of(tensor);
    });
  // What a result may be a view of. The memory that these two give may be as new as it may be old.
  std::vector<at::Tensor> read;
  if (info.name != "aten::lift_fresh" && !info.name.starts_with("aten::set_.source_Storage"))
    for (const auto& value : in)
      for_each_tensor(value, [&](const at::Tensor& tensor) { read.push_back(tensor); });
  op.callBoxed(stack);
  if (leaves_memory_as_it_is(info.name)) stack.back().toTensor().zero_();
  if (makes_zeros_without_memory(info.name)) {
    const at::Tensor zeros = stack.back().toTensor();
    stack.back() = at::zeros(zeros.sizes(), zeros.options());
  }
  for (const auto& value : torch::jit::last(stack, op.schema().returns().size()))
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      const bool is_view = std::ranges::any_of(
          read, [&](const at::Tensor& each) { return aten::share_storage(each, tensor); });
      if (!is_view) made(tensor);
    });
}

void Recorder::push_results(const c10::OperatorHandle& op, const Outputs& outputs, Stack& stack) {
  const auto& returns = op.schema().returns();
  std::size_t next = 0;
  for (const auto& result : returns) {
    if (result.type()->kind() == c10::TypeKind::TensorType) {
      const auto& output = outputs.at(next++);
      stack.emplace_back(output ? wrap(*output) : at::Tensor());
    } else {  // a list takes what the single ones leave
      c10::List<at::Tensor> list;
      for (const auto end = outputs.size() - (returns.size() - 1); next < end; ++next)
        list.push_back(wrap(outputs[next].value()));
      stack.emplace_back(std::move(list));
    }
  }
}

// `x * 2` comes as mul.Tensor with a 0-dim tensor that only its flag tells from a real one; mul.Scalar says
// it plainly.
static std::optional<c10::OperatorHandle> scalar_form(const c10::FunctionSchema& schema, const Stack& in) {
  if (schema.overload_name() != "Tensor" || in.size() < 2 || !in[0].isTensor() || !in[1].isTensor())
    return std::nullopt;
  if (!in[1].toTensor().defined() || recorded(in[1].toTensor())) return std::nullopt;
  if (!in[1].toTensor().unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  if (in[1].toTensor().is_complex()) return std::nullopt;  // graphs have no complex numbers, but constants
  const auto scalar = c10::Dispatcher::singleton().findSchema({schema.name(), "Scalar"});
  if (!scalar || scalar->schema().arguments().size() != in.size()) return std::nullopt;
  return scalar;
}

// `x * 1j` the other way: graphs have no complex numbers, but constants.
static std::optional<c10::OperatorHandle> tensor_form(const c10::FunctionSchema& schema, Stack& in) {
  if (std::ranges::none_of(in, [](const c10::IValue& value) { return value.isComplexDouble(); }))
    return std::nullopt;
  auto overload = schema.overload_name();
  const auto word = overload.rfind("Scalar");
  if (word == std::string::npos) return std::nullopt;
  const auto form =
      c10::Dispatcher::singleton().findSchema({schema.name(), overload.replace(word, 6, "Tensor")});
  if (!form || form->schema().arguments().size() != in.size()) return std::nullopt;
  for (auto& value : in)
    if (value.isComplexDouble()) {
      auto number = at::scalar_tensor(value.toScalar(), at::kComplexDouble);
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      value = std::move(number);
    }
  return form;
}

void Recorder::record(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  for (const auto& [name, functional, written, only_if] : kUnmarkedMutators) {
    if (info.name != name || written_by(info, torch::jit::last(stack, schema.arguments().size())).empty())
      continue;
    OpInfo writes{.kind = OpInfo::Kind::Write,
                  .name = info.name,
                  .functional = aten::find_operator(std::string(functional)),
                  .written = {written.begin(), written.end()}};
    return record_write(writes, op, stack);
  }
  if (info.dynamic_shape && depends_on_data(schema, torch::jit::last(stack, schema.arguments().size()))) {
    if (info.name == "aten::masked_select") return record_selection(op, stack);
    if (info.name != "aten::index.Tensor") return record_read(info, op, stack);
    mask_to_positions(stack);
  }

  auto in = popped(stack, schema.arguments().size());
  const auto device = device_of(schema, in);
  if (!std::ranges::all_of(schema.returns(),
                           [](const auto& result) { return is_tensor_type(result.type()); })) {
    // A question about shapes (is_same_size, …): the answer does not depend on data.
    const auto arguments = arguments_of(schema, in);
    for (std::size_t i = 0; i < arguments.size(); ++i)
      stack.push_back(aten::ivalue_of(arguments[i].value, schema.arguments()[i],
                                      [&](ValueId id) { return metas_[id.index]; }));
    op.callBoxed(stack);
    return;
  }
  if (const auto scalar = scalar_form(schema, in)) {
    in[1] = in[1].toTensor().item();
    return push_results(op, emit(*scalar, arguments_of(scalar->schema(), in), device), stack);
  }
  if (const auto form = tensor_form(schema, in))
    return push_results(op, emit(*form, arguments_of(form->schema(), in), device), stack);
  push_results(op, emit(op, arguments_of(schema, in), device), stack);
}

// A view whose conjugation or sign ATen puts off by a bit of the tensor. Values have no such bits: it is done
// at once.
static c10::OperatorHandle at_once(std::string_view view, const c10::OperatorHandle& op) {
  const char* name = view == "aten::_conj"       ? "aten::_conj_physical"
                     : view == "aten::_neg_view" ? "aten::neg"
                                                 : nullptr;
  return name == nullptr ? op : aten::find_operator(name).value_or(op);
}

void Recorder::record_view(const OpInfo& info, const c10::OperatorHandle& view_op, Stack& stack) {
  const auto op = at_once(info.name, view_op);
  const auto& schema = op.schema();
  const auto in = popped(stack, schema.arguments().size());
  const at::Tensor self = in.at(0).toTensor();
  auto arguments = arguments_of(schema, in);
  auto* of = recorded(self);
  const View base = of ? of->view : view_of_region(*region_of(self), self);
  const auto outputs = emit(op, arguments, device_of(schema, in));
  arguments[0].value = std::monostate{};
  const auto shown = [&](const ViewStep& last, ValueId value) {
    View view{base.alias, base.steps, value, base.alias->version};
    view.steps.push_back(last);
    return wrap_view(std::move(view), value);
  };
  if (schema.returns().at(0).type()->kind() == c10::TypeKind::TensorType) {
    stack.emplace_back(shown({op, std::move(arguments)}, outputs.at(0).value()));
    return;
  }
  std::vector<at::Tensor> metas;
  for (const auto& output : outputs) metas.push_back(metas_[output.value().index]);
  const auto steps = steps_of_outputs(info.name, arguments, self, metas);
  c10::List<at::Tensor> list;
  for (std::size_t i = 0; i < outputs.size(); ++i) list.push_back(shown(steps[i], *outputs[i]));
  stack.emplace_back(std::move(list));
}

// t_, transpose_, squeeze_, unsqueeze_, …: the tensor shows its memory in another way.
void Recorder::record_in_place_view(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  const auto in = popped(stack, schema.arguments().size());
  const at::Tensor self = in.at(0).toTensor();
  auto* of = recorded(self);
  const auto underscore = info.name.find('_', info.name.find("::"));
  auto functional = info.name;
  if (underscore != std::string::npos && schema.name().ends_with('_'))
    functional.erase(schema.name().size() - 1, 1);
  auto view = functional == info.name ? std::nullopt : aten::find_operator(functional);
  if (functional == "aten::transpose") view = aten::find_operator("aten::transpose.int");
  if (functional == "aten::detach") {
    stack.emplace_back(self);
    return;
  }
  if (!of || !view || !view->schema().returns().at(0).alias_info())
    untraceable("calls " + info.name + " on a value", "use the operator without the underscore");
  auto arguments = arguments_of(schema, in);
  const auto value = emit(*view, arguments, device_of(schema, in)).at(0).value();
  arguments[0].value = std::monostate{};
  of->view.steps.push_back({*view, std::move(arguments)});
  of->view.value = value;
  of->view.version = of->view.alias->version;
  of->take_geometry(metas_[value.index]);
  stack.emplace_back(self);
}

void Recorder::record_write(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  auto in = popped(stack, schema.arguments().size());
  if (!info.functional)
    untraceable("calls " + info.name + ", which writes to its arguments",
                "use the operator without the underscore");
  std::vector<at::Tensor> targets;
  for (const auto i : info.written)
    for_each_tensor(in[i], [&](const at::Tensor& tensor) { targets.push_back(tensor); });
  // A target that is a constant so far becomes a value first, so that the operator reads it as one.
  for (const auto& target : targets)
    if (!touches_value(target)) promote(target);

  auto functional = *info.functional;
  if (const auto scalar = scalar_form(functional.schema(), in)) {
    functional = *scalar;
    in[1] = in[1].toTensor().item();
  }
  const auto& pure = functional.schema();
  std::vector<ir::Argument> arguments;
  for (const auto& wanted : pure.arguments()) {
    const auto index = schema.argumentIndexWithName(wanted.name());
    if (index)
      arguments.push_back({wanted.name(), attribute(in[static_cast<std::size_t>(*index)], wanted)});
    else if (wanted.default_value())
      arguments.push_back({wanted.name(), aten::attribute_of(*wanted.default_value(), wanted)});
    else
      untraceable("calls " + info.name + ", whose form without side effects takes other arguments",
                  "use the operator without the underscore");
  }
  const auto count = running_average(arguments);
  Outputs outputs;
  const auto* source = info.name == "aten::copy_" ? std::get_if<ValueId>(&arguments[1].value) : nullptr;
  if (source)
    outputs = {*source};  // conformed below
  else
    outputs = emit(functional, std::move(arguments), device_of(schema, in));
  const auto first_written = outputs.size() - targets.size();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    auto value = outputs.at(first_written + i).value();
    auto* of = recorded(targets[i]);
    View of_region = of ? View{} : view_of_region(*region_of(targets[i]), targets[i]);
    View& view = of ? of->view : of_region;
    if (count) value = averaged(read(view), value, *count);
    write(view, conformed(value, read(view)));
  }
  std::size_t next = 0;
  for (const auto& result : schema.returns()) {
    if (result.alias_info() && result.alias_info()->isWrite()) {
      const auto& of = *result.alias_info();
      for (const auto i : info.written)
        if (*schema.arguments()[i].alias_info() == of) stack.push_back(in[i]);
    } else {
      const auto& output = outputs.at(next++);
      stack.emplace_back(output ? wrap(*output) : at::Tensor());
    }
  }
}

}  // namespace shoal::capture
