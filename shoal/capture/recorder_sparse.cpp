// SPDX-License-Identifier: Apache-2.0
// A sparse matrix is no value of a graph. Its indices and values are, as inputs, constants or what the model
// has made them from, and its product with a dense matrix is a node on these:
//
//   adj @ x                      ──► %3 = shoal::sparse_mm(%indices, %values, %x, rows)
//   x's gradient, adj.t() @ g    ──► %8 = flip(%indices, [0]); %9 = shoal::sparse_mm(%8, %values, %g, columns)
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "shoal/aten/sparse.h"
#include "shoal/capture/operands.h"
#include "shoal/capture/recorder.h"

namespace shoal::capture {

using ir::ValueId;
using Stack = torch::jit::Stack;

static constexpr const char* kRemedy =
    "mm, mv, addmm, @, t() and to_dense() of a sparse matrix that needs no gradient are recorded; compute "
    "what else becomes of it before the step, or to_dense() it; and gather() without sparse_grad";

static constexpr std::string_view kMakeCoo = "aten::_sparse_coo_tensor_with_dims_and_tensors";

bool Recorder::is_of_sparse(const OpInfo& info, c10::ArrayRef<c10::IValue> in) {
  if (info.name == kMakeCoo) return true;
  return std::ranges::any_of(in, [](const c10::IValue& value) {
    bool found = false;
    for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || aten::is_sparse(tensor); });
    return found;
  });
}

Recorder::Matrix Recorder::matrix_of(const at::Tensor& sparse, const std::string& op) {
  if (sparse.requires_grad())
    untraceable("calls " + op + " of a sparse tensor that requires a gradient", kRemedy);
  if (sparse.dim() != 2 || sparse.dense_dim() != 0)
    untraceable(concat("calls ", op, " of a sparse tensor of shape ", sparse.sizes(), " whose entries have ",
                       sparse.dense_dim(), " dims"),
                kRemedy);
  std::vector<ValueId> values;
  for (const auto& [name, tensor] : aten::components_of(sparse)) values.push_back(value_of(tensor));
  if (values.size() == 3)
    values = {emit_one("aten::_convert_indices_from_csr_to_coo",
                       {{"crow_indices", values[0]},
                        {"col_indices", values[1]},
                        {"transpose", sparse.layout() == at::kSparseCsc}}),
              values[2]};
  return {values[0], values[1], sparse.size(0), sparse.size(1)};
}

Recorder::Matrix Recorder::transposed(const Matrix& matrix) {
  const auto flipped =
      emit_one("aten::flip", {{"self", matrix.indices}, {"dims", std::vector<std::int64_t>{0}}});
  return {flipped, matrix.values, matrix.columns, matrix.rows};
}

ValueId Recorder::product(const Matrix& matrix, ValueId dense) {
  const auto& shape = metas_[dense.index].sizes();
  TORCH_CHECK(shape.size() == 2 && shape[0] == matrix.columns, "a sparse matrix of shape [", matrix.rows,
              ", ", matrix.columns, "] times a dense one of shape ", shape);
  return emit_one(
      "shoal::sparse_mm",
      {{"indices", matrix.indices}, {"values", matrix.values}, {"dense", dense}, {"rows", matrix.rows}});
}

// Of two matrices, one of them sparse.
ValueId Recorder::sparse_product(const at::Tensor& left, const at::Tensor& right, const std::string& op) {
  if (!aten::is_sparse(right)) return product(matrix_of(left, op), value_of(right));
  if (aten::is_sparse(left)) untraceable("calls " + op + " of two sparse tensors", kRemedy);
  const auto turned = emit_one("aten::t", {{"self", value_of(left)}});
  const auto result = product(transposed(matrix_of(right, op)), turned);
  return emit_one("aten::clone", {{"self", emit_one("aten::t", {{"self", result}})},
                                  {"memory_format", ir::Symbol{"contiguous_format"}}});
}

