// SPDX-License-Identifier: Apache-2.0
// Above 400 lines: one case for each thing that a model may do; they share the models and the replay.
#include "shoal/capture/capture.h"
#include "shoal/base/sanitized.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <doctest/doctest.h>
#include <torch/nn.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/gpt2.h"
#include "shoal/aten/interpreter.h"
#include "shoal/base/error_test.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

namespace capture_test {

using namespace shoal;
using namespace shoal::capture;
using at::Tensor;

// ---- a model of a few tensors, its capture, and its replay one node at a time
// ----------------------------------------

namespace {

struct Model {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  std::vector<NamedTensor> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> loss;  // given the inputs

  Request request() const {
    return {.parameters = parameters,
            .buffers = buffers,
            .inputs = inputs,
            .loss = [this](std::span<const Tensor> in) { return loss({in.begin(), in.end()}); }};
  }
};

}  // namespace

static Tensor random_tensor(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

static NamedTensor parameter(const std::string& name, at::IntArrayRef sizes) {
  return {name, random_tensor(sizes).requires_grad_()};
}

// Results by "role name", on these inputs.
static std::map<std::string, Tensor> replay(const Captured& captured, const Model& model) {
  const c10::InferenceMode inference;
  aten::Interpreter interpreter(captured.graph);
  std::size_t constant = 0;
  for (const auto& source : captured.graph.sources) {
    const auto role = captured.graph.at(source.value).role;
    if (role == ir::Role::Constant) {
      interpreter.bind(source.value, captured.constants.at(constant++));
      continue;
    }
    for (const auto* tensors : {&model.parameters, &model.buffers, &model.inputs})
      for (const auto& [name, tensor] : *tensors)
        if (name == source.name) interpreter.bind(source.value, tensor.detach());
  }
  std::map<std::string, Tensor> results;
  for (const auto& result : captured.graph.results)
    results[std::string(name_of(result.role)) + " " + result.name] = interpreter.value(result.value);
  return results;
}

// The same by LibTorch. Buffers are put back.
static std::map<std::string, Tensor> eager(const Model& model) {
  std::vector<Tensor> inputs, before;
  for (const auto& [name, tensor] : model.inputs) inputs.push_back(tensor.clone());
  for (const auto& [name, tensor] : model.buffers) before.push_back(tensor.clone());
  for (const auto& [name, tensor] : model.parameters) tensor.mutable_grad() = Tensor();
  const Tensor loss = model.loss(inputs);
  loss.backward();
  std::map<std::string, Tensor> results = {{"loss loss", loss.detach()}};
  for (const auto& [name, tensor] : model.parameters) {
    if (tensor.grad().defined()) results["gradient " + name] = tensor.grad();
    tensor.mutable_grad() = Tensor();
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto& [name, tensor] = model.buffers[i];
    if (!at::equal(before[i], tensor)) results["buffer " + name] = tensor.clone();
    const at::NoGradGuard no_grad;
    Tensor(tensor).copy_(before[i]);
  }
  return results;
}

static std::string op_names(const ir::Graph& graph) {
  std::string names;
  for (const auto& node : graph.nodes) names += node.op + "\n";
  return names;
}

static bool calls(const ir::Graph& graph, const std::string& op) {
  return ("\n" + op_names(graph)).find("\n" + op + "\n") != std::string::npos;
}

static Captured check_equal(const Model& model) {
  auto captured = capture::capture(model.request());
  ir::verify(captured.graph);
  const auto got = replay(captured, model);
  const auto wanted = eager(model);
  for (const auto& [name, tensor] : wanted) {
    CAPTURE(name);
    REQUIRE(got.contains(name));
    CHECK(at::equal(got.at(name), tensor));
  }
  for (const auto& [name, tensor] : got) {
    CAPTURE(name);
    CHECK((wanted.contains(name) || name.starts_with("buffer ")));
  }
  return captured;
}

TEST_CASE("a linear layer's forward and backward are the graph, bit for bit") {
  Model model{.parameters = {parameter("fc.weight", {4, 8}), parameter("fc.bias", {4})},
              .inputs = {{"x", random_tensor({3, 8})}}};
  model.loss = [&](const auto& in) {
    return at::linear(in[0], model.parameters[0].tensor, model.parameters[1].tensor).relu().pow(2).sum();
  };
  const auto captured = check_equal(model);
  CHECK(captured.graph.nodes.back().phase == ir::Phase::Backward);
  CHECK(ir::from_text(ir::to_text(captured.graph)) == captured.graph);
}

static Model of_module(torch::nn::Module& net) {
  Model model;
  for (const auto& item : net.named_parameters()) model.parameters.push_back({item.key(), item.value()});
  for (const auto& item : net.named_buffers()) model.buffers.push_back({item.key(), item.value()});
  return model;
}

static models::Gpt2Config tiny_gpt2(double dropout) {
  return {.vocab_size = 50,
          .n_positions = 16,
          .n_embd = 32,
          .n_layer = 2,
          .n_head = 4,
          .embd_pdrop = dropout,
          .attn_pdrop = dropout,
          .resid_pdrop = dropout};
}

static NamedTensor tokens(const char* name) { return {name, at::randint(50, {2, 16}, at::kLong)}; }

TEST_CASE("who waits for a capture is told how far it is, each time after twice as long") {
  Model model{.parameters = {parameter("w", {4, 4})}, .inputs = {{"x", random_tensor({2, 4})}}};
  model.loss = [&](const std::vector<Tensor>& in) {
    Tensor x = in[0];
    for (int i = 0; i < 500; ++i) x = at::mm(x, model.parameters[0].tensor);
    return x.sum();
  };
  Request request = model.request();
  std::vector<std::pair<std::size_t, double>> told;
  request.progress = [&](std::size_t operators, double seconds) { told.emplace_back(operators, seconds); };
  request.patience = std::chrono::hours(1);
  record(request);
  CHECK(told.empty());
  request.patience = std::chrono::nanoseconds(0);
  record(request);
  REQUIRE(told.size() > 1);
  CHECK(told[0].first == 1);
  for (std::size_t i = 1; i < told.size(); ++i) {
    CHECK(told[i].first > told[i - 1].first);
    CHECK(told[i].second >= 2 * told[i - 1].second);
  }
}

TEST_CASE("GPT-2's graph has neutral attention, module paths, and phases in order") {
  models::Gpt2 net(tiny_gpt2(0));
  Model model = of_module(*net);
  model.inputs = {tokens("tokens"), tokens("labels")};
  model.loss = [&](const auto& in) {
    return at::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten());
  };
  const auto captured = capture::capture(model.request());
  ir::verify(captured.graph);
  CHECK(calls(captured.graph, "shoal::attention"));
  CHECK(calls(captured.graph, "shoal::attention_backward"));
  bool named = false;
  for (const auto& node : captured.graph.nodes)
    if (node.op == "shoal::attention_backward") named = named || node.module == "transformer.h.1.attn";
  CHECK(named);
}

TEST_CASE("a write through a view is a scatter into its base") {
  Model model{.parameters = {parameter("w", {4, 6})}, .inputs = {{"x", random_tensor({4, 6})}}};
  model.loss = [&](const auto& in) {
    auto h = in[0] * model.parameters[0].tensor;
    h.select(0, 1).add_(1);                       // select
    h.slice(1, 2, 5).mul_(in[0].slice(1, 2, 5));  // slice
    h.t().narrow(0, 0, 2).copy_(in[0].t().narrow(0, 0, 2) * 3);
    h.view({2, 2, 6}).select(1, 0).sub_(2);
    h.diagonal().zero_();
    return (h * h).sum() + h.unbind(0)[2].sum();
  };
  const auto captured = check_equal(model);
  CHECK(calls(captured.graph, "aten::select_scatter"));
  CHECK_FALSE(calls(captured.graph, "aten::as_strided"));
  CHECK_FALSE(calls(captured.graph, "aten::as_strided_scatter"));
}

TEST_CASE("views that are written through one piece of a split see each other's writes") {
  Model model{.parameters = {parameter("w", {6, 4})}, .inputs = {{"x", random_tensor({6, 4})}}};
  model.loss = [&](const auto& in) {
    auto h = in[0] * model.parameters[0].tensor;
    auto same = h.view({24});
    auto row = h[1];
    h.mul_(2);
    row.add_(in[0][0]);
    return (same * same).sum() + (h.split(2, 0)[1] * h.chunk(3, 0)[2]).sum();
  };
  check_equal(model);
}

TEST_CASE(
    "parameters are known by storage: .data, detach, and views made before the capture are the parameter") {
  Model model{.parameters = {parameter("w", {4, 4})}, .inputs = {{"x", random_tensor({4, 4})}}};
  const Tensor w = model.parameters[0].tensor;
  const Tensor early_row = w.detach()[2];
  const Tensor early_transpose = w.detach().t();
  model.loss = [&](const auto& in) {
    return (in[0] * w).sum() + (w.data() * in[0]).sum() + (early_row * in[0][0]).sum() +
           at::mm(early_transpose, in[0]).sum();
  };
  const auto captured = check_equal(model);
  CHECK(captured.constants.empty());
  // Another content of the parameter is seen: nothing froze.
  {
    const at::NoGradGuard no_grad;
    w.add_(1);
  }
  CHECK(at::equal(replay(captured, model).at("loss loss"), eager(model).at("loss loss")));
}

TEST_CASE("a tied parameter is one source and its gradient a sum") {
  const auto w = parameter("wte.weight", {8, 8});
  Model model{.parameters = {w, {"lm_head.weight", w.tensor}}, .inputs = {{"x", random_tensor({2, 8})}}};
  model.loss = [&](const auto& in) { return at::linear(at::linear(in[0], w.tensor).relu(), w.tensor).sum(); };
  const auto captured = capture::capture(model.request());
  CHECK(captured.graph.sources.size() == 2);
  CHECK(at::equal(replay(captured, model).at("gradient wte.weight"), eager(model).at("gradient wte.weight")));
  const auto grad_before = at::ones({8, 8}, at::kDouble);
  w.tensor.mutable_grad() = grad_before;
  capture::capture(model.request());
  CHECK(w.tensor.grad().is_same(grad_before));
}

TEST_CASE("two parameters tied through .data are one source, and their gradient is the sum of both") {
  const auto w = parameter("wte.weight", {4, 4});
  const auto tied = w.tensor.detach().requires_grad_();
  Model model{.parameters = {w, {"lm_head.weight", tied}}, .inputs = {{"x", random_tensor({2, 4})}}};
  model.loss = [&](const auto& in) { return at::linear(at::linear(in[0], w.tensor).relu(), tied).sum(); };
  const auto captured = capture::capture(model.request());
  const auto wanted = eager(model);
  CHECK(captured.graph.sources.size() == 2);
  CHECK(at::equal(replay(captured, model).at("gradient wte.weight"),
                  wanted.at("gradient wte.weight") + wanted.at("gradient lm_head.weight")));
}

TEST_CASE(
    "a write to memory from outside is an error with operator, shape, line and remedy, and is not done") {
  const auto w = parameter("fc.weight", {3});
  const auto outside = at::zeros({3}, at::kDouble), count = at::zeros({}, at::kDouble);
  Model model{.parameters = {w}, .inputs = {{"x", random_tensor({3})}}};
  const std::function<void(const Tensor&)> writes[] = {
      [&](const Tensor& y) { outside.add_(y.detach()); },
      [&](const Tensor& y) { outside.narrow(0, 1, 2).copy_(y.detach().narrow(0, 0, 2)); },
      [&](const Tensor&) { outside.uniform_(); },
      [&](const Tensor&) { count.add_(1); },
      [&](const Tensor&) {
        Tensor out = count;
        at::add_out(out, at::ones({}, at::kDouble), 2);
      },
      [&](const Tensor&) {  // running statistics of another model, of data that is none of this one's
        at::batch_norm(at::ones({2, 3}, at::kDouble), {}, {}, outside, outside, true, 0.1, 1e-5, false);
      },
      [&](const Tensor& y) {
        at::batch_norm(y.expand({2, 3}), {}, {}, outside, outside, true, 0.1, 1e-5, false);
      },
  };
  for (const auto& write : writes) {
    model.loss = [&](const auto& in) {
      const Tensor y = in[0] * w.tensor;
      write(y);
      return y.sum();
    };
    const auto message = error_of([&] { capture::capture(model.request()); });
    CHECK(contains(message, "from outside, which is no parameter, buffer or item of the batch"));
    CHECK(contains(message, "module fc"));
    CHECK(contains(message, "capture_test.cpp:"));
    CHECK(contains(message, "register it as a buffer"));
  }
  CHECK(at::equal(outside, at::zeros({3}, at::kDouble)));
  CHECK(count.item<double>() == 0);
}

TEST_CASE("what a model makes itself may be written, however it was made") {
  const auto w = parameter("w", {3});
  const auto outside = at::ones({3}, at::kDouble);
  Model model{.parameters = {w}, .inputs = {{"x", random_tensor({3})}}};
  const std::function<Tensor()> makers[] = {
      [] { return at::zeros({3}, at::kDouble); },
      [] { return at::empty({3}, at::kDouble).fill_(2); },
      [] { return torch::tensor({1., 2., 3.}, at::kDouble); },
      [] { return at::tensor({1., 2., 3.}, at::kDouble); },
      [] { return at::arange(3, at::kDouble); },
      [&] { return at::zeros_like(outside); },
      [&] { return outside.clone(); },
      [&] { return outside + 1; },
      [&] { return outside.new_zeros({3}); },
      [&] { return outside.to(at::kFloat).to(at::kDouble); },
      [&] { return at::stack({outside, outside})[0]; },
      [&] { return at::zeros({2, 3}, at::kDouble).select(0, 1); },
  };
  for (const auto& make : makers) {
    model.loss = [&](const auto& in) {
      Tensor made = make();
      made[1] += 1;
      made.mul_(2);
      made += in[0] * w.tensor;
      return (made * made).sum();
    };
    CHECK(at::equal(replay(capture::capture(model.request()), model).at("loss loss"),
                    eager(model).at("loss loss")));
  }
}

TEST_CASE(
    "a member that forward replaces says what it is and what to do, and so does reading it afterwards") {
  const auto w = parameter("rnn.weight", {3});
  Tensor h = at::zeros({2, 3}, at::kDouble);
  Model model{.parameters = {w}, .inputs = {{"x", random_tensor({2, 3})}}};
  model.loss = [&](const auto& in) {
    const Tensor y = (in[0] * w.tensor + h).tanh();
    h = y.detach();
    return y.sum();
  };
  const auto message = error_of([&] { capture::capture(model.request()); });
  CHECK(contains(message, "module rnn"));
  CHECK(contains(message, "a tensor of shape [2, 3]"));
  CHECK(contains(message, "capture_test.cpp:"));
  CHECK(contains(message, "register_buffer()"));
  CHECK(contains(error_of([&] { model.loss(std::vector{model.inputs[0].tensor}); }), "it holds no data"));
  h = at::zeros({2, 3}, at::kDouble);  // set anew, the model works without a Trainer
  CHECK(std::isfinite(model.loss(std::vector{model.inputs[0].tensor}).item<double>()));
}

TEST_CASE("factories and what follows from them fold to constants") {
  Model model{.parameters = {parameter("w", {4, 4})}, .inputs = {{"x", random_tensor({4, 4})}}};
  model.loss = [&](const auto& in) {
    const auto mask = at::ones({4, 4}, in[0].options()).tril();
    const auto positions = at::arange(4, in[0].options());
    if (mask.sum().template item<double>() != 10) throw std::runtime_error("control flow over constants");
    return (in[0] * model.parameters[0].tensor * mask + positions).sum();
  };
  const auto captured = check_equal(model);
  CHECK(captured.constants.size() == 2);
  CHECK_FALSE(calls(captured.graph, "aten::tril"));
}

TEST_CASE("a constant that a value is written into becomes a value, all its aliases included") {
  Model model{.parameters = {parameter("w", {4, 2})}, .inputs = {{"x", random_tensor({4, 2})}}};
  model.loss = [&](const auto& in) {
    auto y = at::zeros({4, 6}, in[0].options());
    auto alias = y.t();
    y.slice(1, 0, 2).copy_(in[0] * model.parameters[0].tensor);
    y.slice(1, 2, 4).add_(1);
    return (alias * alias).sum() + y.sum();
  };
  const auto captured = check_equal(model);
  CHECK_FALSE(calls(captured.graph, "aten::as_strided_scatter"));
}

TEST_CASE("memory that a model leaves as it found it is not a constant of its own each time") {
  Model model{.parameters = {parameter("w", {4, 2})}, .inputs = {{"x", random_tensor({4, 2})}}};
  double garbage = 0;
  model.loss = [&](const auto& in) {
    {
      const auto left_behind = at::full({4, 6}, ++garbage, at::kDouble);
    }
    auto y = at::empty({4, 6}, in[0].options());
    y.slice(1, 2, 4).copy_(in[0] * model.parameters[0].tensor);
    y.slice(1, 0, 2).fill_(1);
    y.slice(1, 4, 6).zero_();
    return (y * y).sum();
  };
  check_equal(model);
}

TEST_CASE("a write through a permutation leaves the strides of what is written to") {
  Model model{.parameters = {parameter("w", {2, 3, 4})}, .inputs = {{"row", random_tensor({4})}}};
  model.loss = [&](const auto& in) {
    auto h = model.parameters[0].tensor * 2;
    h.permute({1, 0, 2}).unsqueeze(0).select(1, 2).copy_(in[0]);
    return h.tanh().mean() + h.view({24}).cumsum(0).mean();
  };
  check_equal(model);
}

TEST_CASE("a constant keeps what it was when a value met it, whatever is written to it later") {
  Model model{.parameters = {parameter("w", {3})}, .inputs = {{"x", random_tensor({3})}}};
  model.loss = [&](const auto& in) {
    auto counter = at::zeros({3}, in[0].options());
    auto first = in[0] * model.parameters[0].tensor + counter;
    counter.add_(5);
    return (first * counter).sum();
  };
  check_equal(model);
}

TEST_CASE("batch norm's running statistics, which its schema does not mention, are results") {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)),
                            torch::nn::BatchNorm2d(4), torch::nn::ReLU());
  net->to(at::kDouble);
  Model model = of_module(*net);
  model.inputs = {{"x", random_tensor({2, 3, 5, 5})}};
  model.loss = [&](const auto& in) { return net->forward(in[0]).pow(2).mean(); };
  const auto captured = check_equal(model);
  const auto results = replay(captured, model);
  CHECK(results.contains("buffer 1.running_mean"));
  CHECK(results.contains("buffer 1.running_var"));
  CHECK(results.contains("buffer 1.num_batches_tracked"));
}

