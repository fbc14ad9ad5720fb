// SPDX-License-Identifier: Apache-2.0
// Programs as text and back; types and arguments are written as in graphs (ir/text.h).
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ir/reader.h"
#include "shoal/ir/text.h"
#include "shoal/program/program.h"

namespace shoal::program {

static constexpr std::string_view kWeights = "weights";  // of backward's second part

static std::string text_of(Slot slot) { return '%' + std::to_string(slot.index); }

static std::string text_of(const Program& program, const Compute& compute) {
  std::string out = compute.outputs.empty() ? "()" : "";
  for (const auto& output : compute.outputs) {
    if (!out.empty()) out += ", ";
    out += output ? text_of(*output) + " : " + ir::to_text(program.types.at(output->index)) : "_";
  }
  out += " = " + ir::word_or_quoted(compute.op) + '(';
  std::string_view before;
  for (const auto& argument : compute.arguments) {
    out += before;
    out += ir::to_text(argument);
    before = ", ";
  }
  out += ')';
  if (compute.over) out += " over " + text_of(*compute.over);
  if (!compute.module.empty()) out += ' ' + in_quotes(compute.module);
  return out;
}

static std::string text_of(const Program&, const Copy& copy) {
  return "copy " + text_of(copy.from) + " to " + text_of(copy.to);
}

static std::string text_of(std::string_view word, const std::vector<Slot>& slots) {
  std::string out(word);
  for (const Slot slot : slots) out += ' ' + text_of(slot);
  return out;
}
static std::string text_of(const Program&, const Free& free) { return text_of("free", free.slots); }
static std::string text_of(const Program&, const Wait& wait) { return text_of("wait", wait.slots); }

std::string to_text(const Program& program, const Instruction& instruction) {
  return std::visit([&](const auto& one) { return text_of(program, one); }, instruction);
}

std::string to_text(const Program& program) {
  std::string out;
  for (const auto& source : program.sources)
    out += "source " + text_of(source.slot) + ' ' + std::string(ir::name_of(source.role)) + ' ' +
           in_quotes(source.name) + (source.is_offloaded ? " offloaded : " : " : ") +
           ir::to_text(program.types.at(source.slot.index)) + '\n';
  for (const Segment& segment : program.segments) {
    out += segment.is_weights ? kWeights : ir::name_of(segment.phase);
    if (segment.stage != 0) out += " " + std::to_string(segment.stage);
    out += ":\n";
    for (const auto& instruction : segment.instructions) out += to_text(program, instruction) + '\n';
  }
  out += "return";
  std::string_view before = " ";
  for (const auto& result : program.results) {
    out += before;
    out += std::string(ir::name_of(result.role)) + ' ' + in_quotes(result.name) + ' ' + text_of(result.slot);
    before = ", ";
  }
  return out + '\n';
}

namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}

  Program program() {
    while (in_.next_is("source")) source();
    while (!in_.next_is("return")) {
      if (begins_segment())
        segment();
      else if (program_.segments.empty())
        in_.fail_here("'forward', 'backward' or 'update'");
      else
        program_.segments.back().instructions.push_back(instruction());
    }
    in_.expect_word("return");
    for (bool more = !in_.at_end(); more; more = in_.take(",")) {
      const auto role = in_.named(ir::parse_role, "a role");
      std::string name = in_.string();
      program_.results.push_back({role, std::move(name), slot()});
    }
    if (!in_.at_end()) in_.fail_here("the end of the text");
    for (const auto& [slot, where] : read_)
      if (slot.index >= filled_.size() || !filled_[slot.index])
        in_.fail_at(where, "a slot that the text fills", text_of(slot));
    return std::move(program_);
  }

 private:
  bool begins_segment() {
    return in_.next_is("forward") || in_.next_is("backward") || in_.next_is(kWeights) ||
           in_.next_is("update");
  }

  // A word, a number perhaps, and a colon, which may be part of the word to the reader.
  void segment() {
    Segment segment;
    for (const auto phase : {ir::Phase::Forward, ir::Phase::Backward, ir::Phase::Update})
      if (in_.next_is(ir::name_of(phase))) segment.phase = phase;
    segment.is_weights = in_.next_is(kWeights);
    if (segment.is_weights) segment.phase = ir::Phase::Backward;
    in_.expect(segment.is_weights ? kWeights : ir::name_of(segment.phase));
    if (!in_.next_is(":")) {
      const std::size_t where = in_.where();
      const std::int64_t stage = in_.integer();
      if (stage < 1 || stage > kLargest)
        in_.fail_at(where, concat("a stage from 1 to ", kLargest), concat(stage));
      segment.stage = static_cast<int>(stage);
    }
    in_.expect(":");
    program_.segments.push_back(std::move(segment));
  }

  Slot slot() {
    in_.expect("%");
    const std::size_t where = in_.where();
    const std::int64_t index = in_.integer();
    if (index < 0 || index > kLargest) in_.fail_at(where, concat("a slot up to ", kLargest), concat(index));
    read_.emplace_back(Slot{static_cast<std::uint32_t>(index)}, where);
    return read_.back().first;
  }

  void source() {
    in_.expect_word("source");
    const Slot named = slot();
    const auto role = in_.named(ir::parse_role, "a role such as parameter or input");
    std::string name = in_.string();
    const bool is_offloaded = in_.next_is("offloaded");
    if (is_offloaded) in_.expect_word("offloaded");
    in_.expect(":");
    fill(named);
    program_.sources.push_back({named, role, std::move(name), is_offloaded});
  }

  void fill(Slot filled) {
    const std::size_t size = std::max<std::size_t>(program_.types.size(), filled.index + std::size_t{1});
    program_.types.resize(size);
    filled_.resize(size);
    filled_[filled.index] = true;
    program_.types[filled.index] = ir::read_type(in_);
  }

  Instruction instruction() {
    if (in_.next_is("copy")) {
      in_.expect_word("copy");
      const Slot from = slot();
      in_.expect_word("to");
      return Copy{from, slot()};
    }
    if (in_.next_is("free")) return Free{slots_after("free")};
    if (in_.next_is("wait")) return Wait{slots_after("wait")};
    return compute();
  }

  // The next line may begin with the slot that it fills: those are followed by a colon.
  std::vector<Slot> slots_after(std::string_view word) {
    in_.expect_word(word);
    std::vector<Slot> slots;
    do slots.push_back(slot());
    while (in_.next_is("%") && !next_fills());
    return slots;
  }

  bool next_fills() {
    const std::size_t where = in_.where();
    in_.expect("%");
    in_.integer();
    const bool fills = in_.next_is(":");
    in_.go_back(where);
    return fills;
  }

  Compute compute() {
    Compute compute;
    if (in_.take("(")) {
      in_.expect(")");
    } else {
      do {
        if (in_.next_is_underscore()) {
          in_.expect("_");
          compute.outputs.emplace_back();
          continue;
        }
        compute.outputs.emplace_back(slot());
        in_.expect(":");
        fill(*compute.outputs.back());
      } while (in_.take(","));
    }
    in_.expect("=");
    compute.op = in_.word_or_string("an op such as aten::mm");
    in_.expect("(");
    for (bool more = !in_.take(")"); more;) {
      std::string name = in_.word_or_string("the name of an argument");
      in_.expect("=");
      compute.arguments.push_back({std::move(name), ir::read_attribute(in_, [this] { return slot(); })});
      more = in_.take(",");
      if (!more) in_.expect(")");
    }
    if (in_.next_is("over")) {
      in_.expect_word("over");
      compute.over = slot();
    }
    if (in_.next_is("\"")) compute.module = in_.string();
    return compute;
  }

  static constexpr std::int64_t kLargest =
      1 << 24;  // types are held by slot: a slip of the pen may not fill the memory

  ir::Reader in_;
  Program program_;
  std::vector<bool> filled_;
  std::vector<std::pair<Slot, std::size_t>> read_;
};

}  // namespace

Program from_text(std::string_view text) { return Parser(text).program(); }

}  // namespace shoal::program
