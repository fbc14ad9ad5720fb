// SPDX-License-Identifier: Apache-2.0
// Compiled as update_loops.cpp is, for the same reason.
#include "shoal/runtime/stochastic_rounding.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <variant>

#include "shoal/aten/random.h"
#include "shoal/base/error.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/update_rows.h"
#include "shoal/runtime/vector_clones.h"

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

namespace {

// Sixteen bits for each element of a whole tensor, 128 elements to a group: the lower halves of its words, then
// the upper ones.
class Chances {
 public:
  static constexpr std::int64_t kMost = 1024;  // elements at once

  Chances(const Draw& draw, std::uint32_t tensor)
      : stream_{.seed = draw.seed, .step = draw.update, .ordinal = draw.parameter + 0x9e3779b9u * tensor} {}

  // Of `size` elements from `place` on; valid until the next call.
  const std::uint16_t* of(std::int64_t place, std::int64_t size) {
    const std::int64_t group = place / kElements, end = (place + size - 1) / kElements + 1;
    if (group < group_ || end > end_) fill(group, end);
    return bits_.data() + (place - group_ * kElements);
  }

 private:
  static constexpr std::int64_t kWords = aten::kWordsOfGroup, kElements = 2 * kWords;
  static constexpr std::int64_t kGroups = kMost / kElements + 1;

  void fill(std::int64_t group, std::int64_t end) {
    std::array<std::uint32_t, kGroups * kWords> words;
    aten::random_words(std::span(words).first(static_cast<std::size_t>((end - group) * kWords)), group,
                       stream_);
    const std::uint32_t* from = words.data();
    std::uint16_t* to = bits_.data();
    for (std::int64_t i = group; i < end; ++i, from += kWords, to += kElements)
      for (std::int64_t word = 0; word < kWords; ++word) {
        to[word] = static_cast<std::uint16_t>(from[word]);
        to[word + kWords] = static_cast<std::uint16_t>(from[word] >> 16);
      }
    group_ = group;
    end_ = end;
  }

  aten::RandomStream stream_;
  std::int64_t group_ = 0, end_ = 0;
  std::array<std::uint16_t, static_cast<std::size_t>(kGroups* kElements)> bits_;
};

}  // namespace

SHOAL_VECTOR_CLONES static void round_by(const std::uint16_t* chances, const float* from, c10::BFloat16* to,
                                         std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    const std::uint32_t exact = std::bit_cast<std::uint32_t>(from[i]);
    const bool is_finite = (exact & 0x7f800000u) != 0x7f800000u;
    const std::uint32_t added = is_finite ? chances[i] : 0;
    const std::uint32_t is_nan = !is_finite && (exact & 0x7fffffu) != 0 ? 0x40u : 0;
    to[i].x = static_cast<std::uint16_t>((exact + added) >> 16 | is_nan);
  }
}

void store_stochastic(const float* from, const Draw& draw, std::uint32_t tensor, std::int64_t first,
                      c10::BFloat16* to, std::int64_t size) {
  Chances chances(draw, tensor);
  for (std::int64_t done = 0; done < size;) {
    const auto [place, length] = draw.places.from(first + done);
    const std::int64_t count = std::min({size - done, length, Chances::kMost});
    round_by(chances.of(place, count), from + done, to + done, count);
    done += count;
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
          .update = static_cast<std::uint64_t>(slots[step].item<std::int64_t>()),
          .parameter = static_cast<std::uint32_t>(parameters.at(row)),
          .places = places.at(row)};
}

}  // namespace shoal::runtime
