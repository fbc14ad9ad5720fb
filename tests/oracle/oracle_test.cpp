// SPDX-License-Identifier: Apache-2.0
// One device, eager LibTorch, is the oracle: every model and optimizer, five updates, must give the same
// losses, gradients, parameters, buffers and optimizer state.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/models.h"
#include "shoal/capture/capture.h"
#include "shoal/train/trainer.h"

using namespace shoal;
using at::Tensor;
using Tensors = std::map<std::string, Tensor>;
using Loss = std::function<Tensor(const Batch&)>;

static constexpr int kUpdates = 5;
static constexpr std::uint64_t kSeed = 11;

namespace {

struct Net {
  std::shared_ptr<torch::nn::Module> module;
  Loss loss;
};

// The same weights each time it is made.
struct ModelCase {
  const char* name;
  std::function<Net(double dropout)> make;
  std::function<Batch(at::ScalarType)> batch;
};

// A pair of the same optimizer, Shoal's and LibTorch's.
struct OptimizerCase {
  const char* name;
  Optimizer ours;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const torch::nn::Module&)> theirs;
  double clip_norm = 0;
};

}  // namespace

// Moves every parameter off its initial value. With zero biases GPT-2's key bias, whose true gradient is
// zero, stays at rounding noise, which Adam divides by its own size: no two implementations would agree on
// it.
static void randomise(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.add_(at::randn_like(parameter), 0.02);
}

static Net mlp(double dropout) {
  torch::manual_seed(5);
  models::Mlp net(
      models::MlpConfig{.in_features = 12, .hidden = {16, 16}, .out_features = 5, .dropout = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
          }};
}

static Net gpt2(double dropout) {
  torch::manual_seed(5);
  models::Gpt2 net(models::Gpt2Config{.vocab_size = 61,
                                      .n_positions = 16,
                                      .n_embd = 32,
                                      .n_layer = 2,
                                      .n_head = 4,
                                      .embd_pdrop = dropout,
                                      .attn_pdrop = dropout,
                                      .resid_pdrop = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].tensor().flatten());
          }};
}

static Net resnet(double) {
  torch::manual_seed(5);
  models::Resnet net(
      models::ResnetConfig{.layers = {1, 1, 1, 1}, .width = 8, .in_channels = 3, .num_classes = 7});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
          }};
}

static Net llama(double dropout) {
  torch::manual_seed(5);
  models::Llama net(models::LlamaConfig{.vocab_size = 61,
                                        .hidden_size = 24,
                                        .intermediate_size = 40,
                                        .num_hidden_layers = 2,
                                        .num_attention_heads = 4,
                                        .num_key_value_heads = 2,
                                        .head_dim = 8,
                                        .max_position_embeddings = 16,
                                        .rope_factor = 2,
                                        .rope_original_max_position_embeddings = 16,
                                        .attention_dropout = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].tensor().flatten());
          }};
}

static Net bert(double dropout) {
  torch::manual_seed(5);
  models::Bert net(models::BertConfig{.vocab_size = 61,
                                      .hidden_size = 24,
                                      .num_hidden_layers = 2,
                                      .num_attention_heads = 4,
                                      .intermediate_size = 40,
                                      .max_position_embeddings = 16,
                                      .hidden_dropout_prob = dropout,
                                      .attention_probs_dropout_prob = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0], batch[2], batch[3]).flatten(0, 1),
                                          batch[1].tensor().flatten());
          }};
}

static Net t5(double dropout) {
  torch::manual_seed(5);
  models::T5 net(models::T5Config{.vocab_size = 61,
                                  .d_model = 24,
                                  .d_kv = 6,
                                  .d_ff = 40,
                                  .num_layers = 2,
                                  .num_decoder_layers = 2,
                                  .num_heads = 4,
                                  .relative_attention_num_buckets = 8,
                                  .relative_attention_max_distance = 12,
                                  .dropout_rate = dropout});
  randomise(*net);
  return {
      net.ptr(), [net](const Batch& batch) mutable {
        const Tensor labels = batch[1].tensor().slice(1, 0, 11);
        return at::cross_entropy_loss(
            net->forward(batch[0], batch[1].tensor().slice(1, 3, 14).clamp_min(0), batch[2]).flatten(0, 1),
            labels.flatten());
      }};
}