TEST_CASE("buffers that the model writes to are results; the model itself is unchanged") {
  Model model{.parameters = {parameter("w", {3})},
              .buffers = {{"mean", at::zeros({3}, at::kDouble)}},
              .inputs = {{"x", random_tensor({5, 3})}}};
  const auto grad_before = at::ones({3}, at::kDouble);
  model.parameters[0].tensor.mutable_grad() = grad_before;
  const Tensor buffer = model.buffers[0].tensor;
  model.loss = [&](const auto& in) {
    buffer.mul_(0.9).add_(in[0].mean(0).detach(), 0.1);
    return ((in[0] - buffer) * model.parameters[0].tensor).sum();
  };
  const auto w_before = model.parameters[0].tensor.detach().clone();
  const auto captured = capture::capture(model.request());
  CHECK(at::equal(buffer, at::zeros({3}, at::kDouble)));
  CHECK(at::equal(model.parameters[0].tensor.detach(), w_before));
  CHECK(model.parameters[0].tensor.grad().is_same(grad_before));
  model.parameters[0].tensor.mutable_grad() = Tensor();
  const auto wanted = eager(model);
  CHECK(at::equal(replay(captured, model).at("buffer mean"), wanted.at("buffer mean")));
}

TEST_CASE("control flow over the batch is computed and guarded") {
  Model model{.parameters = {parameter("w", {3})},
              .inputs = {{"x", random_tensor({3})}, {"mask", at::ones({3}, at::kBool)}}};
  model.loss = [&](const auto& in) {
    auto h = in[0] * model.parameters[0].tensor;
    if (!in[1].all().template item<bool>()) h = h.masked_fill(in[1].logical_not(), 0);
    return h.sum();
  };
  const auto captured = check_equal(model);
  CHECK(captured.guards.list.size() == 1);
  const std::vector<Tensor> same = {random_tensor({3}), at::ones({3}, at::kBool)};
  const std::vector<Tensor> other = {random_tensor({3}), at::zeros({3}, at::kBool)};
  CHECK(hold(captured.guards, same));
  CHECK_FALSE(hold(captured.guards, other));
}

