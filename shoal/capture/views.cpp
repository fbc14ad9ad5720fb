// SPDX-License-Identifier: Apache-2.0
#include "shoal/capture/views.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "shoal/aten/operators.h"
#include "shoal/base/error.h"

namespace shoal::capture {

ViewStep step(const char* op, std::vector<ir::Argument> arguments) {
  const auto handle = aten::find_operator(op);
  SHOAL_CHECK(handle, Internal, "capture: this LibTorch has no ", op);
  arguments.insert(arguments.begin(), ir::Argument{"self", std::monostate{}});
  return {*handle, std::move(arguments)};
}

static ViewStep slice_step(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t by) {
  return step("aten::slice.Tensor", {{"dim", dim}, {"start", start}, {"end", end}, {"step", by}});
}

static bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset();
}

// Slices, selects and a permutation that make `part` out of a dense `whole`, dim by dim: a stride of the part
// that is a multiple of one of the whole's, smaller than the next larger one, walks along that dim.
static std::optional<std::vector<ViewStep>> by_dims(const at::Tensor& whole, const at::Tensor& part) {
  const auto dims = whole.dim();
  std::vector<std::int64_t> by_stride(
      static_cast<std::size_t>(dims));  // dims of the whole, largest stride first
  std::iota(by_stride.begin(), by_stride.end(), 0);
  std::ranges::stable_sort(by_stride, [&](auto a, auto b) { return whole.stride(a) > whole.stride(b); });

  std::vector<std::int64_t> start(static_cast<std::size_t>(dims)), along(static_cast<std::size_t>(dims), -1);
  auto rest = part.storage_offset() - whole.storage_offset();
  for (const auto dim : by_stride) {
    if (whole.size(dim) == 1 || whole.stride(dim) == 0) continue;
    start[static_cast<std::size_t>(dim)] = rest / whole.stride(dim);
    rest %= whole.stride(dim);
  }
  if (rest != 0) return std::nullopt;
  for (std::int64_t p = 0; p < part.dim(); ++p) {
    bool found = false;
    for (std::size_t i = by_stride.size(); i-- > 0 && !found;) {  // smallest stride first
      const auto dim = by_stride[i];
      const auto stride = whole.stride(dim);
      if (along[static_cast<std::size_t>(dim)] >= 0 || stride == 0 || part.stride(p) % stride != 0) continue;
      if (part.stride(p) / stride * (part.size(p) - 1) + start[static_cast<std::size_t>(dim)] >=
          whole.size(dim))
        continue;
      along[static_cast<std::size_t>(dim)] = p;
      found = true;
    }
    if (!found) return std::nullopt;
  }

  std::vector<ViewStep> steps;
  std::vector<std::int64_t> order;  // part's dim of each dim that is left
  for (std::int64_t dim = 0, at = 0; dim < dims; ++dim) {
    const auto p = along[static_cast<std::size_t>(dim)];
    const auto first = start[static_cast<std::size_t>(dim)];
    if (p < 0) {
      steps.push_back(step("aten::select.int", {{"dim", at}, {"index", first}}));
      continue;
    }
    const auto by = std::max<std::int64_t>(part.stride(p) / whole.stride(dim), 1);
    const auto end = first + (part.size(p) - 1) * by + 1;
    if (first != 0 || end != whole.size(dim) || by != 1) steps.push_back(slice_step(at, first, end, by));
    order.push_back(p);
    ++at;
  }
  std::vector<std::int64_t> permutation(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    permutation[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  if (!std::ranges::is_sorted(permutation)) steps.push_back(step("aten::permute", {{"dims", permutation}}));
  return steps;
}

static at::Tensor applied(at::Tensor tensor, const std::vector<ViewStep>& steps) {
  for (const auto& [op, arguments] : steps) {
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < arguments.size(); ++i)
      stack.push_back(i == 0 ? c10::IValue(tensor)
                             : aten::ivalue_of(arguments[i].value, op.schema().arguments()[i], nullptr));
    op.callBoxed(stack);
    tensor = stack.at(0).toTensor();
  }
  return tensor;
}

std::vector<ViewStep> steps_between(const at::Tensor& whole, const at::Tensor& part) {
  if (same_geometry(whole, part)) return {};
  if (whole.numel() > 0 && part.numel() > 0) {
    // On Meta: the steps are tried on shapes alone.
    const auto meta = at::empty_strided(whole.sizes(), whole.strides(), whole.options().device(at::kMeta))
                          .as_strided(whole.sizes(), whole.strides(), whole.storage_offset());
    if (auto steps = by_dims(whole, part); steps && same_geometry(applied(meta, *steps), part)) return *steps;
    if (whole.is_contiguous()) {  // part is the same memory in another shape, or a stretch of it
      const auto begin = part.storage_offset() - whole.storage_offset();
      std::vector<ViewStep> steps = {step("aten::view", {{"size", std::vector<std::int64_t>{-1}}})};
      steps.push_back(slice_step(0, begin, begin + part.numel(), 1));
      steps.push_back(step("aten::view", {{"size", part.sizes().vec()}}));
      if (part.is_contiguous() && begin + part.numel() <= whole.numel()) return steps;
    }
  }
  return {step("aten::as_strided", {{"size", part.sizes().vec()},
                                    {"stride", part.strides().vec()},
                                    {"storage_offset", part.storage_offset() - whole.storage_offset()}})};
}

std::vector<ViewStep> steps_of_outputs(const std::string& op, const std::vector<ir::Argument>& arguments,
                                       const at::Tensor& self, const std::vector<at::Tensor>& outputs) {
  const auto* dim_argument = &arguments.back().value;
  SHOAL_CHECK(arguments.back().name == "dim" && std::holds_alternative<std::int64_t>(*dim_argument),
              InvalidInput, "capture: ", op,
              " returns several views in a way that cannot be captured; use split, chunk or unbind");
  const auto dim = c10::maybe_wrap_dim(std::get<std::int64_t>(*dim_argument), self.dim());
  std::vector<ViewStep> steps;
  std::int64_t start = 0;
  for (const auto& output : outputs) {
    if (output.dim() < self.dim()) {
      steps.push_back(step("aten::select.int", {{"dim", dim}, {"index", start++}}));
    } else {
      steps.push_back(slice_step(dim, start, start + output.size(dim), 1));
      start += output.size(dim);
    }
  }
  return steps;
}

}  // namespace shoal::capture
