// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/decompose.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/ir/rebuild.h"
#include "shoal/rewrite/writer.h"

namespace shoal::rewrite {

using ir::Argument;
using ir::Attribute;
using ir::Graph;
using ir::Node;
using ir::Outputs;
using ir::TensorType;
using ir::ValueId;

namespace {

// A node to be written anew: `node` reads values of the new graph, `types` are those of its outputs.
struct Job {
  Writer& write;
  const Node& node;
  std::vector<std::optional<TensorType>> types;

  const Attribute& argument(std::string_view name) const {
    const Attribute* found = ir::find(node, name);
    SHOAL_CHECK(found != nullptr, Internal, "decompose: ", node.op, " has no argument '", name, "'");
    return *found;
  }
  double number(std::string_view name) const {
    if (const auto* whole = std::get_if<std::int64_t>(&argument(name))) return static_cast<double>(*whole);
    return std::get<double>(argument(name));
  }
  bool truth(std::string_view name) const { return std::get<bool>(argument(name)); }
  bool has(std::string_view name) const {
    const Attribute* found = ir::find(node, name);
    return found != nullptr && std::holds_alternative<ValueId>(*found);
  }
  ValueId value(std::string_view name) const { return std::get<ValueId>(argument(name)); }
  // A copy: what is written next moves the graph's types.
  TensorType type(std::string_view name) const { return write.type(value(name)); }
};

}  // namespace

// --- Averages: the sum, divided by the count.

// Sums of many small floats are made in float: a sum leaves the range of half precision where the mean does
// not.
static DType sum_type(DType dtype) {
  return dtype == DType::Float16 || dtype == DType::BFloat16 ? DType::Float32 : dtype;
}

// The dims that go, none for all of them, as `dim` says.
static std::vector<std::int64_t> dims_of(const Job& job) {
  const Attribute* given = ir::find(job.node, "dim");
  const auto* list = given != nullptr ? std::get_if<std::vector<std::int64_t>>(given) : nullptr;
  return list != nullptr ? *list : std::vector<std::int64_t>{};
}

static double count_of(const TensorType& type) { return static_cast<double>(num_elements(type)); }

static Outputs mean(const Job& job) {
  const TensorType& made = job.types[0].value();
  const ValueId self = job.value("self");
  const bool keepdim = ir::find(job.node, "keepdim") != nullptr && job.truth("keepdim");
  const double count = count_of(job.write.type(self)) / count_of(made);
  const ValueId sum = job.write.sum(job.write.converted(self, sum_type(made.dtype)), dims_of(job), keepdim);
  return {job.write.converted(job.write.over(sum, count), made.dtype)};
}

static ValueId variance(const Job& job, ValueId self, const TensorType& made, ValueId* mean) {
  Writer& write = job.write;
  const auto dims = dims_of(job);
  const double count = count_of(write.type(self)) / count_of(made);
  const double correction =
      std::holds_alternative<std::monostate>(job.argument("correction")) ? 1 : job.number("correction");
  *mean = write.over(write.sum(self, dims, true), count);
  const ValueId centered = write.sub(self, *mean);
  const ValueId squares = write.sum(write.mul(centered, centered), dims, job.truth("keepdim"));
  return write.over(squares, std::max(0.0, count - correction));
}

static Outputs var(const Job& job) {
  const TensorType& made = job.types[0].value();
  ValueId unused;
  ValueId result = variance(job, job.write.converted(job.value("self"), sum_type(made.dtype)), made, &unused);
  if (job.node.op == "aten::std.correction") result = job.write.unary("aten::sqrt", result);
  return {job.write.converted(result, made.dtype)};
}

static Outputs var_mean(const Job& job) {
  const TensorType& made = job.types[0].value();
  ValueId mean;
  const ValueId result =
      variance(job, job.write.converted(job.value("self"), sum_type(made.dtype)), made, &mean);
  if (!job.truth("keepdim")) mean = job.write.view(mean, made.shape);
  return {job.write.converted(result, made.dtype), job.write.converted(mean, made.dtype)};
}

// --- Losses that are averages.

constexpr std::int64_t kMean = 1, kSum = 2;  // at::Reduction

static void set(Node& node, std::string_view name, const Attribute& value) {
  for (Argument& argument : node.arguments)
    if (argument.name == name) argument.value = value;
}

static Outputs summed(const Job& job, const Node& node) {
  return job.write.graph().at(job.write.node(node.op, node.arguments, job.types)).outputs;
}

// With a sum for its mean.
static Node as_sum(const Job& job) {
  Node node = job.node;
  set(node, "reduction", kSum);
  return node;
}

static Outputs loss(const Job& job) {
  const ValueId sum = summed(job, as_sum(job)).at(0).value();
  return {job.write.over(sum, count_of(job.type("self")))};
}

static Outputs loss_backward(const Job& job) {
  Node node = as_sum(job);
  set(node, "grad_output", job.write.over(job.value("grad_output"), count_of(job.type("self"))));
  return summed(job, node);
}

// The weight is that of the targets that are not ignored, all ranks together.
static Outputs nll_loss(const Job& job) {
  const Outputs sums = summed(job, as_sum(job));
  return {job.write.div(sums.at(0).value(), sums.at(1).value()), sums.at(1)};
}

static Outputs nll_loss_backward(const Job& job) {
  Node node = as_sum(job);
  set(node, "grad_output", job.write.div(job.value("grad_output"), job.value("total_weight")));
  return summed(job, node);
}

// --- Softmax along a dim that is cut.

static Outputs softmax(const Job& job) {
  Writer& write = job.write;
  const TensorType& made = job.types[0].value();
  const std::vector<std::int64_t> dim = {std::get<std::int64_t>(job.argument("dim"))};
  const ValueId self = write.converted(job.value("self"), sum_type(made.dtype));
  const ValueId shifted = write.sub(self, write.amax(self, dim, true));
  const ValueId exponents = write.unary("aten::exp", shifted);
  const ValueId sum = write.sum(exponents, dim, true);
  const ValueId result = job.node.op == "aten::_softmax" ? write.div(exponents, sum)
                                                         : write.sub(shifted, write.unary("aten::log", sum));
  return {write.converted(result, made.dtype)};
}

static Outputs softmax_backward(const Job& job) {
  Writer& write = job.write;
  const TensorType& made = job.types[0].value();
  const DType dtype = sum_type(job.type("output").dtype);
  const std::vector<std::int64_t> dim = {std::get<std::int64_t>(job.argument("dim"))};
  const ValueId grad = write.converted(job.value("grad_output"), dtype);
  const ValueId output = write.converted(job.value("output"), dtype);
  const bool is_log = job.node.op == "aten::_log_softmax_backward_data";
  const ValueId weighted = is_log ? grad : write.mul(grad, output);
  const ValueId chances = is_log ? write.unary("aten::exp", output) : output;
  return {
      write.converted(write.sub(weighted, write.mul(chances, write.sum(weighted, dim, true))), made.dtype)};
}

// --- Batch norm over the whole batch: its statistics are sums, and with these it is what it is in
// evaluation.

namespace {

// What its tensors look like: channels are dim 1.
struct Channels {
  explicit Channels(const TensorType& input) : shape(input.shape.size(), 1) {
    shape.at(1) = input.shape.at(1);
    for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(shape.size()); ++dim)
      if (dim != 1) others.push_back(dim);
    count = count_of(input) / static_cast<double>(shape.at(1));
  }
  std::vector<std::int64_t> shape;   // of one number a channel: [1, C, 1, 1]
  std::vector<std::int64_t> others;  // dims
  double count = 0;                  // of the elements of a channel
};

}  // namespace

