// SPDX-License-Identifier: Apache-2.0
// What tensors are as values of the graph: read, written through views, made by nodes; and the graph's end.
#include "shoal/capture/recorder.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "shoal/aten/interpreter.h"
#include "shoal/aten/operators.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/modules.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/source_line.h"
#include "shoal/capture/views.h"
#include "shoal/ir/fingerprint.h"

namespace shoal::capture {

using ir::ValueId;
using Stack = torch::jit::Stack;

ValueId Recorder::value_of(const at::Tensor& tensor) {
  if (auto* of = recorded(tensor)) return read(of->view);
  if (const auto* region = region_of(tensor)) {
    if (region->role == ir::Role::Parameter) last_module_ = owner_of(region->name);
    auto view = view_of_region(*region, tensor);
    return read(view);
  }
  return constant(tensor);
}

ValueId Recorder::read(View& view) {
  if (view.version == view.alias->version) return view.value;
  ValueId value = view.alias->value;
  for (const auto& [op, arguments] : view.steps) {
    auto with_self = arguments;
    with_self[0].value = value;
    value = emit(op, std::move(with_self), devices_[value.index]).at(0).value();
  }
  view.value = value;
  view.version = view.alias->version;
  return value;
}

void Recorder::write(View& view, ValueId value) {
  std::vector<ValueId> wholes = {view.alias->value};
  for (std::size_t i = 0; i + 1 < view.steps.size(); ++i) {
    auto with_self = view.steps[i].arguments;
    with_self[0].value = wholes.back();
    wholes.push_back(emit(view.steps[i].op, std::move(with_self), devices_[value.index]).at(0).value());
  }
  ValueId whole = value;
  for (std::size_t i = view.steps.size(); i-- > 0;) whole = inverse(view.steps[i], wholes[i], whole);
  // In the strides it had: what reads it later sums in the order that eager does, and view() finds its dims.
  view.alias->value = conformed(whole, view.alias->value);
  ++view.alias->version;
  view.value = value;
  view.version = view.alias->version;
}

// The whole with the part that a view shows of it replaced.
ValueId Recorder::inverse(const ViewStep& step, ValueId whole, ValueId part) {
  const auto name = aten::name_of(step.op.schema());
  const auto argument = [&](std::string_view wanted) -> const ir::Attribute& {
    for (const auto& [each, value] : step.arguments)
      if (each == wanted) return value;
    fail(ErrorKind::Internal, "capture: ", name, " has no argument ", wanted);
  };
  const auto scatter = [&](const char* op, std::initializer_list<const char*> names) {
    std::vector<ir::Argument> arguments = {{"self", whole}, {"src", part}};
    for (const char* each : names) arguments.push_back({each, argument(each)});
    return emit_one(op, std::move(arguments));
  };
  const auto sizes = [&] { return metas_[whole.index].sizes().vec(); };
  if (name == "aten::slice.Tensor") return scatter("aten::slice_scatter", {"dim", "start", "end", "step"});
  if (name == "aten::select.int") return scatter("aten::select_scatter", {"dim", "index"});
  if (name == "aten::diagonal") return scatter("aten::diagonal_scatter", {"offset", "dim1", "dim2"});
  if (name == "aten::as_strided")
    return scatter("aten::as_strided_scatter", {"size", "stride", "storage_offset"});
  if (name == "aten::alias" || name == "aten::detach" || name == "aten::lift_fresh") return part;
  if (name == "aten::t") return emit_one("aten::t", {{"self", part}});
  if (name == "aten::transpose.int")
    return emit_one("aten::transpose.int",
                    {{"self", part}, {"dim0", argument("dim0")}, {"dim1", argument("dim1")}});
  if (name == "aten::permute") {
    const auto& dims = std::get<std::vector<std::int64_t>>(argument("dims"));
    std::vector<std::int64_t> back(dims.size());
    for (std::size_t i = 0; i < dims.size(); ++i)
      back[static_cast<std::size_t>(c10::maybe_wrap_dim(dims[i], static_cast<std::int64_t>(dims.size())))] =
          static_cast<std::int64_t>(i);
    return emit_one("aten::permute", {{"self", part}, {"dims", back}});
  }
  if (name == "aten::view.dtype")
    return emit_one("aten::view.dtype",
                    {{"self", part}, {"dtype", aten::from_torch(metas_[whole.index].scalar_type())}});
  if (name == "aten::_conj_physical" || name == "aten::neg") return emit_one(name.c_str(), {{"self", part}});
  if (name == "aten::view_as_real") return emit_one("aten::view_as_complex", {{"self", part}});
  if (name == "aten::view_as_complex") return emit_one("aten::view_as_real", {{"self", part}});
  const bool reshapes = name == "aten::view" || name == "aten::_reshape_alias" ||
                        name.starts_with("aten::squeeze") || name == "aten::unsqueeze" ||
                        name == "aten::expand";
  if (reshapes && metas_[whole.index].numel() == metas_[part.index].numel()) {
    if (!metas_[part.index].is_contiguous())
      part = emit_one("aten::clone", {{"self", part}, {"memory_format", ir::Symbol{"contiguous_format"}}});
    return emit_one("aten::view", {{"self", part}, {"size", sizes()}});
  }
  untraceable("writes through a view made by " + name, "write to a clone() of it");
}

ir::Attribute Recorder::attribute(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return std::monostate{};
    return value_of(value.toTensor());
  }
  if (value.isTensorList()) {
    ir::ValueList list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.emplace_back(value_of(tensor));
    return list;
  }
  const bool other_list =
      value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList();
  if (other_list && !value.toListRef().empty()) {
    ir::ValueList list;
    for (const auto& item : value.toListRef()) {
      SHOAL_CHECK(item.isNone() || item.isTensor(), InvalidInput, "capture: argument ", argument.name(),
                  " is a list of ", item.tagKind(), ", ", where(), ", which cannot be captured");
      const bool present = item.isTensor() && item.toTensor().defined();
      list.push_back(present ? std::optional(value_of(item.toTensor())) : std::nullopt);
    }
    return list;
  }
  return aten::attribute_of(value, argument);
}