TEST_CASE("a shape that depends on the batch is computed and guarded") {
  Model model{.parameters = {parameter("w", {4})},
              .inputs = {{"x", random_tensor({4})}, {"keep", at::tensor({1, 0, 1, 1}).to(at::kBool)}}};
  model.loss = [&](const auto& in) {
    return in[0].mul(model.parameters[0].tensor).masked_select(in[1]).sum() +
           in[0].index({in[1]}).pow(2).sum();
  };
  const auto selected = check_equal(model);  // its shape comes from the mask alone
  const std::vector<Tensor> fewer = {random_tensor({4}), at::tensor({1, 0, 0, 1}).to(at::kBool)};
  CHECK_FALSE(hold(selected.guards, fewer));
  model.loss = [&](const auto& in) {
    return (in[0].index({in[1]}).pow(2).sum() * model.parameters[0].tensor).sum();
  };
  const auto captured = check_equal(model);
  CHECK(captured.guards.list.size() == 1);
  CHECK_FALSE(hold(captured.guards, std::vector<Tensor>{random_tensor({4}), at::ones({4}, at::kBool)}));
}

TEST_CASE("reading what depends on a parameter is an error with module, line and remedy") {
  Model model{.parameters = {parameter("block.fc.weight", {3})}, .inputs = {{"x", random_tensor({3})}}};
  model.loss = [&](const auto& in) {
    auto h = in[0] * model.parameters[0].tensor;
    if (h.sum().template item<double>() > 0) h = h * 2;
    return h.sum();
  };
  const auto message = error_of([&] { capture::capture(model.request()); });
  CHECK(contains(message, "depends on a parameter"));
  CHECK(contains(message, "module block.fc"));
  CHECK(contains(message, "capture_test.cpp:"));
  CHECK(contains(message, "keep it a tensor: where, masks and clamp"));
}

