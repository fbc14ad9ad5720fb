// SPDX-License-Identifier: Apache-2.0
// Views and copies that change nothing, and arithmetic with a neutral element where that is exact.
//
// Each picture begins with %0 = input "x" : f32[2, 3] and %1 = input "n" : i64[2, 3]; a test runs them all.
//
//   no-op view
//   %2 : f32[2, 3] = aten::view(self=%0, size=[2, 3])        | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//       @forward                                             | return output "y" %2
//   %3 : f32[2, 3] = aten::detach(self=%2) @forward          |
//   %4 : f32[2, 3] = aten::neg(self=%3) @forward             |
//   return output "y" %4                                     |
//
//   view there and back
//   %2 : f32[3, 2]{1,3} = aten::t(self=%0) @forward          | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//   %3 : f32[2, 3] = aten::t(self=%2) @forward               | return output "y" %2
//   %4 : f32[2, 3] = aten::neg(self=%3) @forward             |
//   return output "y" %4                                     |
//
//   view of a view
//   %2 : f32[6] = aten::view(self=%0, size=[6]) @forward     | %2 : f32[3, 2] = aten::view(self=%0, size=[3,
//   %3 : f32[3, 2] = aten::view(self=%2, size=[3, 2])        |     2]) @forward
//       @forward                                             | %3 : f32[3, 2] = aten::neg(self=%2) @forward
//   %4 : f32[3, 2] = aten::neg(self=%3) @forward             | return output "y" %3
//   return output "y" %4                                     |
//
//   no-op copy
//   %2 : f32[2, 3] = aten::neg(self=%0) @forward             | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//   %3 : f32[2, 3] = aten::clone(self=%2) @forward           | return output "y" %2
//   return output "y" %3                                     |
//
//   no-op conversion
//   %2 : f32[2, 3] = aten::_to_copy(self=%0, dtype=f32)      | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//       @forward                                             | return output "y" %2
//   %3 : f32[2, 3] = aten::neg(self=%2) @forward             |
//   return output "y" %3                                     |
//
//   conversion by way of a wider type
//   %2 : f64[2, 3] = aten::_to_copy(self=%0, dtype=f64)      | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//       @forward                                             | return output "y" %2
//   %3 : f32[2, 3] = aten::_to_copy(self=%2, dtype=f32)      |
//       @forward                                             |
//   %4 : f32[2, 3] = aten::neg(self=%3) @forward             |
//   return output "y" %4                                     |
//
//   whole write
//   %2 : f32[2, 3] = aten::neg(self=%0) @forward             | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//   %3 : f32[2, 3] = aten::slice_scatter(self=%0, src=%2)    | return output "y" %2
//       @forward                                             |
//   return output "y" %3                                     |
//
//   read of what was written
//   %2 : f32[3] = aten::sum(self=%0, dim=[0]) @forward       | %2 : f32[3] = aten::sum(self=%0, dim=[0])
//   %3 : f32[2, 3] = aten::select_scatter(self=%0, src=%2,   |     @forward
//       dim=0, index=1) @forward                             | return output "y" %2
//   %4 : f32[3] = aten::select.int(self=%3, dim=0, index=1)  |
//       @forward                                             |
//   return output "y" %4                                     |
//
//   times one
//   %2 : f32[2, 3] = aten::mul.Scalar(self=%0, other=1.0)    | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//       @forward                                             | return output "y" %2
//   %3 : f32[2, 3] = aten::neg(self=%2) @forward             |
//   return output "y" %3                                     |
//
//   plus zero
//   %2 : i64[2, 3] = aten::add.Scalar(self=%1, other=0)      | %2 : i64[2, 3] = aten::neg(self=%1) @forward
//       @forward                                             | return output "y" %2
//   %3 : i64[2, 3] = aten::neg(self=%2) @forward             |
//   return output "y" %3                                     |
//
//   plus zeros
//   %2 : i64[2, 3] = aten::zeros(size=[2, 3], dtype=i64)     | %2 : i64[2, 3] = aten::neg(self=%1) @forward
//       @forward                                             | return output "y" %2
//   %3 : i64[2, 3] = aten::add.Tensor(self=%2, other=%1)     |
//       @forward                                             |
//   %4 : i64[2, 3] = aten::neg(self=%3) @forward             |
//   return output "y" %4                                     |
//
//   copy into a tensor of the same type
//   %2 : f32[2, 3] = aten::zeros(size=[2, 3], dtype=f32)     | %2 : f32[2, 3] = aten::neg(self=%0) @forward
//       @forward                                             | return output "y" %2
//   %3 : f32[2, 3] = aten::copy(self=%2, src=%0) @forward    |
//   %4 : f32[2, 3] = aten::neg(self=%3) @forward             |
//   return output "y" %4                                     |
//
// Why the results keep their bits: a view that keeps the place where its memory begins, and has the shape and
// strides of what it views, has the same elements; apply_rules asks for the types to be equal, strides
// included, so kernels see what they saw. x·1 and x/1 are x for every float (denormals too, unless flushed to
// zero). x+0 is not: -0.0 + 0.0 is 0.0; so only for integers. Conversions: every value of the narrow type is
// one of the wider type.
#include "shoal/rewrite/cleanup.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "shoal/rewrite/common_subexpressions.h"
#include "shoal/rewrite/dead_code.h"