std::vector<ir::Argument> Recorder::arguments_of(const c10::FunctionSchema& schema, const Stack& in) {
  std::vector<ir::Argument> arguments;
  for (std::size_t i = 0; i < in.size(); ++i)
    arguments.push_back({schema.arguments()[i].name(), attribute(in[i], schema.arguments()[i])});
  return arguments;
}

void Recorder::tell_progress() {
  const auto taken = std::chrono::steady_clock::now() - begin_;
  if (taken < patience_) return;
  patience_ = 2 * taken;
  request_.progress(captured_.graph.nodes.size(), std::chrono::duration<double>(taken).count());
}

Recorder::Outputs Recorder::add_node(std::string op, std::vector<ir::Argument> arguments,
                                     const std::vector<at::Tensor>& metas, c10::Device device, bool random) {
  std::vector<std::optional<ir::TensorType>> types;
  for (const auto& meta : metas) {
    if (!meta.defined()) {
      types.emplace_back();
      continue;
    }
    SHOAL_CHECK(meta.layout() == at::kStrided, InvalidInput, "capture: ", op, " makes a ", meta.layout(),
                " tensor, ", where(),
                "; of those in the batch and of constants mm, addmm, mv and t() are recorded. Remedy: make "
                "it before the "
                "step, or to_dense(), and gather() without sparse_grad");
    types.emplace_back(aten::type_of(meta));
  }
  ir::Node node{.op = std::move(op), .arguments = std::move(arguments), .phase = phase_};
  bool from_inputs = !random;
  for (const auto input : ir::inputs_of(node)) from_inputs = from_inputs && from_inputs_[input.index];
  const auto id = captured_.graph.add_node(std::move(node), types);
  for (const auto& meta : metas) {
    if (!meta.defined()) continue;
    metas_.push_back(meta);
    devices_.push_back(device);
    from_inputs_.push_back(from_inputs);
  }
  if (phase_ == ir::Phase::Forward) marks_.add_node(id, captured_.graph.at(id), [this] { return where(); });
  if (request_.progress) tell_progress();
  const auto running = torch::autograd::get_current_node();
  sequence_.push_back(phase_ == ir::Phase::Backward && running ? running->sequence_nr()
                                                               : at::sequence_number::peek() - 1);
  if (stop_ && stop_->node == id.index) untraceable(stop_->why, stop_->remedy);
  return captured_.graph.at(id).outputs;
}

std::vector<at::Tensor> Recorder::metas_of(const c10::OperatorHandle& op,
                                           const std::vector<ir::Argument>& arguments, c10::Device device) {
  const auto& schema = op.schema();
  Stack stack;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = schema.arguments().at(i);
    auto value = aten::ivalue_of(arguments[i].value, argument, [&](ValueId id) { return metas_[id.index]; });
    if (value.isDevice()) value = c10::Device(at::kMeta);
    if (argument.name() == "pin_memory") value = c10::IValue();
    stack.push_back(std::move(value));
  }
  try {
    return shapes_.results(op, stack, device);
  } catch (const Error&) {
    throw;
  } catch (const c10::NotImplementedError& error) {
    untraceable("calls " + aten::name_of(schema) +
                    ", whose result's shape cannot be found without running it (" +
                    error.what_without_backtrace() + ")",
                "register a Meta kernel for it");
  }
}

