// SPDX-License-Identifier: Apache-2.0
// What depends on the batch alone is read through shoal::read, which the recorder guards.
#include "shoal/capture/composites.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace shoal::capture {

static std::vector<std::int64_t> values_of(const at::Tensor& tensor) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("shoal::read", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  const auto known = op.call(tensor.detach()).to(at::kCPU, at::kLong).contiguous();
  const auto* first = known.const_data_ptr<std::int64_t>();
  return {first, first + known.numel()};
}

void define_read(torch::Library& library) {
  library.def("read(Tensor self) -> Tensor", {at::Tag::data_dependent_output});
  library.impl("read", c10::DispatchKey::CompositeExplicitAutograd,
               [](const at::Tensor& self) { return self.detach().clone(); });
}

static at::Tensor ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets,
                           const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                           std::int64_t blank, std::int64_t reduction, bool zero_infinity) {
  return at::ctc_loss(log_probs, targets, values_of(input_lengths), values_of(target_lengths), blank,
                      reduction, zero_infinity);
}

// Without ATen's look at the smallest and largest class, where the number of classes is given.
static at::Tensor one_hot(const at::Tensor& classes, std::int64_t num_classes) {
  if (num_classes < 0) num_classes = classes.max().item().toLong() + 1;
  auto sizes = classes.sizes().vec();
  sizes.push_back(num_classes);
  return at::zeros(sizes, classes.options()).scatter(-1, classes.unsqueeze(-1), 1);
}

// As a row of the steps' rows: the batch at step 0, what is left of it at step 1, … Lengths fall.
static std::tuple<at::Tensor, at::Tensor> pack_padded_sequence(const at::Tensor& input,
                                                               const at::Tensor& lengths, bool batch_first) {
  const auto each = values_of(lengths);
  TORCH_CHECK(!each.empty() && each.back() > 0 && std::ranges::is_sorted(each, std::greater<>()),
              "lengths of sequences to pack must fall and be above 0; enforce_sorted=False sorts them");
  const auto by_step = batch_first ? input.transpose(0, 1) : input;
  std::vector<at::Tensor> steps;
  std::vector<std::int64_t> sizes;
  for (std::int64_t step = 0; step < each.front(); ++step) {
    sizes.push_back(std::ranges::count_if(each, [&](std::int64_t length) { return length > step; }));
    steps.push_back(by_step.select(0, step).slice(0, 0, sizes.back()));
  }
  return {at::cat(steps), at::tensor(sizes, at::kLong)};
}

// As operators that know how to be cut.
static at::Tensor rrelu_with_noise_backward(const at::Tensor& grad, const at::Tensor& self,
                                            const at::Tensor& noise, const at::Scalar& lower,
                                            const at::Scalar& upper, bool training, bool self_is_result) {
  if (training) return grad * noise;
  return at::leaky_relu_backward(grad, self, (lower.toDouble() + upper.toDouble()) / 2, self_is_result);
}

static std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& indices_or_sections,
                                            std::int64_t dim) {
  const auto values = values_of(indices_or_sections);
  if (indices_or_sections.dim() > 0) return at::tensor_split(self, at::IntArrayRef(values), dim);
  return at::tensor_split(self, values.at(0), dim);
}

// Gradients of all rows: graphs have no sparse tensors.
static void tell_of_dense_gradient(std::int64_t rows) {
  TORCH_WARN_ONCE(
      "an embedding asks for a sparse gradient; a captured step makes a dense one, of all ", rows,
      " rows, with the same numbers. A table of so many rows that this costs much belongs on parameter "
      "servers (docs/parameter_server.md)");
}
static at::Tensor embedding_sparse_backward(const at::Tensor& grad, const at::Tensor& indices,
                                            std::int64_t num_weights, std::int64_t padding_idx,
                                            bool scale_grad_by_freq) {
  tell_of_dense_gradient(num_weights);
  return at::embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq);
}
static at::Tensor embedding_bag_backward(const at::Tensor& grad, const at::Tensor& indices,
                                         const at::Tensor& offsets, const at::Tensor& offset2bag,
                                         const at::Tensor& bag_size, const at::Tensor& maximum_indices,
                                         std::int64_t num_weights, bool scale_grad_by_freq, std::int64_t mode,
                                         bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                                         std::int64_t padding_idx) {
  if (sparse) tell_of_dense_gradient(num_weights);
  const at::AutoDispatchBelowAutograd recorded;  // as it is otherwise
  return at::_embedding_bag_backward(grad, indices, offsets, offset2bag, bag_size, maximum_indices,
                                     num_weights, scale_grad_by_freq, mode, false, per_sample_weights,
                                     padding_idx);
}

