// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, F dense features, C categories, V vectors of a sample: 1 + C, E embedding_dim, P pairs of
// them.
#include "models/dlrm.h"

#include <torch/nn/init.h>

#include <cmath>

namespace models {

static torch::nn::Linear xavier_linear(std::int64_t in_features, std::int64_t out_features) {
  torch::nn::Linear layer(in_features, out_features);
  torch::nn::init::normal_(layer->weight, 0,
                           std::sqrt(2.0 / static_cast<double>(in_features + out_features)));
  torch::nn::init::normal_(layer->bias, 0, std::sqrt(1.0 / static_cast<double>(out_features)));
  return layer;
}

// Hidden layers with ReLU; returns the last one's width.
static std::int64_t append(torch::nn::Sequential& layers, std::int64_t width,
                           const std::vector<std::int64_t>& widths) {
  for (const std::int64_t next : widths) {
    layers->push_back(xavier_linear(width, next));
    layers->push_back(torch::nn::ReLU());
    width = next;
  }
  return width;
}

DlrmImpl::DlrmImpl(const DlrmConfig& config) {
  append(bot_l_, append(bot_l_, config.dense_features, config.bottom), {config.embedding_dim});
  for (const std::int64_t rows : config.table_rows) {
    torch::nn::Embedding table(rows, config.embedding_dim);
    const double range = 1 / std::sqrt(static_cast<double>(rows));
    torch::nn::init::uniform_(table->weight, -range, range);
    emb_l_->push_back(table);
  }
  const auto vectors = static_cast<std::int64_t>(config.table_rows.size()) + 1;
  const std::int64_t pairs = vectors * (vectors - 1) / 2;
  top_l_->push_back(xavier_linear(append(top_l_, config.embedding_dim + pairs, config.top), 1));
  register_module("bot_l", bot_l_);
  register_module("emb_l", emb_l_);
  register_module("top_l", top_l_);
}

at::Tensor DlrmImpl::forward(const at::Tensor& dense_BF, const at::Tensor& categories_BC) {
  TORCH_CHECK(categories_BC.size(1) == static_cast<std::int64_t>(emb_l_->size()), "dlrm: a sample has ",
              categories_BC.size(1), " categories, but there are ", emb_l_->size(), " tables");
  const at::Tensor x_BE = bot_l_->forward(dense_BF);
  std::vector<at::Tensor> vectors = {x_BE};
  for (std::size_t table = 0; table < emb_l_->size(); ++table)
    vectors.push_back(emb_l_->ptr(table)->as<torch::nn::Embedding>()->forward(
        categories_BC.select(1, static_cast<std::int64_t>(table))));
  const at::Tensor all_BVE = at::stack(vectors, 1);
  const at::Tensor products_BVV = at::bmm(all_BVE, all_BVE.transpose(1, 2));
  const auto count = static_cast<std::int64_t>(vectors.size());
  const at::Tensor places = at::tril_indices(count, count, -1, categories_BC.options());
  const at::Tensor pairs_BP = products_BVV.flatten(1).index_select(1, places[0] * count + places[1]);
  return top_l_->forward(at::cat({x_BE, pairs_BP}, 1)).squeeze(1);
}

}  // namespace models