static Outputs batch_norm(const Job& job) {
  Writer& write = job.write;
  const Channels channels(job.type("input"));
  const std::vector<std::int64_t> flat = {channels.shape.at(1)};
  const ValueId input = write.converted(job.value("input"), sum_type(job.type("input").dtype));
  const ValueId mean = write.over(write.sum(input, channels.others, true), channels.count);
  const ValueId centered = write.sub(input, mean);
  const ValueId squares = write.view(write.sum(write.mul(centered, centered), channels.others, true), flat);
  const ValueId variance = write.over(squares, channels.count);
  const ValueId flat_mean = write.view(mean, flat);
  const DType dtype = job.has("weight") ? job.type("weight").dtype : job.types[1].value().dtype;
  const TensorType nothing = ir::contiguous(job.types[1]->dtype, {0});
  const ir::NodeId normed = write.node("aten::_native_batch_norm_legit_no_training",
                                       {{"input", job.argument("input")},
                                        {"weight", job.argument("weight")},
                                        {"bias", job.argument("bias")},
                                        {"running_mean", write.converted(flat_mean, dtype)},
                                        {"running_var", write.converted(variance, dtype)},
                                        {"momentum", job.argument("momentum")},
                                        {"eps", job.argument("eps")}},
                                       {job.types[0], nothing, nothing});
  Outputs outputs = {write.graph().at(normed).outputs[0]};
  outputs.push_back(write.converted(flat_mean, job.types[1]->dtype));
  const ValueId spread = write.unary("aten::rsqrt", write.plus(variance, job.number("eps")));
  outputs.push_back(write.converted(spread, job.types.at(2).value().dtype));
  if (job.types.size() == 3) return outputs;
  const double momentum = job.number("momentum");
  const auto follow = [&](std::string_view running, ValueId now, double share) {
    const DType kept = job.type(running).dtype;
    return write.add(write.times(job.value(running), 1 - momentum),
                     write.converted(write.times(now, share), kept));
  };
  outputs.push_back(follow("running_mean", flat_mean, momentum));
  outputs.push_back(follow("running_var", squares, momentum / (channels.count - 1)));
  return outputs;
}

