// SPDX-License-Identifier: Apache-2.0
// Where the waits are. An instruction has to wait for a message under way where it looks at what that makes, or
// writes over what that reads or makes; `%7` here is moved to its reader, so that %8 runs beside the message:
//
//   before                                  after
//   %6 = shoal::all_to_all(%5)              %6 = shoal::all_to_all(%5)
//   %7 = shoal::combine(%6)                 %8 = aten::mm(…)
//   %8 = aten::mm(…)                        wait %6
//   %9 = aten::add(%7, %8)                  %7 = shoal::combine(%6)
//                                           %9 = aten::add(%7, %8)
//
// Views look at no element. They may be taken of what is under way.
#include "shoal/program/streams.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/ir/own_ops.h"
#include "shoal/program/aliases.h"

namespace shoal::program {

static const ir::OwnOp* own_op_of(const Instruction& instruction) {
  const auto* compute = std::get_if<Compute>(&instruction);
  return compute == nullptr ? nullptr : ir::find_own_op(compute->op);
}

std::string_view stream_of(const Instruction& instruction) {
  const ir::OwnOp* own = own_op_of(instruction);
  if (own == nullptr || own->kind != ir::OwnOp::Kind::Message) return {};
  const auto& compute = std::get<Compute>(instruction);
  if (compute.outputs.empty()) return {};
  const auto axis = std::ranges::find(compute.arguments, "axis", &ir::Argument::name);
  const auto* name = axis == compute.arguments.end() ? nullptr : std::get_if<std::string>(&axis->value);
  SHOAL_CHECK(name != nullptr, InvalidInput, compute.op, ": argument axis is not a text");
  return *name;
}

namespace {

using Roots = std::set<std::uint32_t>;  // of sets of aliases

bool meet(const Roots& a, const Roots& b) {
  return std::ranges::any_of(a, [&](std::uint32_t root) { return b.contains(root); });
}

class Waits {
 public:
  Waits(Program& program, Crossing crossing, std::int64_t most)
      : program_(program), crossing_(crossing), most_(most), aliases_(program) {
    is_filled_.resize(program.types.size());
    for (const Source& source : program.sources) is_filled_[source.slot.index] = true;
  }

  void run() {
    for (std::size_t segment = 0; segment < program_.segments.size(); ++segment) {
      auto instructions = std::exchange(program_.segments[segment].instructions, {});
      list_ = &program_.segments[segment].instructions;
      for (auto& instruction : instructions) take(std::move(instruction));
      if (!crosses_after(segment)) end();
    }
  }

 private:
  struct Touched {
    Roots reads, writes;  // what was there before
  };
  struct UnderWay {
    Slot made;
    std::string stream;
    Touched touched;
    Roots makes;
    std::int64_t bytes = 0;
  };
  struct Later {
    Instruction instruction;
    Touched touched;
    Roots makes;
  };

  bool crosses_after(std::size_t segment) const {
    if (crossing_ == Crossing::None || segment + 1 == program_.segments.size()) return false;
    return program_.segments[segment].phase != ir::Phase::Update &&
           program_.segments[segment + 1].phase != ir::Phase::Update;
  }

  Touched touched_by(const Instruction& instruction) const {
    Touched touched;
    if (const auto* copy = std::get_if<Copy>(&instruction)) {
      touched.reads.insert(aliases_.root(copy->from));
      touched.writes.insert(aliases_.root(copy->to));
      return touched;
    }
    const auto& compute = std::get<Compute>(instruction);
    for (const Slot slot : inputs_of(call_of(compute))) touched.reads.insert(aliases_.root(slot));
    for (const auto& output : compute.outputs)
      if (output && is_filled_[output->index]) touched.writes.insert(aliases_.root(*output));
    return touched;
  }
  Roots made_by(const Instruction& instruction) {
    Roots made;
    if (const auto* compute = std::get_if<Compute>(&instruction))
      for (const auto& output : compute->outputs) {
        if (!output) continue;
        made.insert(aliases_.root(*output));
        is_filled_[output->index] = true;
      }
    return made;
  }

  void take(Instruction instruction) {
    Touched touched = touched_by(instruction);
    const bool is_message = !stream_of(instruction).empty();
    const bool may_wait = !is_message && is_move(instruction) && touched.writes.empty();
    Roots makes = made_by(instruction);
    if (may_wait && touches_under_way(touched)) {
      later_.push_back({std::move(instruction), std::move(touched), std::move(makes)});
      return;
    }
    add_needed(touched);
    if (!looks(instruction)) {
      // a view of what may be under way
    } else if (is_message) {
      wait_for_written(touched);
    } else {
      wait_for(touched);
    }
    if (is_message) {
      start(std::move(instruction), std::move(touched), std::move(makes));
      return;
    }
    list_->push_back(std::move(instruction));
  }

