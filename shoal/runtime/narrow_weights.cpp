// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/narrow_weights.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <variant>

#include "shoal/base/error.h"
#include "shoal/base/philox.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/update_rows.h"

namespace shoal::runtime {

static float as_float(c10::BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.x) << 16);
}

void load_weights(const c10::BFloat16* weights, const c10::BFloat16* compensations, float* to,
                  std::int64_t size) {
  if (compensations == nullptr)
    for (std::int64_t i = 0; i < size; ++i) to[i] = as_float(weights[i]);
  else
    for (std::int64_t i = 0; i < size; ++i) to[i] = as_float(weights[i]) + as_float(compensations[i]);
}

void store_compensated(const float* from, c10::BFloat16* weights, c10::BFloat16* compensations,
                       std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    weights[i] = c10::BFloat16(from[i]);
    const float left = from[i] - as_float(weights[i]);
    compensations[i] = c10::BFloat16(std::isfinite(left) ? left : 0.0f);
  }
}

// Sixteen random bits for each element of a whole tensor, eight elements at a time.
static std::uint32_t chance(const Draw& draw, std::int64_t place, std::array<std::uint32_t, 4>& bits,
                            std::int64_t& block) {
  constexpr std::int64_t kEach = 8;
  if (place / kEach != block) {
    block = place / kEach;
    bits = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), draw.update,
                   draw.parameter},
                  {static_cast<std::uint32_t>(draw.seed), static_cast<std::uint32_t>(draw.seed >> 32)});
  }
  const auto lane = static_cast<std::size_t>(place % kEach);
  return (bits[lane / 2] >> (16 * (lane % 2))) & 0xffffu;
}

void store_by_chance(const float* from, const Draw& draw, std::int64_t first, c10::BFloat16* weights,
                     std::int64_t size) {
  std::array<std::uint32_t, 4> bits = {};
  std::int64_t block = -1;
  for (std::int64_t done = 0; done < size;) {
    const auto [place, length] = draw.places.from(first + done);
    const std::int64_t end = std::min(size, done + length);
    for (std::int64_t i = done; i < end; ++i) {
      const std::uint32_t exact = std::bit_cast<std::uint32_t>(from[i]);
      const std::uint32_t added = chance(draw, place + i - done, bits, block);
      weights[i] = std::isfinite(from[i]) ? c10::BFloat16(static_cast<std::uint16_t>((exact + added) >> 16),
                                                          c10::BFloat16::from_bits())
                                          : c10::BFloat16(from[i]);
    }
    done = end;
  }
}

std::span<const std::int64_t> Places::read(std::span<const std::int64_t> words) {
  const auto take = [&](std::size_t count) {
    SHOAL_CHECK(count <= words.size(), InvalidInput, "update: places end in the middle of a parameter's");
    const auto taken = words.first(count);
    words = words.subspan(count);
    return taken;
  };
  const auto dims = static_cast<std::size_t>(take(1)[0]);
  const auto shape = take(dims);
  shape_.assign(shape.begin(), shape.end());
  for (std::size_t dim = 0; dim < dims; ++dim) {
    const auto count = static_cast<std::size_t>(take(1)[0]);
    const auto ranges = take(2 * count);
    std::int64_t size = 0;
    begins_.emplace_back();
    ends_.emplace_back();
    for (std::size_t i = 0; i < count; ++i) {
      begins_.back().push_back(ranges[2 * i]);
      ends_.back().push_back(ranges[2 * i + 1]);
      size += ranges[2 * i + 1] - ranges[2 * i];
    }
    sizes_.push_back(size);
  }
  return words;
}

std::int64_t Places::place_in(std::size_t dim, std::int64_t index) const {
  std::size_t range = 0;
  while (index >= ends_[dim][range] - begins_[dim][range]) {
    index -= ends_[dim][range] - begins_[dim][range];
    ++range;
  }
  return begins_[dim][range] + index;
}

Places::Run Places::from(std::int64_t element) const {
  if (shape_.empty()) return {element, std::int64_t{1} << 62};
  std::int64_t place = 0, stride = 1, rest = element;
  for (std::size_t dim = shape_.size(); dim-- > 0;) {
    place += stride * place_in(dim, rest % sizes_[dim]);
    rest /= sizes_[dim];
    stride *= shape_[dim];
  }
  // As far as the innermost range goes.
  const std::size_t last = shape_.size() - 1;
  const std::int64_t at = place % shape_[last];
  std::size_t range = 0;
  while (at < begins_[last][range] || at >= ends_[last][range]) ++range;
  return {place, ends_[last][range] - at};
}

Narrow::Narrow(const program::Compute& compute) {
  if (has_argument(compute, "compensations")) compensations = slots_of(compute, "compensations");
  if (!has_argument(compute, "draws")) return;
  const auto integers = [&](const char* name) -> const std::vector<std::int64_t>& {
    const auto* list = std::get_if<std::vector<std::int64_t>>(&argument_of(compute, name));
    SHOAL_CHECK(list != nullptr, InvalidInput, compute.op, ": ", name, " is no list of integers");
    return *list;
  };
  parameters = integers("draws");
  check_lengths(compute, slots_of(compute, "parameters").size(), parameters.size());
  seed = slot_of(compute, "seed");
  step = slot_of(compute, "step");
  places.resize(parameters.size());
  if (!has_argument(compute, "places")) return;
  std::span<const std::int64_t> words = integers("places");
  for (Places& each : places) words = each.read(words);
}

Draw Narrow::draw(const Slots& slots, std::size_t row) const {
  return {.seed = static_cast<std::uint64_t>(slots[seed].item<std::int64_t>()),
          .update = static_cast<std::uint32_t>(slots[step].item<std::int64_t>()),
          .parameter = static_cast<std::uint32_t>(parameters.at(row)),
          .places = places.at(row)};
}

}  // namespace shoal::runtime