Recorder::Outputs Recorder::emit(const c10::OperatorHandle& op, std::vector<ir::Argument> arguments,
                                 c10::Device device) {
  const auto metas = metas_of(op, arguments, device);
  auto name = aten::name_of(op.schema());
  if (const auto* form = neutral_form(name)) {
    const auto argument = [&](const char* wanted) {
      return *std::ranges::find(arguments, wanted, &ir::Argument::name);
    };
    SHOAL_CHECK(std::get<double>(argument("dropout_p").value) == 0, Internal, "capture: ", name,
                " with dropout");
    std::vector<ir::Argument> kept;
    for (const auto& [theirs, ours] : form->arguments) kept.push_back({ours, argument(theirs).value});
    return add_node(form->neutral, std::move(kept), metas, device, false);
  }
  return add_node(std::move(name), std::move(arguments), metas, device, false);
}

// An operator with one tensor as its result; arguments not given take the schema's defaults.
ValueId Recorder::emit_one(const char* op, std::vector<ir::Argument> given) {
  const auto handle = aten::find_operator(op);
  SHOAL_CHECK(handle, Internal, "capture: this LibTorch has no ", op);
  std::vector<ir::Argument> arguments;
  for (const auto& argument : handle->schema().arguments()) {
    const auto found = std::ranges::find(given, argument.name(), &ir::Argument::name);
    arguments.push_back(
        found != given.end()
            ? *found
            : ir::Argument{argument.name(), aten::attribute_of(*argument.default_value(), argument)});
  }
  auto device = c10::Device(at::kCPU);
  for (const auto& argument : arguments)
    if (const auto* value = std::get_if<ValueId>(&argument.value)) device = devices_[value->index];
  return emit(*handle, std::move(arguments), device).at(0).value();
}

at::Tensor Recorder::wrap(ValueId value) {
  return wrap_view({std::make_shared<Alias>(Alias{value, value, 0}), {}, value, 0}, value);
}

at::Tensor Recorder::wrap_view(View view, ValueId value) {
  return at::Tensor(
      c10::make_intrusive<RecordedTensor>(std::move(view), metas_[value.index], devices_[value.index], id_));
}

// The value as an in-place operator leaves it: the old one's dtype, sizes and strides.
ValueId Recorder::conformed(ValueId value, ValueId old) {
  const auto& graph = captured_.graph;
  const auto& wanted = graph.at(old).type;
  const auto& got = graph.at(value).type;
  if (wanted == got || (wanted.dtype == got.dtype && wanted.shape == got.shape && ir::is_contiguous(wanted) &&
                        ir::is_contiguous(got)))
    return value;
  return emit_one("aten::copy", {{"self", old}, {"src", value}});
}

std::string Recorder::where_in_module() const {
  return last_module_.empty() ? "in the root module" : "in or after module " + last_module_;
}

std::string Recorder::where() const {
  const auto line = request_.source_line ? request_.source_line() : user_source_line();
  return where_in_module() + (line.empty() ? "" : " at " + line);
}

void Recorder::untraceable(const std::string& what, const std::string& remedy) const {
  fail(ErrorKind::InvalidInput, "capture: the model ", what, ", ", where(), ". Remedy: ", remedy);
}

void Recorder::add_result(ir::Role role, std::string name, const at::Tensor& tensor) {
  captured_.graph.add_result(role, std::move(name), value_of(tensor));
}

// A hash of the bytes, so that two captures can be compared without keeping both.
static std::string fingerprint(const at::Tensor& tensor) {
  const auto bytes = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu();
  return ir::fingerprint_of({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()}) +
         (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? "w" : "");
}

Captured Recorder::finish() && {
  require_expectations();
  for (const auto* tensors : {&request_.parameters, &request_.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      const auto* region = tensor.defined() ? region_of(tensor) : nullptr;
      if (region && region->name == name && region->alias->value != region->alias->original)
        captured_.graph.add_result(region->role, name, region->alias->value);
    }
  }
  for (std::size_t i = 0; i < input_aliases_.size(); ++i)
    if (const auto& alias = *input_aliases_[i]; alias.value != alias.original)
      captured_.graph.add_result(ir::Role::Output, written_name(request_.inputs[i].name), alias.value);
  name_modules(captured_.graph, sequence_);
  captured_.scopes = std::move(marks_).finish(captured_.graph);
  std::size_t held = 0;
  for (auto& source : captured_.graph.sources)
    if (captured_.graph.at(source.value).role == ir::Role::Constant)
      source.fingerprint = fingerprint(captured_.constants[held++]);
  if (!captured_.guards.list.empty()) {
    captured_.guards.graph = captured_.graph;
    captured_.guards.constants = captured_.constants;
  }
  return std::move(captured_);
}

}  // namespace shoal::capture
