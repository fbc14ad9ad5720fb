// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/shared_batch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/compile/pins.h"
#include "shoal/ir/text.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/train/agreement.h"

namespace shoal::train {

using sharding::Layout;
using sharding::Mesh;

at::Tensor part_of_input(const Rank& rank, const std::string& input, const at::Tensor& whole) {
  const auto& [mesh, world, tensors, plan, plan_name, folder, limit] = rank.parallelism;
  if (!compile::is_cut(plan, input, static_cast<std::size_t>(whole.dim()))) return whole;
  const int dim = compile::batch_dim_of(plan, input);
  const auto [begin, end] = samples_of(mesh, rank.number, whole.size(dim), plan);
  return whole.narrow(dim, begin, end - begin);
}

// The rank's place in the whole batch: the innermost axis cuts first.
static int data_position(const Parallelism& parallelism, int rank) {
  const Mesh& mesh = parallelism.mesh;
  int position = 0;
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;)
    if (compile::is_batch_axis(parallelism.plan, mesh.axes[axis].name))
      position = position * mesh.axes[axis].size + mesh.coordinate(rank, static_cast<int>(axis));
  return position;
}

// The first rank of each place in the batch, in order.
static std::vector<int> data_ranks(const Parallelism& parallelism) {
  std::map<int, int> first;
  for (int rank = 0; rank < parallelism.mesh.size(); ++rank)
    first.try_emplace(data_position(parallelism, rank), rank);
  std::vector<int> ranks;
  for (const auto& [place, rank] : first) ranks.push_back(rank);
  return ranks;
}

static void check_names(const compile::Plan& plan, const Batch& batch) {
  std::string items;
  std::size_t found = 0;
  std::vector<bool> is_whole(plan.whole_inputs.size());
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    const auto* tensor = std::get_if<at::Tensor>(&leaf.value());
    if (tensor == nullptr || ir::is_beside(path)) return;
    items += concat(items.empty() ? "" : ", ", ir::item_of(path));
    for (std::size_t i = 0; i < is_whole.size(); ++i)
      is_whole[i] = is_whole[i] || compile::is_named(plan.whole_inputs[i], path);
    const auto dim = plan.batch_dims.find(path);
    if (dim == plan.batch_dims.end()) return;
    ++found;
    SHOAL_CHECK(dim->second >= 0 && dim->second < tensor->dim(), InvalidInput, "parallelism: batch_dims has ",
                dim->second, " for item ", path, " of the batch, which has shape ", tensor->sizes());
  });
  for (std::size_t i = 0; i < is_whole.size(); ++i)
    SHOAL_CHECK(is_whole[i], InvalidInput,
                "parallelism: replicated_inputs (a plan's line 'input NAME whole') has ",
                plan.whole_inputs[i], ", and the tensors of the batch are ", items);
  if (found == plan.batch_dims.size()) return;
  for (const auto& [name, dim] : plan.batch_dims)
    if ((", " + items + ", ").find(", " + name + ", ") == std::string::npos)
      fail(ErrorKind::InvalidInput, "parallelism: batch_dims has ", name,
           ", and the tensors of the batch are ", items);
}