TEST_CASE("a coin toss in control flow is an error") {
  Model model{.parameters = {parameter("w", {3})}, .inputs = {{"x", random_tensor({3})}}};
  model.loss = [&](const auto& in) {
    auto h = in[0] * model.parameters[0].tensor;
    if (at::rand({1}).item<float>() > 0.5) h = h * 2;
    return h.sum();
  };
  CHECK(contains(error_of([&] { capture::capture(model.request()); }), "random operator"));
}

TEST_CASE("a model that does something else each time is an error at the line where it does") {
  Model model{.parameters = {parameter("w", {3})}, .inputs = {{"x", random_tensor({3})}}};
  int calls_so_far = 0;
  model.loss = [&](const auto& in) {
    auto h = in[0] * model.parameters[0].tensor;
    h = h * static_cast<double>(++calls_so_far);
    return h.sum();
  };
  const auto message = error_of([&] { capture::capture(model.request()); });
  CHECK(contains(message, "other arguments each time"));
  CHECK(contains(message, "capture_test.cpp:"));
  int number = 0;
  model.loss = [&](const auto& in) {
    return (in[0] * model.parameters[0].tensor * at::full({3}, ++number, at::kDouble)).sum();
  };
  CHECK(contains(error_of([&] { capture::capture(model.request()); }), "content is another each time"));
}