namespace shoal::rewrite {

using ir::Attribute;
using ir::Graph;

static bool is_none(const Attribute& attribute) { return std::holds_alternative<std::monostate>(attribute); }

// On the device, in the layout and in the kind of memory that its input has.
static bool stays(const Attribute& device, const Attribute& layout, const Attribute& pin_memory) {
  return is_none(device) && (is_none(layout) || layout == Attribute(ir::Symbol{"strided"})) &&
         (is_none(pin_memory) || pin_memory == Attribute(false));
}

static bool is_complex(DType dtype) { return dtype == DType::Complex64 || dtype == DType::Complex128; }

static bool is_integer(DType dtype) { return !is_floating(dtype) && !is_complex(dtype); }

// Bits that hold any integer up to that size exactly: of a float those of its significand, of an int all but
// its sign.
static int exact_bits(DType dtype) {
  switch (dtype) {
    case DType::Float64: return 53;
    case DType::Float32: return 24;
    case DType::Float16: return 11;
    case DType::BFloat16: return 8;
    case DType::Int64: return 63;
    case DType::Int32: return 31;
    case DType::Int16: return 15;
    case DType::Int8: return 7;
    case DType::UInt8: return 8;
    case DType::Bool: return 1;
    case DType::Complex64:
    case DType::Complex128: break;
  }
  return 0;
}

// Every value of `narrow` is one of `wide`.
static bool holds_all_of(DType wide, DType narrow) {
  if (wide == narrow) return true;
  if (is_complex(wide) || is_complex(narrow)) return false;
  if (is_floating(narrow))
    return wide == DType::Float64 || (wide == DType::Float32 && narrow != DType::Float64);
  if (!is_floating(wide) && wide == DType::UInt8) return narrow == DType::Bool;
  return wide != DType::Bool && exact_bits(wide) >= exact_bits(narrow);
}

static bool is_in_place_conversion(const Match& match) {
  return stays(match["device"], match["layout"], match["pin_memory"]);
}

// The way back, or on to a float: ints of different widths differ where a float does not fit them.
static bool passes_a_wider_type(const Match& match) {
  const auto* const inner = std::get_if<ir::ValueId>(find(match.root(), "self"));
  const DType from = match.type_of("x").dtype;
  return stays(match["inner_device"], match["inner_layout"], match["inner_pin_memory"]) &&
         is_none(match["inner_memory_format"]) && holds_all_of(match.graph().at(*inner).type.dtype, from) &&
         (match.type().dtype == from || is_floating(match.type().dtype));
}

// Then each view of it is row-major too, and may be taken of it directly.
static bool is_row_major(const Match& match) {
  const ir::TensorType& type = match.type_of("x");
  return num_elements(type) > 0 && type.strides == ir::contiguous_strides(type.shape) &&
         match.type().strides == ir::contiguous_strides(match.type().shape);
}

static bool reads_where_it_wrote(const Match& match) {
  return match["dim"] == match["written_dim"] && match["start"] == match["written_start"] &&
         match["end"] == match["written_end"] && match["step"] == match["written_step"];
}

static bool reads_the_row_it_wrote(const Match& match) {
  return match["dim"] == match["written_dim"] && match["index"] == match["written_index"];
}

static bool is_number(const Attribute& attribute, int wanted) {
  if (const auto* number = std::get_if<std::int64_t>(&attribute)) return *number == wanted;
  if (const auto* number = std::get_if<double>(&attribute)) return *number == wanted;
  return false;
}

static bool times_one(const Match& match) {
  return is_number(match["one"], 1) && !is_complex(match.type().dtype);
}
static bool plus_zero(const Match& match) {
  return is_number(match["zero"], 0) && is_integer(match.type().dtype);
}
static bool integers(const Match& match) { return is_integer(match.type().dtype); }

// Simplest first. The last one is left out where a graph names two devices: cleanup().
static constexpr auto kRules = std::to_array<Rule>({
    {"no-op view",
     "aten::alias|aten::detach|aten::lift|aten::lift_fresh|aten::view|aten::_unsafe_view|aten::_reshape_"
     "alias|"
     "aten::expand|aten::permute|aten::transpose.int|aten::t|aten::slice.Tensor|aten::squeeze|aten::squeeze."
     "dim|"
     "aten::squeeze.dims(self=x)",
     "x"},
    {"view there and back",
     "aten::t|aten::transpose.int|aten::permute|aten::view|aten::_unsafe_view|aten::expand|aten::squeeze|"
     "aten::squeeze.dim|aten::squeeze.dims|aten::unsqueeze(self="
     "aten::t|aten::transpose.int|aten::permute|aten::view|aten::_unsafe_view|aten::expand|aten::squeeze|"
     "aten::squeeze.dim|aten::squeeze.dims|aten::unsqueeze(self=x))",
     "x"},
    {"view of a view", "aten::view|aten::_unsafe_view(self=aten::view|aten::_unsafe_view(self=x), size=size)",
     "aten::view(self=x, size=size)", is_row_major},
    {"no-op copy", "aten::clone|aten::alias_copy|aten::detach_copy|aten::lift_fresh_copy(self=x)", "x"},
    {"no-op conversion", "aten::_to_copy(self=x, layout=layout, device=device, pin_memory=pin_memory)", "x",
     is_in_place_conversion},
    {"conversion by way of a wider type",
     "aten::_to_copy(self=aten::_to_copy(self=x, layout=inner_layout, device=inner_device, "
     "pin_memory=inner_pin_memory, memory_format=inner_memory_format), dtype=dtype, layout=layout, "
     "device=device, "
     "pin_memory=pin_memory, non_blocking=non_blocking, memory_format=memory_format)",
     "aten::_to_copy(self=x, dtype=dtype, layout=layout, device=device, pin_memory=pin_memory, "
     "non_blocking=non_blocking, memory_format=memory_format)",
     passes_a_wider_type},
    {"whole write", "aten::slice_scatter(src=x)", "x"},
    {"read of what was written",
     "aten::slice.Tensor(self=aten::slice_scatter(src=x, dim=written_dim, start=written_start, "
     "end=written_end, "
     "step=written_step), dim=dim, start=start, end=end, step=step)",
     "x", reads_where_it_wrote},
    {"read of what was written",
     "aten::select.int(self=aten::select_scatter(src=x, dim=written_dim, index=written_index), dim=dim, "
     "index=index)",
     "x", reads_the_row_it_wrote},
    {"times one", "aten::mul.Scalar|aten::div.Scalar(self=x, other=one)", "x", times_one},
    {"plus zero", "aten::add.Scalar|aten::sub.Scalar(self=x, other=zero)", "x", plus_zero},
    {"plus zeros",
     "aten::add.Tensor(self=aten::zeros|aten::zeros_like|aten::new_zeros(), other=x, alpha=one)", "x",
     [](const Match& match) {
       return integers(match) && (is_none(match["one"]) || is_number(match["one"], 1));
     }},
    {"plus zeros", "aten::add.Tensor(self=x, other=aten::zeros|aten::zeros_like|aten::new_zeros())", "x",
     integers},
    {"copy into a tensor of the same type", "aten::copy(src=x)", "x"},
});

std::span<const Rule> cleanup_rules() { return kRules; }

static bool names_two_devices(const Graph& graph) {
  const ir::Symbol* device = nullptr;
  for (const auto& node : graph.nodes) {
    const Attribute* const attribute = find(node, "device");
    const auto* const symbol = attribute ? std::get_if<ir::Symbol>(attribute) : nullptr;
    if (symbol && device && *symbol != *device) return true;
    if (symbol) device = symbol;
  }
  return false;
}

static int total(const Counts& counts) {
  int sum = 0;
  for (const auto& [rule, count] : counts) sum += count;
  return sum;
}

Graph cleanup(Graph graph, Counts* counts) {
  Counts applied;
  std::span<const Rule> rules = kRules;
  if (names_two_devices(graph)) rules = rules.first(rules.size() - 1);
  int before = -1;
  while (before != total(applied)) {
    before = total(applied);
    graph = remove_dead_code(std::move(graph), applied);  // before the merging, which asks when values die
    graph = apply_rules(std::move(graph), rules, applied);
    graph = merge_common_subexpressions(std::move(graph), applied);
  }
  if (counts)
    for (const auto& [rule, count] : applied) (*counts)[rule] += count;
  return graph;
}

}  // namespace shoal::rewrite
