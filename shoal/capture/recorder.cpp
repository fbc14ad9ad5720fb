// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/recorder.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include "shoal/aten/interpreter.h"
#include "shoal/aten/operators.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/modules.h"
#include "shoal/capture/random.h"
#include "shoal/capture/source_line.h"
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

// Attention is written down without the device that the kernel was chosen for; the executor chooses again.
namespace {
struct NeutralForm {
  std::string_view op;
  const char* neutral;
  std::vector<std::pair<const char*, const char*>> arguments;  // ATen's name, ours
};
}  // namespace
static const NeutralForm kNeutralForms[] = {
    {"aten::_scaled_dot_product_flash_attention_for_cpu",
     "shoal::attention",
     {{"query", "query"}, {"key", "key"}, {"value", "value"}, {"attn_mask", "attn_mask"}, {"is_causal", "is_causal"},
      {"scale", "scale"}}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
     "shoal::attention_backward",
     {{"grad_out", "grad_output"}, {"query", "query"}, {"key", "key"}, {"value", "value"}, {"out", "output"},
      {"logsumexp", "logsumexp"}, {"attn_mask", "attn_mask"}, {"is_causal", "is_causal"}, {"scale", "scale"}}},
};

static const NeutralForm* neutral_form(std::string_view op) {
  for (const auto& form : kNeutralForms)
    if (form.op == op) return &form;
  return nullptr;
}

static at::Tensor meta_of(const at::Tensor& tensor) {
  auto meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

static std::uint64_t next_capture_id() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

static std::pair<std::int64_t, std::int64_t> bytes_covered(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += std::max<std::int64_t>(tensor.size(dim) - 1, 0) * tensor.stride(dim);
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  const auto begin = tensor.storage_offset() * size;
  return {begin, tensor.numel() == 0 ? begin : begin + (last + 1) * size};
}

static void for_each_tensor(const c10::IValue& value, const auto& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isList()) {
    for (const auto& item : value.toListRef())
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
  }
}

static bool is_tensor_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  const auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::TypeKind::TensorType;
}

// A hash of the bytes, so that two captures can be compared without keeping both.
static std::string fingerprint(const at::Tensor& tensor) {
  const auto bytes = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu();
  const std::string_view view(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  return std::to_string(std::hash<std::string_view>{}(view)) +
         (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? "w" : "");
}

// ---- sources -------------------------------------------------------------------------------------------------------

Recorder::Recorder(const Request& request, std::optional<Stop> stop)
    : request_(request), stop_(std::move(stop)), id_(next_capture_id()) {
  const auto source = [&](ir::Role role, const std::string& name, const at::Tensor& tensor) {
    const auto value = captured_.graph.add_source(role, name, aten::type_of(tensor));
    metas_.push_back(meta_of(tensor));
    devices_.push_back(tensor.device());
    from_inputs_.push_back(role == ir::Role::Input);
    return value;
  };
  const auto sources = [&](ir::Role role, const std::vector<NamedTensor>& tensors) {
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.defined()) continue;
      SHOAL_CHECK(!recorded(tensor), InvalidInput, "capture: ", ir::name_of(role), " ", name,
                  " was replaced by an activation of an earlier capture; write to it with copy_() instead");
      SHOAL_CHECK(tensor.layout() == at::kStrided, InvalidInput, "capture: ", ir::name_of(role), " ", name, " is ",
                  tensor.layout(), "; sparse tensors cannot be captured");
      const auto* region = region_of(tensor);
      if (region && bytes_covered(region->tensor) == bytes_covered(tensor)) continue;  // tied
      add_region(tensor, role, name, source(role, name, tensor));
    }
  };
  sources(ir::Role::Parameter, request.parameters);
  sources(ir::Role::Buffer, request.buffers);
  for (const auto& [name, tensor] : request.inputs) {
    SHOAL_CHECK(tensor.defined() && tensor.layout() == at::kStrided, InvalidInput, "capture: input ", name,
                " is undefined or sparse; give a dense tensor");
    inputs_.push_back(wrap(source(ir::Role::Input, name, tensor)));
  }
}

