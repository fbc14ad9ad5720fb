// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/report_diff.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/rewrite/report_words.h"

namespace shoal::rewrite {

namespace {

constexpr std::size_t kLine = 120;

// A parameter or output as one plan has it.
struct Laid {
  std::string shape, layouts;
  friend bool operator==(const Laid&, const Laid&) = default;
};

// Layers that differ alike.
struct LayerRow {
  std::string path;
  std::int64_t count = 0;
  std::optional<Laid> a, b;  // nullopt: that plan's step has none
};

using TrafficKey = std::tuple<std::string, ir::Phase, std::string, std::string, std::string>;

struct Sent {
  std::int64_t count = 0, bytes = 0;
  friend bool operator==(Sent, Sent) = default;
};

struct Total {
  std::string name, a, b, difference;
};

}  // namespace

// All of both, each once: what only the second has comes after what it follows there.
template <class Key>
static std::vector<Key> merged(const std::vector<Key>& first, const std::vector<Key>& second) {
  std::vector<Key> all = first;
  const std::set<Key> known(first.begin(), first.end());
  auto at = all.begin();
  for (const Key& key : second)
    at = std::next(known.contains(key) ? std::ranges::find(all, key) : all.insert(at, key));
  return all;
}

namespace {
struct Placings {
  std::vector<std::string> paths;  // as the step comes to them
  std::map<std::string, Laid> of;
};
}  // namespace

static Placings placings_of(const ComparedPlan& plan, bool parameters) {
  Placings found;
  for (const LayerLine& line : plan.report.layers) {
    if (line.is_parameter != parameters) continue;
    for (const std::string& path : line.paths) {
      found.paths.push_back(path);
      found.of[path] = {shape_text(line.shape), layouts_text(plan.mesh, line)};
    }
  }
  return found;
}

static std::vector<LayerRow> layer_rows(const ComparedPlan& a, const ComparedPlan& b, bool parameters) {
  const Placings in_a = placings_of(a, parameters), in_b = placings_of(b, parameters);
  const auto placing = [](const Placings& in, const std::string& path) -> std::optional<Laid> {
    const auto found = in.of.find(path);
    return found == in.of.end() ? std::nullopt : std::optional(found->second);
  };
  std::vector<LayerRow> rows;
  for (const std::string& path : merged(in_a.paths, in_b.paths)) {
    LayerRow row{.path = folded(path), .a = placing(in_a, path), .b = placing(in_b, path)};
    if (row.a == row.b) continue;
    const auto known = std::ranges::find_if(rows, [&](const LayerRow& other) {
      return other.path == row.path && other.a == row.a && other.b == row.b;
    });
    (known == rows.end() ? rows.emplace_back(std::move(row)) : *known).count += 1;
  }
  return rows;
}

static std::string name_of(const LayerRow& row) {
  return concat("  ", row.path.empty() ? "(the model)" : row.path,
                row.count > 1 ? concat(" x", row.count) : "");
}

// Both in one line where all lines of the table have room for that, else one below the other.
static std::string layers_text(std::string_view title, const std::vector<LayerRow>& rows) {
  if (rows.empty()) return "";
  std::size_t names = title.size() + 2, shapes = 0, first = 0, second = 0;
  const auto shape_of = [](const LayerRow& row) { return row.a ? row.a->shape : row.b->shape; };
  const auto a_of = [](const LayerRow& row) { return row.a ? row.a->layouts : "-"; };
  const auto b_of = [](const LayerRow& row) {
    if (!row.b) return std::string("-");
    return row.a && row.a->shape != row.b->shape ? concat(row.b->shape, " ", row.b->layouts) : row.b->layouts;
  };
  for (const LayerRow& row : rows) {
    names = std::max(names, name_of(row).size() + 2);
    shapes = std::max(shapes, shape_of(row).size() + 2);
    first = std::max(first, a_of(row).size() + 2);
    second = std::max(second, b_of(row).size());
  }
  const bool side_by_side = names + shapes + first + second <= kLine;
  std::string text = padded(std::string(title), names + shapes);
  text += side_by_side ? concat(padded("A", first), "B\n") : "\n";
  for (const LayerRow& row : rows) {
    const std::string begin = padded(name_of(row), names) + padded(shape_of(row), shapes);
    text += side_by_side ? concat(begin, padded(a_of(row), first), b_of(row), '\n')
                         : concat(begin, "A  ", a_of(row), '\n', std::string(begin.size(), ' '), "B  ",
                                  b_of(row), '\n');
  }
  return text;
}

static std::string signed_bytes(std::int64_t bytes) {
  return bytes == 0 ? "" : concat(bytes < 0 ? "-" : "+", human_bytes(std::abs(bytes)));
}

static std::string text_of(Sent sent) {
  return sent.count == 0 ? "-" : padded(concat('x', sent.count), 6) + human_bytes(sent.bytes);
}

static std::string traffic_rows(const ComparedPlan& a, const ComparedPlan& b) {
  std::vector<TrafficKey> keys_of_a, keys_of_b;
  std::map<TrafficKey, Sent> in_a, in_b;
  const auto add = [](const Report& report, auto& keys, auto& sent) {
    for (const Traffic& each : report.traffic) {
      keys.emplace_back(each.what, each.phase, each.op, each.axis, each.module);
      sent[keys.back()] = {each.count, each.bytes};
    }
  };
  add(a.report, keys_of_a, in_a);
  add(b.report, keys_of_b, in_b);
  std::string text;
  for (const TrafficKey& key : merged(keys_of_a, keys_of_b)) {
    const Sent of_a = in_a[key], of_b = in_b[key];
    if (of_a == of_b) continue;
    const auto& [what, phase, op, axis, module] = key;
    text += concat(padded("  " + what, 14), padded(std::string(ir::name_of(phase)), 9), padded(op, 15),
                   padded(axis, 10), padded(text_of(of_a), 16), padded(text_of(of_b), 16),
                   padded(signed_bytes(of_b.bytes - of_a.bytes), 12), module);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  if (text.empty()) return text;
  return concat(padded("collectives of a step, bytes that a rank sends:", 48), padded("A", 16),
                padded("B", 16), "B - A\n", text);
}

static std::string settings_rows(const ComparedPlan& a, const ComparedPlan& b) {
  std::string text;
  const auto add = [&](char name, const ComparedPlan& of, const ComparedPlan& other) {
    for (const std::string& line : of.settings)
      if (std::ranges::find(other.settings, line) == other.settings.end())
        text += concat("  ", name, "  ", line, '\n');
  };
  add('A', a, b);
  add('B', b, a);
  return text.empty() ? "" : "other lines of the plans:\n" + text;
}

static Total of_bytes(std::string name, std::int64_t a, std::int64_t b) {
  char share[32] = "";
  if (a > 0 && a != b)
    std::snprintf(share, sizeof share, "  (%+.2f %%)",
                  100 * static_cast<double>(b - a) / static_cast<double>(a));
  return {std::move(name), human_bytes(a), human_bytes(b), signed_bytes(b - a) + share};
}

static Total of_share(std::string name, std::optional<double> a, std::optional<double> b) {
  Total total{std::move(name), a ? percent(*a) : "-", b ? percent(*b) : "-", ""};
  char text[32];
  if (a && b && total.a != total.b) {
    std::snprintf(text, sizeof text, "%+.2f points", 100 * (*b - *a));
    total.difference = text;
  }
  return total;
}

static std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f ms", 1e3 * seconds);
  return text;
}

static std::vector<Total> totals_of(const ComparedPlan& a, const ComparedPlan& b) {
  const auto sent = [](const ComparedPlan& plan) {
    std::int64_t bytes = 0;
    for (const Traffic& each : plan.report.traffic) bytes += each.bytes;
    return bytes;
  };
  std::vector<Total> totals = {of_bytes("bytes that a rank sends", sent(a), sent(b))};
  std::vector<std::string> axes_of_a, axes_of_b;
  for (const AxisShare& share : a.report.shares) axes_of_a.push_back(share.axis);
  for (const AxisShare& share : b.report.shares) axes_of_b.push_back(share.axis);
  const auto share = [](const ComparedPlan& plan, const std::string& axis,
                        double AxisShare::* part) -> std::optional<double> {
    const auto found = std::ranges::find(plan.report.shares, axis, &AxisShare::axis);
    return found == plan.report.shares.end() ? std::nullopt : std::optional((*found).*part);
  };
  for (const std::string& axis : merged(axes_of_a, axes_of_b))
    for (const auto& [name, part] : {std::pair("flops split along ", &AxisShare::flops),
                                     {"parameters' bytes split along ", &AxisShare::parameter_bytes}})
      totals.push_back(of_share(name + axis, share(a, axis, part), share(b, axis, part)));
  totals.push_back(of_bytes("memory of a rank, at most", a.memory, b.memory));
  if (a.seconds && b.seconds) {
    char text[64] = "";
    if (milliseconds(*a.seconds) != milliseconds(*b.seconds))
      std::snprintf(text, sizeof text, "%+.3f ms  (%+.2f %%)", 1e3 * (*b.seconds - *a.seconds),
                    100 * (*b.seconds / *a.seconds - 1));
    totals.push_back({"time of a step, simulated", milliseconds(*a.seconds), milliseconds(*b.seconds), text});
  }
  return totals;
}

static std::string to_text(const std::vector<Total>& totals) {
  std::string text = concat(padded("totals of a step:", 48), padded("A", 16), padded("B", 16), "B - A\n");
  for (const auto& [name, a, b, difference] : totals) {
    text += concat(padded("  " + name, 48), padded(a, 16), padded(b, 16), difference);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::string diff_text(const ComparedPlan& a, const ComparedPlan& b) {
  std::string text;
  const std::size_t width = std::max(a.name.size(), b.name.size()) + 2;
  for (const auto& [name, plan] : {std::pair("A  ", &a), {"B  ", &b}})
    text += concat(name, padded(plan->name, width), to_text(plan->mesh), '\n');
  const std::string differences =
      layers_text("parameters, as they are kept -> as they are used:", layer_rows(a, b, true)) +
      layers_text("outputs of modules:", layer_rows(a, b, false)) + traffic_rows(a, b) + settings_rows(a, b);
  const std::vector<Total> totals = totals_of(a, b);
  const bool are_alike = differences.empty() && a.mesh == b.mesh &&
                         std::ranges::all_of(totals, [](const Total& total) { return total.a == total.b; });
  return text + (are_alike ? "the plans are alike\n" : differences + to_text(totals));
}

}  // namespace shoal::rewrite
