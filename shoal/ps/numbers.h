// SPDX-License-Identifier: Apache-2.0
// Rows and gradients as they are handed over: float, or of a table of float64 double. Borrowed.
#pragma once

#include <cstddef>
#include <ranges>
#include <span>
#include <type_traits>

#include "shoal/base/dtype.h"

namespace shoal::ps {

// Of one number: 8 where it is double, else 4.
constexpr std::size_t number_bytes(bool is_wide) { return is_wide ? sizeof(double) : sizeof(float); }

class Numbers {
 public:
  // Of a range of float or double, or of the bytes of such; `is_wide`: of double.
  Numbers() = default;
  template <std::ranges::contiguous_range Range>
    requires std::is_same_v<std::ranges::range_value_t<Range>, float> ||
                 std::is_same_v<std::ranges::range_value_t<Range>, double>
  Numbers(const Range& numbers)  // NOLINT(google-explicit-constructor): as a span
      : bytes_(std::as_bytes(std::span(numbers))),
        is_wide_(std::is_same_v<std::ranges::range_value_t<Range>, double>) {}
  Numbers(std::span<const std::byte> bytes, bool is_wide) : bytes_(bytes), is_wide_(is_wide) {}

  bool is_wide() const { return is_wide_; }                     // double
  std::size_t width() const { return number_bytes(is_wide_); }  // bytes of one
  std::size_t size() const { return bytes_.size() / width(); }  // how many there are
  bool empty() const { return bytes_.empty(); }                 // whether there are none
  std::span<const std::byte> bytes() const { return bytes_; }   // of all
  // `count` of them from `first` on.
  Numbers subspan(std::size_t first, std::size_t count) const {
    return {bytes_.subspan(first * width(), count * width()), is_wide_};
  }
  template <class T>
  std::span<const T> of() const {  // the T that it has
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  std::span<const std::byte> bytes_;
  bool is_wide_ = false;
};

// The same to be written.
class WritableNumbers {
 public:
  // As those of Numbers.
  template <std::ranges::contiguous_range Range>
    requires std::is_same_v<std::ranges::range_value_t<Range>, float> ||
                 std::is_same_v<std::ranges::range_value_t<Range>, double>
  WritableNumbers(
      Range&& numbers)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
      : bytes_(std::as_writable_bytes(std::span(numbers))),
        is_wide_(std::is_same_v<std::ranges::range_value_t<Range>, double>) {}
  WritableNumbers(std::span<std::byte> bytes, bool is_wide) : bytes_(bytes), is_wide_(is_wide) {}

  // Likewise.
  bool is_wide() const { return is_wide_; }
  std::size_t width() const { return number_bytes(is_wide_); }
  std::size_t size() const { return bytes_.size() / width(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  bool is_wide_ = false;
};

// Whether a table of values of that type computes, and is asked, in double.
constexpr bool is_wide(DType dtype) { return dtype == DType::Float64; }

// act(T{}) with what the numbers are.
template <class Act>
decltype(auto) with_number(bool is_wide, const Act& act) {
  return is_wide ? act(double{}) : act(float{});
}

}  // namespace shoal::ps
