// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/stretches.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "shoal/ir/flops.h"
#include "shoal/ir/own_ops.h"
#include "shoal/ir/views.h"
#include "shoal/program/aliases.h"
#include "shoal/program/lenders.h"
#include "shoal/program/memory.h"
#include "shoal/program/program.h"
#include "shoal/rewrite/transfer.h"

namespace shoal::compile {

using ir::Phase;
using ir::ValueId;

double time_of(const ir::Graph& graph, const ir::Node& node) {
  if (ir::is_view(node.op) || rewrite::is_transfer(node)) return 0;
  constexpr double kFlops = 10;    // in the time of a byte, of a processor as of an accelerator
  constexpr double kDraw = 16;     // a random number takes ten rounds of multiplications
  constexpr double kFunction = 3;  // of a number that is a long series
  constexpr double kFile = 4;      // what is written to a file is written to a disk, too
  constexpr std::array kFunctions =
      std::to_array<std::string_view>({"aten::exp", "aten::gelu", "aten::sigmoid", "aten::tanh"});
  const ir::OwnOp* own = ir::find_own_op(node.op);
  const bool draws = own != nullptr && own->kind == ir::OwnOp::Kind::Random;
  double bytes = 0;
  for (const ValueId input : ir::inputs_of(node))
    bytes += static_cast<double>(ir::bytes_of(graph.at(input).type));
  for (const auto& output : node.outputs)
    if (output) bytes += static_cast<double>(ir::bytes_of(graph.at(*output).type)) * (draws ? kDraw : 1);
  if (std::ranges::find(kFunctions, node.op) != kFunctions.end()) bytes *= kFunction;
  if (node.op == "shoal::to_file") bytes *= kFile;
  return ir::flops_of(graph, node) / kFlops + bytes;
}

// What a program has of activations at each node that makes something, by the first value that it makes.
static std::map<ValueId, program::MemoryUse> uses_of(const ir::Graph& local) {
  const program::Program program = program::lower(local);
  const program::Memory memory = program::memory_of(program, 1);
  std::map<ValueId, program::MemoryUse> uses;
  for (std::size_t segment = 0; segment < program.segments.size(); ++segment) {
    std::size_t at = 0;
    for (const auto& instruction : program.segments[segment].instructions) {
      if (std::holds_alternative<program::Free>(instruction)) continue;
      const program::MemoryUse& use = memory.activations[segment][at++];
      if (const auto* compute = std::get_if<program::Compute>(&instruction))
        for (const auto& output : compute->outputs)
          if (output) uses.emplace(*output, use);
    }
  }
  return uses;
}

// What the node may write over, if it dies there.
static std::vector<ValueId> lenders_in(const ir::Graph& local, const ir::Node& node) {
  std::vector<ValueId> values;
  for (const std::string_view name : program::lenders_of(node.op)) {
    const ir::Attribute* const argument = name.empty() ? nullptr : ir::find(node, name);
    const auto* const value = argument == nullptr ? nullptr : std::get_if<ValueId>(argument);
    if (value != nullptr && node.outputs.size() == 1 && node.outputs[0] &&
        local.at(*value).type == local.at(*node.outputs[0]).type)
      values.push_back(*value);
  }
  return values;
}

Stretches::Stretches(const ir::Graph& local, bool gathers_again) : num_values_(local.values.size()) {
  const auto owners = ir::memory_owners(local);
  const auto may_drop = rewrite::droppable(local, gathers_again, false);
  const auto uses = uses_of(local);
  std::vector<std::optional<std::size_t>> item_of(num_values_);
  std::vector<program::MemoryUse> of_rows, of_moments;  // of all that is live
  const auto use_of = [&](const ir::Node& node) {
    for (const auto& output : node.outputs)
      if (output)
        if (const auto found = uses.find(*output); found != uses.end()) return found->second;
    return program::MemoryUse{};
  };
  for (const ir::Node& node : local.nodes) {
    if (ir::is_view(node.op)) continue;
    std::vector<std::size_t> in;
    for (const ValueId input : ir::inputs_of(node))
      if (const auto& item = item_of[owners[input.index].index]) in.push_back(*item);
    std::ranges::sort(in);
    in.erase(std::ranges::unique(in).begin(), in.end());
    if (node.phase == Phase::Forward && moments_.empty()) {
      Row row = {.in = in, .out = {}, .lenders = {}, .work = time_of(local, node)};
      for (const ValueId lender : lenders_in(local, node))
        if (const auto& item = item_of[lender.index]) row.lenders.push_back(*item);
      for (const std::size_t item : in) items_[item].used = rows_.size();
      for (const auto& output : node.outputs) {
        if (!output) continue;
        item_of[output->index] = items_.size();
        row.out.push_back(items_.size());
        items_.push_back({.value = *output,
                          .bytes = program::storage_bytes(local.at(*output).type),
                          .born = rows_.size(),
                          .used = rows_.size(),
                          .reads = {},
                          .may_drop = may_drop[output->index],
                          .is_gathered = may_drop[output->index] && rewrite::is_transfer(node)});
      }
      rows_.push_back(std::move(row));
      of_rows.push_back(use_of(node));
    } else if (node.phase == Phase::Backward) {
      for (const std::size_t item : in) items_[item].reads.push_back(moments_.size());
      moments_.emplace_back();
      of_moments.push_back(use_of(node));
    } else {
      for (const std::size_t item : in) items_[item].may_drop = false;
    }
  }
  // What is live beside items that are kept.
  std::int64_t kept = 0;
  for (std::size_t row = 0, item = 0; row < rows_.size(); ++row) {
    for (; item < items_.size() && items_[item].born == row; ++item)
      if (items_[item].is_kept()) kept += items_[item].bytes;
    rows_[row].beside = of_rows[row].peak - kept;
  }
  std::vector<std::vector<std::size_t>> ends(moments_.size());
  for (std::size_t item = 0; item < items_.size(); ++item)
    if (items_[item].is_kept()) ends[items_[item].reads.back()].push_back(item);
  for (std::size_t at = 0; at < moments_.size(); ++at) {
    moments_[at].kept = kept;
    moments_[at].running = of_moments[at].peak - kept;
    moments_[at].before = (at == 0 ? of_rows.back() : of_moments[at - 1]).after - kept;
    for (const std::size_t item : ends[at]) kept -= items_[item].bytes;
  }
  std::size_t newest = 0;
  for (std::size_t at = moments_.size(); at-- > 0;) {
    for (const std::size_t item : ends[at]) newest = std::max(newest, items_[item].born);
    moments_[at].newest = newest;
  }
  constexpr std::size_t kMostOptions = 80'000;
  longest_ = std::max<std::size_t>(40, kMostOptions / std::max<std::size_t>(rows_.size(), 1));
  options_.resize(rows_.size());
}

std::size_t Stretches::first_item(std::size_t row) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(items_, row, {}, &Item::born) - items_.begin());
}

