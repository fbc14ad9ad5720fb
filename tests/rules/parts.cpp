// SPDX-License-Identifier: Apache-2.0
#include "parts.h"

#include <ATen/ATen.h>

#include <optional>

#include "shoal/base/error.h"

namespace shoal {

using namespace shoal::sharding;
using at::Tensor;

Tensor part_of(Tensor whole, const Mesh& mesh, const Placement& placement, int rank) {
  const Box box = box_of(mesh, {{placement}}, whole.sizes().vec(), rank);
  for (std::size_t dim = 0; dim < box.dims.size(); ++dim) {
    std::vector<Tensor> pieces = {whole.narrow(static_cast<std::int64_t>(dim), 0, 0)};
    for (const Range& range : box.dims[dim])
      pieces.push_back(whole.narrow(static_cast<std::int64_t>(dim), range.begin, range.end - range.begin));
    whole = at::cat(pieces, static_cast<std::int64_t>(dim));
  }
  return whole.contiguous();
}

std::vector<Tensor> parts_of(const Tensor& whole, const Mesh& mesh, const Placement& placement) {
  std::vector<Tensor> parts;
  Tensor rest = whole;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (std::holds_alternative<Partial>(placement)) {
      const Tensor some = (at::rand(whole.sizes()) * 10).to(whole.scalar_type());
      parts.push_back(rank + 1 < mesh.size() ? some : rest);
      rest = rest - parts.back();
    } else {
      parts.push_back(part_of(whole, mesh, placement, rank));
    }
  }
  return parts;
}

static bool agree(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.numel() == 0) return true;
  const double scale = b.to(at::kDouble).abs().max().item<double>() + 1;
  const double rtol = b.scalar_type() == at::kFloat ? 1e-5 : 1e-10;
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>() <= rtol * scale;
}

bool is_opaque(const Case& example, std::size_t output) {
  return example.node->op == "aten::empty_like" || (example.node->op == "shoal::pull_rows" && output == 1) ||
         (example.node->op == "aten::mkldnn_rnn_layer" && output == 3);
}

std::string wrong(const Tensor& whole, const std::vector<Tensor>& made, const Mesh& mesh,
                  const Placement& placement) {
  if (const auto* partial = std::get_if<Partial>(&placement)) {
    Tensor all = made[0];
    for (std::size_t rank = 1; rank < made.size(); ++rank) {
      if (made[rank].sizes() != all.sizes()) return "parts to be combined differ in shape";
      all = partial->combine == Combine::Max   ? at::maximum(all, made[rank])
            : partial->combine == Combine::Min ? at::minimum(all, made[rank])
                                               : all + made[rank];
    }
    return agree(all, whole) ? "" : concat("combined by ", to_text(placement), " it is another");
  }
  for (int rank = 0; rank < mesh.size(); ++rank)
    if (const Tensor wanted = part_of(whole, mesh, placement, rank);
        !agree(made[static_cast<std::size_t>(rank)], wanted))
      return concat("rank ", rank, " made ", made[static_cast<std::size_t>(rank)].sizes(), ", wanted ",
                    wanted.sizes(), " or other numbers");
  return "";
}

ir::Node local_node(const Case& example, const Strategy& strategy, const Mesh& mesh, int rank) {
  std::vector<Box> in;
  for (std::size_t i = 0; i < strategy.in.size(); ++i)
    in.push_back(box_of(mesh, {{strategy.in[i]}}, example.in[i].sizes().vec(), rank));
  std::vector<std::optional<Box>> out(example.out.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    if (example.out[i]) out[i] = box_of(mesh, {{strategy.out[i]}}, example.out[i]->sizes().vec(), rank);
  return localized(*example.graph, *example.node, in, out, strategy.in_parts);
}

}  // namespace shoal
