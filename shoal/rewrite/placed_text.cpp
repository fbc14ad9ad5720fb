// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/placed_text.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/text.h"
#include "shoal/ir/verify.h"

namespace shoal::rewrite {

using sharding::Layout;

static constexpr std::string_view kHead = "placed ", kLayouts = "layouts\n";

static std::string line_of(std::string_view what, std::size_t index, const PlacedNode& node) {
  std::string line = concat(what, ' ', index, " in");
  for (const Layout& layout : node.in) line += concat(' ', to_text(layout));
  line += " out";
  for (const Layout& layout : node.out) line += concat(' ', to_text(layout));
  return line + (node.in_parts ? " parts\n" : "\n");
}

std::string to_text(const Placed& placed) {
  std::string text =
      concat(kHead, '"', to_text(placed.mesh), "\" gathers=", placed.gathers_again ? "again" : "once", '\n',
             ir::to_text(placed.graph), kLayouts);
  const auto add = [&](std::string_view what, const std::vector<Layout>& layouts) {
    for (std::size_t i = 0; i < layouts.size(); ++i)
      text += concat(what, ' ', i, ' ', to_text(layouts[i]), '\n');
  };
  add("source", placed.kept);
  for (std::size_t i = 0; i < placed.nodes.size(); ++i) {
    text += line_of("node", i, placed.nodes[i]);
    for (const PlacedNode& again : placed.again[i]) text += line_of("again", i, again);
  }
  add("value", placed.values);
  add("result", placed.results);
  return text;
}

namespace {

// The words of a line, a layout being one.
class Words {
 public:
  explicit Words(std::string_view line) : line_(line), rest_(line) {}

  std::string_view next() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size()));
    const bool is_layout = rest_.starts_with('[');
    const std::size_t end = std::min(rest_.find(is_layout ? ']' : ' '), rest_.size());
    const std::string_view word = rest_.substr(0, end + (is_layout && end < rest_.size() ? 1 : 0));
    rest_.remove_prefix(word.size());
    return word;
  }
  Layout layout() {
    const std::string_view word = next();
    check(word.starts_with('['), "a layout");
    return sharding::layout_from_text(word);
  }
  std::size_t index(std::size_t limit) {
    const std::string_view word = next();
    std::size_t number = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    check(error == std::errc() && stop == word.data() + word.size() && number < limit,
          "a number that is there");
    return number;
  }
  void check(bool good, const char* wanted) const {
    SHOAL_CHECK(good, InvalidInput, "placed: '", line_, "': wanted ", wanted);
  }

 private:
  std::string_view line_, rest_;
};

}  // namespace

static PlacedNode node_in(Words& words) {
  PlacedNode node;
  words.check(words.next() == "in", "'in'");
  std::string_view word = words.next();
  for (; word.starts_with('['); word = words.next()) node.in.push_back(sharding::layout_from_text(word));
  words.check(word == "out", "'out'");
  for (word = words.next(); word.starts_with('['); word = words.next())
    node.out.push_back(sharding::layout_from_text(word));
  words.check(word.empty() || word == "parts", "'parts', or no more");
  node.in_parts = word == "parts";
  return node;
}

