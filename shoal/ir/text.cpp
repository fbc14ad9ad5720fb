// SPDX-License-Identifier: Apache-2.0
// Prints graphs; parse.cpp reads them back.
#include "shoal/ir/text.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>

#include "shoal/base/text.h"
#include "shoal/ir/words.h"

namespace shoal::ir {

std::string word_or_quoted(std::string_view text) {
  return is_word(text) ? std::string(text) : in_quotes(text);
}

static void print(std::string& out, ValueId id) {
  out += '%';
  out += std::to_string(id.index);
}

static void print(std::string& out, const std::optional<ValueId>& id) {
  if (id)
    print(out, *id);
  else
    out += "none";
}

static void print(std::string& out, bool value) { out += value ? "true" : "false"; }
static void print(std::string& out, std::int64_t value) { out += std::to_string(value); }

static void print(std::string& out, double value) {
  std::array<char, 40> digits{};
  const auto bits = std::bit_cast<std::uint64_t>(value);
  if (std::isnan(value) && bits != std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN())) {
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bits, 16).ptr;
    out += "nan(0x" + std::string(digits.data(), end) + ")";
    return;
  }
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view text(digits.data(), static_cast<std::size_t>(end - digits.data()));
  out += text;
  if (text.find_first_of(".einf") == std::string_view::npos) out += ".0";
}

// vector<bool> hands out proxies: `Item` is what an element is printed as.
template <class Item, class List>
static void print_list(std::string& out, const List& list, std::string_view when_empty) {
  if (list.empty()) {
    out += when_empty;
    return;
  }
  std::string_view before = "[";
  for (const auto& item : list) {
    out += before;
    print(out, Item(item));
    before = ", ";
  }
  out += ']';
}

namespace {
struct PrintAttribute {
  std::string& out;
  void operator()(std::monostate) const { out += "none"; }
  void operator()(ValueId id) const { print(out, id); }
  void operator()(bool value) const { print(out, value); }
  void operator()(std::int64_t value) const { print(out, value); }
  void operator()(double value) const { print(out, value); }
  void operator()(const std::string& value) const { out += in_quotes(value); }
  void operator()(DType dtype) const { out += name_of(dtype); }
  void operator()(const Symbol& symbol) const {
    out +=
        is_word(symbol.name) && !is_reserved(symbol.name) ? symbol.name : "symbol" + in_quotes(symbol.name);
  }
  void operator()(const ValueList& list) const { print_list<std::optional<ValueId>>(out, list, "%[]"); }
  void operator()(const std::vector<std::int64_t>& list) const { print_list<std::int64_t>(out, list, "[]"); }
  void operator()(const std::vector<double>& list) const { print_list<double>(out, list, "float[]"); }
  void operator()(const std::vector<bool>& list) const { print_list<bool>(out, list, "bool[]"); }
};
}  // namespace

static void print(std::string& out, const TensorType& type) {
  out += name_of(type.dtype);
  print_list<std::int64_t>(out, type.shape, "[]");
  if (type.strides == contiguous_strides(type.shape)) return;
  out += '{';
  for (std::size_t dim = 0; dim < type.strides.size(); ++dim) {
    if (dim > 0) out += ',';
    print(out, type.strides[dim]);
  }
  out += '}';
}

static void print(std::string& out, const Graph& graph, const Node& node) {
  if (node.outputs.empty()) out += "()";
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (i > 0) out += ", ";
    if (!node.outputs[i]) {
      out += '_';
      continue;
    }
    const Value& value = graph.at(*node.outputs[i]);
    print(out, *node.outputs[i]);
    if (value.role != role_of_outputs(node.phase)) {
      out += ' ';
      out += name_of(value.role);
    }
    out += " : ";
    print(out, value.type);
  }
  out += " = " + word_or_quoted(node.op) + '(';
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    if (i > 0) out += ", ";
    out += to_text(node.arguments[i]);
  }
  out += ") @";
  out += name_of(node.phase);
  if (node.stage != 0) out += ' ' + std::to_string(node.stage);
  if (!node.module.empty()) out += ' ' + in_quotes(node.module);
}

std::string to_text(const Argument& argument) {
  std::string out = word_or_quoted(argument.name) + '=';
  std::visit(PrintAttribute{out}, argument.value);
  return out;
}

std::string to_text(const TensorType& type) {
  std::string out;
  print(out, type);
  return out;
}

std::string to_text(const Graph& graph, const Node& node) {
  std::string out;
  print(out, graph, node);
  return out;
}

std::string to_text(const Graph& graph) {
  std::string out = "graph " + std::string(name_of(graph.form)) + '\n';
  for (const Source& source : graph.sources) {
    const Value& value = graph.at(source.value);
    print(out, source.value);
    out += " = ";
    out += name_of(value.role);
    out += ' ' + in_quotes(source.name) + " : ";
    print(out, value.type);
    if (!source.fingerprint.empty()) out += " fingerprint " + in_quotes(source.fingerprint);
    out += '\n';
  }
  for (const Node& node : graph.nodes) {
    print(out, graph, node);
    out += '\n';
  }
  out += "return";
  std::string_view before = " ";
  for (const Result& result : graph.results) {
    out += before;
    out += name_of(result.role);
    out += ' ' + in_quotes(result.name) + ' ';
    print(out, result.value);
    before = ",\n       ";
  }
  return out + '\n';
}

}  // namespace shoal::ir
