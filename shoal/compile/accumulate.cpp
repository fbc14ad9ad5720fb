// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/accumulate.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::compile {

using ir::Role;

ir::Graph append_accumulation(ir::Graph graph, const Normaliser& normaliser) {
  std::map<std::string, ir::ValueId> parameters;
  for (const auto& source : graph.sources)
    if (graph.at(source.value).role == Role::Parameter) parameters.emplace(source.name, source.value);
  ir::ValueList sums, gradients;
  std::vector<std::optional<ir::TensorType>> types;
  std::vector<ir::Result*> results;
  for (auto& result : graph.results) {
    if (result.role != Role::Gradient) continue;
    ir::TensorType type = graph.at(parameters.at(result.name)).type;
    type.dtype = graph.at(result.value).type.dtype;
    sums.emplace_back(graph.add_source(Role::Gradient, result.name, type));
    gradients.emplace_back(result.value);
    types.emplace_back(std::move(type));
    results.push_back(&result);
  }
  if (!sums.empty()) {
    ir::Node node{.op = "shoal::accumulate",
                  .arguments = {{"sums", std::move(sums)}, {"gradients", std::move(gradients)}},
                  .phase = ir::Phase::Update};
    for (const auto& [argument, source] :
         {std::pair{"keep", kKeep}, {"weight", kWeight}, {"divisor", kDivisor}})
      node.arguments.push_back({argument, graph.add_source(Role::Scalar, std::string(source),
                                                           ir::contiguous(DType::Float64, {}))});
    const auto id = graph.add_node(std::move(node), types);
    for (std::size_t i = 0; i < results.size(); ++i) results[i]->value = *graph.at(id).outputs[i];
  }
  if (normaliser.count) graph.add_result(Role::Output, std::string(kCount), *normaliser.count);
  return graph;
}

ir::Graph graph_of_sums(const std::vector<std::pair<std::string, ir::TensorType>>& parameters,
                        rewrite::Master master) {
  ir::Graph graph;
  for (const auto& [name, type] : parameters) graph.add_source(Role::Parameter, name, type);
  for (const auto& [name, parameter] : parameters) {
    ir::TensorType type = parameter;
    type.dtype = rewrite::gradient_type(parameter.dtype, master);
    graph.add_result(Role::Gradient, name, graph.add_source(Role::Gradient, name, std::move(type)));
  }
  return graph;
}

ir::Graph graph_of_sums(const ir::Graph& microbatch, rewrite::Master master) {
  std::set<std::string_view> summed;
  for (const auto& source : microbatch.sources)
    if (microbatch.at(source.value).role == Role::Gradient) summed.insert(source.name);
  std::vector<std::pair<std::string, ir::TensorType>> parameters;
  for (const auto& source : microbatch.sources)
    if (microbatch.at(source.value).role == Role::Parameter && summed.contains(source.name))
      parameters.emplace_back(source.name, microbatch.at(source.value).type);
  return graph_of_sums(parameters, master);
}

}  // namespace shoal::compile
