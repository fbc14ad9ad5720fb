// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/writer.h"

#include <algorithm>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::rewrite {

using ir::Argument;
using ir::NodeId;
using ir::TensorType;
using ir::ValueId;
using Sizes = std::vector<std::int64_t>;

// Every element once and without gaps, in whatever order of dims: such a layout elementwise ops keep.
static bool is_dense(const TensorType& type) {
  std::vector<std::size_t> dims;
  for (std::size_t dim = 0; dim < type.shape.size(); ++dim)
    if (type.shape[dim] != 1) dims.push_back(dim);
  std::ranges::sort(dims, {}, [&](std::size_t dim) { return type.strides[dim]; });
  std::int64_t expected = 1;
  for (const std::size_t dim : dims) {
    if (type.strides[dim] != expected) return false;
    expected *= type.shape[dim];
  }
  return true;
}

// Without gaps, dims in the order that they have: as TensorIterator and at::infer_dense_strides make it.
static Sizes dense_strides(const TensorType& like) {
  const auto is_inside = [&](std::size_t a, std::size_t b) {  // of a and b: 1 yes, -1 no, 0 nobody can say
    const std::int64_t of_a = like.strides[a], of_b = like.strides[b];
    if (of_a == 0 || of_b == 0) return 0;
    if (of_a != of_b) return of_a < of_b ? 1 : -1;
    return like.shape[a] > like.shape[b] ? -1 : 0;
  };
  std::vector<std::size_t> order(like.shape.size());  // from the innermost
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  for (std::size_t i = 1; i < order.size(); ++i)
    for (std::size_t at = i, before = i; before-- > 0;) {
      const int inside = is_inside(order[before], order[at]);
      if (inside > 0) break;
      if (inside == 0) continue;
      std::swap(order[before], order[at]);
      at = before;
    }
  Sizes strides(like.shape.size());
  std::int64_t stride = 1;
  for (const std::size_t dim : order) {
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(like.shape[dim], 1);
  }
  return strides;
}

static TensorType elementwise_type(const TensorType& like, DType dtype) {
  return {dtype, like.shape, is_dense(like) ? like.strides : dense_strides(like)};
}

static TensorType broadcast_type(const TensorType& a, const TensorType& b) {
  Sizes shape(std::max(a.shape.size(), b.shape.size()), 1);
  for (const Sizes& sizes : {a.shape, b.shape})
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (std::int64_t& size = shape[shape.size() - sizes.size() + i]; size == 1) size = sizes[i];
  for (const TensorType& full : {a, b})
    if (full.shape == shape) return elementwise_type(full, a.dtype);
  return ir::contiguous(a.dtype, std::move(shape));
}

NodeId Writer::node(std::string op, std::vector<Argument> arguments,
                    const std::vector<std::optional<TensorType>>& types) {
  ir::Node made = {.op = std::move(op), .arguments = std::move(arguments), .outputs = {}};
  made.phase = phase_;
  made.module = module_;
  made.stage = stage_;
  return graph_.add_node(std::move(made), types);
}

ValueId Writer::value(std::string op, std::vector<Argument> arguments, TensorType type) {
  const NodeId id = node(std::move(op), std::move(arguments), {std::move(type)});
  return graph_.at(id).outputs[0].value();
}

ValueId Writer::binary(std::string op, ValueId a, ValueId b, bool has_alpha) {
  SHOAL_CHECK(type(a).dtype == type(b).dtype, Internal, "writer: ", op, " of ", name_of(type(a).dtype),
              " and ", name_of(type(b).dtype), ", wanted one dtype");
  std::vector<Argument> arguments = {{"self", a}, {"other", b}};
  if (has_alpha) arguments.push_back({"alpha", std::int64_t{1}});
  return value(std::move(op), std::move(arguments), broadcast_type(type(a), type(b)));
}

ValueId Writer::plus(ValueId a, double number) {
  return value("aten::add.Scalar", {{"self", a}, {"other", number}, {"alpha", std::int64_t{1}}},
               elementwise_type(type(a), type(a).dtype));
}

