// SPDX-License-Identifier: Apache-2.0
// The formulas are read off ATen's kernels and oneDNN's, and held against the allocator by `shoal plan
// --measure` and a test over all recipes.
#include "shoal/program/workspace.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace shoal::program {

using ir::TensorType;

namespace {

// An instruction as the formulas ask for it.
struct Facts {
  const Call& call;
  const Types& types;
  std::int64_t threads;

  const ir::Attribute* find(std::string_view name) const {
    const auto found = std::ranges::find(call.arguments, name, &ir::Argument::name);
    return found == call.arguments.end() ? nullptr : &found->value;
  }
  // Null where it is absent.
  const TensorType* input(std::string_view name) const {
    const auto* attribute = find(name);
    const auto* slot = attribute == nullptr ? nullptr : std::get_if<Slot>(attribute);
    return slot == nullptr ? nullptr : &types.at(slot->index);
  }
  const TensorType* output(std::size_t index) const {
    return index < call.outputs.size() && call.outputs[index] ? &types.at(call.outputs[index]->index)
                                                              : nullptr;
  }
  std::int64_t made() const {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < call.outputs.size(); ++i) bytes += bytes_of(output(i));
    return bytes;
  }

  static std::int64_t bytes_of(const TensorType* type) { return type == nullptr ? 0 : ir::bytes_of(*type); }
  // Of a kernel that wants it gapless.
  static std::int64_t copy_of(const TensorType* type) {
    return type == nullptr || ir::is_contiguous(*type) ? 0 : ir::bytes_of(*type);
  }
  static std::int64_t elements_of(const TensorType* type) {
    return type == nullptr ? 0 : ir::num_elements(*type);
  }
  std::int64_t bytes(std::string_view name) const { return bytes_of(input(name)); }
  std::int64_t copy(std::string_view name) const { return copy_of(input(name)); }
  std::int64_t elements(std::string_view name) const { return elements_of(input(name)); }
};

}  // namespace

static std::int64_t size(const TensorType& type, std::ptrdiff_t dim) {
  return type.shape.at(static_cast<std::size_t>(dim < 0 ? dim + std::ssize(type.shape) : dim));
}
static std::int64_t width(const TensorType& type) { return bytes_of(type.dtype); }

// A number becomes a tensor of double, and one of the other's type.
static std::int64_t number(const Facts&) { return 16; }

// Blocks of FlashAttention, for each thread: rows of queries by columns of keys.
struct AttentionBlock {
  std::int64_t rows, columns, head, bytes;
};
static AttentionBlock attention_block(const Facts& of) {
  const TensorType &query = *of.input("query"), &key = *of.input("key");
  const std::int64_t rows = size(query, -2);
  return {.rows = std::min<std::int64_t>(rows, rows >= 768   ? 256
                                               : rows >= 192 ? 64
                                                             : 32),
          .columns = std::min<std::int64_t>(size(key, -2), 512),
          .head = size(*of.input("value"), -1),
          .bytes = std::max<std::int64_t>(width(query), 4)};
}
// Weights, their row maxima and sums, the output in the type of sums; of halves also the weights as such. A
// mask of truths becomes numbers.
static std::int64_t attention_mask(const Facts& of) {
  const TensorType* mask = of.input("attn_mask");
  return mask != nullptr && mask->dtype == DType::Bool ? ir::num_elements(*mask) * width(*of.input("query"))
                                                       : 0;
}
static std::int64_t attention(const Facts& of) {
  const auto [rows, columns, head, bytes] = attention_block(of);
  const std::int64_t halves = width(*of.input("query")) < 4 ? rows * columns * 2 : 0;
  return of.threads * (bytes * (rows * columns + 2 * rows + rows * head) + halves) + attention_mask(of);
}
static std::int64_t attention_backward(const Facts& of) {
  const auto [rows, columns, head, bytes] = attention_block(of);
  const std::int64_t halves = width(*of.input("query")) < 4 ? rows * columns * 4 : 0;
  return of.threads * (bytes * (2 * rows * columns + rows) + halves) + attention_mask(of);
}

