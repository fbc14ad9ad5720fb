// SPDX-License-Identifier: Apache-2.0
// Kernels over ATen's own unboxed entry points, made from their types: one template for every op.
//
//   at::_ops::addmm : Tensor (const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&)
//
// becomes a tuple of five Held arguments. Held<T> is made once from the instruction's argument (a slot
// number, or a constant converted to the very type that the op takes) and gives a T at each run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "shoal/aten/operators.h"
#include "shoal/base/error.h"
#include "shoal/program/program.h"
#include "shoal/runtime/kernel.h"

namespace shoal::runtime {

// A kernel from a function of the slots.
template <class Body>
std::unique_ptr<Kernel> kernel_of(Body body) {
  class FunctionKernel final : public Kernel {
   public:
    explicit FunctionKernel(Body function) : function_(std::move(function)) {}
    void run(Slots& slots) override { function_(slots); }

   private:
    Body function_;
  };
  return std::make_unique<FunctionKernel>(std::move(body));
}

constexpr std::uint32_t kNoSlot = static_cast<std::uint32_t>(-1);

inline std::uint32_t slot_in(const ir::Attribute& attribute) {
  const auto* slot = std::get_if<ir::ValueId>(&attribute);
  return slot != nullptr ? slot->index : kNoSlot;
}

inline const at::Tensor& tensor_in(const Slots& slots, std::uint32_t slot) {
  static const at::Tensor undefined;
  return slot == kNoSlot ? undefined : slots[slot];
}

// What an argument is made from; `over` is the slot that an out or in-place op writes.
struct Origin {
  const ir::Attribute& attribute;
  const c10::Argument& schema;
  std::uint32_t over;

  c10::IValue constant() const {
    return aten::ivalue_of(attribute, schema, [&](ir::ValueId) -> at::Tensor {
      fail(ErrorKind::InvalidInput, "argument ", schema.name(), " is a constant of its op, got a value");
    });
  }
};

// Constants of a type that IValue converts to, held as they are.
template <class T>
class Held {
 public:
  explicit Held(const Origin& origin) : value_(origin.constant().template to<std::decay_t<T>>()) {}
  const std::decay_t<T>& get(Slots&) const { return value_; }

 private:
  std::decay_t<T> value_;
};

template <>
class Held<const at::Tensor&> {
 public:
  explicit Held(const Origin& origin) : slot_(slot_in(origin.attribute)) {}
  const at::Tensor& get(Slots& slots) const { return tensor_in(slots, slot_); }

 private:
  std::uint32_t slot_;
};

template <>
class Held<at::Tensor&> {
 public:
  explicit Held(const Origin& origin) : slot_(origin.over) {}
  at::Tensor& get(Slots& slots) const { return slots[slot_]; }

 private:
  std::uint32_t slot_;
};

template <>
class Held<const std::optional<at::Tensor>&> {
 public:
  explicit Held(const Origin& origin) : slot_(slot_in(origin.attribute)) {}
  std::optional<at::Tensor> get(Slots& slots) const {
    return slot_ == kNoSlot ? std::nullopt : std::optional<at::Tensor>(slots[slot_]);
  }

 private:
  std::uint32_t slot_;
};

inline std::vector<std::uint32_t> slots_in(const ir::Attribute& attribute) {
  std::vector<std::uint32_t> slots;
  if (const auto* list = std::get_if<ir::ValueList>(&attribute))
    for (const auto& value : *list) slots.push_back(value ? value->index : kNoSlot);
  return slots;
}

// Lists of tensors live in a small vector that is emptied by the end of the call.
class TensorListHeld {
 public:
  explicit TensorListHeld(const Origin& origin) : slots_(slots_in(origin.attribute)) {}

 protected:
  c10::SmallVector<at::Tensor, 8> gathered(Slots& slots) const {
    c10::SmallVector<at::Tensor, 8> tensors;
    for (const auto slot : slots_) tensors.push_back(tensor_in(slots, slot));
    return tensors;
  }