ValueId Writer::times(ValueId a, double number) {
  return value("aten::mul.Scalar", {{"self", a}, {"other", number}},
               elementwise_type(type(a), type(a).dtype));
}

ValueId Writer::over(ValueId a, double number) {
  return value("aten::div.Scalar", {{"self", a}, {"other", number}},
               elementwise_type(type(a), type(a).dtype));
}

ValueId Writer::power(ValueId a, double exponent) {
  return value("aten::pow.Tensor_Scalar", {{"self", a}, {"exponent", exponent}},
               elementwise_type(type(a), type(a).dtype));
}

ValueId Writer::unary(const std::string& op, ValueId a) {
  return value(op, {{"self", a}}, elementwise_type(type(a), type(a).dtype));
}

ValueId Writer::converted(ValueId a, DType dtype) {
  if (type(a).dtype == dtype) return a;
  return value("aten::_to_copy",
               {{"self", a},
                {"dtype", dtype},
                {"layout", {}},
                {"device", {}},
                {"pin_memory", {}},
                {"non_blocking", false},
                {"memory_format", {}}},
               elementwise_type(type(a), dtype));
}

ValueId Writer::reduced(std::string op, ValueId a, const Sizes& dims, bool keepdim, bool has_dtype) {
  const TensorType& from = type(a);
  const auto count = static_cast<std::int64_t>(from.shape.size());
  Sizes shape;
  for (std::int64_t dim = 0; dim < count; ++dim) {
    const bool goes = dims.empty() || std::ranges::find(dims, dim) != dims.end() ||
                      std::ranges::find(dims, dim - count) != dims.end();
    if (goes && keepdim) shape.push_back(1);
    if (!goes) shape.push_back(from.shape[static_cast<std::size_t>(dim)]);
  }
  std::vector<Argument> arguments = {{"self", a}, {"dim", dims}, {"keepdim", keepdim}};
  if (has_dtype) arguments.push_back({"dtype", {}});
  return value(std::move(op), std::move(arguments), ir::contiguous(from.dtype, std::move(shape)));
}

ValueId Writer::sum(ValueId a, const Sizes& dims, bool keepdim) {
  return reduced("aten::sum.dim_IntList", a, dims, keepdim, true);
}

ValueId Writer::amax(ValueId a, const Sizes& dims, bool keepdim) {
  return reduced("aten::amax", a, dims, keepdim, false);
}

ValueId Writer::arange(std::int64_t count, DType dtype) {
  return value("aten::arange",
               {{"end", count}, {"dtype", dtype}, {"layout", {}}, {"device", {}}, {"pin_memory", {}}},
               ir::contiguous(dtype, {count}));
}

ValueId Writer::full(Sizes shape, ir::Attribute number, DType dtype) {
  return value("aten::full",
               {{"size", shape},
                {"fill_value", std::move(number)},
                {"dtype", dtype},
                {"layout", {}},
                {"device", {}},
                {"pin_memory", {}}},
               ir::contiguous(dtype, shape));
}

ValueId Writer::embedding(ValueId weight, ValueId ids, std::int64_t padding) {
  Sizes shape = type(ids).shape;
  shape.push_back(type(weight).shape.at(1));
  return value("aten::embedding",
               {{"weight", weight},
                {"indices", ids},
                {"padding_idx", padding},
                {"scale_grad_by_freq", false},
                {"sparse", false}},
               ir::contiguous(type(weight).dtype, std::move(shape)));
}

ValueId Writer::embedding_backward(ValueId gradient, ValueId ids, const TensorType& type,
                                   std::int64_t padding) {
  return value("aten::embedding_dense_backward",
               {{"grad_output", gradient},
                {"indices", ids},
                {"num_weights", type.shape.at(0)},
                {"padding_idx", padding},
                {"scale_grad_by_freq", false}},
               type);
}

ValueId Writer::view(ValueId a, Sizes shape) {
  const TensorType made = ir::contiguous(type(a).dtype, shape);
  return value("aten::view", {{"self", a}, {"size", std::move(shape)}}, made);
}

}  // namespace shoal::rewrite
