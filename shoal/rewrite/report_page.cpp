// SPDX-License-Identifier: Apache-2.0
// A card a layer, as the step comes to them; above it the messages that bring what it reads in forward, below it
// those that bring what it reads in backward.
#include "shoal/rewrite/report_page.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rewrite/layout_picture.h"
#include "shoal/rewrite/report_words.h"

namespace shoal::rewrite {

using sharding::Layout;
using sharding::Mesh;

namespace {

constexpr std::string_view kStyle = R"(<style>
body { font: 13px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1f2933; background: #f3f5f7; margin: 0; }
main { max-width: 1320px; margin: 0 auto; padding: 22px 24px 48px; }
h1 { font-size: 21px; margin: 0 0 4px; }
code, .path, .layout, .op { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
svg { display: block; overflow: visible; }
svg text { font: 11px system-ui, "DejaVu Sans", sans-serif; }
svg text.rank { font-size: 10px; text-anchor: middle; font-weight: 600; }
svg text.size { font-size: 10px; }
.facts { display: flex; flex-wrap: wrap; gap: 4px 26px; color: #52606d; margin-bottom: 14px; }
.facts b { color: #1f2933; }
.legend { display: flex; gap: 12px 30px; align-items: flex-start; background: #fff; border: 1px solid #d9dfe5;
          border-radius: 8px; padding: 14px 18px; margin-bottom: 18px; color: #52606d; font-size: 12px; }
.legend > div { flex: 1 1 0; }
.legend > .ranks { flex: none; }
.legend > .words { flex: 2.4 1 0; }
.legend p { margin: 6px 0 0; }
.legend .words p { margin: 0 0 5px; }
.legend b, .shape b { color: #1f2933; }
.row { display: grid; grid-template-columns: 246px minmax(0, 1fr) 270px; column-gap: 22px; }
.heads { padding: 0 19px 6px; color: #52606d; font-size: 12px; }
.card { background: #fff; border: 1px solid #d9dfe5; border-radius: 8px; padding: 12px 18px; }
.path { font-size: 12.5px; overflow-wrap: break-word; color: #7b8794; }
.path b { color: #1f2933; font-size: 14px; }
.times { display: inline-block; background: #e4e9ee; color: #3e4c59; border-radius: 9px; padding: 0 7px; font-size: 12px;
         font-family: system-ui, "DejaVu Sans", sans-serif; }
.values { display: flex; flex-wrap: wrap; gap: 12px 30px; align-items: flex-start; }
figure { margin: 0; }
figure > .name { white-space: nowrap; margin-bottom: 3px; }
.name b, .shape b { font-weight: 600; }
.shape { color: #7b8794; }
.states { display: flex; align-items: flex-start; gap: 10px; }
.state small { display: block; color: #7b8794; margin-bottom: 1px; }
.layout { font-size: 11px; color: #3e4c59; margin-top: 3px; }
.layout span { display: block; white-space: nowrap; }
.to { color: #7b8794; padding-top: 26px; font-size: 16px; }
.flow { display: grid; grid-template-columns: 265px minmax(0, 1fr) minmax(0, 1fr); column-gap: 22px; min-height: 12px; }
.flow .line { border-right: 2px solid #b8c2cc; margin-right: 140px; }
.flow .way { display: flex; flex-wrap: wrap; gap: 5px 8px; padding: 6px 0; align-content: center; }
.flow .way:empty { padding: 0; }
.message { display: inline-flex; align-items: center; gap: 7px; border: 1px solid #cfd6dd; border-left: 5px solid #7b8794;
           border-radius: 5px; padding: 1px 9px 1px 7px; font-size: 12px; white-space: nowrap; }
.message .op { font-size: 11.5px; font-weight: 600; }
.message i { font-style: normal; color: #52606d; }
.all_reduce { border-left-color: #d54e50; }
.all_gather { border-left-color: #3e73b0; }
.reduce_scatter { border-left-color: #489852; }
.all_to_all { border-left-color: #a062a4; }
.gathers { margin-top: 10px; display: flex; flex-wrap: wrap; gap: 5px 8px; }
.end { margin-top: 14px; }
.end h2 { font-size: 13px; margin: 0 0 8px; }
</style>
)";

constexpr std::string_view kWords = R"(<div class='words'>
<p>Dims: the first downwards, the last across; of more than two those in bold are drawn. Sides are in proportion, larger
values larger. <b>outer=3</b> a part of each of 3 blocks; of more than 8 blocks 8 are drawn.</p>
<p><b>kept → used</b> where a parameter lies between steps, and what the model computes with.</p>
<p><b>×4</b> so many layers alike, or messages, whose bytes are what a rank sends in all of them; their bar is beside
the largest.</p></div>)";

// What one module has on the page. A module whose parameters are used early and whose output comes late has two.
struct Card {
  std::string path;
  std::vector<const LayerLine*> parameters, outputs;
  std::vector<const Traffic*> gathers;            // of its parameters
  std::vector<const Traffic*> forward, backward;  // of what it reads
};

}  // namespace

static std::string escaped(std::string_view text) {
  std::string made;
  for (const char c : text) switch (c) {
      case '&': made += "&amp;"; break;
      case '<': made += "&lt;"; break;
      case '>': made += "&gt;"; break;
      case '"': made += "&quot;"; break;
      case '\'': made += "&#39;"; break;
      default: made += c;
    }
  return made;
}

static std::string module_of(const LayerLine& line) {
  if (!line.is_parameter) return line.path;
  const auto dot = line.path.rfind('.');
  return dot == std::string::npos ? "" : line.path.substr(0, dot);
}

static std::vector<std::string> modules_of(const Report& report, bool parameters) {
  std::vector<std::string> modules;
  for (const LayerLine& line : report.layers)
    if (line.is_parameter == parameters && std::ranges::find(modules, module_of(line)) == modules.end())
      modules.push_back(module_of(line));
  return modules;
}

// Modules in both lists as far as both have them in one order: a longest common subsequence.
static std::vector<std::string> in_common(const std::vector<std::string>& first,
                                          const std::vector<std::string>& second) {
  std::vector<std::vector<int>> most(first.size() + 1, std::vector<int>(second.size() + 1));
  for (std::size_t i = first.size(); i-- > 0;)
    for (std::size_t j = second.size(); j-- > 0;)
      most[i][j] = first[i] == second[j] ? most[i + 1][j + 1] + 1 : std::max(most[i + 1][j], most[i][j + 1]);
  std::vector<std::string> common;
  for (std::size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    if (first[i] == second[j]) {
      common.push_back(first[i]);
      ++i, ++j;
    } else {
      ++(most[i + 1][j] >= most[i][j + 1] ? i : j);
    }
  }
  return common;
}

static std::vector<Card> cards_of(const Report& report) {
  const std::vector<std::string> having = modules_of(report, true), handing = modules_of(report, false);
  std::vector<Card> cards;
  const auto add = [&](const std::string& module, bool parameters, bool outputs) {
    Card card{.path = module, .parameters = {}, .outputs = {}, .gathers = {}, .forward = {}, .backward = {}};
    for (const LayerLine& line : report.layers) {
      if (module_of(line) != module) continue;
      if (line.is_parameter && parameters) card.parameters.push_back(&line);
      if (!line.is_parameter && outputs) card.outputs.push_back(&line);
    }
    cards.push_back(std::move(card));
  };
  std::size_t i = 0, j = 0;
  for (const std::string& module : in_common(having, handing)) {
    for (; having[i] != module; ++i) add(having[i], true, false);
    for (; handing[j] != module; ++j) add(handing[j], false, true);
    add(module, true, true);
    ++i, ++j;
  }
  for (; i < having.size(); ++i) add(having[i], true, false);
  for (; j < handing.size(); ++j) add(handing[j], false, true);
  return cards;
}

// Gives each card its messages; what is left is of the update, or of no module that has a card.
static std::vector<const Traffic*> deal_out(std::vector<Card>& cards, const Report& report) {
  std::vector<const Traffic*> rest;
  for (const Traffic& traffic : report.traffic) {
    const bool is_gather = traffic.what == "parameters";
    const auto card = std::ranges::find_if(cards, [&](const Card& each) {
      return each.path == traffic.module && !(is_gather ? each.parameters : each.outputs).empty();
    });
    const bool is_dealt = card != cards.end() && traffic.phase != ir::Phase::Update &&
                          (is_gather || traffic.what == "activations");
    if (!is_dealt)
      rest.push_back(&traffic);
    else
      (is_gather                             ? card->gathers
       : traffic.phase == ir::Phase::Forward ? card->forward
                                             : card->backward)
          .push_back(&traffic);
  }
  return rest;
}

static std::string path_html(const std::string& path) {
  if (path.empty()) return "<span class='path'><b>(the model)</b></span>";
  const auto with_breaks = [](std::string_view part) {  // after dots
    std::string text;
    for (const char c : escaped(part)) text += c == '.' ? ".<wbr>" : std::string(1, c);
    return text;
  };
  const auto dot = path.rfind('.', path.ends_with(".*") ? path.size() - 3 : std::string::npos);
  const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
  return concat("<span class='path'>", with_breaks(path.substr(0, begin)), "<b>",
                with_breaks(path.substr(begin)), "</b></span>");
}

static std::string times(std::int64_t count) { return concat(" <span class='times'>×", count, "</span>"); }

static std::string times_if_several(std::int64_t count) { return count > 1 ? times(count) : ""; }

// With those dims that are drawn, if others are not.
static std::string shape_html(const sharding::Shape& shape, const std::vector<std::size_t>& drawn) {
  std::string text;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const bool is_strong = shape.size() > 2 && std::ranges::find(drawn, dim) != drawn.end();
    text += concat(dim == 0 ? "" : ", ", is_strong ? "<b>" : "", shape[dim], is_strong ? "</b>" : "");
  }
  return concat("<span class='shape'>[", text, "]</span>");
}

static std::string layout_html(const Mesh& mesh, const Layout& layout) {
  std::string text;
  for (const std::string& placement : placements_text(mesh, layout))
    text += concat("<span>", escaped(placement), " </span>");
  return concat("<div class='layout'>", text.empty() ? "<span>whole</span>" : text, "</div>");
}

namespace {

struct Page {
  const Mesh& mesh;
  Painter painter;
  std::int64_t most_bytes = 1;  // of a message

  std::string state(std::string_view name, const Layout& layout, const LayerLine& line,
                    const std::vector<std::size_t>& dims) const {
    return concat("<div class='state'>", name.empty() ? "" : concat("<small>", name, "</small>"),
                  painter.picture(layout, line.shape, dims), layout_html(mesh, layout), "</div>");
  }

  std::string figure(const LayerLine& line, std::string_view name, std::int64_t times_of_card) const {
    const auto dims = drawn_dims(line.shape, {line.used, line.kept});
    const bool is_kept_apart = line.kept != line.used;
    return concat("<figure><div class='name'>", name.empty() ? "" : concat("<b>", escaped(name), "</b> "),
                  shape_html(line.shape, dims), line.count() == times_of_card ? "" : times(line.count()),
                  "</div><div class='states'>",
                  is_kept_apart ? state("kept", line.kept, line, dims) + "<div class='to'>→</div>" : "",
                  state(is_kept_apart ? "used" : "", line.used, line, dims), "</div></figure>");
  }

  std::string message(const Traffic& traffic, std::string_view what) const {
    const double share = 100 * static_cast<double>(traffic.bytes) / static_cast<double>(most_bytes);
    char bar[96];
    std::snprintf(bar, sizeof bar, "background:linear-gradient(to right,#dbe5ef %.1f%%,#fff %.1f%%)", share,
                  share);
    return concat("<span class='message ", escaped(traffic.op), "' style='", bar, "'><i>", what,
                  "</i><span class='op'>", escaped(traffic.op), "</span><i>over</i>", escaped(traffic.axis),
                  "<b>", human_bytes(traffic.bytes), "</b>", times_if_several(traffic.count), "</span>");
  }

  std::string messages(const std::vector<const Traffic*>& all, std::string_view arrow) const {
    std::string text;
    for (const Traffic* each : all) text += message(*each, arrow);
    return text;
  }

  std::string card(const Card& card) const {
    std::int64_t count = 0;
    for (const auto* lines : {&card.parameters, &card.outputs})
      for (const LayerLine* line : *lines) count = std::max(count, line->count());
    std::string parameters, outputs, gathers;
    for (const LayerLine* line : card.parameters)
      parameters += figure(*line, line->path.substr(line->path.rfind('.') + 1), count);
    for (const LayerLine* line : card.outputs) outputs += figure(*line, "", count);
    for (const Traffic* each : card.gathers)
      gathers += message(*each, each->phase == ir::Phase::Forward ? "for forward" : "for backward");
    if (!gathers.empty()) gathers = concat("<div class='gathers'>", gathers, "</div>");
    return concat("<section class='row card'><div>", path_html(card.path), times_if_several(count),
                  "</div><div><div class='values'>", parameters, "</div>", gathers,
                  "</div><div class='values'>", outputs, "</div></section>\n");
  }

  // Between a card and the next one.
  std::string flow(const Card* above, const Card* below) const {
    return concat("<div class='flow'><div class='line'></div><div class='way'>",
                  below == nullptr ? "" : messages(below->forward, "↓ forward"), "</div><div class='way'>",
                  above == nullptr ? "" : messages(above->backward, "↑ backward"), "</div></div>\n");
  }
};

}  // namespace

static std::string facts_of(const Mesh& mesh, const Report& report) {
  std::int64_t bytes = 0;
  for (const Traffic& traffic : report.traffic) bytes += traffic.bytes;
  Mesh axes = mesh;
  std::erase_if(axes.axes, [](const sharding::Axis& axis) { return axis.size == 1; });
  std::string text = concat("<div class='facts'><span>mesh <b>", escaped(to_text(axes)),
                            "</b></span><span>a rank sends <b>", human_bytes(bytes), "</b> in a step</span>");
  for (const AxisShare& share : report.shares)
    text += concat("<span>split along ", escaped(share.axis), ": <b>", percent(share.flops),
                   "</b> of the flops, <b>", percent(share.parameter_bytes), "</b> of the parameters</span>");
  return text + "</div>\n";
}

static std::string sample(const Painter& painter, const Layout& layout, std::string_view words) {
  return concat("<div>", painter.picture(layout, {64, 96}, {0, 1}), "<p>", words, "</p></div>");
}

static std::string legend_of(const Mesh& mesh, const Painter& painter, std::string_view pipeline_axis) {
  std::string text = concat("<div class='legend'>");
  if (const std::string ranks = painter.ranks(); !ranks.empty())
    text += concat("<div class='ranks'>", ranks, "<p>a colour for each rank",
                   painter.has_all_ranks() ? "" : "; of more than 8<br>of an axis, 8 stand for all",
                   "</p></div>");
  const Layout whole = sharding::replicated(mesh);
  std::string inner;
  for (std::size_t axis = mesh.axes.size(); axis-- > 0;) {
    if (mesh.axes[axis].size == 1 || mesh.axes[axis].name == pipeline_axis) continue;
    Layout cut = whole, summands = whole;
    cut.placements[axis] = sharding::Shard{.dim = 0};
    summands.placements[axis] = sharding::Partial{};
    const std::string name = escaped(mesh.axes[axis].name);
    if (inner.empty())
      text += sample(painter, summands, "<b>P(sum)</b> each rank has a summand of the whole");
    text += sample(painter, cut,
                   concat("<b>", name, "=S(0)</b> cut in dim 0",
                          inner.empty() ? "" : concat(", each part is on all ranks of ", inner)));
    if (inner.empty()) inner = name;
  }
  return concat(text, sample(painter, whole, "<b>whole</b> each rank has all of it"), kWords, "</div>\n");
}

static std::string rest_html(const Page& page, const std::vector<const Traffic*>& rest) {
  std::string text;
  for (const Traffic* each : rest)
    text += page.message(*each, concat(escaped(each->what), " in ", ir::name_of(each->phase)));
  return text.empty() ? ""
                      : concat(
                            "<section class='card end'><h2>gradients, the update, and what is of no one "
                            "layer</h2><div class='values' style='gap:6px 8px'>",
                            text, "</div></section>\n");
}

std::string report_html(const Mesh& mesh, const Report& report, std::string_view title,
                        std::string_view pipeline_axis) {
  Page page{.mesh = mesh, .painter = Painter(mesh, pipeline_axis)};
  for (const Traffic& traffic : report.traffic) page.most_bytes = std::max(page.most_bytes, traffic.bytes);
  std::vector<Card> cards = cards_of(report);
  const std::vector<const Traffic*> rest = deal_out(cards, report);
  std::string text = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>", escaped(title), "</title>\n",
      kStyle, "<main>\n", page.painter.patterns(), "<h1>", escaped(title), "</h1>\n", facts_of(mesh, report),
      legend_of(mesh, page.painter, pipeline_axis),
      "<div class='row heads'><div>layer</div><div>parameters</div><div>what it hands on</div></div>\n");
  for (std::size_t i = 0; i < cards.size(); ++i) {
    if (i > 0 || !cards[i].forward.empty()) text += page.flow(i > 0 ? &cards[i - 1] : nullptr, &cards[i]);
    text += page.card(cards[i]);
  }
  if (!cards.empty() && !cards.back().backward.empty()) text += page.flow(&cards.back(), nullptr);
  if (cards.empty()) text += "<p>One rank has all of everything.</p>\n";
  return concat(text, rest_html(page, rest), "</main>\n</html>\n");
}

}  // namespace shoal::rewrite