// The gradients of weight and bias are those in evaluation. Statistics that depend on the input add to its
// own:
//
//   grad_input = grad_input in evaluation - (grad_bias + (x - mean) invstd grad_weight) invstd weight / count
static Outputs batch_norm_backward(const Job& job) {
  Writer& write = job.write;
  const TensorType& like = job.type("input");
  const Channels channels(like);
  const ValueId mean = job.value("save_mean"), spread = job.value("save_invstd");
  const DType dtype = sum_type(like.dtype);
  const TensorType per_channel = {write.type(mean).dtype, {channels.shape.at(1)}, {1}};
  std::vector<std::optional<TensorType>> types = {job.types[0], job.types[1], job.types[2]};
  for (std::size_t i : {1, 2})
    if (!types[i]) types[i] = per_channel;
  const ir::NodeId evaluated =
      write.node("aten::native_batch_norm_backward",
                 {{"grad_out", job.argument("grad_out")},
                  {"input", job.argument("input")},
                  {"weight", job.argument("weight")},
                  {"running_mean", mean},
                  {"running_var", write.power(spread, -2)},
                  {"save_mean", {}},
                  {"save_invstd", {}},
                  {"train", false},
                  {"eps", 0.0},
                  {"output_mask", std::vector<bool>{types[0].has_value(), true, true}}},
                 types);
  const Outputs parts = write.graph().at(evaluated).outputs;
  Outputs outputs(3);
  for (std::size_t i : {1, 2})
    if (job.types[i]) outputs[i] = parts[i];
  if (!job.types[0]) return outputs;
  const auto exact = [&](ValueId value) { return write.converted(value, dtype); };
  const ValueId invstd = exact(spread);
  const ValueId scale = job.has("weight") ? write.mul(invstd, exact(job.value("weight"))) : invstd;
  const auto along = [&](ValueId factor) {
    return write.view(write.times(write.mul(factor, scale), -1 / channels.count), channels.shape);
  };
  const ValueId centered = write.sub(exact(job.value("input")), write.view(exact(mean), channels.shape));
  const ValueId shift = along(exact(parts[2].value()));
  const ValueId slope = along(write.mul(exact(parts[1].value()), invstd));
  outputs[0] = write.converted(
      write.add(write.add(exact(parts[0].value()), shift), write.mul(centered, slope)), like.dtype);
  return outputs;
}

// --- The table.

static bool has_elements(const Graph& graph, const Node& node) {
  return std::ranges::all_of(
      node.outputs, [&](const auto& output) { return !output || num_elements(graph.at(*output).type) > 0; });
}

static bool is_mean(const Graph& graph, const Node& node) {
  const auto* reduction = std::get_if<std::int64_t>(ir::find(node, "reduction"));
  if (reduction == nullptr || *reduction != kMean) return false;
  const auto shape_of = [&](std::string_view name) {
    return graph.at(std::get<ValueId>(*ir::find(node, name))).type.shape;
  };
  // Where one is broadcast to the other, the loss is an average over another number of elements.
  return node.op.starts_with("aten::nll_loss") || shape_of("self") == shape_of("target");
}