 private:
  std::vector<std::uint32_t> slots_;
};

template <class List>
struct OwnedTensorList {  // alive as long as the call's full expression
  c10::SmallVector<at::Tensor, 8> tensors;
  operator List() const { return at::TensorList(tensors); }
};

template <>
class Held<at::TensorList> : TensorListHeld {
 public:
  using TensorListHeld::TensorListHeld;
  OwnedTensorList<at::TensorList> get(Slots& slots) const { return {gathered(slots)}; }
};

template <>
class Held<const at::ITensorListRef&> : TensorListHeld {
 public:
  using TensorListHeld::TensorListHeld;
  OwnedTensorList<at::ITensorListRef> get(Slots& slots) const { return {gathered(slots)}; }
};

template <>
class Held<const c10::List<std::optional<at::Tensor>>&> {
 public:
  explicit Held(const Origin& origin) : slots_(slots_in(origin.attribute)) {}
  c10::List<std::optional<at::Tensor>> get(Slots& slots) const {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const auto slot : slots_)
      tensors.push_back(slot == kNoSlot ? std::nullopt : std::optional<at::Tensor>(slots[slot]));
    return tensors;
  }

 private:
  std::vector<std::uint32_t> slots_;
};

template <>
class Held<const at::Scalar&> {
 public:
  explicit Held(const Origin& origin) : value_(origin.constant().toScalar()) {}
  const at::Scalar& get(Slots&) const { return value_; }

 private:
  at::Scalar value_;
};

template <>
class Held<const std::optional<at::Scalar>&> {
 public:
  explicit Held(const Origin& origin) {
    if (const auto value = origin.constant(); !value.isNone()) value_ = value.toScalar();
  }
  const std::optional<at::Scalar>& get(Slots&) const { return value_; }

 private:
  std::optional<at::Scalar> value_;
};

template <>
class Held<c10::SymInt> {
 public:
  explicit Held(const Origin& origin) : value_(origin.constant().toInt()) {}
  const c10::SymInt& get(Slots&) const { return value_; }

 private:
  c10::SymInt value_;
};

template <>
class Held<std::optional<c10::SymInt>> {
 public:
  explicit Held(const Origin& origin) {
    if (const auto value = origin.constant(); !value.isNone()) value_ = c10::SymInt(value.toInt());
  }
  const std::optional<c10::SymInt>& get(Slots&) const { return value_; }

 private:
  std::optional<c10::SymInt> value_;
};

// Lists of numbers. A single number stands for a list of one where the schema says int[n].
template <class Item>
std::optional<std::vector<Item>> numbers_in(const Origin& origin) {
  if (const auto* number = std::get_if<std::int64_t>(&origin.attribute))
    return std::vector<Item>{Item(*number)};
  std::vector<Item> items;
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&origin.attribute)) {
    items.assign(list->begin(), list->end());
    return items;
  }
  if constexpr (std::is_same_v<Item, double>)
    if (const auto* list = std::get_if<std::vector<double>>(&origin.attribute)) return *list;
  if (std::holds_alternative<ir::ValueList>(origin.attribute)) return items;  // an empty list of anything
  SHOAL_CHECK(std::holds_alternative<std::monostate>(origin.attribute), InvalidInput, "argument ",
              origin.schema.name(), " is a list of numbers, got something else");
  return std::nullopt;
}

template <class Item>
class ListHeld {
 public:
  explicit ListHeld(const Origin& origin) : items_(numbers_in<Item>(origin).value_or(std::vector<Item>{})) {}
  c10::ArrayRef<Item> get(Slots&) const { return items_; }

 private:
  std::vector<Item> items_;
};

template <class Item>
class OptionalListHeld {
 public:
  explicit OptionalListHeld(const Origin& origin) : items_(numbers_in<Item>(origin)) {}
  at::OptionalArrayRef<Item> get(Slots&) const {
    return items_ ? at::OptionalArrayRef<Item>(c10::ArrayRef<Item>(*items_)) : at::OptionalArrayRef<Item>();
  }

 private:
  std::optional<std::vector<Item>> items_;
};

template <>
struct Held<at::IntArrayRef> : ListHeld<std::int64_t> {
  using ListHeld::ListHeld;
};
template <>
struct Held<c10::SymIntArrayRef> : ListHeld<c10::SymInt> {
  using ListHeld::ListHeld;
};
template <>
struct Held<at::OptionalIntArrayRef> : OptionalListHeld<std::int64_t> {
  using OptionalListHeld::OptionalListHeld;
};
template <>
struct Held<at::OptionalSymIntArrayRef> : OptionalListHeld<c10::SymInt> {
  using OptionalListHeld::OptionalListHeld;
};
template <>
struct Held<std::optional<c10::ArrayRef<double>>> {
  explicit Held(const Origin& origin) : items_(numbers_in<double>(origin)) {}
  std::optional<c10::ArrayRef<double>> get(Slots&) const {
    return items_ ? std::optional<c10::ArrayRef<double>>(*items_) : std::nullopt;
  }

 private:
  std::optional<std::vector<double>> items_;
};