Placed placed_from_text(std::string_view text) {
  const std::size_t end = text.find('\n'), layouts = text.find(concat('\n', kLayouts));
  SHOAL_CHECK(text.starts_with(kHead) && layouts != std::string_view::npos, InvalidInput,
              "placed: no line 'placed \"AXIS=SIZE\" gathers=again', or no line 'layouts'");
  const std::string_view head = text.substr(0, end);
  const std::size_t open = head.find('"'), close = head.rfind('"');
  SHOAL_CHECK(open < close && close != std::string_view::npos, InvalidInput, "placed: '", head,
              "' has no mesh");
  Placed placed;
  placed.mesh = sharding::mesh_from_text(head.substr(open + 1, close - open - 1));
  placed.gathers_again = !head.ends_with("gathers=once");
  placed.graph = ir::from_text(text.substr(end + 1, layouts - end));
  placed.kept.resize(placed.graph.sources.size());
  placed.nodes.resize(placed.graph.nodes.size());
  placed.again.resize(placed.graph.nodes.size());
  placed.values.resize(placed.graph.values.size());
  placed.results.resize(placed.graph.results.size());
  for (std::string_view rest = text.substr(layouts + 1 + kLayouts.size()); !rest.empty();) {
    const std::size_t stop = std::min(rest.find('\n'), rest.size());
    Words words(rest.substr(0, stop));
    rest.remove_prefix(std::min(stop + 1, rest.size()));
    const std::string_view what = words.next();
    if (what == "source") {
      const auto i = words.index(placed.kept.size());
      placed.kept[i] = words.layout();
    } else if (what == "node") {
      const auto i = words.index(placed.nodes.size());
      placed.nodes[i] = node_in(words);
    } else if (what == "again") {
      const auto i = words.index(placed.nodes.size());
      placed.again[i].push_back(node_in(words));
    } else if (what == "value") {
      const auto i = words.index(placed.values.size());
      placed.values[i] = words.layout();
    } else {
      words.check(what == "result", "'source', 'node', 'again', 'value' or 'result'");
      const auto i = words.index(placed.results.size());
      placed.results[i] = words.layout();
    }
  }
  return placed;
}

namespace {
struct Verifying {
  const Placed& placed;

  template <class... Where>
  void check(const Layout& layout, ir::ValueId value, const Where&... where) const {
    const auto& shape = placed.graph.at(value).type.shape;
    const std::string why = layout.placements.size() == placed.mesh.axes.size()
                                ? misfit(placed.mesh, layout, shape)
                                : concat("it is for ", layout.placements.size(), " axes");
    SHOAL_CHECK(why.empty(), Internal, "verify: ", where..., ": %", value.index, " cannot be ",
                to_text(layout), " on mesh '", to_text(placed.mesh), "': ", why);
  }

  void check(const PlacedNode& placed_node, const ir::Node& node) const {
    const auto inputs = ir::inputs_of(node);
    SHOAL_CHECK(placed_node.in.size() == inputs.size() && placed_node.out.size() == node.outputs.size(),
                Internal, "verify: ", node.op, " has layouts for ", placed_node.in.size(), " inputs and ",
                placed_node.out.size(), " outputs, and has ", inputs.size(), " and ", node.outputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      check(placed_node.in[i], inputs[i], "input ", i, " of ", node.op, " in \"", node.module, '"');
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i])
        check(placed_node.out[i], *node.outputs[i], "output ", i, " of ", node.op, " in \"", node.module,
              '"');
  }
};
}  // namespace

void verify(const Placed& placed) {
  const ir::Graph& graph = placed.graph;
  ir::verify(graph);
  const auto all_there = [](std::size_t layouts, std::size_t things, const char* what) {
    SHOAL_CHECK(layouts == things, Internal, "verify: ", layouts, " layouts for ", things, ' ', what);
  };
  all_there(placed.kept.size(), graph.sources.size(), "sources");
  all_there(placed.nodes.size(), graph.nodes.size(), "nodes");
  all_there(placed.values.size(), graph.values.size(), "values");
  all_there(placed.results.size(), graph.results.size(), "results");
  const Verifying verifying{placed};
  for (std::size_t i = 0; i < graph.sources.size(); ++i)
    verifying.check(placed.kept[i], graph.sources[i].value, "source \"", graph.sources[i].name, '"');
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    verifying.check(placed.nodes[i], graph.nodes[i]);
    for (const PlacedNode& again : placed.again[i]) verifying.check(again, graph.nodes[i]);
  }
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    verifying.check(placed.values[i], {static_cast<std::uint32_t>(i)}, "a value");
  for (std::size_t i = 0; i < graph.results.size(); ++i)
    verifying.check(placed.results[i], graph.results[i].value, "result \"", graph.results[i].name, '"');
}

}  // namespace shoal::rewrite