std::vector<bool> Stretches::goes(std::size_t begin, std::size_t end) const {
  const std::size_t first = first_item(begin);
  std::vector<bool> go(first_item(end) - first);
  for (std::size_t row = begin; row < end; ++row) {
    const auto may_go = [&](std::size_t item) {
      const Item& of = items_[item];
      return of.is_gathered || (end - begin > 1 && of.may_drop && of.used < end);
    };
    // A node is not run again for what it makes beside something that is kept for the next stretch.
    const bool stays = std::ranges::any_of(rows_[row].out, [&](std::size_t item) {
      return items_[item].is_kept() && items_[item].may_drop && items_[item].used >= end;
    });
    for (const std::size_t item : rows_[row].out) go[item - first] = !stays && may_go(item);
  }
  return go;
}

namespace {
// From when to when something is live, in events.
struct Life {
  std::optional<std::size_t> begin;
  std::size_t end = 0;
};
}  // namespace

Stretches::Option Stretches::option(std::size_t begin, std::size_t end) const {
  const std::vector<bool> go = goes(begin, end);
  const std::size_t first = first_item(begin);
  const auto is_going = [&](std::size_t item) {
    return item >= first && item - first < go.size() && go[item - first];
  };
  std::vector<std::pair<std::size_t, std::size_t>> wanted;  // moment, item
  for (std::size_t i = 0; i < go.size(); ++i)
    if (go[i] && items_[first + i].is_kept())
      for (const std::size_t moment : items_[first + i].reads) wanted.emplace_back(moment, first + i);
  std::ranges::sort(wanted);
  Option option = {.is_choice = end - begin == 1 || !wanted.empty()};
  if (!option.is_choice) return option;

  // The moments in which its values are the youngest that are there, or in which copies are.
  const auto until = [&](std::size_t row) {
    return static_cast<std::size_t>(
        std::ranges::partition_point(moments_, [&](const Moment& at) { return at.newest >= row; }) -
        moments_.begin());
  };
  std::size_t low = until(end), high = begin == 0 ? moments_.size() : until(begin);
  if (!wanted.empty()) {
    low = std::min(low, wanted.front().first);
    high = std::max(high, wanted.back().first + 1);
  }
  std::vector<std::int64_t> live;                           // by event: a copy, or a moment
  std::vector<Life> lives(go.size());                       // of copies
  std::vector<std::optional<std::size_t>> lent(go.size());  // the event of the last copy that may take it
  std::map<std::size_t, std::size_t> read_by_copies;        // items that are kept, the last event
  std::vector<std::size_t> event_of(high - low);
  const auto make = [&](const auto& self, std::size_t row, std::int64_t beside) -> void {
    for (const std::size_t item : rows_[row].in)
      if (is_going(item) && !lives[item - first].begin) self(self, items_[item].born, beside);
    const std::size_t event = live.size();
    live.push_back(beside);
    for (const std::size_t item : rows_[row].in) {
      if (is_going(item))
        lives[item - first].end = event;
      else if (!items_[item].is_gathered)
        read_by_copies[item] = event;
    }
    for (const std::size_t item : rows_[row].lenders)
      if (is_going(item)) lent[item - first] = event;
    for (const std::size_t item : rows_[row].out) lives[item - first] = {event, event};
    option.work += rows_[row].work;
  };
  auto next = wanted.begin();
  for (std::size_t moment = low; moment < high; ++moment) {
    const auto these = next;
    for (; next != wanted.end() && next->first == moment; ++next)
      if (!lives[next->second - first].begin) make(make, items_[next->second].born, moments_[moment].before);
    const std::size_t event = event_of[moment - low] = live.size();
    live.push_back(moments_[moment].running);
    for (auto at = these; at != next; ++at) lives[at->second - first].end = event;
  }

  std::vector<std::int64_t> change(live.size() + 1);
  const auto lies = [&](std::int64_t bytes, std::size_t from, std::size_t to) {
    change[from] += bytes;
    change[to + 1] -= bytes;
  };
  for (std::size_t i = 0; i < go.size(); ++i)
    if (lives[i].begin)
      lies(items_[first + i].bytes, *lives[i].begin, lives[i].end - (lent[i] == lives[i].end ? 1 : 0));
  const auto keep = [&](std::size_t item, std::optional<std::size_t> last) {
    const Item& of = items_[item];
    option.kept += of.bytes;
    if (of.is_kept() && of.reads.back() >= low)
      last = std::max(last.value_or(0),
                      of.reads.back() < high ? event_of[of.reads.back() - low] : live.size() - 1);
    if (last && !live.empty()) lies(of.bytes, 0, *last);
  };
  for (std::size_t i = 0; i < go.size(); ++i) {
    const auto read = read_by_copies.find(first + i);
    if (go[i] || (!items_[first + i].is_kept() && read == read_by_copies.end())) continue;
    keep(first + i, read == read_by_copies.end() ? std::nullopt : std::optional(read->second));
  }
  for (const auto& [item, event] : read_by_copies)  // of before, and not counted there
    if (item < first && !items_[item].is_kept()) keep(item, event);
  std::int64_t sum = 0;
  for (std::size_t event = 0; event < live.size(); ++event)
    option.need = std::max(option.need, live[event] + (sum += change[event]));

  // Forward: what goes lives to its last reader.
  std::int64_t kept = 0;
  for (std::size_t row = begin; row < end; ++row) {
    for (const std::size_t item : rows_[row].out)
      if (items_[item].is_kept()) kept += items_[item].bytes;
    const auto die = [&](bool lends) {
      for (const std::size_t item : rows_[row].in)
        if (is_going(item) && items_[item].is_kept() && items_[item].used == row &&
            lends == (std::ranges::find(rows_[row].lenders, item) != rows_[row].lenders.end()))
          kept -= items_[item].bytes;
    };
    die(true);
    option.need = std::max(option.need, rows_[row].beside + kept);
    die(false);
  }
  return option;
}