static Net vit(double dropout) {
  torch::manual_seed(5);
  models::Vit net(models::VitConfig{.image_size = 8,
                                    .patch_size = 4,
                                    .num_channels = 2,
                                    .hidden_size = 24,
                                    .num_hidden_layers = 2,
                                    .num_attention_heads = 4,
                                    .intermediate_size = 40,
                                    .num_classes = 7,
                                    .hidden_dropout_prob = dropout,
                                    .attention_probs_dropout_prob = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]), batch[1]);
          }};
}

static Net lstm(double dropout) {
  torch::manual_seed(5);
  models::Lstm net(models::LstmConfig{
      .vocab_size = 61, .embedding_size = 12, .hidden_size = 20, .num_layers = 2, .dropout = dropout});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::cross_entropy_loss(net->forward(batch[0]).flatten(0, 1), batch[1].tensor().flatten());
          }};
}

static Net dlrm(double) {
  torch::manual_seed(5);
  models::Dlrm net(models::DlrmConfig{
      .dense_features = 5, .table_rows = {7, 30, 4}, .embedding_dim = 6, .bottom = {10}, .top = {12, 8}});
  randomise(*net);
  return {net.ptr(), [net](const Batch& batch) mutable {
            return at::binary_cross_entropy_with_logits(net->forward(batch[0], batch[1]), batch[2]);
          }};
}

static Batch labelled_tokens() {
  auto labels = at::randint(61, {3, 16}, at::kLong);
  labels.index_put_({0, at::indexing::Slice(4, 9)}, -100);  // ignored targets
  return {at::randint(61, {3, 16}, at::kLong), labels};
}

// With a mask of what is padding, and token types.
static Batch padded_tokens() {
  const Batch labelled = labelled_tokens();
  auto mask = at::ones({3, 16}, at::kLong);
  mask.index_put_({1, at::indexing::Slice(11)}, 0);
  return {labelled[0].tensor(), labelled[1].tensor(), mask, at::randint(2, {3, 16}, at::kLong)};
}

static const std::vector<ModelCase> kModels = {
    {"bert", bert, [](at::ScalarType) { return padded_tokens(); }},
    {"dlrm", dlrm,
     [](at::ScalarType type) {
       return Batch{at::randn({6, 5}, type), at::randint(4, {6, 3}, at::kLong), at::rand({6}, type).round()};
     }},
    {"llama", llama, [](at::ScalarType) { return labelled_tokens(); }},
    {"lstm", lstm, [](at::ScalarType) { return labelled_tokens(); }},
    {"mlp", mlp,
     [](at::ScalarType type) { return Batch{at::randn({6, 12}, type), at::randint(5, {6}, at::kLong)}; }},
    {"gpt2", gpt2, [](at::ScalarType) { return labelled_tokens(); }},
    {"resnet", resnet,
     [](at::ScalarType type) {
       return Batch{at::randn({4, 3, 32, 32}, type), at::randint(7, {4}, at::kLong)};
     }},
    {"t5", t5, [](at::ScalarType) { return padded_tokens(); }},
    {"vit", vit,
     [](at::ScalarType type) {
       return Batch{at::randn({4, 2, 8, 8}, type), at::randint(7, {4}, at::kLong)};
     }},
};

// Matrices with decay, everything else without.
template <class Options, class TorchOptimizer>
static std::unique_ptr<torch::optim::Optimizer> with_groups(const torch::nn::Module& module,
                                                            const Options& options) {
  std::vector<Tensor> decayed, others;
  for (const auto& parameter : module.parameters())
    (parameter.dim() < 2 ? others : decayed).push_back(parameter);
  auto without = std::make_unique<Options>(options);
  without->weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, std::make_unique<Options>(options));
  groups.emplace_back(others, std::move(without));
  return std::make_unique<TorchOptimizer>(groups, options);
}