static std::int64_t normalized(const Facts& of) {  // elements of a row
  std::int64_t elements = 1;
  for (const std::int64_t each : std::get<std::vector<std::int64_t>>(*of.find("normalized_shape")))
    elements *= each;
  return elements;
}
// Sums for weight and bias, for each thread.
static std::int64_t layer_norm_backward(const Facts& of) {
  return of.threads * 2 * normalized(of) * width(*of.input("input")) + of.copy("grad_out") + of.copy("input");
}
static std::int64_t layer_norm(const Facts& of) { return of.copy("input"); }

// Scale and shift of each channel.
static std::int64_t batch_norm(const Facts& of) {
  const TensorType& input = *of.input("input");
  // Of one pixel channels count as the innermost, and are summed for each thread.
  const bool is_pixel = ir::num_elements(input) == size(input, 0) * size(input, 1);
  return (2 + (is_pixel ? of.threads : 0)) * size(input, 1) * std::max<std::int64_t>(width(input), 4);
}
// The gradient of the input is made twice.
static std::int64_t batch_norm_backward(const Facts& of) { return Facts::bytes_of(of.output(0)); }

// oneDNN has tensors in blocks of up to 16 channels, the last one filled up: first what it reads is brought there,
// and then the output back. Images of few channels stay as they are.
static std::int64_t in_blocks(std::int64_t channels) {
  constexpr std::int64_t kFew = 8, kBlock = 16;
  return channels < kFew ? channels : (channels + kBlock - 1) / kBlock * kBlock;
}
static std::int64_t blocked(const TensorType& type, bool is_weight = false) {
  std::int64_t bytes = width(type);
  for (std::size_t dim = 0; dim < type.shape.size(); ++dim)
    bytes *= dim == 1 || (dim == 0 && is_weight) ? in_blocks(type.shape[dim]) : type.shape[dim];
  return bytes;
}
// What is brought back from blocks that are not full is made once more.
static std::int64_t unfilled(const TensorType& type) {
  return in_blocks(size(type, 1)) == size(type, 1) ? 0 : ir::bytes_of(type);
}
// A kernel of 1 x 1 with steps reads the input made denser.
static std::int64_t densified(const Facts& of, const TensorType& output) {
  const TensorType& weight = *of.input("weight");
  const auto& stride = std::get<std::vector<std::int64_t>>(*of.find("stride"));
  std::int64_t kernel = 1, pixels = 1;
  for (std::size_t dim = 2; dim < weight.shape.size(); ++dim) {
    kernel *= weight.shape[dim];
    pixels *= output.shape.at(dim);
  }
  const bool has_steps = std::ranges::any_of(stride, [](std::int64_t step) { return step > 1; });
  return kernel > 1 || !has_steps
             ? 0
             : of.threads * (in_blocks(weight.shape.at(1)) * pixels * width(weight) + 128);
}
static std::int64_t convolution(const Facts& of) {
  const TensorType& output = *of.output(0);
  return std::max(blocked(*of.input("input")) + blocked(*of.input("weight"), true), blocked(output)) +
         densified(of, output) + unfilled(output);
}
static bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}
// Without AVX-512, oneDNN fills channels up to 8 where they are fewer and not 3; and of an image that is smaller than
// the kernel each thread has its own weights, which become 6 x 6 of 3 x 3, and tiles of what it reads.
static std::int64_t with_narrow_vectors(const Facts& of) {
  if (has_avx512()) return 0;
  const TensorType &input = *of.input("input"), &weight = *of.input("weight");
  const std::int64_t channels = std::max<std::int64_t>(size(weight, 1), 1);
  std::int64_t bytes = 0;
  if (channels < 8 && channels != 3) bytes += (7 * ir::bytes_of(input) + 7 * ir::bytes_of(weight)) / channels;
  bool is_smaller = false;
  for (std::size_t dim = 2; dim < weight.shape.size(); ++dim)
    is_smaller = is_smaller || input.shape.at(dim) < weight.shape[dim];
  if (is_smaller)
    bytes += (4 * of.threads - 1) * blocked(weight, true) +
             9 * of.threads * (blocked(input) + blocked(*of.input("grad_output")));
  return bytes;
}
static std::int64_t convolution_backward(const Facts& of) {
  const std::int64_t dense = densified(of, *of.input("grad_output"));
  const std::int64_t input = blocked(*of.input("input")), weight = blocked(*of.input("weight"), true);
  constexpr std::int64_t kPacked = 8 << 10;  // sums of few channels
  return input + blocked(*of.input("grad_output")) + std::max(weight, input) + dense + kPacked +
         (dense > 0 ? 3 * weight : 0) + unfilled(*of.input("input")) + of.copy("input") +
         of.copy("grad_output") + with_narrow_vectors(of);
}