ValueId Recorder::dense_of(const Matrix& matrix) {
  const auto row = [&](std::int64_t index) {
    return emit_one("aten::select.int",
                    {{"self", matrix.indices}, {"dim", std::int64_t{0}}, {"index", index}});
  };
  const auto positions =
      emit_one("aten::add.Tensor",
               {{"self", emit_one("aten::mul.Scalar", {{"self", row(0)}, {"other", matrix.columns}})},
                {"other", row(1)}});
  const auto empty = emit_one("aten::new_zeros",
                              {{"self", matrix.values}, {"size", std::vector{matrix.rows * matrix.columns}}});
  const auto filled =
      emit_one("aten::index_add",
               {{"self", empty}, {"dim", std::int64_t{0}}, {"index", positions}, {"source", matrix.values}});
  return emit_one("aten::view", {{"self", filled}, {"size", std::vector{matrix.rows, matrix.columns}}});
}

// What `aten::_indices`, `aten::values`, … ask for.
static std::optional<at::Tensor> component_of(const at::Tensor& sparse, std::string_view op) {
  op.remove_prefix(std::string_view("aten::").size());
  if (op.starts_with('_')) op.remove_prefix(1);
  for (const auto& [name, tensor] : aten::components_of(sparse))
    if (name == op) return tensor;
  return std::nullopt;
}

static ir::Attribute number_of(const c10::IValue& value) {
  return value.isInt() ? ir::Attribute(value.toInt()) : ir::Attribute(value.toScalar().toDouble());
}

// beta * self + alpha * product, where a beta of 0 reads nothing of self.
ValueId Recorder::sparse_addmm(const Stack& in, const std::string& op) {
  ValueId result = sparse_product(in[1].toTensor(), in[2].toTensor(), op);
  const auto scaled = [&](ValueId value, const c10::IValue& by) {
    if (by.toScalar().toDouble() == 1) return value;
    return emit_one("aten::mul.Scalar", {{"self", value}, {"other", number_of(by)}});
  };
  result = scaled(result, in[4]);
  if (in[3].toScalar().toDouble() == 0) return result;
  return emit_one("aten::add.Tensor",
                  {{"self", result}, {"other", scaled(value_of(in[0].toTensor()), in[3])}});
}

void Recorder::record_sparse(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  bool touches = false;
  for (const auto& value : torch::jit::last(stack, count))
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!aten::is_sparse(tensor)) {
        touches = touches_value(tensor) || touches;
        return;
      }
      for (const auto& [name, component] : aten::components_of(tensor))
        touches = touches_value(component) || touches;
    });
  const bool asks = std::ranges::none_of(schema.returns(), [](const auto& result) {
    return result.type()->kind() == c10::TypeKind::TensorType;
  });
  if (asks) return op.callBoxed(stack);  // of its dims, how many entries
  if (!touches) return compute(info, op, stack);

  const auto in = popped(stack, count);
  const auto& name = info.name;
  const at::Tensor self = in.at(0).isTensor() ? in[0].toTensor() : at::Tensor();
  if (name == "aten::mm") {
    stack.emplace_back(wrap(sparse_product(self, in[1].toTensor(), name)));
  } else if (name == "aten::addmm") {
    stack.emplace_back(wrap(sparse_addmm(in, name)));
  } else if (name == "aten::mv") {
    const auto column =
        emit_one("aten::unsqueeze", {{"self", value_of(in[1].toTensor())}, {"dim", std::int64_t{1}}});
    const auto result = product(matrix_of(self, name), column);
    stack.emplace_back(wrap(emit_one("aten::squeeze.dim", {{"self", result}, {"dim", std::int64_t{1}}})));
  } else if (name == "aten::t" || name == "aten::transpose.int") {
    const auto turned = transposed(matrix_of(self, name));
    stack.emplace_back(
        aten::sparse_coo(wrap(turned.indices), wrap(turned.values), {turned.rows, turned.columns}, false));
  } else if (name == "aten::_to_dense") {
    stack.emplace_back(wrap(dense_of(matrix_of(self, name))));
  } else if (name == kMakeCoo) {
    const auto whole = [&](std::size_t index) { return wrap(value_of(in[index].toTensor())); };
    stack.emplace_back(aten::sparse_coo(whole(3), whole(4), in[2].toIntVector(), false));
  } else if (const auto component = component_of(self, name)) {
    stack.emplace_back(wrap(value_of(*component)));
  } else {
    untraceable("calls " + name + " of a sparse tensor", kRemedy);
  }
}

}  // namespace shoal::capture
