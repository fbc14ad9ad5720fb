// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/cuts.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "shoal/base/error.h"
#include "shoal/base/text.h"

namespace shoal::rewrite {

// What an element takes that is read, computed with little and written, and one that is sent, in flops that
// a matrix product does in the same time.
static constexpr double kPerByte = 2, kPerByteSent = 16;
static constexpr std::size_t kMostPlaces = 2000;  // above so many, modules' first nodes alone are looked at

Cuts::Cuts(const ir::Graph& graph, const std::vector<bool>& is_free) : graph_(graph) {
  std::map<std::size_t, std::size_t> ordinal_of_node;
  std::map<std::string, std::size_t> met;  // nodes of exactly that module
  std::set<std::string> begun;
  work_.push_back(0);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const ir::Node& node = graph.nodes[i];
    if (node.phase != ir::Phase::Forward) continue;
    ordinal_of_node.emplace(i, nodes_.size());
    std::string name;
    for (std::size_t end = 0; end != std::string::npos && !node.module.empty();) {
      end = node.module.find('.', end == 0 ? 0 : end + 1);
      const std::string path = node.module.substr(0, end);
      if (begun.insert(path).second && name.empty()) name = path;
    }
    if (!name.empty()) module_begins_.push_back(nodes_.size());
    names_.push_back(name.empty() ? concat(node.module, '+', met[node.module]) : name);
    ++met[node.module];
    nodes_.push_back(i);
    double work = flops_of(graph, node);
    for (const auto& output : node.outputs)
      if (output) work += kPerByte * static_cast<double>(ir::bytes_of(graph.at(*output).type));
    work_.push_back(work_.back() + (is_free[i] ? 0 : work));
  }
  std::vector<std::size_t> last(graph.values.size());  // ordinal of the last reader
  const auto see = [&](ir::ValueId value, std::size_t ordinal) {
    last[value.index] = std::max(last[value.index], ordinal);
  };
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto inputs = ir::inputs_of(graph.nodes[nodes_[i]]);
    for (const ir::ValueId input : inputs) see(input, i);
  }
  // What each stage makes for itself is read where its inputs are.
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    const ir::Node& node = graph.nodes[nodes_[i]];
    if (!is_free[nodes_[i]]) continue;
    for (const auto& output : node.outputs)
      if (output)
        for (const ir::ValueId input : ir::inputs_of(node)) see(input, last[output->index]);
  }
  std::vector<double> change(nodes_.size() + 1);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (is_free[nodes_[i]]) continue;
    for (const auto& output : graph.nodes[nodes_[i]].outputs) {
      if (!output || last[output->index] <= i) continue;
      const auto bytes = static_cast<double>(ir::bytes_of(graph.at(*output).type));
      change[i + 1] += bytes;
      change[last[output->index] + 1] -= bytes;
    }
  }
  double now = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) crossing_.push_back(now += change[i]);
  crossing_.push_back(0);
}

double Cuts::cost(std::size_t begin, std::size_t end) const {
  return work_[end] - work_[begin] + kPerByteSent * (begin == 0 ? 0 : crossing_[begin]);
}

// The fewest that the busiest stage can have; of these what crosses least in all.
std::vector<std::size_t> Cuts::best_of(const std::vector<std::size_t>& places, int stages,
                                       double& most) const {
  struct Best {
    double most = std::numeric_limits<double>::infinity();
    double crossing = 0;
    std::size_t before = 0;
    auto key() const { return std::pair(most, crossing); }
  };
  const std::size_t count = places.size();  // the first is 0, the last the end
  std::vector<std::vector<Best>> table(static_cast<std::size_t>(stages) + 1, std::vector<Best>(count));
  table[0][0] = {.most = 0};
  for (std::size_t stage = 1; stage < table.size(); ++stage)
    for (std::size_t end = stage; end < count; ++end)
      for (std::size_t begin = end; begin-- > stage - 1;) {
        const Best& before = table[stage - 1][begin];
        if (work_[places[end]] - work_[places[begin]] > table[stage][end].most) break;
        const double own = cost(places[begin], places[end]);
        const Best next = {.most = std::max(before.most, own),
                           .crossing = before.crossing + crossing_[places[begin]],
                           .before = begin};
        if (next.key() < table[stage][end].key()) table[stage][end] = next;
      }
  most = table.back()[count - 1].most;
  std::vector<std::size_t> begins;
  for (std::size_t stage = table.size() - 1, at = count - 1; stage > 1; --stage) {
    at = table[stage][at].before;
    begins.push_back(places[at]);
  }
  std::ranges::reverse(begins);
  return begins;
}