// LibTorch's choice on CUDA, among kernels of which some draw numbers of their own, is not asked: Shoal's op of
// attention stands where a fused kernel can, which runtime/neutral_kernels.cpp then takes, and else it is written out.
static bool is_fused_on_cuda(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const std::optional<at::Tensor>& mask, double dropout, bool is_causal) {
  const auto type = query.scalar_type();
  if (!query.is_cuda() || dropout > 0 || at::globalContext().deterministicAlgorithms()) return false;
  if (type != at::kFloat && type != at::kHalf && type != at::kBFloat16) return false;
  for (const at::Tensor& each : {query, key, value})
    if (each.dim() != 4 || each.scalar_type() != type || each.size(0) != query.size(0) ||
        each.size(1) != query.size(1) || each.size(3) % 8 != 0 || each.size(3) > 256 || each.numel() == 0)
      return false;
  if (key.size(3) != query.size(3) || value.size(3) != query.size(3) || key.size(2) != value.size(2))
    return false;
  if (is_causal && (mask || key.size(2) != query.size(2))) return false;
  return !mask || !mask->requires_grad();
}

static at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                            std::optional<double> scale, bool shares_heads) {
  at::Tensor keys = key, values = value;
  if (query.is_cuda() && shares_heads && query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
      key.size(1) > 0 && value.size(1) == key.size(1) && query.size(1) % key.size(1) == 0) {
    keys = key.repeat_interleave(query.size(1) / key.size(1), 1);
    values = value.repeat_interleave(query.size(1) / key.size(1), 1);
  }
  if (!is_fused_on_cuda(query, keys, values, mask, dropout, is_causal))
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale,
                                                    shares_heads);
  std::optional<at::Tensor> added = mask;
  if (mask && mask->scalar_type() == at::kBool)
    added = at::zeros(mask->sizes(), query.options())
                .masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, is_causal, added, scale));
}

// cuDNN's and MIOpen's are not asked for: they choose by values of the targets.
static bool never(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, std::int64_t) {
  return false;
}

static thread_local bool has_lstms_by_step = false;

LstmsByStep::LstmsByStep(bool is_on) : before_(std::exchange(has_lstms_by_step, is_on)) {}
LstmsByStep::~LstmsByStep() { has_lstms_by_step = before_; }

// One direction of a layer, as ATen's own cell: all that it reads of its input at once, then a step after the other.
static at::Tensor lstm_steps(const at::Tensor& input, at::TensorList weights, bool is_reversed,
                             at::Tensor& hidden, at::Tensor& cell) {
  const bool has_biases = weights.size() == 4;
  const auto bias = [&](std::size_t i) { return has_biases ? std::optional(weights[i]) : std::nullopt; };
  const auto inputs = at::linear(input, weights[0], bias(2)).unbind(0);
  std::vector<at::Tensor> made(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t step = is_reversed ? inputs.size() - 1 - i : i;
    const auto gates = (at::linear(hidden, weights[1], bias(3)) + inputs[step]).chunk(4, 1);
    cell = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
    hidden = gates[3].sigmoid() * cell.tanh();
    made[step] = hidden;
  }
  return at::stack(made);
}

static std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor& input, at::TensorList state,
                                                           at::TensorList weights, bool has_biases,
                                                           std::int64_t num_layers, double dropout,
                                                           bool train, bool bidirectional, bool batch_first) {
  const bool is_plain = state.size() == 2 && state[0].sizes() == state[1].sizes() && input.dim() == 3;
  if (!has_lstms_by_step || !is_plain)
    return at::native::lstm(input, state, weights, has_biases, num_layers, dropout, train, bidirectional,
                            batch_first);
  at::Tensor steps = batch_first ? input.transpose(0, 1) : input;
  const std::size_t each = has_biases ? 4 : 2;
  std::vector<at::Tensor> hidden = state[0].unbind(0), cells = state[1].unbind(0);
  std::size_t next = 0;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    std::vector<at::Tensor> directions;
    for (int direction = 0; direction < (bidirectional ? 2 : 1); ++direction, ++next)
      directions.push_back(lstm_steps(steps, weights.slice(next * each, each), direction == 1,
                                      hidden.at(next), cells.at(next)));
    steps = bidirectional ? at::cat(directions, 2) : directions.front();
    if (dropout != 0 && train && layer + 1 < num_layers) steps = at::dropout(steps, dropout, true);
  }
  return {batch_first ? steps.transpose(0, 1) : steps, at::stack(hidden), at::stack(cells)};
}

void register_composites(torch::Library& library) {
  library.impl("scaled_dot_product_attention", attention);
  library.impl("lstm.input", lstm);
  library.impl("ctc_loss.Tensor", ctc_loss);
  library.impl("_use_cudnn_ctc_loss", never);
  library.impl("_use_miopen_ctc_loss", never);
  library.impl("_embedding_bag_backward", embedding_bag_backward);
  library.impl("embedding_sparse_backward", embedding_sparse_backward);
  library.impl("one_hot", one_hot);
  library.impl("_pack_padded_sequence", pack_padded_sequence);
  library.impl("rrelu_with_noise_backward", rrelu_with_noise_backward);
  library.impl("tensor_split.tensor_indices_or_sections", tensor_split);
}

}  // namespace shoal::capture
