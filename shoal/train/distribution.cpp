// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/distribution.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <numeric>

#include "shoal/aten/memory.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/capture.h"
#include "shoal/compile/pins.h"
#include "shoal/data/hash.h"
#include "shoal/ir/text.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/sharding/redistribute.h"

namespace shoal {

using sharding::Mesh;

namespace train {

using ir::Role;
using rewrite::ParameterPins;
using sharding::Change;
using sharding::Layout;
using sharding::Placement;
using sharding::Shape;
using sharding::Shard;

static std::string describe(const Parallelism& parallelism) {
  return concat("mesh ", to_text(parallelism.mesh), "\nzero stage ",
                compile::zero_stage_of(parallelism.plan, parallelism.mesh), '\n', to_text(parallelism.plan));
}

static std::string describe(const char* kind, const Distribution::NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors)
    text += concat(kind, ' ', name, ' ', tensor.defined() ? ir::to_text(aten::type_of(tensor)) : "undefined",
                   '\n');
  return text;
}

Distribution::Distribution(Parallelism parallelism, const NamedTensors& parameters,
                           const NamedTensors& buffers,
                           const std::function<bool(const std::string& parameter)>& needs_whole)
    : parallelism_(std::move(parallelism)),
      groups_(parallelism_.mesh, *parallelism_.world, parallelism_.limit),
      rank_(parallelism_.world->rank()) {
  check_same("parallelism or model",
             describe(parallelism_) + describe("parameter", parameters) + describe("buffer", buffers));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : parameters) names.push_back(name);
  check_fits(parallelism_.plan, parallelism_.mesh, names, parallelism_.plan_name);
  const at::NoGradGuard no_grad;
  for (const auto* tensors : {&parameters, &buffers})
    for (const auto& [name, tensor] : *tensors)
      if (tensor.defined()) {
        at::Tensor detached = tensor.detach();
        runtime::broadcast(detached, 0, groups_.world());
      }
  std::map<std::pair<const void*, std::string>, std::string> first_names;  // by memory and type
  for (const auto& [name, tensor] : parameters) {
    const std::pair<const void*, std::string> where(
        tensor.storage().unsafeGetStorageImpl(),
        concat(tensor.storage_offset(), ' ', ir::to_text(aten::type_of(tensor))));
    const auto [first, is_new] = first_names.try_emplace(where, name);
    if (!is_new) {
      first_name_.emplace(name, first->second);
      continue;
    }
    const Shape shape = tensor.sizes().vec();
    const auto& pins = pins_
                           .emplace(name, compile::pins_of(parallelism_.plan, parallelism_.mesh, name, shape,
                                                           needs_whole(name), parallelism_.plan_name))
                           .first->second;
    if (local_shape(parallelism_.mesh, pins.kept, shape, rank_) == shape) continue;
    kept_.emplace(name, Kept{tensor.detach(), {}});
  }
  is_materialized_ = true;
  drop();
}

const std::string& Distribution::first_name(const std::string& parameter) const {
  const auto tied = first_name_.find(parameter);
  return tied == first_name_.end() ? parameter : tied->second;
}

const ParameterPins& Distribution::pins_of(const std::string& parameter) const {
  return pins_.at(first_name(parameter));
}

at::Tensor Distribution::part_of_parameter(const std::string& name) const {
  const auto found = kept_.find(first_name(name));
  return found == kept_.end() || is_materialized_ ? at::Tensor() : found->second.part;
}

// Memory that belongs to this tensor alone can be given back.
static bool owns_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
}

// In memory of the communicator, which others read without a copy on the way.
at::Tensor Distribution::in_shared_memory(const at::Tensor& tensor) const {
  constexpr std::size_t kWorthwhile = 64 << 10;  // bytes: it comes in pages
  if (!tensor.is_cpu() || tensor.nbytes() < kWorthwhile) return tensor;
  comm::Memory* memory =
      groups_.world().communicator->allocate(static_cast<std::int64_t>(tensor.nbytes())).release();
  at::Tensor shared =
      at::from_blob(memory->data(), tensor.sizes(), [memory](void*) { delete memory; }, tensor.options());
  shared.copy_(tensor);
  return shared;
}

void Distribution::drop() {
  if (!is_materialized_) return;
  for (auto& [name, kept] : kept_) {
    const at::Tensor part = part_of(kept.whole, pins_.at(name).kept);
    if (kept.part.defined())
      kept.part.copy_(part);  // executors are bound to its memory
    else
      kept.part = in_shared_memory(part);
    if (!owns_storage(kept.whole)) continue;
    aten::take_memory(kept.whole, concat("parameter ", name,
                                         " has no data here: the ranks keep it in parts. Remedy: call the "
                                         "trainer's materialize() on every rank, and use, save or change the "
                                         "parameter before the next step"));
  }
  is_materialized_ = false;
}