TEST_CASE("a leaf that is none of the parameters keeps its gradient as it was") {
  Model model{.parameters = {parameter("w", {4})}};
  for (const bool has_one : {false, true}) {
    const auto leaf = random_tensor({4}).requires_grad_();
    const auto gradient = has_one ? random_tensor({4}) : Tensor();
    leaf.mutable_grad() = gradient;
    model.loss = [&](const auto&) { return (model.parameters[0].tensor * leaf).sum(); };
    CHECK(capture::capture(model.request()).constants.size() == 1);
    CHECK(leaf.grad().is_same(gradient));
  }
}

TEST_CASE("attention's result lies as its query does") {
  for (const bool contiguous : {true, false}) {
    const auto query = contiguous ? random_tensor({2, 3, 8, 4}) : random_tensor({2, 8, 3, 4}).transpose(1, 2);
    Model model{.parameters = {{"q", query.detach().clone().requires_grad_()}}};
    std::vector<std::int64_t> captured_strides;
    model.loss = [&](const auto&) {
      const auto& q = model.parameters[0].tensor;
      const auto out = at::scaled_dot_product_attention(q, q, q);
      captured_strides = out.strides().vec();
      return out.sum();
    };
    capture::capture(model.request());
    const auto& q = model.parameters[0].tensor;
    CHECK(captured_strides == at::scaled_dot_product_attention(q, q, q).strides());
  }
}