const Stretches::Option& Stretches::cached(std::size_t begin, std::size_t end) {
  auto& of = options_[begin];
  if (of.size() < end - begin) of.resize(end - begin);
  auto& found = of[end - begin - 1];
  if (!found) found = option(begin, end);
  return *found;
}

rewrite::Dropped Stretches::dropped(const Cuts& cuts) const {
  rewrite::Dropped dropped(num_values_);
  for (const Item& item : items_)
    if (item.is_gathered) dropped[item.value.index] = true;
  std::size_t begin = 0;
  for (const std::size_t end : cuts) {
    const auto go = goes(begin, end);
    for (std::size_t i = 0; i < go.size(); ++i)
      if (go[i]) dropped[items_[first_item(begin) + i].value.index] = true;
    begin = end;
  }
  return dropped;
}

double Stretches::bound(std::int64_t bytes) const {
  struct Price {
    double of_a_byte;
    const Item* item;
  };
  std::vector<Price> prices;
  for (const Item& item : items_) {
    if (!item.is_kept() || !item.may_drop) continue;
    std::int64_t made = 0;
    for (const std::size_t other : rows_[item.born].out)
      if (items_[other].is_kept()) made += items_[other].bytes;
    prices.push_back({rows_[item.born].work / static_cast<double>(std::max<std::int64_t>(made, 1)), &item});
  }
  std::ranges::sort(prices, {}, &Price::of_a_byte);
  double bound = 0;
  for (std::size_t moment = 0; moment < moments_.size(); ++moment) {
    std::int64_t left = moments_[moment].running + moments_[moment].kept - bytes;
    double work = 0;
    for (const auto& [price, item] : prices) {
      if (left <= 0) break;
      if (item->reads.front() <= moment) continue;  // it is there, or was made again before
      work += price * static_cast<double>(std::min(left, item->bytes));
      left -= item->bytes;
    }
    bound = std::max(bound, work);
  }
  return bound;
}

}  // namespace shoal::compile