void Distribution::materialize() {
  if (is_materialized_) return;
  for (auto& [name, kept] : kept_) {
    const at::Tensor whole = whole_of(kept.part, pins_.at(name).kept, kept.whole.sizes());
    aten::give_memory(kept.whole);
    kept.whole.copy_(whole);
  }
  is_materialized_ = true;
}

at::Tensor Distribution::whole_of(const at::Tensor& part, const Layout& layout, at::IntArrayRef shape) const {
  const Mesh& mesh = parallelism_.mesh;
  at::Tensor tensor = part;
  Layout now = layout;
  for (const auto& step :
       sharding::redistribution(mesh, shape.vec(), part.element_size(), layout, sharding::replicated(mesh))) {
    const auto axis = static_cast<std::size_t>(step.axis);
    const auto& group = groups_.along(mesh.axes[axis].name);
    now.placements[axis] = step.to;
    if (step.change == Change::AllReduce) {
      tensor = tensor.clone(at::MemoryFormat::Contiguous);
      runtime::all_reduce(tensor, comm::ReduceOp::Sum, group);
    } else {
      SHOAL_CHECK(step.change == Change::AllGather, Internal,
                  "distribution: a value is gathered by gathers alone");
      const Shard shard = std::get<Shard>(step.from);
      const auto whole = local_shape(mesh, now, shape.vec(), rank_)[static_cast<std::size_t>(shard.dim)];
      tensor = runtime::all_gather(tensor, {shard, whole}, group);
    }
  }
  return tensor;
}

at::Tensor Distribution::part_of(const at::Tensor& whole, const Layout& layout) const {
  const auto box = sharding::box_of(parallelism_.mesh, layout, whole.sizes().vec(), rank_);
  at::Tensor part = whole;
  for (std::size_t i = 0; i < box.dims.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    std::vector<at::Tensor> pieces = {part.narrow(dim, 0, 0)};
    for (const auto& [begin, end] : box.dims[i]) pieces.push_back(part.narrow(dim, begin, end - begin));
    if (box.dims[i].size() == 1 && pieces[1].size(dim) == part.size(dim)) continue;
    part = pieces.size() == 2 ? pieces[1] : at::cat(pieces, dim);
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

at::Tensor Distribution::summand_of(const std::string& parameter, const at::Tensor& gradient) const {
  const Layout& layout = pins_of(parameter).gradient;
  at::Tensor part = part_of(gradient, layout);
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis)
    if (std::holds_alternative<sharding::Partial>(layout.placements[axis]) &&
        parallelism_.mesh.coordinate(rank_, static_cast<int>(axis)) != 0)
      return part.zero_();  // the first rank speaks for the axis
  return part;
}

// --- What ranks have in common.

static std::int64_t signed_hash(const std::string& text) {
  return static_cast<std::int64_t>(data::hash_bytes(text));
}

// One row a rank.
static at::Tensor rows_of_all(const runtime::Group& group, const at::Tensor& mine) {
  at::Tensor all = at::empty({group.size(), mine.numel()}, mine.options());
  group.communicator
      ->all_gather({mine.const_data_ptr(), mine.numel(), aten::from_torch(mine.scalar_type())},
                   {all.data_ptr(), all.numel(), aten::from_torch(all.scalar_type())})
      ->wait(group.limit);
  return all;
}

// `sizes`: of all ranks' texts.
static std::vector<std::string> texts_of_all(const runtime::Group& group, const std::string& text,
                                             const std::vector<std::int64_t>& sizes) {
  at::Tensor bytes = at::zeros({*std::ranges::max_element(sizes)}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
  const at::Tensor all = rows_of_all(group, bytes);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    const auto* begin = all[static_cast<std::int64_t>(rank)].const_data_ptr<std::uint8_t>();
    texts.emplace_back(begin, begin + sizes[rank]);
  }
  return texts;
}

static std::vector<std::int64_t> sizes_of_all(const runtime::Group& group, const std::string& text) {
  const at::Tensor sizes =
      rows_of_all(group, at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong));
  return {sizes.const_data_ptr<std::int64_t>(), sizes.const_data_ptr<std::int64_t>() + sizes.numel()};
}

// Whether the first lines of both are of one item of the batch, of which only sizes differ.
static bool are_other_sizes(const std::string& first, const std::string& second) {
  const auto head = [](const std::string& text) { return text.substr(0, text.find('[')); };
  return first.starts_with("batch item ") && head(first).size() < first.find('\n') &&
         head(first) == head(second);
}

