// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/pattern.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "shoal/base/error.h"
#include "shoal/ir/views.h"

namespace shoal::rewrite {

using ir::Attribute;
using ir::Graph;
using ir::Node;
using ir::ValueId;

static const Attribute kNone;

const Attribute& Match::operator[](std::string_view name) const {
  for (const auto& [bound, attribute] : bound_)
    if (bound == name) return *attribute;
  fail(ErrorKind::Internal, "rewrite: a rule asks for ", name, ", which its pattern does not bind");
}

const ir::TensorType& Match::type_of(std::string_view name) const {
  const auto* const value = std::get_if<ValueId>(&(*this)[name]);
  SHOAL_CHECK(value, Internal, "rewrite: ", name, " of ", root_.op, " is bound to what is no value");
  return graph_.at(*value).type;
}

namespace {

// A parsed pattern or replacement: a name, or an op (one of `ops`) over terms.
struct Term {
  struct Argument;
  std::string_view name;
  std::vector<std::string_view> ops;
  std::vector<Argument> arguments;
};
struct Term::Argument {
  std::string_view name;
  Term term;
};

// term := name | op ('|' op)* '(' [argument '=' term (',' argument '=' term)*] ')'
class TermParser {
 public:
  explicit TermParser(std::string_view text) : text_(text) {}

  Term whole() {
    Term result = term();
    SHOAL_CHECK(at_ == text_.size(), Internal, "rewrite: the pattern ", text_, " goes on after its end");
    return result;
  }

 private:
  std::string_view word() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const std::size_t begin = at_;
    at_ = std::min(text_.find_first_of("|(=,) ", at_), text_.size());
    SHOAL_CHECK(at_ > begin, Internal, "rewrite: the pattern ", text_, " lacks a word at character ", begin);
    return text_.substr(begin, at_ - begin);
  }

  bool take(char wanted) {
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  Term term() {
    Term result;
    result.ops.push_back(word());
    while (take('|')) result.ops.push_back(word());
    if (!take('(')) {
      SHOAL_CHECK(result.ops.size() == 1, Internal, "rewrite: the pattern ", text_,
                  " has alternatives without arguments");
      result.name = result.ops[0];
      result.ops.clear();
      return result;
    }
    if (take(')')) return result;
    do {
      const std::string_view argument = word();
      SHOAL_CHECK(take('='), Internal, "rewrite: the pattern ", text_, " lacks '=' after ", argument);
      result.arguments.push_back({argument, term()});
    } while (take(','));
    SHOAL_CHECK(take(')'), Internal, "rewrite: the pattern ", text_, " lacks a ')'");
    return result;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

class Driver {
 public:
  Driver(Graph graph, std::span<const Rule> rules, Counts& counts)
      : graph_(std::move(graph)),
        rules_(rules),
        counts_(counts),
        owners_(ir::memory_owners(graph_)),
        is_result_(graph_.values.size()) {
    for (const Rule& rule : rules_) {
      patterns_.push_back(TermParser(rule.pattern).whole());
      replacements_.push_back(TermParser(rule.replacement).whole());
      for (const auto op : patterns_.back().ops) by_op_[op].push_back(patterns_.size() - 1);
    }
    for (std::uint32_t value = 0; value < graph_.values.size(); ++value) stands_in_.push_back({value});
    for (const auto& result : graph_.results) is_result_[result.value.index] = true;
  }

  Graph run() {
    for (Node& node : graph_.nodes) {
      node = ir::with_inputs(std::move(node), [this](ValueId value) { return stands_in_[value.index]; });
      if (node.outputs.size() != 1 || !node.outputs[0]) continue;
      for (int num_applied = 0; apply_one(node); ++num_applied)
        SHOAL_CHECK(num_applied < 100, Internal, "rewrite: the rules for ", node.op, " come to no end");
    }
    for (auto& result : graph_.results) result.value = stands_in_[result.value.index];
    return std::move(graph_);
  }

 private:
  bool fits(const Term& term, const Node& node, Match& match) const {
    if (std::ranges::find(term.ops, node.op) == term.ops.end()) return false;
    for (const auto& [name, below] : term.arguments) {
      const Attribute* const attribute = find(node, name);
      if (below.ops.empty()) {
        match.bind(below.name, attribute ? *attribute : kNone);
        continue;
      }
      const auto* const value = attribute ? std::get_if<ValueId>(attribute) : nullptr;
      if (!value || !graph_.at(*value).producer) return false;
      const Node& producer = graph_.at(*graph_.at(*value).producer);
      if (producer.outputs.size() != 1 || !fits(below, producer, match)) return false;
    }
    return true;
  }

  // True if the node now is another one; a node whose output something stands in for is done.
  bool apply_one(Node& node) {
    const auto candidates = by_op_.find(node.op);
    if (candidates == by_op_.end()) return false;
    for (const std::size_t i : candidates->second) {
      Match match(graph_, node);
      if (!fits(patterns_[i], node, match)) continue;
      if (rules_[i].guard && !rules_[i].guard(match)) continue;
      const Term& replacement = replacements_[i];
      if (replacement.ops.empty()) {
        const auto* const value = std::get_if<ValueId>(&match[replacement.name]);
        if (!value || !stand_in(*value, *node.outputs[0])) continue;
        ++counts_[std::string(rules_[i].name)];
        return false;
      }
      std::vector<ir::Argument> arguments;
      for (const auto& [name, bound] : replacement.arguments)
        arguments.push_back({std::string(name), match[bound.name]});
      node.op = replacement.ops[0];
      node.arguments = std::move(arguments);
      ++counts_[std::string(rules_[i].name)];
      return true;
    }
    return false;
  }

  bool stand_in(ValueId value, ValueId old) {
    if (graph_.at(value).type != graph_.at(old).type) return false;
    if (is_result_[old.index] && !graph_.at(owners_[value.index]).producer) return false;
    if (is_result_[old.index]) is_result_[value.index] = true;
    const ir::Role role = graph_.at(old).role;
    if (role == ir::Role::Loss || role == ir::Role::Output) graph_.values[value.index].role = role;
    stands_in_[old.index] = value;
    return true;
  }

  Graph graph_;
  std::span<const Rule> rules_;
  Counts& counts_;
  std::vector<ValueId> owners_;  // by value: whose memory it shares
  std::vector<bool> is_result_;
  std::vector<ValueId> stands_in_;  // by value
  std::vector<Term> patterns_;
  std::vector<Term> replacements_;
  std::unordered_map<std::string_view, std::vector<std::size_t>> by_op_;
};

}  // namespace

Graph apply_rules(Graph graph, std::span<const Rule> rules, Counts& counts) {
  return Driver(std::move(graph), rules, counts).run();
}

}  // namespace shoal::rewrite
