// SPDX-License-Identifier: Apache-2.0
#include "shoal/ir/reader.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ir/words.h"

namespace shoal::ir {

void Reader::fail_at(std::size_t where, std::string_view expected, std::string_view found) const {
  const std::string_view before = text_.substr(0, where);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto column = where - (before.find_last_of('\n') + 1) + 1;  // npos + 1 is 0
  fail(ErrorKind::InvalidInput, "graph text, line ", line, ", column ", column, ": expected ", expected,
       ", found ", found);
}

void Reader::fail_here(std::string_view expected) {
  skip_space();
  std::size_t end = at_;
  while (end < text_.size() && continues_word(text_[end])) ++end;
  if (end == at_) end = std::min(at_ + 1, text_.size());
  fail_at(at_, expected, end == at_ ? "the end of the text" : in_quotes(text_.substr(at_, end - at_)));
}

void Reader::skip_space() {
  while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
}

std::string_view Reader::word(std::string_view expected) {
  if (!next_is_word()) fail_here(expected);
  const std::size_t begin = at_;
  while (at_ < text_.size() && continues_word(text_[at_])) ++at_;
  return text_.substr(begin, at_ - begin);
}

void Reader::expect_word(std::string_view wanted) {
  const std::size_t begin = where();
  if (word(in_quotes(wanted)) == wanted) return;
  at_ = begin;
  fail_here(in_quotes(wanted));
}

std::string Reader::string() {
  if (!take("\"")) fail_here("a string in double quotes");
  std::string result;
  while (at_ < text_.size() && text_[at_] != '"') {
    const char c = text_[at_++];
    result += c == '\\' ? escaped() : c;
  }
  if (at_ == text_.size()) fail_here("the closing '\"' of a string");
  ++at_;
  return result;
}

char Reader::escaped() {
  static constexpr std::string_view kLetters = "\"\\ntr";
  static constexpr std::string_view kMeanings = "\"\\\n\t\r";
  if (at_ < text_.size()) {
    const char c = text_[at_++];
    if (const auto i = kLetters.find(c); i != std::string_view::npos) return kMeanings[i];
    unsigned byte = 0;
    if (c == 'x' && at_ + 2 <= text_.size()) {
      const char* const digits = text_.data() + at_;
      if (const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
          error == std::errc() && end == digits + 2) {
        at_ += 2;
        return static_cast<char>(byte);
      }
    }
    --at_;
  }
  fail_here(R"(one of \" \\ \n \t \r \xHH)");
}

std::int64_t Reader::integer() {
  skip_space();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (error != std::errc()) fail_here("an integer of 64 bits");
  at_ = static_cast<std::size_t>(end - text_.data());
  return value;
}

std::variant<std::int64_t, double> Reader::number() {
  skip_space();
  const std::string_view digits = text_.substr(at_);
  if (digits.starts_with("nan(0x")) {
    std::uint64_t bits = 0;
    const auto [stop, error] = std::from_chars(digits.data() + 6, digits.data() + digits.size(), bits, 16);
    if (error != std::errc() || stop == digits.data() + digits.size() || *stop != ')')
      fail_here("nan(0xBITS)");
    at_ = static_cast<std::size_t>(stop - text_.data()) + 1;
    return std::bit_cast<double>(bits);
  }
  std::int64_t whole = 0;
  const auto [whole_end, whole_error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
  double real = 0;
  const auto [real_end, real_error] = std::from_chars(digits.data(), digits.data() + digits.size(), real);
  if (real_error != std::errc()) fail_here("a number");
  if (real_end == whole_end && whole_error != std::errc()) fail_here("an integer of 64 bits");
  at_ = static_cast<std::size_t>(real_end - text_.data());
  if (real_end == whole_end) return whole;
  return real;
}

bool Reader::next_is_word() { return !at_end() && starts_word(text_[at_]); }

bool Reader::next_is_digit() {
  skip_space();
  return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9';
}

bool Reader::next_is_underscore() {
  return next_is("_") && (at_ + 1 == text_.size() || !continues_word(text_[at_ + 1]));
}

bool Reader::take(std::string_view text) {
  if (!next_is(text)) return false;
  at_ += text.size();
  return true;
}

void Reader::expect(std::string_view text) {
  if (!take(text)) fail_here(concat('\'', text, '\''));
}

std::string Reader::word_or_string(std::string_view expected) {
  return next_is("\"") ? string() : std::string(word(expected));
}

}  // namespace shoal::ir
