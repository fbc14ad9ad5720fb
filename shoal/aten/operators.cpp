// SPDX-License-Identifier: Apache-2.0
#include "shoal/aten/operators.h"

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <utility>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"

namespace shoal::aten {

std::string name_of(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const auto dot = name.find('.', name.find("::"));
  if (dot == std::string::npos) return c10::Dispatcher::singleton().findSchema({name, ""});
  return c10::Dispatcher::singleton().findSchema({name.substr(0, dot), name.substr(dot + 1)});
}

// ATen passes dtypes, layouts and memory formats as ints; only the schema's declared type tells them apart.
namespace {
enum class Kind { Plain, ScalarType, Layout, MemoryFormat, Device };
}

static Kind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType: return Kind::ScalarType;
    case c10::TypeKind::LayoutType: return Kind::Layout;
    case c10::TypeKind::MemoryFormatType: return Kind::MemoryFormat;
    case c10::TypeKind::DeviceObjType: return Kind::Device;
    default: return Kind::Plain;
  }
}

static constexpr std::pair<c10::MemoryFormat, const char*> kMemoryFormats[] = {
    {c10::MemoryFormat::Contiguous, "contiguous_format"},
    {c10::MemoryFormat::Preserve, "preserve_format"},
    {c10::MemoryFormat::ChannelsLast, "channels_last"},
    {c10::MemoryFormat::ChannelsLast3d, "channels_last_3d"},
};

ir::Attribute attribute_of(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isNone()) return std::monostate{};
  switch (kind_of(argument)) {
    case Kind::ScalarType: return from_torch(value.toScalarType());
    case Kind::Layout:
      SHOAL_CHECK(
          value.toLayout() == c10::kStrided, InvalidInput, "layout ", value.toLayout(),
          " cannot be captured: a factory of a graph makes dense tensors. Remedy: make it before the step");
      return ir::Symbol{"strided"};
    case Kind::MemoryFormat:
      for (const auto& [format, name] : kMemoryFormats)
        if (format == value.toMemoryFormat()) return ir::Symbol{name};
      break;
    case Kind::Device: return ir::Symbol{value.toDevice().str()};
    case Kind::Plain: break;
  }
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return ir::Symbol{value.toDevice().str()};
  if (value.isIntList()) return value.toIntVector();
  if (value.isDoubleList()) return value.toDoubleVector();
  if (value.isBoolList()) {
    const auto list = value.toBoolList();
    return std::vector<bool>(list.begin(), list.end());
  }
  if (value.isList() && value.toListRef().empty()) return ir::ValueList{};
  fail(ErrorKind::InvalidInput, "argument ", argument.name(), " is a ", value.tagKind(),
       ", which cannot be captured");
}

static c10::List<std::optional<at::Tensor>> optional_tensors(
    const ir::ValueList& values, const std::function<at::Tensor(ir::ValueId)>& tensor_of) {
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& value : values) list.push_back(value ? std::optional(tensor_of(*value)) : std::nullopt);
  return list;
}

c10::IValue ivalue_of(const ir::Attribute& attribute, const c10::Argument& argument,
                      const std::function<at::Tensor(ir::ValueId)>& tensor_of) {
  const auto convert = [&](const auto& value) -> c10::IValue {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, std::monostate>) {
      if (argument.type()->kind() == c10::TypeKind::TensorType) return at::Tensor();  // undefined, not absent
      return {};
    } else if constexpr (std::is_same_v<T, ir::ValueId>) {
      return tensor_of(value);
    } else if constexpr (std::is_same_v<T, ir::ValueList>) {
      const auto element = argument.type()->cast<c10::ListType>();
      if (element && element->getElementType()->kind() == c10::TypeKind::OptionalType)
        return optional_tensors(value, tensor_of);
      if (element && element->getElementType()->kind() != c10::TypeKind::TensorType)
        return c10::impl::GenericList(element->getElementType());  // an empty list of numbers
      c10::List<at::Tensor> list;
      for (const auto& item : value) list.push_back(tensor_of(item.value()));
      return list;
    } else if constexpr (std::is_same_v<T, DType>) {
      return to_torch(value);
    } else if constexpr (std::is_same_v<T, ir::Symbol>) {
      for (const auto& [format, name] : kMemoryFormats)
        if (value.name == name) return format;
      if (value.name == "strided") return c10::kStrided;
      return c10::Device(value.name);
    } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
      c10::List<bool> list;
      for (const bool item : value) list.push_back(item);
      return list;
    } else {
      return value;
    }
  };
  return std::visit(convert, attribute);
}

}  // namespace shoal::aten