// oneDNN's LSTM of T steps, N samples, I inputs, H outputs: gates of all steps, both weights, states.
struct Lstm {
  std::int64_t steps, samples, inputs, outputs;
  std::int64_t row;  // bytes of a row of all four gates; not of a multiple of 256, which caches do not like

  explicit Lstm(const Facts& of)
      : steps(size(*of.input("input"), 0)),
        samples(size(*of.input("input"), 1)),
        inputs(size(*of.input("input"), 2)),
        outputs(std::get<std::int64_t>(*of.find("hidden_size"))),
        row((16 * outputs + 63) / 64 * 64) {
    if (row % 256 == 0) row += 64;
  }
  std::int64_t forward() const {
    return row * (steps * samples + inputs + outputs) + 8 * samples * outputs + 16 * outputs + (16 << 10);
  }
  // The gradients of weights that lie otherwise than oneDNN has them, or of more inputs than a step has rows.
  std::int64_t backward() const {
    const bool is_odd = outputs % 16 != 0;
    const std::int64_t weights = is_odd ? inputs + outputs : steps * samples < inputs ? inputs : 0;
    return forward() + row * weights + 8 * samples * outputs + (is_odd ? 16 << 10 : 0);
  }
};
static std::int64_t lstm(const Facts& of) { return Lstm(of).forward() + of.copy("input"); }
// The bias's gradient is made once, and copied for the second bias.
static std::int64_t lstm_backward(const Facts& of) {
  return Lstm(of).backward() + of.copy("input") + of.copy("output") + of.copy("grad_output");
}

static std::int64_t embedding(const Facts& of) { return of.copy("indices"); }
static std::int64_t embedding_backward(const Facts& of) {
  return of.copy("grad_output") + of.copy("indices");
}

// log σ(x), and (1 - t) x.
static std::int64_t logistic_loss(const Facts& of) { return 2 * of.bytes("self") + 12; }

// Indices counted from the part's first one, and the truths that they are found by.
static std::int64_t local_indices(const Facts& of, std::string_view name) {
  const std::int64_t long_copy = of.input(name)->dtype == DType::Int64 ? 0 : 8;
  return (18 + long_copy) * of.elements(name);
}
static std::int64_t embedding_part(const Facts& of) {
  return std::max(16 * of.elements("indices"), local_indices(of, "indices") - of.made());
}
static std::int64_t embedding_backward_part(const Facts& of) {
  return std::max(8 * of.elements("indices") + of.copy("grad_output"),
                  local_indices(of, "indices") - of.made());
}
static std::int64_t nll_loss_part(const Facts& of) {
  return std::max<std::int64_t>(local_indices(of, "target") - of.made(), 8 * of.elements("target") + 16);
}
static std::int64_t nll_loss_backward_part(const Facts& of) {
  return std::max(8 * of.elements("target"), local_indices(of, "target") - of.made());
}

// The squares side by side, their sum, its root, the factor.
static std::int64_t clip_by(const Facts& of) {
  const auto& squares = std::get<ir::ValueList>(*of.find("squares"));
  return std::max<std::int64_t>(24, 8 * std::ssize(squares) + 8);
}

// A message wants what it sends without gaps.
static std::int64_t message(const Facts& of) { return of.copy("self"); }

