// SPDX-License-Identifier: Apache-2.0
// What becomes of one operator call: which kind it is, and the nodes and writes that it leaves.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "shoal/aten/interpreter.h"
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

static bool is_tensor_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  const auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::TensorType;
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
      if (!schema.overload_name().empty()) candidates.back() += "." + schema.overload_name();
    } else if (schema.overload_name().ends_with("out")) {
      auto overload = schema.overload_name().substr(0, schema.overload_name().size() - 3);
      if (overload.ends_with('_')) overload.pop_back();
      candidates =
          overload.empty() ? std::vector{base, base + ".Tensor"} : std::vector{base + "." + overload};
    } else {
      candidates.push_back(base + "_functional");  // _native_batch_norm_legit
    }
    for (const auto& candidate : candidates)
      if (!info.functional) info.functional = aten::find_operator(candidate);
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

bool Recorder::wants_factory(const c10::OperatorHandle& op) {
  const auto& info = info_of(op);
  return info.is_random || leaves_memory_as_it_is(info.name);
}

void Recorder::call(const c10::OperatorHandle& op, Stack& stack) {
  const OpInfo& info = info_of(op);
  const auto count = op.schema().arguments().size();
  const bool draws = info.is_random && capture::draws(op.schema(), torch::jit::last(stack, count));
  bool touches = draws;
  for (const auto& value : torch::jit::last(stack, count))
    for_each_tensor(value, [&](const at::Tensor& tensor) { touches = touches_value(tensor) || touches; });
  // A write to a tensor that lasts is part of the step, whatever is written.
  if (!touches && request_.writes_constant)
    for (const auto i : info.written)
      for_each_tensor(torch::jit::peek(stack, i, count),
                      [&](const at::Tensor& tensor) { touches = request_.writes_constant(tensor) || touches; });
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
  for (const auto i : info.written)
    for_each_tensor(in[i], [&](const at::Tensor& tensor) { keep_constants_of(tensor); });
  op.callBoxed(stack);
  if (leaves_memory_as_it_is(info.name)) stack.back().toTensor().zero_();
}

static Stack popped(Stack& stack, std::size_t count) {
  Stack in(std::make_move_iterator(stack.end() - static_cast<std::ptrdiff_t>(count)),
           std::make_move_iterator(stack.end()));
  torch::jit::drop(stack, count);
  return in;
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
  const auto scalar = c10::Dispatcher::singleton().findSchema({schema.name(), "Scalar"});
  if (!scalar || scalar->schema().arguments().size() != in.size()) return std::nullopt;
  return scalar;
}

void Recorder::record(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  for (const auto& [name, functional, written, only_if] : kUnmarkedMutators) {
    if (info.name != name) continue;
    const auto in = torch::jit::last(stack, schema.arguments().size());
    if (!in[only_if].toBool() || !in[written[0]].isTensor() || !in[written[0]].toTensor().defined()) continue;
    OpInfo writes{.kind = OpInfo::Kind::Write,
                  .name = info.name,
                  .functional = aten::find_operator(std::string(functional)),
                  .written = {written.begin(), written.end()}};
    return record_write(writes, op, stack);
  }
  if (info.dynamic_shape && depends_on_data(schema, torch::jit::last(stack, schema.arguments().size()))) {
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
  push_results(op, emit(op, arguments_of(schema, in), device), stack);
}

void Recorder::record_view(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
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
  Outputs outputs;
  const auto* source = info.name == "aten::copy_" ? std::get_if<ValueId>(&arguments[1].value) : nullptr;
  if (source)
    outputs = {*source};  // conformed below
  else
    outputs = emit(functional, std::move(arguments), device_of(schema, in));
  const auto first_written = outputs.size() - targets.size();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto value = outputs.at(first_written + i).value();
    auto* of = recorded(targets[i]);
    View of_region = of ? View{} : view_of_region(*region_of(targets[i]), targets[i]);
    View& view = of ? of->view : of_region;
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

// index.Tensor has the tag always, but only a mask among the indices makes its shape depend on data; likewise
// _ctc_loss, whose lengths are numbers.
bool Recorder::depends_on_data(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in) {
  if (schema.name() == "aten::_ctc_loss") return schema.overload_name() == "Tensor";
  if (schema.name() != "aten::index") return true;
  bool mask = false;
  for_each_tensor(in[1], [&](const at::Tensor& index) {
    mask = mask || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
  });
  return mask;
}

// x[mask] as x[mask.nonzero()…], which is what ATen makes of it: then the mask alone is read, and x may
// depend on parameters.
void Recorder::mask_to_positions(Stack& stack) {
  const auto nonzero = aten::find_operator("aten::nonzero");
  SHOAL_CHECK(nonzero, Internal, "capture: this LibTorch has no aten::nonzero");
  c10::List<std::optional<at::Tensor>> positions;
  for (const auto& item : stack.back().toListRef()) {
    const auto index = item.isTensor() ? item.toTensor() : at::Tensor();
    const bool mask =
        index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
    if (!mask) {
      positions.push_back(index.defined() ? std::optional(index) : std::nullopt);
      continue;
    }
    Stack call_stack = {index};
    call(*nonzero, call_stack);
    const auto found = call_stack.back().toTensor();  // [number, dims of the mask]
    for (std::int64_t dim = 0; dim < index.dim(); ++dim)
      positions.push_back(
          touches_value(found)
              ? wrap(emit_one("aten::select.int",
                              {{"self", value_of(found)}, {"dim", std::int64_t{1}}, {"index", dim}}))
              : found.select(1, dim));
  }
  stack.back() = positions;
}

at::Tensor Recorder::evaluate(ValueId value, const std::string& op) {
  if (!from_inputs_[value.index])
    untraceable("reads a value that depends on a parameter, a buffer or a random operator (" + op +
                    "), so the step is not one fixed graph",
                "keep it a tensor: torch::where, masks and clamp instead of if, item() and boolean indexing; "
                "what depends "
                "on the batch alone may be read");
  aten::Interpreter interpreter(captured_.graph);
  std::size_t input = 0, held = 0;
  for (const auto& source : captured_.graph.sources) {
    const auto role = captured_.graph.at(source.value).role;
    if (role == ir::Role::Input) interpreter.bind(source.value, request_.inputs[input++].tensor);
    if (role == ir::Role::Constant) interpreter.bind(source.value, captured_.constants[held++]);
  }
  return interpreter.value(value);
}

void Recorder::record_read(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  const auto in = popped(stack, schema.arguments().size());
  const auto device = device_of(schema, in);
  const ir::Node call{.op = info.name, .arguments = arguments_of(schema, in)};
  auto results = aten::call(call, [&](ValueId value) { return evaluate(value, info.name); });
  Guards::Guard guard{.call = call, .shapes_only = info.dynamic_shape, .where = where_in_module()};
  std::vector<at::Tensor> metas;
  for (const auto& result : results) {
    guard.expected.push_back(info.dynamic_shape ? c10::IValue(result.toTensor().sizes()) : result);
    if (info.dynamic_shape) metas.push_back(meta_of(result.toTensor()));
  }
  captured_.guards.list.push_back(std::move(guard));
  if (info.dynamic_shape)
    push_results(op, add_node(info.name, call.arguments, metas, device, false), stack);
  else
    for (auto& result : results) stack.push_back(std::move(result));
}

}  // namespace shoal::capture