std::vector<std::size_t> Cuts::best(int stages) const {
  SHOAL_CHECK(static_cast<std::size_t>(stages) <= nodes_.size(), InvalidInput, "pipeline: ", stages,
              " stages, and forward has ", nodes_.size(), " nodes to cut between. Remedy: fewer stages");
  const auto places_of = [&](auto begin, auto end) {
    std::vector<std::size_t> places = {0};
    for (auto each = begin; each != end; ++each)
      if (*each > 0) places.push_back(*each);
    places.push_back(nodes_.size());
    return places;
  };
  const auto modules = places_of(module_begins_.begin(), module_begins_.end());
  std::vector<std::size_t> everywhere(nodes_.size());
  for (std::size_t i = 0; i < everywhere.size(); ++i) everywhere[i] = i;
  const auto all = places_of(everywhere.begin(), everywhere.end());
  const bool are_enough = modules.size() > static_cast<std::size_t>(stages);
  double most = std::numeric_limits<double>::infinity(), least = most;
  std::vector<std::size_t> begins, finer;
  if (are_enough) begins = best_of(modules, stages, most);
  if (are_enough && all.size() > kMostPlaces) return begins;
  finer = best_of(all, stages, least);
  return most <= 1.25 * least ? begins : finer;
}

std::size_t Cuts::ordinal_of(const std::string& begin) const {
  const std::size_t plus = begin.rfind('+');
  const std::string path = begin.substr(0, plus);
  std::size_t skipped = 0;
  bool is_named = true;
  if (plus != std::string::npos) {
    const char *first = begin.data() + plus + 1, *last = begin.data() + begin.size();
    const auto [stop, error] = std::from_chars(first, last, skipped);
    is_named = error == std::errc() && stop == last && first != last;
  }
  for (std::size_t i = 0; is_named && i < nodes_.size(); ++i) {
    const std::string& module = graph_.nodes[nodes_[i]].module;
    const bool is_within = module == path || path.empty() || module.starts_with(path + '.');
    if (plus == std::string::npos ? is_within : module == path && skipped-- == 0) return i;
  }
  std::vector<std::string_view> known;
  for (const std::size_t i : module_begins_) known.push_back(names_[i]);
  fail(ErrorKind::InvalidInput, "pipeline: a stage is to begin at '", begin,
       "', and forward has nothing there; did you mean '", nearest(begin, known), "'?");
}

std::vector<std::size_t> Cuts::at(const std::vector<std::string>& begins, int stages) const {
  SHOAL_CHECK(begins.size() + 1 == static_cast<std::size_t>(stages), InvalidInput,
              "pipeline: ", begins.size(), " lines say where a stage begins, and there are ", stages,
              " stages: all but the first need one");
  std::vector<std::size_t> ordinals;
  for (const std::string& begin : begins) {
    ordinals.push_back(ordinal_of(begin));
    const std::size_t before = ordinals.size() < 2 ? 0 : ordinals[ordinals.size() - 2];
    SHOAL_CHECK(ordinals.back() > before, InvalidInput, "pipeline: the stage that begins at '", begin,
                "' does not come after ", ordinals.size() < 2 ? "the first" : "that of the line before",
                ": forward gets there earlier");
  }
  return ordinals;
}

std::vector<std::size_t> Cuts::marked(int stages) const {
  std::vector<std::size_t> ordinals;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const int stage = graph_.nodes[nodes_[i]].stage;
    SHOAL_CHECK(stage <= static_cast<int>(ordinals.size()) + 1 && stage < stages, InvalidInput,
                "pipeline: stage ", ordinals.size() + 1,
                " of those that the program marks does nothing; stage ", stage, " begins in module '",
                graph_.nodes[nodes_[i]].module, "'. Remedy: leave that scope out");
    if (i > 0 && stage > static_cast<int>(ordinals.size())) ordinals.push_back(i);
  }
  SHOAL_CHECK(ordinals.size() + 1 == static_cast<std::size_t>(stages), InvalidInput, "pipeline: stage ",
              ordinals.size() + 1, " of the ", stages,
              " that the program marks does nothing that is left. Remedy: leave that scope out");
  return ordinals;
}

std::vector<std::string> Cuts::names_of(const std::vector<std::size_t>& ordinals) const {
  std::vector<std::string> names;
  for (const std::size_t ordinal : ordinals) names.push_back(names_[ordinal]);
  return names;
}

}  // namespace shoal::rewrite