// Gradients and state that lie in another order than their parameter are copied, all at once.
static std::int64_t update(const Facts& of) {
  const auto* parameters = std::get_if<ir::ValueList>(of.find("parameters"));
  if (parameters == nullptr) return 0;
  const bool by_chance = of.find("draws") != nullptr;  // then all is brought into row-major order
  const bool is_narrow = by_chance || of.find("compensations") != nullptr;
  std::int64_t bytes = 0;
  for (const auto& parameter : *parameters) {
    if (!by_chance || !parameter) continue;
    const TensorType& type = of.types.at(parameter->index);
    if (!ir::is_contiguous(type)) bytes += ir::num_elements(type) * width(type);
  }
  for (const ir::Argument& argument : of.call.arguments) {
    const auto* list = std::get_if<ir::ValueList>(&argument.value);
    if (list == nullptr || list == parameters || list->size() != parameters->size()) continue;
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (!(*list)[i] || !(*parameters)[i]) continue;
      const TensorType& type = of.types.at((*list)[i]->index);
      TensorType layout = of.types.at((*parameters)[i]->index);
      if (type.shape != layout.shape) continue;
      if (by_chance) layout = ir::contiguous(layout.dtype, layout.shape);
      if (is_narrow && layout.dtype == DType::BFloat16) layout.dtype = DType::Float32;  // it computes in
      if (type.dtype == DType::UInt8) {  // codes are row-major, and want the parameter and its gradient so
        if (!ir::is_contiguous(layout)) bytes += ir::num_elements(layout) * width(layout);
        continue;
      }
      const bool same =
          (type.dtype == layout.dtype || type.dtype == DType::BFloat16) &&
          ((ir::is_contiguous(type) && ir::is_contiguous(layout)) || type.strides == layout.strides);
      if (!same) bytes += ir::num_elements(layout) * width(layout);
    }
  }
  return bytes;
}

namespace {

struct Row {
  std::string_view op;
  std::int64_t (*bytes)(const Facts&);
};
constexpr Row kWorkspaces[] = {
    {"aten::_native_batch_norm_legit_functional", batch_norm},
    {"aten::_native_batch_norm_legit_no_training", batch_norm},
    {"aten::add.Scalar", number},
    {"aten::binary_cross_entropy_with_logits", logistic_loss},
    {"aten::convolution", convolution},
    {"aten::convolution_backward", convolution_backward},
    {"aten::div.Scalar", number},
    {"aten::embedding", embedding},
    {"aten::embedding_dense_backward", embedding_backward},
    {"aten::mean.dim", number},
    {"aten::mkldnn_rnn_layer", lstm},
    {"aten::mkldnn_rnn_layer_backward", lstm_backward},
    {"aten::mul.Scalar", number},
    {"aten::native_batch_norm_backward", batch_norm_backward},
    {"aten::native_layer_norm", layer_norm},
    {"aten::native_layer_norm_backward", layer_norm_backward},
    {"aten::sub.Scalar", number},
    {"shoal::adagrad", update},
    {"shoal::adam", update},
    {"shoal::all_gather", message},
    {"shoal::all_gather_into", message},
    {"shoal::all_to_all", message},
    {"shoal::attention", attention},
    {"shoal::attention_backward", attention_backward},
    {"shoal::clip_by", clip_by},
    {"shoal::embedding_backward_part", embedding_backward_part},
    {"shoal::embedding_part", embedding_part},
    {"shoal::lion", update},
    {"shoal::nll_loss_backward_part", nll_loss_backward_part},
    {"shoal::nll_loss_part", nll_loss_part},
    {"shoal::reduce_scatter", message},
    {"shoal::rmsprop", update},
    {"shoal::sgd", update},
};
static_assert(std::ranges::is_sorted(kWorkspaces, {}, &Row::op),
              "kWorkspaces: keep it in alphabetical order");

}  // namespace

std::int64_t workspace_bytes(const Call& call, const Types& types, int threads) {
  const auto* row = std::ranges::lower_bound(kWorkspaces, call.op, {}, &Row::op);
  if (row == std::end(kWorkspaces) || row->op != call.op) return 0;
  return row->bytes({call, types, threads});
}

}  // namespace shoal::program