static std::vector<OptimizerCase> optimizers() {
  namespace optim = torch::optim;
  const auto sgd = [](optim::SGDOptions options) {
    return [options](const torch::nn::Module& module) {
      return std::make_unique<optim::SGD>(module.parameters(), options);
    };
  };
  return {
      {"SGD", SGD{.lr = 0.1, .weight_decay = 0.01}, sgd(optim::SGDOptions(0.1).weight_decay(0.01))},
      {"SGD, momentum", SGD{.lr = 0.05, .momentum = 0.9}, sgd(optim::SGDOptions(0.05).momentum(0.9))},
      {"SGD, Nesterov", SGD{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
       sgd(optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true))},
      {"Adam", Adam{.lr = 0.01, .weight_decay = 0.02},
       [](const torch::nn::Module& module) {
         return std::make_unique<optim::Adam>(module.parameters(),
                                              optim::AdamOptions(0.01).weight_decay(0.02));
       }},
      {"AdamW, clipped, decay for matrices alone",
       AdamW{
           .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .groups = no_decay_below_two_dims()},
       [](const torch::nn::Module& module) {
         return with_groups<optim::AdamWOptions, optim::AdamW>(
             module, optim::AdamWOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1));
       },
       0.5},
  };
}

static Tensors parameters_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  return tensors;
}

static Tensors buffers_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

static Tensors gradients_of(const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters())
    if (item.value().grad().defined()) tensors[item.key()] = item.value().grad();
  return tensors;
}

static Tensors state_of(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  Tensors tensors;
  for (const auto& item : module.named_parameters()) {
    const auto found = optimizer.state().find(item.value().unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    auto* state = found->second.get();
    if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(state)) {
      if (sgd->momentum_buffer().defined()) tensors[item.key() + ".momentum_buffer"] = sgd->momentum_buffer();
    } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(state)) {
      tensors[item.key() + ".exp_avg"] = adam->exp_avg();
      tensors[item.key() + ".exp_avg_sq"] = adam->exp_avg_sq();
    } else if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(state)) {
      tensors[item.key() + ".exp_avg"] = adamw->exp_avg();
      tensors[item.key() + ".exp_avg_sq"] = adamw->exp_avg_sq();
    }
  }
  return tensors;
}

static double largest(const Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
}

// |a − b| ≤ rtol · max|b| + rtol · (largest value of any tensor of the kind). What needs the second term is
// told.
static void check_close(const char* kind, const Tensors& ours, const Tensors& theirs) {
  static constexpr double kRtol = 1e-9;
  CAPTURE(std::string(kind));
  REQUIRE(ours.size() == theirs.size());
  double of_kind = 0;
  for (const auto& [name, tensor] : theirs) of_kind = std::max(of_kind, largest(tensor));
  for (const auto& [name, tensor] : theirs) {
    CAPTURE(name);
    REQUIRE(ours.contains(name));
    const double error = largest(ours.at(name) - tensor);
    CHECK(error <= kRtol * largest(tensor) + kRtol * of_kind);
    if (error > kRtol * largest(tensor))
      MESSAGE(std::string(kind), " ", name, " is within the tolerance of its kind alone: error ", error,
              ", largest ", largest(tensor));
  }
}

static Batch batch_of(const ModelCase& model, at::ScalarType type, int step) {
  torch::manual_seed(100 + static_cast<std::uint64_t>(step));
  return model.batch(type);
}

