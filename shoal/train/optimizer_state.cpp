// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/optimizer_state.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/train/memory.h"

namespace shoal::train {

using ir::Role;

static std::string parameter_in(const std::string& state) { return state.substr(0, state.rfind('.')); }

// Of what an optimizer keeps that is a number.
static DType type_of_numbers() {
  return c10::get_default_dtype_as_scalartype() == c10::ScalarType::Double ? DType::Float64 : DType::Float32;
}

void check_state_fits(const std::vector<checkpoint::TensorShape>& wanted,
                      const std::vector<checkpoint::TensorShape>& found) {
  using checkpoint::Types;
  const auto lines = checkpoint::mismatches(wanted, found, Types::MustBeEqual);
  if (lines.empty()) return;
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  if (lines.size() > checkpoint::mismatches(wanted, found, Types::MayDiffer).size())
    text += "\nRemedy: the optimizer's state_dtype as it was there";
  fail(ErrorKind::InvalidInput, "the checkpoint's optimizer state does not fit the model:", text);
}

// Codes are of use with their maxima alone.
static void check_codes(const std::string& state, const at::Tensor& tensor, DType wanted) {
  const DType dtype = aten::from_torch(tensor.scalar_type());
  SHOAL_CHECK((dtype == DType::UInt8) == (wanted == DType::UInt8), InvalidInput, "trainer: optimizer state ",
              state, " is ", name_of(dtype), ", wanted ", name_of(wanted),
              ". Remedy: the optimizer's state_dtype as it was there, or no state");
}

// --- Settings.

void OptimizerState::set_parts(std::vector<OptimizerPart> parts) {
  SHOAL_CHECK(!parts.empty(), InvalidInput, "trainer: there is no optimizer");
  parts_ = std::move(parts);
  rates_.resize(parts_.size());
}

void OptimizerState::set_rate(std::size_t part, double lr) {
  SHOAL_CHECK(part < rates_.size(), InvalidInput, "trainer: there is no optimizer part ", part,
              ", there are ", rates_.size());
  rates_[part] = lr;
}

double OptimizerState::rate() const {
  return rates_[0].value_or(
      std::visit([](const auto& optimizer) { return optimizer.lr; }, parts_[0].optimizer));
}

std::string OptimizerState::rates_text(double scale) const {
  std::ostringstream text;
  text << std::setprecision(17);
  for (std::size_t part = 0; part < parts_.size(); ++part)
    std::visit(
        [&](const auto& optimizer) {
          text << ' ' << rates_[part].value_or(optimizer.lr) * scale;
          for (const auto& group : optimizer.groups)
            if (group.lr) text << ' ' << *group.lr * scale;
        },
        parts_[part].optimizer);
  return std::move(text).str();
}

compile::UpdateSettings OptimizerState::update(double clip_norm, bool finds_norm) const {
  return {.parts = parts_,
          .clip_norm = clip_norm,
          .finds_norm = finds_norm,
          .updates_of = [this](const std::string& parameter) { return updates_of(parameter); },
          .numbers = type_of_numbers(),
          .master = master_};
}

// --- Counts.

std::int64_t OptimizerState::updates_of(const std::string& parameter) const {
  const auto found = updates_.find(parameter);
  return found == updates_.end() ? 0 : found->second;
}

void OptimizerState::count(const std::vector<compile::UpdateGroup>& groups) {
  for (const auto& group : groups)
    for (const auto& name : group.parameters) ++updates_[name];
}

bool OptimizerState::is_current(const std::vector<compile::UpdateGroup>& groups) const {
  return std::ranges::all_of(groups, [&](const compile::UpdateGroup& group) {
    return group.step_source.empty() || std::ranges::all_of(group.parameters, [&](const std::string& name) {
             return updates_of(name) == updates_of(group.parameters.front());
           });
  });
}

// --- Sources.

void OptimizerState::bind(runtime::Executor& executor) {
  const auto& program = executor.program();
  for (const auto& source : program.sources)
    if (source.role == Role::OptimizerState)
      executor.bind(source.slot, get(source.name, program.types.at(source.slot.index)));
}

void OptimizerState::bind_rates(runtime::Executor& executor, const std::vector<compile::UpdateGroup>& groups,
                                double scale) const {
  if (program::find_source(executor.program(), Role::Scalar, compile::kRoundingSeed) != nullptr)
    executor.bind(Role::Scalar, compile::kRoundingSeed, seed_);
  for (const auto& group : groups) {
    const double lr = rates_[group.part].value_or(group.lr) * scale;
    executor.bind(Role::Scalar, group.lr_source, at::scalar_tensor(lr, at::kDouble));
    if (!group.step_source.empty())
      executor.bind(Role::Scalar, group.step_source,
                    at::scalar_tensor(updates_of(group.parameters.front()) + 1, at::kLong));
  }
}

at::Tensor OptimizerState::get(const std::string& state, const ir::TensorType& type) {
  auto& tensor = state_[state];
  if (!tensor.defined())
    tensor = offloading_.empty(Role::OptimizerState, type, parameter_of(state).options()).zero_();
  SHOAL_CHECK(tensor.sizes() == at::IntArrayRef(type.shape), InvalidInput, "trainer: ", parameter_in(state),
              " has another shape than when it was updated last: its ", state.substr(state.rfind('.') + 1),
              " has ", tensor.sizes(), " and it has ", at::IntArrayRef(type.shape),
              ". Remedy: a new Trainer for the changed model");
  check_codes(state, tensor, type.dtype);
  return tensor;
}

// --- Whole tensors.

const at::Tensor& OptimizerState::parameter_of(const std::string& state) const {
  const at::Tensor* parameter = model_.find_parameter(parameter_in(state));
  SHOAL_CHECK(parameter != nullptr, InvalidInput, "trainer: optimizer state ", state,
              " is of no parameter of this model");
  return *parameter;
}

std::vector<compile::Kept> OptimizerState::kept_of(const std::string& parameter,
                                                   const ir::TensorType& type) const {
  for (const auto& part : parts_)
    if (!part.contains || part.contains(parameter))
      return compile::kept_by(part.optimizer, type, type_of_numbers(), master_);
  return {};
}

// Of what another optimizer has left there: the parameter's.
ir::TensorType OptimizerState::type_of(const std::string& state) const {
  const ir::TensorType parameter = aten::type_of(parameter_of(state));
  for (auto& [suffix, type] : kept_of(parameter_in(state), parameter))
    if (state.ends_with("." + suffix)) return type;
  return parameter;
}

// On ranks. State in 8 bits is codes and maxima.
const sharding::Layout& OptimizerState::layout_of(const std::string& state, DType dtype) const {
  const auto& pins = ranks_->pins_of(parameter_in(state));
  return pins.maxima.placements.empty() || dtype == DType::UInt8 ? pins.updated : pins.maxima;
}

at::Tensor OptimizerState::whole_tensor(const std::string& state, const at::Tensor& part) const {
  if (ranks_ == nullptr || part.dim() == 0) return part;  // a number is that of all ranks
  const auto type = type_of(state);
  return whole_of(ranks_->rank(), part, layout_of(state, type.dtype), type.shape);
}

OptimizerState::Tensors OptimizerState::whole() const {
  Tensors all;
  for (const auto& [name, tensor] : state_) all.emplace(name, whole_tensor(name, tensor));
  return all;
}

OptimizerState::Tensors OptimizerState::whole_of_updated() const {
  Tensors all;
  for (const auto& [name, tensor] : state_)
    if (updates_of(parameter_in(name)) > 0) all.emplace(name, whole_tensor(name, tensor));
  return all;
}

void OptimizerState::write(const Tensors& whole) {
  for (auto& [name, tensor] : state_)
    if (!whole.contains(name)) tensor.zero_();
  for (const auto& [name, given] : whole) {  // which may be the state's own memory
    const auto type = type_of(name);
    if (ranks_ == nullptr || given.dim() == 0) {
      get(name, type).copy_(given);
      continue;
    }
    const at::Tensor part = train::part_of(ranks_->rank(), given, layout_of(name, type.dtype));
    auto local = aten::type_of(part);
    local.dtype = type.dtype;
    get(name, part.sizes() == at::IntArrayRef(type.shape) ? type : local).copy_(part);
  }
}

void OptimizerState::replace(const Tensors& whole) {
  if (ranks_ != nullptr) return write(whole);
  state_.clear();
  for (const auto& [name, tensor] : whole) {
    const auto own = state_.emplace(name, lying_as(type_of(name), parameter_of(name).device(), tensor)).first;
    offloading_.take_in(Role::OptimizerState, own->second);
  }
}

void OptimizerState::check(const Tensors& whole) const {
  for (const auto& [name, tensor] : whole) {
    const auto wanted = type_of(name);
    SHOAL_CHECK(tensor.defined() && tensor.sizes() == at::IntArrayRef(wanted.shape), InvalidInput,
                "trainer: optimizer state ", name, " has shape ", tensor.sizes(), ", wanted ",
                at::IntArrayRef(wanted.shape), ", as its parameter has ", parameter_of(name).sizes());
    if (wanted.dtype != DType::UInt8 || !whole.contains(compile::name_of_maxima(name)))
      check_codes(name, tensor, wanted.dtype);  // PyTorch hands on codes as numbers of the parameter's type
  }
}

void OptimizerState::follow(const ModelTensors::NamedTensors& before) {
  const auto state = std::exchange(state_, {});
  const auto updates = std::exchange(updates_, {});
  const auto& parameters = model_.parameters();
  for (const auto& [name, tensor] : before) {
    const auto now = std::ranges::find_if(parameters, [&, &same = tensor](const capture::NamedTensor& each) {
      return each.tensor.is_same(same);
    });
    if (now == parameters.end()) continue;
    if (const auto found = updates.find(name); found != updates.end()) updates_[now->name] = found->second;
    for (const auto& [key, value] : state)
      if (parameter_in(key) == name) state_[now->name + key.substr(key.rfind('.'))] = value;
  }
}

}  // namespace shoal::train
