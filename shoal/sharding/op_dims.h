// SPDX-License-Identifier: Apache-2.0
// The dims of ops for which they depend on the arguments, or on how many there are, in the language of
// factors.h: for the table in ops.cpp.
#pragma once

#include <string>

#include "shoal/ir/graph.h"

namespace shoal::sharding::dims {

std::string any(const ir::Graph& graph, const ir::Node& node);
std::string along_dim(const ir::Graph& graph, const ir::Node& node);
std::string along_dims(const ir::Graph& graph, const ir::Node& node);
std::string attention(const ir::Graph& graph, const ir::Node& node);
std::string attention_backward(const ir::Graph& graph, const ir::Node& node);
std::string batch_norm(const ir::Graph& graph, const ir::Node& node);
std::string batch_norm_backward(const ir::Graph& graph, const ir::Node& node);
std::string convolution(const ir::Graph& graph, const ir::Node& node);
std::string convolution_backward(const ir::Graph& graph, const ir::Node& node);
std::string elementwise(const ir::Graph& graph, const ir::Node& node);
std::string embedding_backward(const ir::Graph& graph, const ir::Node& node);
std::string embedding_backward_parts(const ir::Graph& graph, const ir::Node& node);
std::string embedding_parts(const ir::Graph& graph, const ir::Node& node);
std::string expanded(const ir::Graph& graph, const ir::Node& node);
std::string extremum(const ir::Graph& graph, const ir::Node& node);
std::string gather(const ir::Graph& graph, const ir::Node& node);
std::string index_along(const ir::Graph& graph, const ir::Node& node);
std::string indexed(const ir::Graph& graph, const ir::Node& node);
std::string into_whole(const ir::Graph& graph, const ir::Node& node);
std::string layer_norm(const ir::Graph& graph, const ir::Node& node);
std::string layer_norm_backward(const ir::Graph& graph, const ir::Node& node);
std::string loss(const ir::Graph& graph, const ir::Node& node);
std::string loss_backward(const ir::Graph& graph, const ir::Node& node);
std::string nll_loss(const ir::Graph& graph, const ir::Node& node);
std::string nll_loss2d(const ir::Graph& graph, const ir::Node& node);
std::string nll_loss2d_backward(const ir::Graph& graph, const ir::Node& node);
std::string nll_loss_backward(const ir::Graph& graph, const ir::Node& node);
std::string nll_loss_backward_parts(const ir::Graph& graph, const ir::Node& node);
std::string nll_loss_parts(const ir::Graph& graph, const ir::Node& node);
std::string padded(const ir::Graph& graph, const ir::Node& node);
std::string permuted(const ir::Graph& graph, const ir::Node& node);
std::string reduced_whole(const ir::Graph& graph, const ir::Node& node);
std::string repeated(const ir::Graph& graph, const ir::Node& node);
std::string scatter(const ir::Graph& graph, const ir::Node& node);
std::string selected(const ir::Graph& graph, const ir::Node& node);
std::string selected_into(const ir::Graph& graph, const ir::Node& node);
std::string stacked(const ir::Graph& graph, const ir::Node& node);
std::string sum(const ir::Graph& graph, const ir::Node& node);
std::string swapped(const ir::Graph& graph, const ir::Node& node);
std::string zeros_beside(const ir::Graph& graph, const ir::Node& node);

}  // namespace shoal::sharding::dims
