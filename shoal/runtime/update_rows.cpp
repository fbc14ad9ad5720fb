// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/update_rows.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "shoal/base/error.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

Coded::Coded(const program::Compute& compute) : narrow(compute) {
  if (!has_argument(compute, "maxima")) return;
  maxima = slots_of(compute, "maxima");
  const auto* list = std::get_if<std::vector<std::int64_t>>(&argument_of(compute, "signed"));
  SHOAL_CHECK(list != nullptr, InvalidInput, compute.op, ": signed is no list of integers");
  signs = *list;
  check_lengths(compute, slots_of(compute, "parameters").size() * signs.size(), maxima.size());
}

bool Coded::is_on_cpu(const Slots& slots, const std::vector<std::uint32_t>& parameters) const {
  const bool is_here = on_cpu(slots, parameters);
  SHOAL_CHECK(
      is_here || !any(), Infeasible,
      "optimizer: state in 8 bits is updated in main memory alone. Remedy: the model there, or state_dtype "
      "bfloat16");
  const auto is_narrow_there = [&](std::uint32_t parameter) { return is_narrow(slots[parameter]); };
  SHOAL_CHECK(is_here || std::ranges::none_of(parameters, is_narrow_there), Infeasible,
              "optimizer: weights in bfloat16 without a float32 copy are updated in main memory alone. "
              "Remedy: the model there, or a float32 model with precision.master float32");
  return is_here;
}

bool Coded::is_narrow(const at::Tensor& parameter) const {
  return narrow.any() && parameter.scalar_type() == at::kBFloat16;
}

static bool is_bfloat16(const Slots& slots, const std::vector<const std::vector<std::uint32_t>*>& states,
                        std::size_t row) {
  return std::ranges::any_of(states, [](const auto* list) { return !list->empty(); }) &&
         std::ranges::all_of(states, [&](const auto* list) {
           return list->empty() || slots[(*list)[row]].scalar_type() == at::kBFloat16;
         });
}

Rows::Rows(Slots& slots, const std::vector<std::uint32_t>& parameters,
           const std::vector<std::uint32_t>& gradients,
           const std::vector<const std::vector<std::uint32_t>*>& states, const Coded* coded) {
  const bool has_codes = coded != nullptr && coded->any();
  const bool is_drawn = coded != nullptr && !coded->narrow.parameters.empty();
  rows_.reserve(parameters.size());
  draws_.reserve(parameters.size());                          // rows borrow from them
  carried_.reserve(parameters.size() * (states.size() + 2));  // `layout` below borrows from it
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& parameter = slots[parameters[i]];
    const at::Tensor& layout =
        (has_codes || is_drawn ? parameter.is_contiguous() : parameter.is_non_overlapping_and_dense())
            ? parameter
            : changed(parameter, at::empty_like(parameter, at::MemoryFormat::Contiguous));
    const bool is_narrow = coded != nullptr && coded->is_narrow(parameter);
    const at::ScalarType dtype = is_narrow ? at::kFloat : parameter.scalar_type();
    Row row{.dtype = dtype,
            .size = parameter.numel(),
            .parameter = layout.data_ptr(),
            .gradient = read(slots[gradients[i]], layout, dtype),
            .state = {},
            .state_dtype = dtype,
            .maxima = {},
            .is_signed = {},
            .is_narrow = is_narrow,
            .compensation = nullptr,
            .draw = nullptr};
    if (is_drawn) row.draw = &draws_.emplace_back(coded->narrow.draw(slots, i));
    if (is_narrow && !coded->narrow.compensations.empty())
      row.compensation = written(slots[coded->narrow.compensations.at(i)], layout, at::kBFloat16);
    if (has_codes)
      row.state_dtype = at::kByte;
    else if (is_bfloat16(slots, states, i))
      row.state_dtype = at::kBFloat16;
    SHOAL_CHECK(row.state_dtype != at::kBFloat16 || dtype == at::kBFloat16 || is_drawn, InvalidInput,
                "update: state in bfloat16 is rounded by chance, and there are no draws");
    std::size_t next = 0;
    for (std::size_t state = 0; state < states.size(); ++state) {
      if (states[state]->empty()) continue;
      row.state[state] = written(slots[(*states[state])[i]], layout, row.state_dtype);
      if (!has_codes) continue;
      row.maxima[state] = slots[coded->maxima.at(next * parameters.size() + i)].data_ptr<float>();
      row.is_signed[state] = coded->signs.at(next++) != 0;
    }
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + row.size);
    rows_.push_back(row);
    parameter.unsafeGetTensorImpl()->bump_version();
  }
}

void Rows::finish() {
  for (auto& [original, copy] : carried_) original.copy_(copy);
}

static bool same_order(const at::Tensor& tensor, const at::Tensor& layout, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype &&
         ((tensor.is_contiguous() && layout.is_contiguous()) ||
          (tensor.strides() == layout.strides() && tensor.is_non_overlapping_and_dense()));
}

const at::Tensor& Rows::changed(const at::Tensor& original, at::Tensor copy) {
  copy.copy_(original);
  return carried_.emplace_back(original, std::move(copy)).second;
}

const void* Rows::read(const at::Tensor& tensor, const at::Tensor& layout, at::ScalarType dtype) {
  if (same_order(tensor, layout, dtype)) return tensor.const_data_ptr();
  kept_.push_back(at::empty_like(layout, dtype).copy_(tensor));
  return kept_.back().const_data_ptr();
}

void* Rows::written(const at::Tensor& tensor, const at::Tensor& layout, at::ScalarType dtype) {
  return (same_order(tensor, layout, dtype) ? tensor : changed(tensor, at::empty_like(layout, dtype)))
      .data_ptr();
}

double scalar_in(const Slots& slots, std::uint32_t slot) {
  const at::Tensor& tensor = slots[slot];
  return tensor.item().toDouble();
}

std::vector<at::Tensor> tensors_in(const Slots& slots, const std::vector<std::uint32_t>& list) {
  std::vector<at::Tensor> tensors;
  for (const auto slot : list) tensors.push_back(slots[slot]);
  return tensors;
}

double scale_in(const Slots& slots, std::uint32_t slot) {
  return slot == kNoSlot ? 1.0 : scalar_in(slots, slot);
}

void check_lengths(const program::Compute& compute, std::size_t parameters, std::size_t others) {
  SHOAL_CHECK(parameters == others, InvalidInput, compute.op, ": ", parameters, " parameters, but a list of ",
              others);
}

bool on_cpu(const Slots& slots, const std::vector<std::uint32_t>& list) {
  return list.empty() || slots[list[0]].is_cpu();
}

}  // namespace shoal::runtime