TEST_CASE("one_hot and CTC loss are captured without a look into memory") {
  Model model{.parameters = {parameter("w", {6, 2, 4})},
              .inputs = {{"lengths", at::tensor({3, 2}, at::kLong)}}};
  model.loss = [&](const auto& in) {
    const auto logs = model.parameters[0].tensor.log_softmax(2);
    const auto targets = at::ones({2, 3}, at::kLong);
    const auto best = at::one_hot(logs.argmax(2), 4).to(at::kDouble);
    return at::ctc_loss(logs, targets, at::full({2}, 6, at::kLong), in[0]) + (best * logs).sum();
  };
  const auto captured = capture::capture(model.request());
  CHECK(calls(captured.graph, "aten::_ctc_loss"));
  CHECK(calls(captured.graph, "aten::scatter.value"));
  CHECK(hold(captured.guards, std::vector<Tensor>{at::tensor({3, 2}, at::kLong)}));
  CHECK_FALSE(hold(captured.guards, std::vector<Tensor>{at::tensor({3, 1}, at::kLong)}));
  CHECK_FALSE(hold(captured.guards, std::vector<Tensor>{at::tensor({2, 2}, at::kLong)}));
}

TEST_CASE("a generator that is set back gives the same random numbers again, and is left as it was") {
  auto generator = at::detail::getDefaultCPUGenerator();
  Model model{.parameters = {parameter("w", {64})}};
  const auto before = generator.get_state();
  model.loss = [&](const auto&) {
    const auto& w = model.parameters[0].tensor;
    const auto state = generator.get_state();
    const auto first = at::dropout(w, 0.5, true);
    generator.set_state(state);  // as checkpointing does
    return (first - at::dropout(w, 0.5, true) + at::dropout(w, 0.5, true)).sum();
  };
  const auto captured = capture::capture(model.request());
  std::vector<std::int64_t> ordinals;
  for (const auto& node : captured.graph.nodes)
    if (const auto* ordinal = ir::find(node, "ordinal")) ordinals.push_back(std::get<std::int64_t>(*ordinal));
  CHECK(ordinals == std::vector<std::int64_t>{0, 0, 1});
  CHECK(at::equal(generator.get_state(), before));
}

TEST_CASE("random operators become draws keyed by seed, step and ordinal") {
  Model model{.parameters = {parameter("w", {64})}, .inputs = {{"x", random_tensor({64})}}};
  model.loss = [&](const auto& in) {
    auto h = at::dropout(in[0] * model.parameters[0].tensor, 0.5, true);
    h = h + at::randn_like(h) * 0.1 + at::rand({64}, at::kDouble) + at::empty_like(h).uniform_(-1, 1);
    return (h * at::randint(0, 4, {64}, at::kLong)).sum();
  };
  const auto captured = capture::capture(model.request());
  std::vector<std::int64_t> ordinals;
  for (const auto& node : captured.graph.nodes)
    if (const auto* ordinal = ir::find(node, "ordinal")) ordinals.push_back(std::get<std::int64_t>(*ordinal));
  CHECK(ordinals == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(calls(captured.graph, "shoal::bernoulli"));
  CHECK(calls(captured.graph, "shoal::normal"));
  CHECK(calls(captured.graph, "shoal::uniform"));
  CHECK(calls(captured.graph, "shoal::randint"));
}

TEST_CASE("a draw on constants is a random node, by ATen itself where there is no counter-based form") {
  Model model{.parameters = {parameter("w", {6})}};
  const auto weights = at::ones({6}, at::kDouble);
  model.loss = [&](const auto&) {
    const auto order = at::randperm(6) + at::randperm(6);
    const auto chosen = at::multinomial(weights, 6, /*replacement=*/true);
    return (model.parameters[0].tensor *
            (order + chosen + at::poisson(weights) + at::_standard_gamma(weights)))
        .sum();
  };
  const auto captured = capture::capture(model.request());
  std::vector<std::string> ops;
  for (const auto& node : captured.graph.nodes)
    if (node.op == "shoal::random") ops.push_back(std::get<std::string>(*ir::find(node, "op")));
  std::ranges::sort(ops);
  CHECK(ops == std::vector<std::string>{"aten::_standard_gamma", "aten::multinomial", "aten::poisson",
                                        "aten::randperm.generator", "aten::randperm.generator"});
  CHECK(ir::from_text(ir::to_text(captured.graph)) == captured.graph);
}

TEST_CASE("RReLU's slopes are a counter-based draw, and its noise tensor is written") {
  Model model{.parameters = {parameter("w", {64})}};
  for (const bool in_place : {false, true}) {
    model.loss = [&](const auto&) {
      auto h = model.parameters[0].tensor * 1;
      auto noise = at::empty_like(h);
      const auto out = in_place ? at::rrelu_with_noise_(h, noise, 0.1, 0.9, true)
                                : at::rrelu_with_noise(h, noise, 0.1, 0.9, true);
      return (out + noise).sum();
    };
    const auto captured = capture::capture(model.request());
    CHECK(calls(captured.graph, "shoal::uniform"));
    CHECK_FALSE(calls(captured.graph, "aten::rrelu_with_noise_functional"));
  }
}

TEST_CASE("an eager step under EagerRandom draws the same numbers again for the same seed and step") {
  const auto draw = [](std::int64_t seed, std::int64_t step) {
    const EagerRandom random(seed, step);
    return at::dropout(at::ones({1000}), 0.5, true) + at::rand({1000}) + at::randperm(1000);
  };
  CHECK(at::equal(draw(1, 1), draw(1, 1)));
  CHECK_FALSE(at::equal(draw(1, 1), draw(1, 2)));
  CHECK_FALSE(at::equal(draw(1, 1), draw(2, 1)));
}

TEST_CASE("attention with dropout is written out and drawn like any other dropout") {
  models::Gpt2 net(tiny_gpt2(0.1));
  Model model = of_module(*net);
  model.inputs = {tokens("tokens"), tokens("labels")};
  model.loss = [&](const auto& in) {
    return at::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten());
  };
  const auto captured = capture::capture(model.request());
  int draws = 0;
  for (const auto& node : captured.graph.nodes) draws += node.op == "shoal::bernoulli";
  CHECK(draws == 1 + 2 * 3);  // embedding; attention, projection and MLP of each block
}