template <>
class Held<std::string_view> {
 public:
  explicit Held(const Origin& origin) : text_(origin.constant().toStringRef()) {}
  std::string_view get(Slots&) const { return text_; }

 private:
  std::string text_;
};

template <>
class Held<std::optional<std::string_view>> {
 public:
  explicit Held(const Origin& origin) {
    if (const auto value = origin.constant(); !value.isNone()) text_ = value.toStringRef();
  }
  std::optional<std::string_view> get(Slots&) const { return text_; }

 private:
  std::optional<std::string> text_;
};

template <std::size_t Count>
class Held<std::array<bool, Count>> {
 public:
  explicit Held(const Origin& origin) {
    const auto* list = std::get_if<std::vector<bool>>(&origin.attribute);
    SHOAL_CHECK(list != nullptr && list->size() == Count, InvalidInput, "argument ", origin.schema.name(),
                " is a list of ", Count, " bools, got something else");
    for (std::size_t i = 0; i < Count; ++i) items_[i] = (*list)[i];
  }
  const std::array<bool, Count>& get(Slots&) const { return items_; }

 private:
  std::array<bool, Count> items_{};
};

// Where results go. An output that the program has no slot for is let go of.
class Outputs {
 public:
  explicit Outputs(const program::Compute& compute) {
    for (const auto& output : compute.outputs) slots_.push_back(output ? output->index : kNoSlot);
  }
  void put(Slots& slots, at::Tensor tensor) const {
    if (!slots_.empty() && slots_[0] != kNoSlot) slots[slots_[0]] = std::move(tensor);
  }
  void put(Slots& slots, std::vector<at::Tensor> tensors) const {
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i] != kNoSlot) slots[slots_[i]] = std::move(tensors.at(i));
  }
  template <class... Tensors>
  void put(Slots& slots, std::tuple<Tensors...> tensors) const {
    put_each(slots, tensors, std::index_sequence_for<Tensors...>());
  }

 private:
  template <class Tuple, std::size_t... Index>
  void put_each(Slots& slots, Tuple& tensors, std::index_sequence<Index...>) const {
    (put_at(slots, Index, std::move(std::get<Index>(tensors))), ...);
  }
  void put_at(Slots& slots, std::size_t index, at::Tensor tensor) const {
    if (index < slots_.size() && slots_[index] != kNoSlot) slots[slots_[index]] = std::move(tensor);
  }

  c10::SmallVector<std::uint32_t, 4> slots_;
};

// The instruction's argument for a parameter of the schema; its default where the instruction has none.
inline ir::Attribute argument_for(const program::Compute& compute, const c10::Argument& schema) {
  for (const auto& argument : compute.arguments)
    if (argument.name == schema.name()) return argument.value;
  if (schema.is_out()) return {};
  SHOAL_CHECK(schema.default_value(), InvalidInput, compute.op, ": argument ", schema.name(), " is missing");
  return aten::attribute_of(*schema.default_value(), schema);
}

template <class Op, class Schema>
class TypedKernel;

template <class Op, class Return, class... Parameters>
class TypedKernel<Op, Return(Parameters...)> final : public Kernel {
 public:
  TypedKernel(const program::Compute& compute, const c10::FunctionSchema& schema)
      : TypedKernel(compute, schema, std::index_sequence_for<Parameters...>()) {}

  void run(Slots& slots) override {
    if constexpr (std::is_same_v<Return, at::Tensor&>) {
      std::apply([&](const auto&... held) { Op::call(held.get(slots)...); }, held_);
      outputs_.put(slots, std::move(slots[over_]));
    } else {
      std::apply([&](const auto&... held) { outputs_.put(slots, Op::call(held.get(slots)...)); }, held_);
    }
  }

 private:
  template <std::size_t... Index>
  TypedKernel(const program::Compute& compute, const c10::FunctionSchema& schema,
              std::index_sequence<Index...>)
      : over_(compute.over ? compute.over->index : kNoSlot),
        held_(Held<Parameters>(Origin{argument_for(compute, schema.arguments().at(Index)),
                                      schema.arguments().at(Index), over_})...),
        outputs_(compute) {}

  std::uint32_t over_;
  std::tuple<Held<Parameters>...> held_;
  Outputs outputs_;
};

template <class Op>
std::unique_ptr<Kernel> make_typed(const program::Compute& compute) {
  const auto& schema = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name).schema();
  return std::make_unique<TypedKernel<Op, typename Op::schema>>(compute, schema);
}

}  // namespace shoal::runtime
