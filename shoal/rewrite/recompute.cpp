// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/recompute.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ir/flops.h"
#include "shoal/ir/own_ops.h"
#include "shoal/ir/rebuild.h"
#include "shoal/ir/views.h"
#include "shoal/rewrite/place.h"
#include "shoal/rewrite/transfer.h"

namespace shoal::rewrite {

using ir::Graph;
using ir::Node;
using ir::Phase;
using ir::ValueId;

std::string_view name_of(RecomputeMode mode) {
  static constexpr std::array<std::string_view, 4> kNames = {"none", "full", "selective", "auto"};
  return kNames[static_cast<std::size_t>(mode)];
}

// --- What may be made again.

// An op of another library may do anything beside what it returns.
static bool is_repeatable(const Node& node, bool collectives) {
  if (node.phase != Phase::Forward) return false;
  const ir::OwnOp* own = ir::find_own_op(node.op);
  if (own == nullptr) return node.op.starts_with("aten::");
  using enum ir::OwnOp::Kind;
  return own->kind == Compute || own->kind == Random || own->kind == Move ||
         (collectives && is_transfer(node));
}

// Parameters that are gathered for use, and what is made of them alone on the way. A cut that backward can read as it
// is (another axis than ZeRO's) is no such thing: what came of it is kept.
static std::vector<bool> gathered_in(const Graph& graph) {
  std::vector<bool> is_parameter(graph.values.size()), is_gathered(graph.values.size());
  for (const auto& source : graph.sources)
    is_parameter[source.value.index] = graph.at(source.value).role == ir::Role::Parameter;
  const auto reads_parameter = [&](const Node& node) {
    const auto inputs = ir::inputs_of(node);
    return inputs.size() == 1 && is_parameter[inputs[0].index];
  };
  std::set<std::string> again;  // axes
  for (const Node& node : graph.nodes)
    if (node.phase == Phase::Backward && is_transfer(node) && reads_parameter(node))
      again.insert(journey_in(node).axis);
  for (const Node& node : graph.nodes) {
    if (node.phase != Phase::Forward || !reads_parameter(node)) continue;
    const bool arrives = is_transfer(node) && again.contains(journey_in(node).axis);
    if (!arrives && !ir::is_view(node.op) && node.op != "aten::_to_copy") continue;
    for (const auto& output : node.outputs) {
      if (!output) continue;
      is_parameter[output->index] = true;
      is_gathered[output->index] = arrives || is_gathered[ir::inputs_of(node)[0].index];
    }
  }
  return is_gathered;
}

Dropped droppable(const Graph& graph, bool gathers_again, bool collectives) {
  const auto owners = ir::memory_owners(graph);
  const auto is_gathered = gathered_in(graph);
  Dropped may(graph.values.size());
  for (std::size_t value = 0; value < may.size(); ++value) {
    const ValueId owner = owners[value];
    const auto& producer = graph.at(owner).producer;
    if (!producer) continue;
    may[value] = is_gathered[owner.index] ? gathers_again : is_repeatable(graph.at(*producer), collectives);
  }
  for (const auto& result : graph.results) may[owners[result.value.index].index] = false;
  // Views that cannot be made again keep what they are of.
  for (const Node& node : graph.nodes)
    for (const auto& output : node.outputs)
      if (output && node.phase == Phase::Forward && ir::is_view(node.op) && !is_repeatable(node, collectives))
        may[owners[output->index].index] = false;
  for (std::size_t value = 0; value < may.size(); ++value) may[value] = may[owners[value].index];
  return may;
}

// --- By path.

static std::vector<std::string_view> prefixes_of(std::string_view path) {
  std::vector<std::string_view> all;
  for (std::size_t end = path.find('.'); end != std::string_view::npos; end = path.find('.', end + 1))
    all.push_back(path.substr(0, end));
  if (!path.empty()) all.push_back(path);
  return all;
}

static std::set<std::string_view> modules_of(const Graph& graph) {
  std::set<std::string_view> all;
  for (const Node& node : graph.nodes)
    if (node.phase == Phase::Forward)
      for (const auto prefix : prefixes_of(node.module)) all.insert(prefix);
  return all;
}

static bool is_number(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

// "h.0", "h.1": those of which a module has several.
static std::set<std::string_view> numbered(const std::set<std::string_view>& modules) {
  std::map<std::string_view, std::vector<std::string_view>> children;
  for (const auto path : modules) {
    const std::size_t dot = path.rfind('.');
    if (is_number(path.substr(dot + 1)))  // npos + 1 is 0
      children[dot == std::string_view::npos ? "" : path.substr(0, dot)].push_back(path);
  }
  std::set<std::string_view> found;
  for (const auto& [parent, list] : children)
    if (list.size() > 1) found.insert(list.begin(), list.end());
  return found;
}

// The path that it ends with, or the nearest one, numbers being '*'.
static std::string nearest_module(const std::string& pattern, const std::set<std::string_view>& modules) {
  std::set<std::string> folded;
  for (const auto path : modules) {
    std::string text;
    for (const auto prefix : prefixes_of(path)) {
      const std::string_view word = prefix.substr(prefix.rfind('.') + 1);  // npos + 1 is 0
      text += concat(text.empty() ? "" : ".", is_number(word) ? "*" : word);
    }
    if (path.ends_with("." + pattern)) return std::string(path);
    if (text.ends_with("." + pattern)) return text;
    folded.insert(std::move(text));
  }
  const std::vector<std::string_view> candidates(folded.begin(), folded.end());
  return std::string(nearest(pattern, candidates));
}

static std::set<std::string_view> named(const std::vector<std::string>& patterns,
                                        const std::set<std::string_view>& modules) {
  std::set<std::string_view> found;
  for (const std::string& pattern : patterns) {
    bool fits = false;
    for (const auto path : modules) {
      if (!matches(pattern, path)) continue;
      found.insert(path);
      fits = true;
    }
    if (fits) continue;
    fail(ErrorKind::InvalidInput, "recompute: no module is named '", pattern, "'; the nearest is '",
         nearest_module(pattern, modules), "'");
  }
  return found;
}

// The outermost block that the module is in; "" for none.
static std::string_view block_of(std::string_view module, const std::set<std::string_view>& blocks) {
  for (const auto prefix : prefixes_of(module))
    if (blocks.contains(prefix)) return prefix;
  return "";
}

Dropped dropped_by(const Recompute& recompute, const Graph& graph, bool gathers_again, const Graph& model) {
  const auto modules = modules_of(model);
  const auto blocks = recompute.modules.empty() ? numbered(modules) : named(recompute.modules, modules);
  SHOAL_CHECK(!blocks.empty(), InvalidInput, "recompute: ", name_of(recompute.mode),
              " is of blocks, and this model has no numbered modules, as h.0 and h.1; name the modules "
              "(recompute.modules)");
  const auto owners = ir::memory_owners(graph);
  const auto is_gathered = gathered_in(graph);
  Dropped dropped = droppable(graph, gathers_again, recompute.collectives);
  std::vector<std::string_view> block(graph.values.size());  // of whose memory it is
  for (const Node& node : graph.nodes)
    for (const auto& output : node.outputs)
      if (output) block[output->index] = block_of(node.module, blocks);
  const auto keep = [&](ValueId value) { dropped[owners[value.index].index] = false; };
  for (const Node& node : graph.nodes) {
    const bool is_heavy = recompute.mode == RecomputeMode::Selective && work_of(graph, node).value_or(0) > 0;
    for (const auto& output : node.outputs)
      if (output && !is_gathered[output->index] && (is_heavy || block[output->index].empty()) &&
          !ir::is_view(node.op))
        keep(*output);
    if (node.phase != Phase::Forward || ir::is_view(node.op)) continue;
    // What one block reads of another one enters it.
    for (const ValueId input : ir::inputs_of(node)) {
      const ValueId owner = owners[input.index];
      if (!is_gathered[input.index] && block[owner.index] != block_of(node.module, blocks)) keep(input);
    }
  }
  return dropped;
}

// --- The rewrite.

static bool is_message(const Node& node) { return node.op == "shoal::send" || node.op == "shoal::receive"; }

// Of a stage, by value: what lies in a buffer that forward changes. Its new value is there when backward runs.
static std::vector<bool> changed_buffers(const Graph& graph) {
  std::vector<bool> changed(graph.values.size());
  if (std::ranges::none_of(graph.nodes, is_message)) return changed;
  for (const auto& source : graph.sources)
    for (const auto& result : graph.results)
      if (graph.at(source.value).role == ir::Role::Buffer && result.role == ir::Role::Buffer &&
          result.name == source.name && result.value != source.value)
        changed[source.value.index] = true;
  const auto owners = ir::memory_owners(graph);
  for (std::size_t value = 0; value < changed.size(); ++value) changed[value] = changed[owners[value].index];
  return changed;
}

namespace {

class Repeating {
 public:
  Repeating(const Graph& graph, const Dropped& dropped)
      : graph_(graph),
        dropped_(dropped),
        changed_(changed_buffers(graph)),
        before_(graph.values.size()),
        again_(graph.values.size()),
        read_(graph.values.size()),
        first_(graph.values.size()) {
    for (std::uint32_t value = 0; value < first_.size(); ++value) first_[value] = {value};
  }

  Graph run() {
    return ir::rebuild(graph_, [&](Graph& made, const Node& node, const ir::Mapped& in) {
      const Node* twin = is_transfer(node) ? twin_of(node) : nullptr;
      stage_ = node.stage;
      return twin != nullptr ? outputs_again(*twin, in, made) : outputs_of(node, in, made);
    });
  }

 private:
  // The transfer of forward that brought what this one of backward brings, and is dropped.
  const Node* twin_of(const Node& node) {
    if (node.outputs.size() != 1 || !node.outputs[0]) return nullptr;
    const ValueId made = *node.outputs[0];
    const Node seen = ir::with_inputs(node, [&](ValueId value) { return first_[value.index]; });
    if (node.phase == Phase::Forward) {
      if (dropped_[made.index]) transfers_.emplace_back(seen, &node);
      return nullptr;
    }
    for (const auto& [other, twin] : transfers_) {
      const ValueId first = *twin->outputs[0];
      if (other.arguments != seen.arguments || graph_.at(first).type != graph_.at(made).type ||
          twin->stage != node.stage)
        continue;
      first_[made.index] = first;
      return twin;
    }
    return nullptr;
  }

  std::optional<ir::Outputs> outputs_of(const Node& node, const ir::Mapped& in, Graph& made) {
    if (node.phase == Phase::Forward) keep_buffers(node, in, made);
    if (node.phase != Phase::Backward) return std::nullopt;
    prepare(node, in, made);
    return copied(node, made, in);
  }
  // For its copy: what it reads and forward changes.
  void keep_buffers(const Node& node, const ir::Mapped& in, Graph& made) {
    const auto is_dropped = [&](const auto& output) { return output && dropped_[output->index]; };
    if (std::ranges::none_of(node.outputs, is_dropped)) return;
    for (const ValueId input : ir::inputs_of(node)) {
      if (!changed_[input.index] || before_[input.index]) continue;
      const auto& type = graph_.at(input).type;
      Node clone = {.op = "aten::clone", .phase = Phase::Forward, .module = node.module, .stage = node.stage};
      clone.arguments = {{"self", in(input)}, {"memory_format", {}}};
      before_[input.index] =
          made.at(made.add_node(std::move(clone), {ir::contiguous(type.dtype, type.shape)})).outputs[0];
    }
  }
  std::optional<ir::Outputs> outputs_again(const Node& node, const ir::Mapped& in, Graph& made) {
    const auto& copy = again_[node.outputs[0]->index];
    if (!copy) repeat(node, in, made);
    return ir::Outputs{copy};
  }

  // Copies of all that the node reads and that is dropped, and of what these read.
  void prepare(const Node& node, const ir::Mapped& in, Graph& made) {
    for (const ValueId input : ir::inputs_of(node))
      if (dropped_[input.index] && !again_[input.index])
        repeat(graph_.at(*graph_.at(input).producer), in, made);
  }
  void repeat(const Node& node, const ir::Mapped& in, Graph& made) {
    prepare(node, in, made);
    const auto seen = [&](ValueId input) { return before_[input.index] ? *before_[input.index] : in(input); };
    const ir::Outputs outputs = copied(node, made, seen);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i]) again_[node.outputs[i]->index] = outputs[i];
    }
  }