  static bool is_move(const Instruction& instruction) {
    const ir::OwnOp* own = own_op_of(instruction);
    return own != nullptr && own->kind == ir::OwnOp::Kind::Move && !own->is_view;
  }
  // Whether it looks at elements, or writes them.
  bool looks(const Instruction& instruction) const {
    const auto* compute = std::get_if<Compute>(&instruction);
    return compute == nullptr || !shares_memory(call_of(*compute), program_.types);
  }
  bool touches_under_way(const Touched& touched) const {
    return std::ranges::any_of(under_way_,
                               [&](const UnderWay& each) { return meet(touched.reads, each.makes); }) ||
           std::ranges::any_of(later_, [&](const Later& each) { return meet(touched.reads, each.makes); });
  }

  // Those put off that this one reads from, or would change the inputs of; and those before them.
  void add_needed(const Touched& touched) {
    const auto needed = [&](const Later& each) {
      return meet(touched.reads, each.makes) || meet(touched.writes, each.makes) ||
             meet(touched.writes, each.touched.reads);
    };
    std::size_t count = 0;
    for (std::size_t i = 0; i < later_.size(); ++i)
      if (needed(later_[i])) count = i + 1;
    add_first(count);
  }
  void add_first(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      wait_for(later_[i].touched);
      list_->push_back(std::move(later_[i].instruction));
    }
    later_.erase(later_.begin(), later_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  void wait_for(const Touched& touched) {
    wait_where([&](const UnderWay& each) {
      return meet(touched.reads, each.makes) || meet(touched.writes, each.makes) ||
             meet(touched.writes, each.touched.reads);
    });
  }
  void wait_for_written(const Touched& touched) {
    wait_where([&](const UnderWay& each) {
      return meet(touched.writes, each.makes) || meet(touched.writes, each.touched.reads);
    });
  }

  // With those before them on their streams, and those that they read from: these are done by then.
  template <class Wanted>
  void wait_where(const Wanted& wanted) {
    std::vector<bool> waits(under_way_.size());
    for (std::size_t i = under_way_.size(); i-- > 0;) {
      waits[i] = waits[i] || wanted(under_way_[i]);
      if (!waits[i]) continue;
      for (std::size_t before = 0; before < i; ++before)
        waits[before] = waits[before] || under_way_[before].stream == under_way_[i].stream ||
                        meet(under_way_[i].touched.reads, under_way_[before].makes);
    }
    Wait wait;
    std::vector<UnderWay> left;
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
      if (waits[i])
        wait.slots.push_back(under_way_[i].made);
      else
        left.push_back(std::move(under_way_[i]));
    }
    under_way_ = std::move(left);
    if (!wait.slots.empty()) list_->emplace_back(std::move(wait));
  }

  void start(Instruction instruction, Touched touched, Roots makes) {
    const auto& compute = std::get<Compute>(instruction);
    std::int64_t in = 0, out = 0;
    for (const Slot slot : inputs_of(call_of(compute))) in += storage_bytes(program_.types[slot.index]);
    for (const auto& output : compute.outputs)
      if (output) out += storage_bytes(program_.types[output->index]);
    under_way_.push_back({.made = compute.outputs.at(0).value(),
                          .stream = std::string(stream_of(instruction)),
                          .touched = std::move(touched),
                          .makes = std::move(makes),
                          .bytes = std::max(in, out)});
    list_->push_back(std::move(instruction));
    const auto total = [&] {
      std::int64_t bytes = 0;
      for (const UnderWay& each : under_way_) bytes += each.bytes;
      return bytes;
    };
    const std::size_t may_stay = most_ > 0 ? 1 : 0;  // one may be larger than all together may
    while (under_way_.size() > may_stay && total() > most_)
      wait_where([&](const UnderWay& each) { return each.made == under_way_.front().made; });
    if (most_ == 0) wait_where([](const UnderWay&) { return true; });
  }

  void end() {
    add_first(later_.size());
    wait_where([](const UnderWay&) { return true; });
  }