static bool is_training(const Graph& graph, const Node& node) {
  const Attribute* training = ir::find(node, "training");
  if (training == nullptr) training = ir::find(node, "train");
  return *std::get_if<bool>(training) && graph.at(ir::inputs_of(node).at(0)).type.shape.size() >= 2 &&
         has_elements(graph, node);
}

// One with running statistics of which only some are there is left to its kernel.
static bool is_training_forward(const Graph& graph, const Node& node) {
  const bool running = std::holds_alternative<ValueId>(*ir::find(node, "running_mean"));
  return is_training(graph, node) && running == (node.outputs.size() == 5);
}

namespace {
struct Row {
  std::string_view op;
  bool (*applies)(const Graph& graph, const Node& node);
  Outputs (*written)(const Job& job);
};
}  // namespace

static constexpr Row kRows[] = {
    {"aten::_log_softmax", has_elements, softmax},
    {"aten::_log_softmax_backward_data", has_elements, softmax_backward},
    {"aten::_native_batch_norm_legit_functional", is_training_forward, batch_norm},
    {"aten::_softmax", has_elements, softmax},
    {"aten::_softmax_backward_data", has_elements, softmax_backward},
    {"aten::binary_cross_entropy", is_mean, loss},
    {"aten::binary_cross_entropy_backward", is_mean, loss_backward},
    {"aten::binary_cross_entropy_with_logits", is_mean, loss},
    {"aten::huber_loss", is_mean, loss},
    {"aten::huber_loss_backward", is_mean, loss_backward},
    {"aten::mean", has_elements, mean},
    {"aten::mean.dim", has_elements, mean},
    {"aten::mse_loss", is_mean, loss},
    {"aten::mse_loss_backward", is_mean, loss_backward},
    {"aten::native_batch_norm", is_training_forward, batch_norm},
    {"aten::native_batch_norm_backward", is_training, batch_norm_backward},
    {"aten::nll_loss2d_backward", is_mean, nll_loss_backward},
    {"aten::nll_loss2d_forward", is_mean, nll_loss},
    {"aten::nll_loss_backward", is_mean, nll_loss_backward},
    {"aten::nll_loss_forward", is_mean, nll_loss},
    {"aten::smooth_l1_loss", is_mean, loss},
    {"aten::smooth_l1_loss_backward", is_mean, loss_backward},
    {"aten::soft_margin_loss", is_mean, loss},
    {"aten::soft_margin_loss_backward", is_mean, loss_backward},
    {"aten::std.correction", has_elements, var},
    {"aten::var.correction", has_elements, var},
    {"aten::var_mean.correction", has_elements, var_mean},
};
static_assert(std::ranges::is_sorted(kRows, {}, &Row::op), "kRows: keep it in alphabetical order");

static const Row* row_of(const Graph& graph, const Node& node) {
  const auto* row = std::ranges::lower_bound(kRows, std::string_view(node.op), {}, &Row::op);
  return row != std::end(kRows) && row->op == node.op && row->applies(graph, node) ? row : nullptr;
}

bool can_decompose(const Graph& graph, const Node& node) { return row_of(graph, node) != nullptr; }

Graph decompose(Graph graph, const std::set<ir::NodeId>& nodes) {
  const auto written = [&](Graph& made, const Node& node, const ir::Mapped& in) -> std::optional<Outputs> {
    const ir::NodeId id{static_cast<std::uint32_t>(&node - graph.nodes.data())};
    if (!nodes.contains(id)) return std::nullopt;
    const Row* row = row_of(graph, node);
    SHOAL_CHECK(row != nullptr, Internal, "decompose: no simpler ops for ", node.op);
    Writer write(made, node);
    const Node mapped = ir::with_inputs(node, [&](ValueId value) { return in(value); });
    Job job = {write, mapped, {}};
    for (const auto& output : node.outputs)
      job.types.push_back(output ? std::optional(graph.at(*output).type) : std::nullopt);
    Outputs outputs = row->written(job);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (node.outputs[i]) {
        const TensorType& wanted = job.types[i].value();
        const TensorType& got = made.at(outputs.at(i).value()).type;
        SHOAL_CHECK(got.dtype == wanted.dtype && got.shape == wanted.shape, Internal, "decompose: output ", i,
                    " of ", node.op, " is of another dtype or shape than the node's");
        made.values[outputs[i]->index].role = graph.at(*node.outputs[i]).role;
      }
    return outputs;
  };
  return ir::rebuild(graph, written);
}

}  // namespace shoal::rewrite