// Trains both and compares after each update.
static void compare(const ModelCase& model, const OptimizerCase& optimizer, double dropout) {
  CAPTURE(std::string(model.name));
  CAPTURE(std::string(optimizer.name));
  const Net ours = model.make(dropout), theirs = model.make(dropout);
  ours.module->to(at::kDouble);
  theirs.module->to(at::kDouble);
  Trainer trainer(ours.module, ours.loss, optimizer.ours, {.clip_norm = optimizer.clip_norm, .seed = kSeed});
  const auto eager = optimizer.theirs(*theirs.module);
  for (int step = 1; step <= kUpdates; ++step) {
    CAPTURE(step);
    const Batch batch = batch_of(model, at::kDouble, step);
    eager->zero_grad();
    Tensor loss;
    {
      const capture::EagerRandom random(kSeed, step);
      loss = theirs.loss(batch);
    }
    loss.backward();
    Tensors gradients;
    for (const auto& [name, tensor] : gradients_of(*theirs.module)) gradients[name] = tensor.clone();
    double norm = 0;
    if (optimizer.clip_norm > 0)
      norm = torch::nn::utils::clip_grad_norm_(theirs.module->parameters(), optimizer.clip_norm);
    eager->step();

    const auto result = trainer.step(batch);
    CHECK(result.loss == doctest::Approx(loss.item<double>()).epsilon(1e-12));
    CHECK(result.grad_norm == doctest::Approx(norm).epsilon(1e-9));
    check_close("gradient", trainer.gradients(), gradients);
    check_close("parameter", parameters_of(*ours.module), parameters_of(*theirs.module));
    check_close("buffer", buffers_of(*ours.module), buffers_of(*theirs.module));
    check_close("state", trainer.optimizer_state(), state_of(*eager, *theirs.module));
  }
}

TEST_CASE("five updates in float64 equal eager LibTorch: every model, every optimizer") {
  for (const auto& model : kModels)
    for (const auto& optimizer : optimizers()) compare(model, optimizer, 0);
}

TEST_CASE("with dropout they equal an eager run that is given the same masks") {
  for (const auto& model : kModels) compare(model, optimizers().back(), 0.2);
}

TEST_CASE("float32 gradients are bitwise those of eager") {
  for (const auto& model : kModels) {
    CAPTURE(std::string(model.name));
    const Net ours = model.make(0), theirs = model.make(0);
    Trainer trainer(ours.module, ours.loss, SGD{.lr = 0});
    const Batch batch = batch_of(model, at::kFloat, 1);
    const auto loss = theirs.loss(batch);
    loss.backward();
    CHECK(static_cast<float>(trainer.step(batch).loss) == loss.item<float>());
    const auto gradients = trainer.gradients();
    const auto wanted = gradients_of(*theirs.module);
    REQUIRE(gradients.size() == wanted.size());
    for (const auto& [name, tensor] : wanted) {
      CAPTURE(name);
      CHECK(at::equal(gradients.at(name), tensor));
    }
    for (const auto& [name, tensor] : buffers_of(*theirs.module))
      CHECK(at::equal(buffers_of(*ours.module).at(name), tensor));
  }
}

// oneDNN's LSTM, which float32 takes, gives the gradient of both biases as one tensor: nothing may write over
// it.
TEST_CASE("two clipped updates of an lstm in float32 are those of eager") {
  const Net ours = lstm(0), theirs = lstm(0);
  Trainer trainer(ours.module, ours.loss, SGD{.lr = 0.5}, {.clip_norm = 0.01});
  torch::optim::SGD eager(theirs.module->parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 1; step <= 2; ++step) {
    const Batch batch = labelled_tokens();
    eager.zero_grad();
    theirs.loss(batch).backward();
    torch::nn::utils::clip_grad_norm_(theirs.module->parameters(), 0.01);
    eager.step();
    trainer.step(batch);
  }
  const auto wanted = parameters_of(*theirs.module);
  for (const auto& [name, tensor] : parameters_of(*ours.module)) {
    CAPTURE(name);
    CHECK(at::allclose(tensor, wanted.at(name), 1e-6, 1e-7));
  }
}