  Program& program_;
  const Crossing crossing_;
  const std::int64_t most_;
  const Aliases aliases_;
  std::vector<bool> is_filled_;  // by slot
  std::vector<UnderWay> under_way_;
  std::vector<Later> later_;
  std::vector<Instruction>* list_ = nullptr;
};

}  // namespace

void add_waits(Program& program, Crossing crossing, std::int64_t under_way_bytes) {
  SHOAL_CHECK(under_way_bytes >= 0, InvalidInput, "lower: ", under_way_bytes,
              " bytes of messages under way; it is at least 0");
  Waits(program, crossing, under_way_bytes).run();
}

Order order_of(const Program& program) {
  const Aliases aliases(program);
  Order order{.streams = {"compute"}, .tasks = {}};
  std::map<std::uint32_t, std::vector<int>> makers;  // messages not waited for, by what they make
  std::map<Slot, int> message_of;
  int last_computed = -1;
  for (std::size_t segment = 0; segment < program.segments.size(); ++segment) {
    const auto& list = program.segments[segment].instructions;
    for (std::size_t at = 0; at < list.size(); ++at) {
      if (std::holds_alternative<Free>(list[at])) continue;
      const int number = static_cast<int>(order.tasks.size());
      Task task{.segment = segment, .instruction = at, .stream = 0, .after = {}};
      if (const auto stream = stream_of(list[at]); !stream.empty()) {
        const auto& compute = std::get<Compute>(list[at]);
        const auto known = std::ranges::find(order.streams, stream);
        task.stream = static_cast<int>(known - order.streams.begin());
        if (known == order.streams.end()) order.streams.emplace_back(stream);
        if (last_computed >= 0) task.after.push_back(last_computed);
        for (const Slot slot : inputs_of(call_of(compute)))
          if (const auto found = makers.find(aliases.root(slot)); found != makers.end())
            std::ranges::copy(found->second, std::back_inserter(task.after));
        message_of[compute.outputs.at(0).value()] = number;
        makers[aliases.root(*compute.outputs[0])].push_back(number);
      } else {
        if (const auto* wait = std::get_if<Wait>(&list[at]))
          for (const Slot slot : wait->slots) {
            task.after.push_back(message_of.at(slot));
            std::erase(makers[aliases.root(slot)], message_of.at(slot));
          }
        last_computed = number;
      }
      order.tasks.push_back(std::move(task));
    }
  }
  return order;
}

namespace {

class Looking {
 public:
  explicit Looking(const Program& program) : program_(program), aliases_(program) {
    is_filled_.resize(program.types.size());
    for (const Source& source : program.sources) is_filled_[source.slot.index] = true;
  }

  std::string fault() {
    for (std::size_t segment = 0; segment < program_.segments.size(); ++segment) {
      for (const Instruction& instruction : program_.segments[segment].instructions)
        if (const auto what = fault_at(instruction); !what.empty())
          return concat(to_text(program_, instruction), ": ", what);
      const bool goes_on = segment + 1 < program_.segments.size() &&
                           (program_.segments[segment].phase != ir::Phase::Update) ==
                               (program_.segments[segment + 1].phase != ir::Phase::Update);
      if (!goes_on && !under_way_.empty())
        return concat("what makes %", under_way_.front().made.index, " is under way at the end of ",
                      ir::name_of(program_.segments[segment].phase), "; wait for it");
    }
    return "";
  }

 private:
  struct UnderWay {
    Slot made;
    std::vector<Slot> slots;  // with those that it reads
    Roots reads, makes;
  };

  std::string fault_at(const Instruction& instruction) {
    if (const auto* wait = std::get_if<Wait>(&instruction)) return wait_for(*wait);
    if (const auto* free = std::get_if<Free>(&instruction)) {
      for (const UnderWay& each : under_way_)
        for (const Slot slot : free->slots)
          if (std::ranges::find(each.slots, slot) != each.slots.end()) return of(each, "it frees what", slot);
      return "";
    }
    Roots reads, writes, makes;
    std::vector<Slot> slots;
    bool looks = true;
    if (const auto* copy = std::get_if<Copy>(&instruction)) {
      reads.insert(aliases_.root(copy->from));
      writes.insert(aliases_.root(copy->to));
    } else {
      const auto& compute = std::get<Compute>(instruction);
      slots = inputs_of(call_of(compute));
      for (const Slot slot : slots) reads.insert(aliases_.root(slot));
      for (const auto& output : compute.outputs) {
        if (!output) continue;
        (is_filled_[output->index] ? writes : makes).insert(aliases_.root(*output));
        is_filled_[output->index] = true;
      }
      if (compute.over) writes.insert(aliases_.root(*compute.over));
      looks = !shares_memory(call_of(compute), program_.types);
    }
    const bool is_message = !stream_of(instruction).empty();
    for (const UnderWay& each : under_way_) {
      const bool reads_it = meet(reads, each.makes);
      if (is_message && reads_it) continue;  // starts when that one is done
      if (looks && reads_it) return of(each, "it reads what", each.made);
      if (meet(writes, each.reads) || meet(writes, each.makes))
        return of(each, "it writes over what", each.made);
    }
    if (is_message) {
      const Slot made = std::get<Compute>(instruction).outputs[0].value();
      slots.push_back(made);
      makes.insert(aliases_.root(made));
      under_way_.push_back({made, std::move(slots), std::move(reads), std::move(makes)});
    }
    return "";
  }

  std::string wait_for(const Wait& wait) {
    for (const Slot slot : wait.slots)
      if (std::erase_if(under_way_, [&](const UnderWay& each) { return each.made == slot; }) == 0)
        return concat("nothing that makes %", slot.index, " is under way");
    return "";
  }
  static std::string of(const UnderWay& each, std::string_view what, Slot slot) {
    return concat(what, slot == each.made ? " is made" : " is read", " by a message under way: 'wait %",
                  each.made.index, "' before it");
  }

  const Program& program_;
  const Aliases aliases_;
  std::vector<bool> is_filled_;  // by slot
  std::vector<UnderWay> under_way_;
};

}  // namespace

std::string fault_of(const Program& program) { return Looking(program).fault(); }

}  // namespace shoal::program
