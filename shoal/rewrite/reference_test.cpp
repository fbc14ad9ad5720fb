// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/reference_test.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"

namespace shoal::rewrite::reference {

using ir::Attribute;
using ir::Node;
using ir::TensorType;
using ir::ValueId;
using Sizes = std::vector<std::int64_t>;

static double rounded(DType dtype, double value) {
  if (dtype == DType::Float32) return static_cast<double>(static_cast<float>(value));
  return dtype == DType::Int64 || dtype == DType::Int32 ? std::trunc(value) + 0.0 : value;  // ints have no -0
}

static std::int64_t extent(const TensorType& type) {
  std::int64_t last = 0;
  for (std::size_t dim = 0; dim < type.shape.size(); ++dim) last += (type.shape[dim] - 1) * type.strides[dim];
  return num_elements(type) == 0 ? 0 : last + 1;
}

// Strides that are a permutation of row-major ones: every element once, without gaps.
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

Tensor make(TensorType type) {
  const auto size = static_cast<std::size_t>(extent(type));
  return {std::move(type), 0, std::make_shared<std::vector<double>>(size)};
}

// Calls visit(place in memory) for each element, in row-major order of the shape.
static void for_each(const Tensor& tensor, const std::function<void(std::size_t)>& visit) {
  const auto& [dtype, shape, strides] = tensor.type;
  Sizes index(shape.size());
  for (std::int64_t count = num_elements(tensor.type); count > 0; --count) {
    std::int64_t place = tensor.offset;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) place += index[dim] * strides[dim];
    visit(static_cast<std::size_t>(place));
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      if (++index[dim] < shape[dim]) break;
      index[dim] = 0;
    }
  }
}

std::vector<double> elements(const Tensor& tensor) {
  std::vector<double> result;
  for_each(tensor, [&](std::size_t place) { result.push_back((*tensor.memory)[place]); });
  return result;
}

static void fill(Tensor& tensor, const std::vector<double>& wanted) {
  std::size_t next = 0;
  for_each(tensor, [&](std::size_t place) {
    (*tensor.memory)[place] = rounded(tensor.type.dtype, wanted.at(next++));
  });
}

static Tensor filled(DType dtype, const TensorType& like, const std::vector<double>& wanted) {
  Tensor result =
      make(is_dense(like) ? TensorType{dtype, like.shape, like.strides} : ir::contiguous(dtype, like.shape));
  fill(result, wanted);
  return result;
}

static Tensor viewed(const Tensor& self, Sizes shape, Sizes strides, std::int64_t skipped = 0) {
  return {{self.type.dtype, std::move(shape), std::move(strides)}, self.offset + skipped, self.memory};
}

namespace {

struct Call {
  const Node& node;
  const Values& values;

  const Tensor& tensor(std::string_view name) const {
    return values.at(std::get<ValueId>(*find(node, name)).index).value();
  }
  std::int64_t whole(std::string_view name) const { return std::get<std::int64_t>(*find(node, name)); }
  const Sizes& sizes(std::string_view name) const { return std::get<Sizes>(*find(node, name)); }
  std::size_t dim(std::string_view name) const { return static_cast<std::size_t>(whole(name)); }
  double number(std::string_view name) const {
    const Attribute& attribute = *find(node, name);
    if (const auto* number = std::get_if<std::int64_t>(&attribute)) return static_cast<double>(*number);
    return std::get<double>(attribute);
  }
  DType dtype(DType otherwise) const {
    const auto* const attribute = find(node, "dtype");
    const auto* const wanted = attribute ? std::get_if<DType>(attribute) : nullptr;
    return wanted ? *wanted : otherwise;
  }
};

}  // namespace

static Tensor view_of(const Call& call) {
  const std::string& op = call.node.op;
  const Tensor& self = call.tensor("self");
  Sizes shape = self.type.shape;
  Sizes strides = self.type.strides;
  if (op == "aten::view" || op == "aten::_unsafe_view") {
    SHOAL_CHECK(strides == ir::contiguous_strides(shape), Internal, "view of what is not row-major");
    return viewed(self, call.sizes("size"), ir::contiguous_strides(call.sizes("size")));
  }
  if (op == "aten::t" || op == "aten::transpose.int") {
    const std::size_t a = op == "aten::t" ? 0 : call.dim("dim0");
    const std::size_t b = op == "aten::t" ? 1 : call.dim("dim1");
    std::swap(shape.at(a), shape.at(b));
    std::swap(strides.at(a), strides.at(b));
  } else if (op == "aten::permute") {
    const Sizes& dims = call.sizes("dims");
    for (std::size_t dim = 0; dim < dims.size(); ++dim) {
      shape[dim] = self.type.shape.at(static_cast<std::size_t>(dims[dim]));
      strides[dim] = self.type.strides.at(static_cast<std::size_t>(dims[dim]));
    }
  } else if (op == "aten::expand") {
    for (std::size_t dim = 0; dim < shape.size(); ++dim)
      if (const auto wanted = call.sizes("size").at(dim); wanted != shape[dim])
        shape[dim] = wanted, strides[dim] = 0;
  } else if (op == "aten::unsqueeze") {
    const auto dim = static_cast<std::ptrdiff_t>(call.dim("dim"));
    const bool is_last = call.dim("dim") == shape.size();
    strides.insert(strides.begin() + dim, is_last ? 1 : shape[call.dim("dim")] * strides[call.dim("dim")]);
    shape.insert(shape.begin() + dim, 1);
  } else if (op == "aten::squeeze.dim" && shape.at(call.dim("dim")) == 1) {
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(call.dim("dim")));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(call.dim("dim")));
  }
  return viewed(self, std::move(shape), std::move(strides));
}

