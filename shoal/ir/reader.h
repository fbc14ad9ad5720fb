// SPDX-License-Identifier: Apache-2.0
// Words, numbers and strings of the graph's text form, with errors that say where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "shoal/ir/graph.h"

namespace shoal::ir {

// Reads from the front of a text that it borrows. Whatever is not there as asked throws InvalidInput, naming
// line, column, what was expected and what was found.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::size_t where() { return skip_space(), at_; }  // of the next word
  void go_back(std::size_t where) { at_ = where; }
  bool at_end() { return where() == text_.size(); }
  bool next_is(std::string_view text) { return text_.substr(where()).starts_with(text); }
  bool next_is_word();
  bool next_is_digit();
  bool next_is_underscore();  // alone, not the first letter of a word

  bool take(std::string_view text);
  void expect(std::string_view text);
  void expect_word(std::string_view wanted);
  std::string_view word(std::string_view expected);
  std::string string();
  std::string word_or_string(std::string_view expected);
  std::int64_t integer();
  std::variant<std::int64_t, double> number();  // a double has a point, an exponent, or is inf or nan

  // A word that `parse` knows.
  template <class Name>
  Name named(std::optional<Name> (*parse)(std::string_view), std::string_view expected) {
    const std::size_t begin = where();
    if (const auto name = parse(word(expected))) return *name;
    at_ = begin;
    fail_here(expected);
  }

  [[noreturn]] void fail_here(std::string_view expected);
  [[noreturn]] void fail_at(std::size_t where, std::string_view expected, std::string_view found) const;

 private:
  void skip_space();
  char escaped();

  std::string_view text_;
  std::size_t at_ = 0;
};

// Pieces that programs are written in too: a tensor's type, and an argument, in which `read_id` reads each
// "%3".
TensorType read_type(Reader& in);
Attribute read_attribute(Reader& in, const std::function<ValueId()>& read_id);

}  // namespace shoal::ir