  // In backward, reading copies of what is dropped.
  ir::Outputs copied(const Node& node, Graph& made, const auto& seen) {
    for (const ValueId input : ir::inputs_of(node))
      read_.set(input, dropped_[input.index] ? *again_[input.index] : seen(input));
    ir::Outputs outputs = ir::copy(graph_, node, read_, made);
    made.nodes.back().phase = Phase::Backward;
    made.nodes.back().stage = stage_;
    return outputs;
  }

  const Graph& graph_;
  const Dropped& dropped_;
  const std::vector<bool> changed_;
  int stage_ = 0;               // of the node that reads the copies
  ir::Outputs before_;          // by value: a clone of it, where it changes and a copy reads it
  ir::Outputs again_;           // by value: its copy
  ir::Mapped read_;             // what stands for values that backward has read
  std::vector<ValueId> first_;  // by value: what a transfer of forward made of the same
  std::vector<std::pair<Node, const Node*>> transfers_;
};

}  // namespace

// All of forward's that lie in one memory as the one that owns it.
static Dropped alike(const Graph& graph, Dropped dropped) {
  const auto owners = ir::memory_owners(graph);
  for (std::size_t value = 0; value < dropped.size(); ++value) {
    const auto& producer = graph.values[value].producer;
    dropped[value] = producer && graph.at(*producer).phase == Phase::Forward && dropped[owners[value].index];
  }
  return dropped;
}

Graph recompute(const Graph& graph, const Dropped& dropped) {
  const Dropped all = alike(graph, dropped);
  return Repeating(graph, all).run();
}

}  // namespace shoal::rewrite
