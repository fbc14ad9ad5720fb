// SPDX-License-Identifier: Apache-2.0
// Writes expressions of a few ops to the end of a graph; the types of their values follow, as ATen makes
// them.
//
//   Writer write(graph, node);                       phase, module and stage of the nodes: those of `node`
//   const ValueId centered = write.sub(x, write.scaled(write.sum(x, {0}, true), 1.0 / count));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/ir/graph.h"

namespace shoal::rewrite {

class Writer {
 public:
  // Borrows the graph.
  Writer(ir::Graph& graph, const ir::Node& of)
      : graph_(graph), phase_(of.phase), module_(of.module), stage_(of.stage) {}

  const ir::Graph& graph() const { return graph_; }
  const ir::TensorType& type(ir::ValueId value) const { return graph_.at(value).type; }

  // Of two tensors that broadcast, both of one dtype.
  ir::ValueId add(ir::ValueId a, ir::ValueId b) { return binary("aten::add.Tensor", a, b, true); }
  ir::ValueId sub(ir::ValueId a, ir::ValueId b) { return binary("aten::sub.Tensor", a, b, true); }
  ir::ValueId mul(ir::ValueId a, ir::ValueId b) { return binary("aten::mul.Tensor", a, b, false); }
  ir::ValueId div(ir::ValueId a, ir::ValueId b) { return binary("aten::div.Tensor", a, b, false); }
  ir::ValueId plus(ir::ValueId a, double number);
  ir::ValueId times(ir::ValueId a, double number);
  ir::ValueId over(ir::ValueId a, double number);
  ir::ValueId power(ir::ValueId a, double exponent);
  // exp, log, neg, rsqrt, sqrt: "aten::exp"
  ir::ValueId unary(const std::string& op, ir::ValueId a);
  ir::ValueId converted(ir::ValueId a, DType dtype);  // `a` itself where it is of that dtype
  // No dims means all of them.
  ir::ValueId sum(ir::ValueId a, const std::vector<std::int64_t>& dims, bool keepdim);
  ir::ValueId amax(ir::ValueId a, const std::vector<std::int64_t>& dims, bool keepdim);
  // `a` lies row-major, as what the ops above make of dims that are summed.
  ir::ValueId view(ir::ValueId a, std::vector<std::int64_t> shape);
  // 0, 1, …: of so many.
  ir::ValueId arange(std::int64_t count, DType dtype = DType::Int64);
  ir::ValueId full(std::vector<std::int64_t> shape, ir::Attribute number, DType dtype);
  // Rows of a matrix, for ids of whatever shape; and the gradient of that matrix, which has this type.
  ir::ValueId embedding(ir::ValueId weight, ir::ValueId ids, std::int64_t padding = -1);
  ir::ValueId embedding_backward(ir::ValueId gradient, ir::ValueId ids, const ir::TensorType& type,
                                 std::int64_t padding = -1);
  // Any node of one output.
  ir::ValueId value(std::string op, std::vector<ir::Argument> arguments, ir::TensorType type);
  // Any node; its outputs have these types.
  ir::NodeId node(std::string op, std::vector<ir::Argument> arguments,
                  const std::vector<std::optional<ir::TensorType>>& types);

 private:
  ir::ValueId binary(std::string op, ir::ValueId a, ir::ValueId b, bool has_alpha);
  ir::ValueId reduced(std::string op, ir::ValueId a, const std::vector<std::int64_t>& dims, bool keepdim,
                      bool has_dtype);

  ir::Graph& graph_;
  ir::Phase phase_;
  std::string module_;
  int stage_;
};

}  // namespace shoal::rewrite
