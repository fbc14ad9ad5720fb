// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/flops.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace shoal::rewrite {

using ir::ValueId;
using Shape = std::vector<std::int64_t>;

static const Shape* shape_of(const ir::Graph& graph, const ir::Node& node, std::string_view argument) {
  const auto* attribute = ir::find(node, argument);
  const auto* value = attribute == nullptr ? nullptr : std::get_if<ValueId>(attribute);
  return value == nullptr ? nullptr : &graph.at(*value).type.shape;
}

static double product(const Shape& shape) {
  double elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<double>(size);
  return elements;
}

// [..., m, k] x [..., k, n]: each element of the result is k products.
static double of_matrices(const ir::Graph& graph, const ir::Node& node) {
  for (const char* left : {"mat1", "batch1", "self"})
    if (const Shape* shape = shape_of(graph, node, left))
      return 2 * product(graph.at(*node.outputs[0]).type.shape) * static_cast<double>(shape->back());
  return 0;
}

// Queries times keys, weights times values.
static double of_attention(const ir::Graph& graph, const ir::Node& node) {
  const Shape* query = shape_of(graph, node, "query");
  const Shape* key = shape_of(graph, node, "key");
  const Shape* value = shape_of(graph, node, "value");
  if (query == nullptr || key == nullptr || value == nullptr || key->size() < 2) return 0;
  const auto widths = static_cast<double>(query->back() + value->back());
  const double rows = product(*query) / static_cast<double>(std::max<std::int64_t>(query->back(), 1));
  return 2 * rows * static_cast<double>((*key)[key->size() - 2]) * widths;
}

// The weights again, and the gradients of values, weights, queries and keys.
static double of_attention_backward(const ir::Graph& graph, const ir::Node& node) {
  return 2.5 * of_attention(graph, node);
}

static double of_each_place(const Shape& weight) {
  return 2 * product(weight) / static_cast<double>(weight[0]);
}

static double of_convolution(const ir::Graph& graph, const ir::Node& node) {
  const Shape* weight = shape_of(graph, node, "weight");
  return weight == nullptr ? 0 : of_each_place(*weight) * product(graph.at(*node.outputs[0]).type.shape);
}

static double of_convolution_backward(const ir::Graph& graph, const ir::Node& node) {
  const Shape* weight = shape_of(graph, node, "weight");
  const Shape* gradient = shape_of(graph, node, "grad_output");
  if (weight == nullptr || gradient == nullptr) return 0;
  const auto made = std::count_if(node.outputs.begin(), node.outputs.begin() + 2,
                                  [](const auto& output) { return output.has_value(); });
  return static_cast<double>(made) * of_each_place(*weight) * product(*gradient);
}

// Both matrices at each place of the sequence; `names`: of the input's and of the state's.
static double of_lstm(const ir::Graph& graph, const ir::Node& node, std::array<const char*, 2> names) {
  const Shape* input = shape_of(graph, node, "input");
  if (input == nullptr || input->empty()) return 0;
  double flops = 0;
  for (const char* name : names)
    if (const Shape* weight = shape_of(graph, node, name))
      flops += 2 * product(*weight) * product(*input) / static_cast<double>(input->back());
  return flops;
}
static double of_lstm_forward(const ir::Graph& graph, const ir::Node& node) {
  return of_lstm(graph, node, {"weight0", "weight1"});
}
static double of_lstm_backward(const ir::Graph& graph, const ir::Node& node) {
  return 2 * of_lstm(graph, node, {"weight1", "weight2"});
}

namespace {
struct Work {
  std::string_view op;
  double (*flops)(const ir::Graph&, const ir::Node&);
};
}  // namespace

static constexpr std::array kWork = {
    Work{"aten::_scaled_dot_product_flash_attention_for_cpu", of_attention},
    Work{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", of_attention_backward},
    Work{"aten::addmm", of_matrices},
    Work{"aten::baddbmm", of_matrices},
    Work{"aten::bmm", of_matrices},
    Work{"aten::convolution", of_convolution},
    Work{"aten::convolution_backward", of_convolution_backward},
    Work{"aten::mkldnn_rnn_layer", of_lstm_forward},
    Work{"aten::mkldnn_rnn_layer_backward", of_lstm_backward},
    Work{"aten::mm", of_matrices},
};
static_assert(std::ranges::is_sorted(kWork, {}, &Work::op), "kWork: keep it in alphabetical order");

double flops_of(const ir::Graph& graph, const ir::Node& node) {
  const auto row = std::ranges::lower_bound(kWork, std::string_view(node.op), {}, &Work::op);
  return row == kWork.end() || row->op != node.op ? 0 : row->flops(graph, node);
}

}  // namespace shoal::rewrite