TEST_CASE("an unused parameter has no gradient, and an undefined output is no value") {
  Model model{.parameters = {parameter("used", {4}), parameter("unused", {4})},
              .inputs = {{"x", random_tensor({2, 4})}}};
  model.loss = [&](const auto& in) {
    return at::layer_norm(in[0], {4}, model.parameters[0].tensor)
        .pow(2)
        .sum();  // no bias; input needs no gradient
  };
  const auto captured = check_equal(model);
  bool undefined = false;
  for (const auto& node : captured.graph.nodes)
    for (const auto& output : node.outputs) undefined = undefined || !output;
  CHECK(undefined);
  CHECK_FALSE(replay(captured, model).contains("gradient unused"));
}

TEST_CASE("an activation kept beyond the capture says what it is") {
  Model model{.parameters = {parameter("w", {3})}, .inputs = {{"x", random_tensor({3})}}};
  Tensor kept;
  model.loss = [&](const auto& in) {
    kept = in[0] * model.parameters[0].tensor;
    return kept.sum();
  };
  capture::capture(model.request());
  CHECK(contains(error_of([&] { kept.add(1); }), "a capture which has ended"));
  const Tensor from_before = kept;
  model.loss = [&](const auto& in) { return (in[0] * model.parameters[0].tensor + from_before).sum(); };
  CHECK(contains(error_of([&] { capture::capture(model.request()); }), "an activation of an earlier step"));
}

TEST_CASE("losses that cannot be trained on are errors") {
  Model model{.parameters = {parameter("w", {3})}, .inputs = {{"x", random_tensor({3})}}};
  model.loss = [&](const auto& in) { return in[0] * model.parameters[0].tensor; };
  CHECK(contains(error_of([&] { capture::capture(model.request()); }), "the loss has shape [3]"));
  model.loss = [&](const auto& in) { return in[0].sum(); };
  CHECK(contains(error_of([&] { capture::capture(model.request()); }), "does not depend on any parameter"));
}

TEST_CASE("in-place views, chains of casts, and gradients taken inside the model are recorded") {
  Model model{.parameters = {parameter("w", {4, 3})}, .inputs = {{"x", random_tensor({3, 4})}}};
  model.loss = [&](const auto& in) {
    auto h = in[0] * 2;
    h.t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1).transpose_(0, 1);
    const auto w = model.parameters[0].tensor;
    const auto inner = (h * w).pow(2).sum();
    const auto penalty = torch::autograd::grad({inner}, {w}, {}, true, true)[0].pow(2).sum();
    return inner + penalty + (h * w).to(at::kFloat).to(at::kDouble).sum();
  };
  check_equal(model);
}

namespace {
struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * x * x};
  }
};
}  // namespace

TEST_CASE("custom autograd functions, hooks and einsum are recorded as they are") {
  Model model{.parameters = {parameter("w", {4, 4})}, .inputs = {{"x", random_tensor({3, 4})}}};
  model.loss = [&](const auto& in) {
    auto h = Cube::apply(at::einsum("bi,ij->bj", {in[0], model.parameters[0].tensor}));
    h.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
    return h.sum();
  };
  check_equal(model);
}

TEST_CASE("an autocast region is recorded with its casts") {
  Model model{.parameters = {{"w", at::randn({4, 4}).requires_grad_()}},
              .inputs = {{"x", at::randn({3, 4})}}};
  model.loss = [&](const auto& in) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto h = at::mm(in[0], model.parameters[0].tensor);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return h.to(at::kFloat).sum();
  };
  const auto captured = check_equal(model);
  CHECK(captured.graph.at(ir::ValueId{*captured.graph.nodes[0].outputs[0]}).type.dtype == DType::BFloat16);
}