SharedBatch agree(const Rank& rank, const Batch& batch, const std::string& text, bool asks) {
  const auto& [mesh, world, tensors, plan, plan_name, folder, limit] = rank.parallelism;
  std::string structure = text + '\n';
  std::vector<std::pair<std::string, at::Tensor>> cut;
  SharedBatch shared{batch, {}, false};
  const auto dim_of = [&, &said = plan](const std::string& path) {
    return compile::batch_dim_of(said, path);
  };
  check_names(plan, batch);
  for_each_leaf(batch, [&](const std::string& path, const Batch& leaf) {
    structure += concat("batch item ", path, ": ");
    if (const auto* tensor = std::get_if<at::Tensor>(&leaf.value())) {
      SHOAL_CHECK(tensor->defined(), InvalidInput, "trainer: batch item ", path, " is an undefined tensor");
      shared.sizes[path] = tensor->sizes().vec();
      auto type = aten::type_of(*tensor);
      if (compile::is_cut(rank.parallelism.plan, path, type.shape.size())) {
        SHOAL_CHECK(
            path.find(ir::kOfSparse) == std::string::npos, InvalidInput, "parallelism: item ",
            ir::item_of(path),
            " of the batch is sparse, and ranks cannot have parts of it. Remedy: give it whole to every "
            "rank, and name it in replicated_inputs; of what it meets, each rank has its part");
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
  const auto& group = rank.control;
  constexpr std::size_t kAsks = 1, kSizes = 2;  // where these are; the hash is the first
  const auto width = static_cast<std::int64_t>(std::max(cut.size(), kFew) + kSizes);
  std::vector<std::int64_t> mine(static_cast<std::size_t>(width));
  mine[0] = hash_of(structure);
  mine[kAsks] = asks;
  for (std::size_t i = 0; i < cut.size(); ++i) mine[i + kSizes] = cut[i].second.size(dim_of(cut[i].first));
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.communicator
      ->all_gather({mine.data(), width, DType::Int64}, {all.data(), width * group.size(), DType::Int64})
      ->wait(group.limit);
  const auto of = [&](int of_rank, std::size_t index) {
    return all[static_cast<std::size_t>(of_rank) * mine.size() + index];
  };
  for (int other = 1; other < group.size(); ++other)
    if (of(other, 0) != of(0, 0)) check_same(group, "what they were given", structure);
  shared.asked = of(0, kAsks) != 0;
  const auto ranks = data_ranks(rank.parallelism);
  bool fits = true;
  for (std::size_t i = 0; i < cut.size(); ++i) {
    std::int64_t total = 0;
    for (const int other : ranks) total += of(other, i + kSizes);
    shared.sizes[cut[i].first][static_cast<std::size_t>(dim_of(cut[i].first))] = total;
    for (int other = 0; other < group.size(); ++other) {
      const int first = ranks[static_cast<std::size_t>(data_position(rank.parallelism, other))];
      SHOAL_CHECK(of(other, i + kSizes) == of(first, i + kSizes), InvalidInput, "trainer: batch item ",
                  cut[i].first, " has ", of(other, i + kSizes), " samples on rank ", other, " and ",
                  of(first, i + kSizes), " on rank ", first,
                  ", which share their part of the batch: give both the same");
      const auto [begin, end] = samples_of(mesh, other, total, plan);
      fits = fits && end - begin == of(other, i + kSizes);
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
    for (int other = 0; other < group.size(); ++other) most = std::max(most, of(other, found->second));
    const int dim = dim_of(path);
    auto shape = tensor.sizes().vec();
    shape[static_cast<std::size_t>(dim)] = most;
    at::Tensor padded = at::zeros(shape, tensor.options());
    padded.narrow(dim, 0, tensor.size(dim)).copy_(tensor);
    const at::Tensor all_parts =
        runtime::all_gather(padded, {{.dim = dim}, most * group.size()}, rank.groups.world());
    std::vector<at::Tensor> parts;
    for (const int other : ranks)
      parts.push_back(all_parts.narrow(dim, other * most, of(other, found->second)));
    const at::Tensor whole = at::cat(parts, dim);
    const auto [begin, end] =
        samples_of(rank.parallelism.mesh, rank.number, whole.size(dim), rank.parallelism.plan);
    return whole.narrow(dim, begin, end - begin).contiguous();
  });
  return shared;
}

Batch whole(const Rank& rank, const SharedBatch& batch) {
  const Parallelism& parallelism = rank.parallelism;
  return map_tensors(batch.part, [&](const std::string& path, const at::Tensor& tensor) {
    if (!compile::is_cut(parallelism.plan, path, static_cast<std::size_t>(tensor.dim()))) return tensor;
    const Layout cut = compile::layout_of_batch(parallelism.plan, parallelism.mesh,
                                                compile::batch_dim_of(parallelism.plan, path));
    return whole_of(rank, tensor.detach().contiguous(), cut, batch.sizes.at(path));
  });
}

}  // namespace shoal::train
