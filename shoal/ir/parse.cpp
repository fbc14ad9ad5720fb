// SPDX-License-Identifier: Apache-2.0
// Reads the text form of graphs: one function a construct, one character of look-ahead.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/reader.h"
#include "shoal/ir/text.h"
#include "shoal/ir/words.h"

namespace shoal::ir {

namespace {

class Pieces {
 public:
  Pieces(Reader& in, std::function<ValueId()> read_id) : in_(in), read_id_(std::move(read_id)) {}

  TensorType type() {
    TensorType result;
    result.dtype = in_.named(parse_dtype, "a dtype such as f32");
    const std::size_t begin = in_.where();
    in_.expect("[");
    result.shape = integers("]");
    std::int64_t bytes = 16;  // of the largest element
    for (const std::int64_t size : result.shape)
      if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes))
        in_.fail_at(begin, "sizes whose product, in bytes, fits 64 bits", "more");
    result.strides = in_.take("{") ? integers("}") : contiguous_strides(result.shape);
    return result;
  }

  Attribute attribute() {
    if (in_.next_is("\"")) return in_.string();
    if (in_.take("[")) return list();
    if (in_.take("%[]")) return ValueList{};
    if (in_.next_is("%")) return read_id_();
    if (!in_.next_is_word()) return number();
    const std::size_t begin = in_.where();
    const std::string_view text = in_.word("an argument");
    if (text == "none") return std::monostate{};
    if (text == "true" || text == "false") return text == "true";
    if (text == "inf" || text == "nan") {
      in_.go_back(begin);
      return number();
    }
    if (text == "float" || (text == "bool" && in_.next_is("["))) {
      in_.expect("[");
      in_.expect("]");
      return text == "float" ? Attribute(std::vector<double>{}) : Attribute(std::vector<bool>{});
    }
    if (text == "symbol") return Symbol{in_.string()};
    if (const auto dtype = parse_dtype(text)) return *dtype;
    return Symbol{std::string(text)};
  }

 private:
  std::vector<std::int64_t> integers(std::string_view close) {
    std::vector<std::int64_t> list;
    if (in_.take(close)) return list;
    do list.push_back(in_.integer());
    while (in_.take(","));
    in_.expect(close);
    return list;
  }

  Attribute number() {
    return std::visit([](auto value) { return Attribute(value); }, in_.number());
  }

  // All items are of the first one's kind; none goes with values only.
  Attribute list() {
    if (in_.take("]")) return std::vector<std::int64_t>{};
    Attribute result;
    const bool values = in_.next_is("%") || in_.next_is("none");
    do {
      const std::size_t where = in_.where();
      const Attribute item = in_.next_is("[") ? Attribute("") : attribute();
      bool fits = true;
      if (const auto* value = std::get_if<ValueId>(&item); values && (value || item.index() == 0))
        push<ValueList>(result, value ? std::optional(*value) : std::nullopt, fits);
      else if (const auto* whole = std::get_if<std::int64_t>(&item))
        push<std::vector<std::int64_t>>(result, *whole, fits);
      else if (const auto* real = std::get_if<double>(&item))
        push<std::vector<double>>(result, *real, fits);
      else if (const auto* truth = std::get_if<bool>(&item))
        push<std::vector<bool>>(result, *truth, fits);
      else
        fits = false;
      if (fits) continue;
      in_.go_back(where);
      in_.fail_here("an item of the same kind as the list's first: values, ints, doubles or bools");
    } while (in_.take(","));
    in_.expect("]");
    return result;
  }

  template <class List, class Item>
  static void push(Attribute& list, Item item, bool& fits) {
    if (std::holds_alternative<std::monostate>(list)) list = List{};
    auto* const items = std::get_if<List>(&list);
    fits = items != nullptr;
    if (items) items->push_back(item);
  }