void Distribution::check_same(const std::string& what, const std::string& text) const {
  const auto& group = groups_.world();
  const at::Tensor hashes = rows_of_all(group, at::full({1}, signed_hash(text), at::kLong));
  std::size_t other = 0;
  for (int rank = group.size(); rank-- > 1;)
    if (hashes[rank].item<std::int64_t>() != hashes[0].item<std::int64_t>())
      other = static_cast<std::size_t>(rank);
  if (other == 0) return;
  const auto texts = texts_of_all(group, text, sizes_of_all(group, text));
  std::string first = texts[0], second = texts[other];
  while (!first.empty() && first.substr(0, first.find('\n')) == second.substr(0, second.find('\n'))) {
    first.erase(0, std::min(first.find('\n'), first.size() - 1) + 1);
    second.erase(0, std::min(second.find('\n'), second.size() - 1) + 1);
  }
  fail(ErrorKind::InvalidInput, "trainer: ranks differ in ", what, ": rank 0 has '",
       first.substr(0, first.find('\n')), "', rank ", other, " has '", second.substr(0, second.find('\n')),
       are_other_sizes(first, second) ? "'. Remedy: pad alike on all ranks, to the longest of all or to a "
                                        "fixed length; and if samples lie in "
                                        "that dim, Parallelism(batch_dims={…})"
                                      : "'. Every rank has to run the same code with the same settings");
}

void Distribution::together(const std::function<void()>& act) const {
  std::string error;
  try {
    act();
  } catch (const std::exception& thrown) {
    error = thrown.what();
    if (error.empty()) error = "an error without words";
  }
  const auto& group = groups_.world();
  const auto sizes = sizes_of_all(group, error);
  if (std::ranges::all_of(sizes, [](std::int64_t size) { return size == 0; })) return;
  const auto texts = texts_of_all(group, error, sizes);
  const auto first = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  fail(ErrorKind::InvalidInput, *first, " (rank ", first - texts.begin(), ")");
}

bool Distribution::is_cut(const std::string& input, std::size_t num_dims) const {
  return compile::is_cut(parallelism_.plan, input, num_dims);
}

at::Tensor Distribution::part_of_input(const std::string& input, const at::Tensor& whole) const {
  if (!is_cut(input, static_cast<std::size_t>(whole.dim()))) return whole;
  const int dim = compile::batch_dim_of(parallelism_.plan, input);
  const auto [begin, end] = samples_of(parallelism_.mesh, rank_, whole.size(dim), parallelism_.plan);
  return whole.narrow(dim, begin, end - begin);
}

// The rank's place in the whole batch: the innermost axis cuts first.
int Distribution::data_position(int rank) const {
  const Mesh& mesh = parallelism_.mesh;
  int position = 0;
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;)
    if (compile::is_batch_axis(parallelism_.plan, mesh.axes[axis].name))
      position = position * mesh.axes[axis].size + mesh.coordinate(rank, static_cast<int>(axis));
  return position;
}

// The first rank of each place in the batch, in order.
static std::vector<int> data_ranks(const Mesh& mesh, const std::function<int(int)>& position) {
  std::map<int, int> first;
  for (int rank = 0; rank < mesh.size(); ++rank) first.try_emplace(position(rank), rank);
  std::vector<int> ranks;
  for (const auto& [place, rank] : first) ranks.push_back(rank);
  return ranks;
}

void Distribution::check_batch_dims(const Batch& batch) const {
  std::string items;
  std::size_t found = 0;
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf.value());
    if (tensor == nullptr || ir::is_beside(path)) return;
    items += (items.empty() ? "" : ", ") + path;
    const auto dim = parallelism_.plan.batch_dims.find(path);
    if (dim == parallelism_.plan.batch_dims.end()) return;
    ++found;
    SHOAL_CHECK(dim->second >= 0 && dim->second < tensor->dim(), InvalidInput, "parallelism: batch_dims has ",
                dim->second, " for item ", path, " of the batch, which has shape ", tensor->sizes());
  });
  if (found == parallelism_.plan.batch_dims.size()) return;
  for (const auto& [name, dim] : parallelism_.plan.batch_dims)
    if ((", " + items + ", ").find(", " + name + ", ") == std::string::npos)
      fail(ErrorKind::InvalidInput, "parallelism: batch_dims has ", name,
           ", and the tensors of the batch are ", items);
}