void Recorder::add_region(const at::Tensor& tensor, ir::Role role, const std::string& name, ValueId value) {
  const auto [begin, end] = bytes_covered(tensor);
  regions_[tensor.storage().unsafeGetStorageImpl()].push_back(
      {std::make_shared<Alias>(Alias{value, value, 0}), tensor, begin, end, role, name});
}

const Recorder::Region* Recorder::region_of(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return nullptr;
  const auto found = regions_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == regions_.end()) return nullptr;
  const auto [begin, end] = bytes_covered(tensor);
  for (const auto& region : found->second)
    if (begin >= region.begin && end <= region.end && (begin < region.end || begin == end)) return &region;
  return nullptr;
}

bool Recorder::touches_value(const at::Tensor& tensor) const {
  if (const auto* of = recorded(tensor)) {
    SHOAL_CHECK(of->capture_id == id_, InvalidInput,
                "capture: the model uses an activation of an earlier step, ", where(),
                "; a captured step sees its batch, parameters and buffers alone: keep what must last in a buffer and "
                "write to it with copy_()");
    return true;
  }
  return region_of(tensor) != nullptr;
}

View Recorder::view_of_region(const Region& region, const at::Tensor& tensor) {
  SHOAL_CHECK(tensor.scalar_type() == region.tensor.scalar_type(), InvalidInput, "capture: ", region.name,
              " is seen as another dtype, ", where(), "; convert it with to() instead of view(dtype)");
  View view{region.alias, steps_between(region.tensor, tensor), region.alias->value, region.alias->version};
  if (!view.steps.empty()) view.version = region.alias->version - 1;  // shown value is not known yet
  return view;
}

// A constant that a value is written into becomes a value, with all its aliases.
View Recorder::promote(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.is_view() ? at::Tensor(tensor._base()) : tensor;
  const ValueId value = constant(whole);
  keep_constants_of(whole);
  add_region(whole, ir::Role::Activation, "", value);
  return view_of_region(*region_of(tensor), tensor);
}

ValueId Recorder::constant(const at::Tensor& tensor) {
  SHOAL_CHECK(tensor.layout() == at::kStrided && tensor.has_storage(), InvalidInput,
              "capture: a ", tensor.layout(), " tensor meets the model's values, ", where(), "; use a dense one");
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  auto& held = constants_[tensor.storage().unsafeGetStorageImpl()];
  for (const auto& [value, index] : held) {
    const auto& other = captured_.constants[index];
    if (other.sizes() == tensor.sizes() && other.strides() == tensor.strides() && other.dtype() == tensor.dtype() &&
        other.storage_offset() == tensor.storage_offset() && other.is_conj() == tensor.is_conj() &&
        other.unsafeGetTensorImpl()->is_wrapped_number() == wrapped)
      return value;
  }
  const auto index = captured_.constants.size();
  const auto value = captured_.graph.add_source(ir::Role::Constant, "c" + std::to_string(index), aten::type_of(tensor));
  captured_.constants.push_back(wrapped ? tensor : tensor.detach());
  metas_.push_back(meta_of(tensor));
  devices_.push_back(tensor.device());
  from_inputs_.push_back(true);
  held.push_back({value, index});
  return value;
}

void Recorder::keep_constants_of(const at::Tensor& about_to_change) {
  if (!about_to_change.has_storage()) return;
  const auto found = constants_.find(about_to_change.storage().unsafeGetStorageImpl());
  if (found == constants_.end()) return;
  for (const auto& held : found->second) captured_.constants[held.index] = captured_.constants[held.index].clone();
  constants_.erase(found);
}