  Reader& in_;
  std::function<ValueId()> read_id_;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text), pieces_(in_, [this] { return read_id(); }) {}

  Graph graph() {
    in_.expect_word("graph");
    graph_.form = in_.named(parse_form, "a form: captured or local");
    while (in_.next_is("%") || in_.next_is("(") || in_.next_is_underscore()) statement();
    in_.expect_word("return");
    for (bool more = !in_.at_end(); more; more = in_.take(",")) {
      const Role role = in_.named(parse_role, "a role");
      std::string name = in_.string();
      graph_.results.push_back({role, std::move(name), read_id()});
    }
    if (!in_.at_end()) in_.fail_here("the end of the text");
    number_values();
    return std::move(graph_);
  }

 private:
  struct Definition {
    ValueId id;
    Value value;
    std::size_t where;
  };

  ValueId id() {
    in_.expect("%");
    const std::size_t where = in_.where();
    const std::int64_t index = in_.integer();
    if (index < 0 || index >= std::numeric_limits<std::uint32_t>::max())
      in_.fail_at(where, "a value number below 2^32 - 1", concat(index));
    return {static_cast<std::uint32_t>(index)};
  }

  ValueId read_id() {
    const std::size_t where = in_.where();
    const ValueId read = id();
    reads_.emplace_back(read, where);
    return read;
  }

  void define(ValueId defined, Value value, std::size_t where) {
    definitions_.push_back({defined, std::move(value), where});
  }

  void statement() {
    const std::size_t where = in_.where();
    if (in_.next_is("%")) {
      const ValueId first = id();
      if (in_.take("=")) return source(first, where);
      in_.go_back(where);
    }
    node();
  }

  void source(ValueId defined, std::size_t where) {
    const Role role = in_.named(parse_role, "a role such as parameter or input");
    std::string name = in_.string();
    in_.expect(":");
    define(defined, {pieces_.type(), role, std::nullopt}, where);
    std::string fingerprint;
    if (in_.next_is("f")) {
      in_.expect_word("fingerprint");
      fingerprint = in_.string();
    }
    graph_.sources.push_back({defined, std::move(name), std::move(fingerprint)});
  }

  void node() {
    Node node;
    const NodeId producer{static_cast<std::uint32_t>(graph_.nodes.size())};
    const std::size_t first_definition = definitions_.size();
    std::vector<std::optional<Role>> roles;  // of the outputs that are defined
    if (in_.take("(")) {
      in_.expect(")");
    } else {
      do {
        if (in_.next_is_underscore()) {
          in_.expect("_");
          node.outputs.emplace_back();
          continue;
        }
        const std::size_t where = in_.where();
        node.outputs.emplace_back(id());
        roles.push_back(in_.next_is(":") ? std::nullopt
                                         : std::optional(in_.named(parse_role, "':' or a role")));
        in_.expect(":");
        define(*node.outputs.back(), {pieces_.type(), Role::Activation, producer}, where);
      } while (in_.take(","));
    }
    in_.expect("=");
    node.op = in_.word_or_string("an op such as aten::mm");
    in_.expect("(");
    if (!in_.take(")")) {
      do {
        std::string name = in_.word_or_string("the name of an argument");
        in_.expect("=");
        node.arguments.push_back({std::move(name), pieces_.attribute()});
      } while (in_.take(","));
      in_.expect(")");
    }
    in_.expect("@");
    node.phase = in_.named(parse_phase, "a phase: forward, backward or update");
    if (in_.next_is_digit()) node.stage = static_cast<int>(in_.integer());
    if (in_.next_is("\"")) node.module = in_.string();
    for (std::size_t i = 0; i < roles.size(); ++i)
      definitions_[first_definition + i].value.role = roles[i].value_or(role_of_outputs(node.phase));
    graph_.nodes.push_back(std::move(node));
  }

  // Ids may come in any order, but they are 0 … n-1, and whatever is read is among them.
  void number_values() {
    std::sort(definitions_.begin(), definitions_.end(), [](const Definition& a, const Definition& b) {
      return std::pair(a.id, a.where) < std::pair(b.id, b.where);
    });
    for (std::size_t i = 0; i < definitions_.size(); ++i) {
      const auto& [defined, value, where] = definitions_[i];
      if (defined.index == i) continue;
      const auto found = concat('%', defined.index);
      if (defined.index < i) in_.fail_at(where, "each value to be defined once", found + " again");
      in_.fail_at(where, concat('%', i, " to be defined, since numbers have no gaps"), found);
    }
    for (const auto& [read, where] : reads_)
      if (read.index >= definitions_.size())
        in_.fail_at(where, "a value that the text defines", concat('%', read.index));
    for (auto& definition : definitions_) graph_.values.push_back(std::move(definition.value));
  }

  Reader in_;
  Pieces pieces_;
  Graph graph_;
  std::vector<Definition> definitions_;
  std::vector<std::pair<ValueId, std::size_t>> reads_;
};

}  // namespace

TensorType read_type(Reader& in) { return Pieces(in, {}).type(); }

Attribute read_attribute(Reader& in, const std::function<ValueId()>& read_id) {
  return Pieces(in, read_id).attribute();
}

Graph from_text(std::string_view text) { return Parser(text).graph(); }

}  // namespace shoal::ir