TEST_CASE("equal and nonzero of the batch are guarded") {
  Model model{.parameters = {parameter("w", {4})},
              .inputs = {{"a", at::tensor({1, 0, 2, 0})}, {"b", at::tensor({1, 0, 2, 0})}}};
  model.loss = [&](const auto& in) {
    const double factor = at::equal(in[0], in[1]) ? 2 : 3;
    return (model.parameters[0].tensor.index_select(0, in[0].nonzero().flatten()) * factor).sum();
  };
  const auto captured = check_equal(model);
  CHECK(captured.guards.list.size() == 2);
  CHECK(hold(captured.guards, std::vector<Tensor>{at::tensor({0, 1, 2, 0}), at::tensor({0, 1, 2, 0})}));
  CHECK_FALSE(hold(captured.guards, std::vector<Tensor>{at::tensor({0, 1, 2, 0}), at::tensor({0, 1, 2, 1})}));
  CHECK_FALSE(hold(captured.guards, std::vector<Tensor>{at::tensor({1, 1, 2, 0}), at::tensor({1, 1, 2, 0})}));
}

TEST_CASE("asking an activation for its memory is an error that says why") {
  Model model{.parameters = {parameter("fc.weight", {3})}, .inputs = {{"x", random_tensor({3})}}};
  model.loss = [&](const auto& in) {
    const auto h = in[0] * model.parameters[0].tensor;
    return h * *h.template data_ptr<double>();
  };
  const auto message = error_of([&] { capture::capture(model.request()); });
  CHECK(contains(message, "activations have no data"));
  CHECK(contains(message, "module fc"));
  model.loss = [&](const auto& in) { return at::mm(in[0], model.parameters[0].tensor); };
  CHECK(
      contains(error_of([&] { capture::capture(model.request()); }), "LibTorch refused what the model does"));
}

TEST_CASE("evaluation is captured without a backward pass") {
  Model model{.parameters = {parameter("w", {3})}, .inputs = {{"x", random_tensor({3})}}};
  model.loss = [&](const auto& in) { return (in[0] * model.parameters[0].tensor).sum(); };
  auto request = model.request();
  request.mode = Mode::Evaluate;
  const auto captured = capture::capture(request);
  CHECK(captured.graph.results.size() == 1);
  CHECK(captured.graph.nodes.size() == 2);
}

namespace {
// Counts what the CPU allocator gives out on this thread.
struct PeakMemory : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t live = 0, peak = 0;
};
}  // namespace

TEST_CASE("GPT-2 124M is captured within a second and takes no memory beyond the model's") {
  models::Gpt2 net(models::Gpt2Config{.embd_pdrop = 0, .attn_pdrop = 0, .resid_pdrop = 0});
  Model model = of_module(*net);
  model.inputs = {{"tokens", at::randint(50257, {1, 1024}, at::kLong)},
                  {"labels", at::randint(50257, {1, 1024}, at::kLong)}};
  model.loss = [&](const auto& in) {
    return at::cross_entropy_loss(net->forward(in[0]).flatten(0, 1), in[1].flatten());
  };
  const auto memory = std::make_shared<PeakMemory>();
  const auto begin = std::chrono::steady_clock::now();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    capture::capture(model.request());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  MESSAGE("captured twice in ", seconds.count(), " s, ", memory->peak, " bytes at the peak");
  CHECK(seconds.count() < (kIsSanitized ? 10 : 1));
  CHECK(memory->peak < 1 << 20);
}

TEST_CASE("an LSTM that is asked for step by step is that of ATen, in both directions") {
  for (int i = 0; i < 8; ++i) {
    const bool both = i % 2 == 1, has_biases = i / 2 % 2 == 1, batch_first = i / 4 == 1;
    CAPTURE(i);
    for (const auto dtype : {at::kDouble, at::kFloat}) {
      torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 3)
                               .num_layers(2)
                               .bidirectional(both)
                               .bias(has_biases)
                               .batch_first(batch_first));
      lstm->to(dtype);
      Model model{.inputs = {{"x", at::randn({4, 2, 5}, dtype)}}, .loss = [&](const std::vector<Tensor>& in) {
                    const auto [made, state] = lstm->forward(in[0]);
                    return made.square().sum() + std::get<0>(state).sum() + 2 * std::get<1>(state).sum();
                  }};
      for (const auto& item : lstm->named_parameters())
        model.parameters.push_back({item.key(), item.value()});
      capture::Request request = model.request();
      request.has_lstms_by_step = true;
      const auto captured = capture::capture(request);
      CHECK_FALSE(calls(captured.graph, "aten::mkldnn_rnn_layer"));
      const auto got = replay(captured, model);
      for (const auto& [name, tensor] : eager(model)) {
        CAPTURE(name);
        const double near = dtype == at::kDouble ? 1e-12 : 1e-4;
        CHECK(at::allclose(got.at(name), tensor, near, near));
      }
    }
  }
}

}  // namespace capture_test