// The part of `self` that slice or select, or their scatters, are about.
static Tensor part_of(const Call& call, const Tensor& self) {
  Sizes shape = self.type.shape;
  Sizes strides = self.type.strides;
  const std::size_t dim = call.dim("dim");
  if (find(call.node, "index")) {
    const std::int64_t skipped = call.whole("index") * strides.at(dim);
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(dim));
    return viewed(self, shape, strides, skipped);
  }
  const std::int64_t skipped = call.whole("start") * strides.at(dim);
  shape.at(dim) =
      (std::min(call.whole("end"), shape.at(dim)) - call.whole("start") + call.whole("step") - 1) /
      call.whole("step");
  strides.at(dim) *= call.whole("step");
  return viewed(self, shape, strides, skipped);
}

static Tensor elementwise(const Call& call, const std::function<double(double)>& compute) {
  const Tensor& self = call.tensor("self");
  auto result = elements(self);
  for (double& value : result) value = compute(value);
  return filled(self.type.dtype, self.type, result);
}

static Tensor elementwise(const Call& call, const std::function<double(double, double)>& compute) {
  const Tensor& self = call.tensor("self");
  auto result = elements(self);
  const auto other = elements(call.tensor("other"));
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = compute(result[i], other.at(i));
  return filled(self.type.dtype, self.type, result);
}

static Tensor sum_of(const Tensor& self) {
  std::vector<std::size_t> places;
  for_each(self, [&](std::size_t place) { places.push_back(place); });
  std::ranges::sort(places);
  double sum = 0;
  for (const std::size_t place : places) sum = rounded(self.type.dtype, sum + (*self.memory)[place]);
  return filled(self.type.dtype, {self.type.dtype, {}, {}}, {sum});
}

static Tensor random_of(const Call& call) {
  std::mt19937 random(static_cast<unsigned>(call.whole("ordinal")));
  Tensor result = make(ir::contiguous(DType::Float32, call.sizes("size")));
  for (double& value : *result.memory) value = rounded(DType::Float32, static_cast<double>(random()) * 1e-9);
  return result;
}

Tensor evaluate(const Node& node, const Values& values) {
  const Call call{node, values};
  const std::string& op = node.op;
  if (op == "shoal::normal") return random_of(call);
  if (op == "aten::zeros") return make(ir::contiguous(call.dtype(DType::Float32), call.sizes("size")));
  const Tensor& self = call.tensor("self");
  const DType dtype = self.type.dtype;
  if (op == "aten::alias" || op == "aten::detach") return self;
  if (op == "aten::clone") return filled(dtype, self.type, elements(self));
  if (op == "aten::_to_copy") return filled(call.dtype(dtype), self.type, elements(self));
  if (op == "aten::copy") return filled(dtype, self.type, elements(call.tensor("src")));
  if (op == "aten::sum") return sum_of(self);
  if (op == "aten::slice.Tensor" || op == "aten::select.int") return part_of(call, self);
  if (op == "aten::slice_scatter" || op == "aten::select_scatter") {
    Tensor result = filled(dtype, self.type, elements(self));
    Tensor part = part_of(call, result);
    fill(part, elements(call.tensor("src")));
    return result;
  }
  if (op == "aten::neg") return elementwise(call, [](double x) { return -x; });
  if (op == "aten::mul.Scalar") return elementwise(call, [&](double x) { return x * call.number("other"); });
  if (op == "aten::add.Scalar") return elementwise(call, [&](double x) { return x + call.number("other"); });
  if (op == "aten::add.Tensor") return elementwise(call, [](double x, double y) { return x + y; });
  if (op == "aten::mul.Tensor") return elementwise(call, [](double x, double y) { return x * y; });
  for (const std::string_view view :
       {"aten::view", "aten::_unsafe_view", "aten::t", "aten::transpose.int", "aten::permute", "aten::expand",
        "aten::unsqueeze", "aten::squeeze.dim"})
    if (op == view) return view_of(call);
  fail(ErrorKind::Internal, "reference: no such op: ", op);
}

std::map<std::string, std::vector<double>> run(const ir::Graph& graph) {
  Values values(graph.values.size());
  for (const auto& source : graph.sources) {
    Tensor tensor = make(graph.at(source.value).type);
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(source.name)));
    for (double& value : *tensor.memory)
      value =
          rounded(tensor.type.dtype, random() % 4 == 0 ? -0.0 : static_cast<double>(random()) * 1e-8 - 20);
    values[source.value.index] = std::move(tensor);
  }
  for (const Node& node : graph.nodes) {
    Tensor made = evaluate(node, values);
    const TensorType& wanted = graph.at(*node.outputs[0]).type;
    SHOAL_CHECK(made.type == wanted, Internal, "reference: ", to_text(graph, node), " gives ",
                to_text(made.type));
    values[node.outputs[0]->index] = std::move(made);
  }
  std::map<std::string, std::vector<double>> results;
  for (const auto& [role, name, value] : graph.results)
    results[concat(name_of(role), ' ', name)] = elements(values.at(value.index).value());
  return results;
}

}  // namespace shoal::rewrite::reference