// ---- reading and writing -------------------------------------------------------------------------------------------

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
  view.alias->value = whole;
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
  if (name == "aten::as_strided") return scatter("aten::as_strided_scatter", {"size", "stride", "storage_offset"});
  if (name == "aten::alias" || name == "aten::detach" || name == "aten::lift_fresh") return part;
  if (name == "aten::t") return emit_one("aten::t", {{"self", part}});
  if (name == "aten::transpose.int")
    return emit_one("aten::transpose.int", {{"self", part}, {"dim0", argument("dim0")}, {"dim1", argument("dim1")}});
  if (name == "aten::permute") {
    const auto& dims = std::get<std::vector<std::int64_t>>(argument("dims"));
    std::vector<std::int64_t> back(dims.size());
    for (std::size_t i = 0; i < dims.size(); ++i)
      back[static_cast<std::size_t>(c10::maybe_wrap_dim(dims[i], static_cast<std::int64_t>(dims.size())))] = static_cast<std::int64_t>(i);
    return emit_one("aten::permute", {{"self", part}, {"dims", back}});
  }
  if (name == "aten::view.dtype")
    return emit_one("aten::view.dtype", {{"self", part}, {"dtype", aten::from_torch(metas_[whole.index].scalar_type())}});
  if (name == "aten::view_as_real") return emit_one("aten::view_as_complex", {{"self", part}});
  if (name == "aten::view_as_complex") return emit_one("aten::view_as_real", {{"self", part}});
  const bool reshapes = name == "aten::view" || name == "aten::_reshape_alias" || name.starts_with("aten::squeeze") ||
                        name == "aten::unsqueeze" || name == "aten::expand";
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
  const bool other_list = value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList();
  if (other_list && !value.toListRef().empty()) {
    ir::ValueList list;
    for (const auto& item : value.toListRef()) {
      SHOAL_CHECK(item.isNone() || item.isTensor(), InvalidInput, "capture: argument ", argument.name(), " is a list of ",
                  item.tagKind(), ", ", where(), ", which cannot be captured");
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

// ---- nodes ---------------------------------------------------------------------------------------------------------

Recorder::Outputs Recorder::add_node(std::string op, std::vector<ir::Argument> arguments,
                                     const std::vector<at::Tensor>& metas, c10::Device device, bool random) {
  std::vector<std::optional<ir::TensorType>> types;
  for (const auto& meta : metas) {
    if (!meta.defined()) {
      types.emplace_back();
      continue;
    }
    SHOAL_CHECK(meta.layout() == at::kStrided, InvalidInput, "capture: ", op, " makes a ", meta.layout(), " tensor, ",
                where(), "; sparse gradients are not supported: build the embedding with sparse=false");
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
  const auto running = torch::autograd::get_current_node();
  sequence_.push_back(phase_ == ir::Phase::Backward && running ? running->sequence_nr() : at::sequence_number::peek() - 1);
  if (stop_ && stop_->node == id.index) untraceable(stop_->why, "make the model do the same each time it is called with the same batch");
  return captured_.graph.at(id).outputs;
}

Recorder::Outputs Recorder::emit(const c10::OperatorHandle& op, std::vector<ir::Argument> arguments, c10::Device device) {
  const auto& schema = op.schema();
  Stack stack;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = schema.arguments().at(i);
    auto value = aten::ivalue_of(arguments[i].value, argument, [&](ValueId id) { return metas_[id.index]; });
    if (value.isDevice()) value = c10::Device(at::kMeta);
    if (argument.name() == "pin_memory") value = c10::IValue();
    stack.push_back(std::move(value));
  }
  std::vector<at::Tensor> metas;
  try {
    metas = shapes_.results(op, stack);
  } catch (const Error&) {
    throw;
  } catch (const c10::NotImplementedError& error) {
    untraceable("calls " + aten::name_of(schema) + ", whose result's shape cannot be found without running it (" +
                    error.what_without_backtrace() + ")",
                "register a Meta kernel for it");
  }
  auto name = aten::name_of(schema);
  if (const auto* form = neutral_form(name)) {
    const auto argument = [&](const char* wanted) { return *std::ranges::find(arguments, wanted, &ir::Argument::name); };
    SHOAL_CHECK(std::get<double>(argument("dropout_p").value) == 0, Internal, "capture: ", name, " with dropout");
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
    arguments.push_back(found != given.end() ? *found
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
  return at::Tensor(c10::make_intrusive<RecordedTensor>(std::move(view), metas_[value.index], devices_[value.index], id_));
}

// The value as an in-place operator leaves it: the old one's dtype, sizes and strides.
ValueId Recorder::conformed(ValueId value, ValueId old) {
  const auto& graph = captured_.graph;
  const auto& wanted = graph.at(old).type;
  const auto& got = graph.at(value).type;
  if (wanted == got || (wanted.dtype == got.dtype && wanted.shape == got.shape && ir::is_contiguous(wanted) && ir::is_contiguous(got)))
    return value;
  return emit_one("aten::copy", {{"self", old}, {"src", value}});
}

// ---- calls ---------------------------------------------------------------------------------------------------------

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
  for (const auto& result : schema.returns()) is_view = is_view || (result.alias_info() && !result.alias_info()->isWrite());

  if (is_random(name)) {
    info.kind = OpInfo::Kind::Random;
  } else if (op.hasTag(at::Tag::inplace_view)) {
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
      candidates = overload.empty() ? std::vector{base, base + ".Tensor"} : std::vector{base + "." + overload};
    } else {
      candidates.push_back(base + "_functional");  // _native_batch_norm_legit
    }
    for (const auto& candidate : candidates)
      if (!info.functional) info.functional = aten::find_operator(candidate);
  } else if (is_view) {
    info.kind = OpInfo::Kind::View;
  } else if (op.hasTag(at::Tag::data_dependent_output)) {
    info.kind = OpInfo::Kind::Reads;
  } else if (op.hasTag(at::Tag::nondeterministic_seeded) && neutral_form(name) == nullptr) {
    info.kind = OpInfo::Kind::Unsupported;
  }
  return infos_.emplace(std::move(name), std::move(info)).first->second;
}

bool Recorder::wants_factory(const c10::OperatorHandle& op) { return info_of(op).kind == OpInfo::Kind::Random; }

void Recorder::call(const c10::OperatorHandle& op, Stack& stack) {
  const OpInfo& info = info_of(op);
  const auto count = op.schema().arguments().size();
  bool touches = info.kind == OpInfo::Kind::Random;
  for (const auto& value : torch::jit::last(stack, count))
    for_each_tensor(value, [&](const at::Tensor& tensor) { touches = touches_value(tensor) || touches; });
  if (!touches) return compute(info, op, stack);
  switch (info.kind) {
    case OpInfo::Kind::Functional: return record(info, op, stack);
    case OpInfo::Kind::View: return record_view(info, op, stack);
    case OpInfo::Kind::InPlaceView: return record_in_place_view(info, op, stack);
    case OpInfo::Kind::Write: return record_write(info, op, stack);
    case OpInfo::Kind::Random: return record_random(op, stack);
    case OpInfo::Kind::Reads: return record_read(info, op, stack);
    case OpInfo::Kind::Unsupported:
      untraceable("calls " + info.name + ", a random operator that Shoal does not draw itself",
                  "build it from rand, randn, randint, bernoulli or dropout, which it does");
  }
}

// Nothing of the model or batch is involved: done now, once.
void Recorder::compute(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto in = torch::jit::last(stack, op.schema().arguments().size());
  for (const auto i : info.written) for_each_tensor(in[i], [&](const at::Tensor& tensor) { keep_constants_of(tensor); });
  op.callBoxed(stack);
}

c10::Device Recorder::device_of(const c10::FunctionSchema& schema, const Stack& in) const {
  std::optional<c10::Device> device;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i].isDevice() && schema.arguments()[i].name() == "device") return in[i].toDevice();
    for_each_tensor(in[i], [&](const at::Tensor& tensor) {
      // A 0-dim tensor of the CPU may meet tensors of any device.
      if (!device || (tensor.dim() > 0 && device->is_cpu())) device = tensor.device();
    });
  }
  return device.value_or(c10::Device(at::kCPU));
}