SharedBatch Distribution::agree(const Batch& batch, const std::string& text, bool asks) {
  std::string structure = text + '\n';
  std::vector<std::pair<std::string, at::Tensor>> cut;
  SharedBatch shared{batch, {}, false};
  const auto dim_of = [&](const std::string& path) { return compile::batch_dim_of(parallelism_.plan, path); };
  check_batch_dims(batch);
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    structure += concat("batch item ", path, ": ");
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) {
      SHOAL_CHECK(tensor->defined(), InvalidInput, "trainer: batch item ", path, " is an undefined tensor");
      shared.sizes[path] = tensor->sizes().vec();
      auto type = aten::type_of(*tensor);
      if (is_cut(path, type.shape.size())) {
        type.shape[static_cast<std::size_t>(dim_of(path))] = 0;
        cut.emplace_back(path, *tensor);
      }
      structure += concat(ir::to_text(ir::contiguous(type.dtype, type.shape)));
    } else if (const auto* integer = std::get_if<std::int64_t>(&leaf.value())) {
      structure += concat(*integer);
    } else {
      structure += concat(leaf.number());
    }
    structure += '\n';
  });
  constexpr std::size_t kFew = 15;  // sizes that travel with the hash
  const auto& group = groups_.world();
  constexpr std::size_t kAsks = 1, kSizes = 2;  // where these are; the hash is the first
  const auto width = static_cast<std::int64_t>(std::max(cut.size(), kFew) + kSizes);
  std::vector<std::int64_t> mine(static_cast<std::size_t>(width));
  mine[0] = signed_hash(structure);
  mine[kAsks] = asks;
  for (std::size_t i = 0; i < cut.size(); ++i) mine[i + kSizes] = cut[i].second.size(dim_of(cut[i].first));
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.communicator
      ->all_gather({mine.data(), width, DType::Int64}, {all.data(), width * group.size(), DType::Int64})
      ->wait(group.limit);
  const auto of = [&](int rank, std::size_t index) {
    return all[static_cast<std::size_t>(rank) * mine.size() + index];
  };
  for (int rank = 1; rank < group.size(); ++rank)
    if (of(rank, 0) != of(0, 0)) check_same("what they were given", structure);
  shared.asked = of(0, kAsks) != 0;
  const Mesh& mesh = parallelism_.mesh;
  const auto position = [this](int rank) { return data_position(rank); };
  const auto ranks = data_ranks(mesh, position);
  bool fits = true;
  for (std::size_t i = 0; i < cut.size(); ++i) {
    std::int64_t total = 0;
    for (const int rank : ranks) total += of(rank, i + kSizes);
    shared.sizes[cut[i].first][static_cast<std::size_t>(dim_of(cut[i].first))] = total;
    for (int rank = 0; rank < group.size(); ++rank) {
      const int first = ranks[static_cast<std::size_t>(data_position(rank))];
      SHOAL_CHECK(of(rank, i + kSizes) == of(first, i + kSizes), InvalidInput, "trainer: batch item ",
                  cut[i].first, " has ", of(rank, i + kSizes), " samples on rank ", rank, " and ",
                  of(first, i + kSizes), " on rank ", first,
                  ", which share their part of the batch: give both the same");
      const auto [begin, end] = samples_of(mesh, rank, total, parallelism_.plan);
      fits = fits && end - begin == of(rank, i + kSizes);
    }
  }
  if (fits) return shared;
  // Parts of other sizes than the graph cuts: put together and cut again.
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < cut.size(); ++i) index[cut[i].first] = i + kSizes;
  shared.part = map_tensors(batch, [&](const std::string& path, const at::Tensor& tensor) {
    const auto found = index.find(path);
    if (found == index.end()) return tensor;
    std::int64_t most = 0;
    for (int rank = 0; rank < group.size(); ++rank) most = std::max(most, of(rank, found->second));
    const int dim = dim_of(path);
    auto shape = tensor.sizes().vec();
    shape[static_cast<std::size_t>(dim)] = most;
    at::Tensor padded = at::zeros(shape, tensor.options());
    padded.narrow(dim, 0, tensor.size(dim)).copy_(tensor);
    const at::Tensor all_parts = runtime::all_gather(padded, {{.dim = dim}, most * group.size()}, group);
    std::vector<at::Tensor> parts;
    for (const int rank : ranks) parts.push_back(all_parts.narrow(dim, rank * most, of(rank, found->second)));
    const at::Tensor whole = at::cat(parts, dim);
    const auto [begin, end] = samples_of(mesh, rank_, whole.size(dim), parallelism_.plan);
    return whole.narrow(dim, begin, end - begin).contiguous();
  });
  return shared;
}

Batch Distribution::whole(const SharedBatch& batch) {
  return map_tensors(batch.part, [&](const std::string& path, const at::Tensor& tensor) {
    if (!is_cut(path, static_cast<std::size_t>(tensor.dim()))) return tensor;
    const Layout cut = compile::layout_of_batch(parallelism_.plan, parallelism_.mesh,
                                                compile::batch_dim_of(parallelism_.plan, path));
    return whole_of(tensor.detach().contiguous(), cut, batch.sizes.at(path));
  });
}

void Distribution::check_same(const ir::Graph& graph) const {
  check_same("the captured graph", ir::to_text(graph));
}

}  // namespace train
}  // namespace shoal
