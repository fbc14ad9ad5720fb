// SPDX-License-Identifier: Apache-2.0
// Shapes: B batch, T time, E embedding_size, D hidden_size.
#include "models/lstm.h"

#include <torch/nn/init.h>

#include <tuple>

namespace models {

static constexpr double kInitRange = 0.1;

LstmImpl::LstmImpl(const LstmConfig& config) {
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
  encoder_ = register_module("encoder", torch::nn::Embedding(config.vocab_size, config.embedding_size));
  const double between_layers = config.num_layers > 1 ? config.dropout : 0;
  rnn_ =
      register_module("rnn", torch::nn::LSTM(torch::nn::LSTMOptions(config.embedding_size, config.hidden_size)
                                                 .num_layers(config.num_layers)
                                                 .dropout(between_layers)
                                                 .batch_first(true)));
  decoder_ = register_module("decoder", torch::nn::Linear(config.hidden_size, config.vocab_size));
  torch::nn::init::uniform_(encoder_->weight, -kInitRange, kInitRange);
  torch::nn::init::uniform_(decoder_->weight, -kInitRange, kInitRange);
  torch::nn::init::zeros_(decoder_->bias);
}

at::Tensor LstmImpl::forward(const at::Tensor& tokens_BT) {
  const at::Tensor x_BTE = drop_->forward(encoder_->forward(tokens_BT));
  const at::Tensor y_BTD = std::get<0>(rnn_->forward(x_BTE));
  return decoder_->forward(drop_->forward(y_BTD));
}

}  // namespace models