static Stack popped(Stack& stack, std::size_t count) {
  Stack in(std::make_move_iterator(stack.end() - static_cast<std::ptrdiff_t>(count)), std::make_move_iterator(stack.end()));
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
      for (const auto end = outputs.size() - (returns.size() - 1); next < end; ++next) list.push_back(wrap(outputs[next].value()));
      stack.emplace_back(std::move(list));
    }
  }
}

// `x * 2` comes as mul.Tensor with a 0-dim tensor that only its flag tells from a real one; mul.Scalar says it plainly.
static std::optional<c10::OperatorHandle> scalar_form(const c10::FunctionSchema& schema, const Stack& in) {
  if (schema.overload_name() != "Tensor" || in.size() < 2 || !in[0].isTensor() || !in[1].isTensor()) return std::nullopt;
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
    OpInfo writes{.kind = OpInfo::Kind::Write, .name = info.name,
                  .functional = aten::find_operator(std::string(functional)), .written = {written.begin(), written.end()}};
    return record_write(writes, op, stack);
  }
  if (info.dynamic_shape && depends_on_data(schema, torch::jit::last(stack, schema.arguments().size())))
    return record_read(info, op, stack);

  auto in = popped(stack, schema.arguments().size());
  const auto device = device_of(schema, in);
  if (!std::ranges::all_of(schema.returns(), [](const auto& result) { return is_tensor_type(result.type()); })) {
    // A question about shapes (is_same_size, …): the answer does not depend on data.
    const auto arguments = arguments_of(schema, in);
    for (std::size_t i = 0; i < arguments.size(); ++i)
      stack.push_back(aten::ivalue_of(arguments[i].value, schema.arguments()[i], [&](ValueId id) { return metas_[id.index]; }));
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
  if (underscore != std::string::npos && schema.name().ends_with('_')) functional.erase(schema.name().size() - 1, 1);
  const auto view = functional == info.name ? std::nullopt : aten::find_operator(functional);
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
  const auto in = popped(stack, schema.arguments().size());
  if (!info.functional) untraceable("calls " + info.name + ", which writes to its arguments", "use the operator without the underscore");
  std::vector<at::Tensor> targets;
  for (const auto i : info.written) for_each_tensor(in[i], [&](const at::Tensor& tensor) { targets.push_back(tensor); });
  // A target that is a constant so far becomes a value first, so that the operator reads it as one.
  for (const auto& target : targets)
    if (!touches_value(target)) promote(target);

  const auto& pure = info.functional->schema();
  std::vector<ir::Argument> arguments;
  for (const auto& wanted : pure.arguments()) {
    const auto index = schema.argumentIndexWithName(wanted.name());
    if (index)
      arguments.push_back({wanted.name(), attribute(in[static_cast<std::size_t>(*index)], wanted)});
    else if (wanted.default_value())
      arguments.push_back({wanted.name(), aten::attribute_of(*wanted.default_value(), wanted)});
    else
      untraceable("calls " + info.name + ", whose form without side effects takes other arguments", "use the operator without the underscore");
  }
  Outputs outputs;
  const auto* source = info.name == "aten::copy_" ? std::get_if<ValueId>(&arguments[1].value) : nullptr;
  if (source)
    outputs = {*source};  // conformed below
  else
    outputs = emit(*info.functional, std::move(arguments), device_of(schema, in));
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

ValueId Recorder::scalar(const char* name) {
  const auto [found, added] = scalars_.try_emplace(name);
  if (added) {
    found->second = captured_.graph.add_source(ir::Role::Scalar, name, ir::contiguous(DType::Int64, {}));
    metas_.push_back(at::empty({}, at::TensorOptions(at::kMeta).dtype(at::kLong)));
    devices_.emplace_back(at::kCPU);
    from_inputs_.push_back(false);
  }
  return found->second;
}

void Recorder::record_random(const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  const auto in = popped(stack, schema.arguments().size());
  const bool in_place = schema.name().ends_with('_');
  if (in_place && !touches_value(in[0].toTensor())) promote(in[0].toTensor());
  auto draw = draw_of(schema, in);
  if (draw.probabilities.defined()) {
    draw.arguments[0].value = value_of(draw.probabilities);
    draw.shape = draw.probabilities.sizes().vec();
  }
  for (const char* name : {"seed", "step"}) draw.arguments.push_back({name, scalar(name)});
  draw.arguments.push_back({"ordinal", random_ordinal_++});
  const auto meta = at::empty(draw.shape, at::TensorOptions(at::kMeta).dtype(aten::to_torch(draw.dtype)));
  const auto device = device_of(schema, in);
  const auto drawn = add_node(draw.op, std::move(draw.arguments), {meta}, device, true).at(0).value();

  if (schema.name() == "aten::native_dropout") {
    const auto input = value_of(in[0].toTensor());
    const double p = in[1].toDouble();
    const auto kept = emit_one("aten::mul.Tensor", {{"self", input}, {"other", drawn}});
    stack.emplace_back(wrap(emit_one("aten::mul.Scalar", {{"self", kept}, {"other", p == 1 ? 0.0 : 1 / (1 - p)}})));
    stack.emplace_back(wrap(drawn));
  } else if (in_place) {
    const at::Tensor self = in[0].toTensor();
    auto* of = recorded(self);
    View of_region = of ? View{} : view_of_region(*region_of(self), self);
    View& view = of ? of->view : of_region;
    write(view, conformed(drawn, read(view)));
    stack.emplace_back(self);
  } else {
    stack.emplace_back(wrap(drawn));
  }
}

// ---- values that are read ------------------------------------------------------------------------------------------

// index.Tensor has the tag always, but only a mask among the indices makes its shape depend on data.
bool Recorder::depends_on_data(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> in) {
  if (schema.name() != "aten::index") return true;
  bool mask = false;
  for_each_tensor(in[1], [&](const at::Tensor& index) {
    mask = mask || index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
  });
  return mask;
}

at::Tensor Recorder::evaluate(ValueId value, const std::string& op) {
  if (!from_inputs_[value.index])
    untraceable("reads a value that depends on a parameter, a buffer or a random operator (" + op +
                    "), so the step is not one fixed graph",
                "keep it a tensor: torch::where, masks and clamp instead of if, item() and boolean indexing; what depends "
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

std::string Recorder::where_in_module() const {
  return last_module_.empty() ? "in the root module" : "in or after module " + last_module_;
}

std::string Recorder::where() const {
  const auto line = user_source_line();
  return where_in_module() + (line.empty() ? "" : " at " + line);
}

void Recorder::untraceable(const std::string& what, const std::string& remedy) const {
  fail(ErrorKind::InvalidInput, "capture: the model ", what, ", ", where(), ". Remedy: ", remedy);
}

// ---- the end -------------------------------------------------------------------------------------------------------

void Recorder::add_result(ir::Role role, std::string name, const at::Tensor& tensor) {
  captured_.graph.add_result(role, std::move(name), value_of(tensor));
}

Captured Recorder::finish() && {
  for (const auto* tensors : {&request_.parameters, &request_.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      const auto* region = tensor.defined() ? region_of(tensor) : nullptr;
      if (region && region->name == name && region->alias->value != region->alias->original)
        captured_.graph.add_result(region->role, name, region->alias->value);
    }
  }
  name_modules(captured_.graph, sequence_);
  std::size_t held = 0;
  for (auto& source : captured_.graph.sources)
    if (captured_.graph.at(source.value).role == ir::Role::Constant) source.fingerprint = fingerprint(captured_.constants[held++]);
  if (!captured_.guards.list.empty()) {
    captured_.guards.graph = captured_.graph;
    captured_.guards.constants = captured_.constants;
  }
  return std::move(captured_);
}

}  // namespace shoal::capture
