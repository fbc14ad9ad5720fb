// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/collective_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/comm/located.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/runtime/typed_kernel.h"
#include "shoal/sharding/collective.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;

comm::ReduceOp reduction_of(const Compute& compute) {
  switch (sharding::combine_from_text(text_of(compute, "combine"))) {
    case sharding::Combine::Sum: return comm::ReduceOp::Sum;
    case sharding::Combine::Min: return comm::ReduceOp::Min;
    case sharding::Combine::Max: return comm::ReduceOp::Max;
  }
  return comm::ReduceOp::Sum;
}

namespace {

// The call's work, and the tensors that are the communicator's until it is done.
class Call : public Message {
 public:
  Call(const Program& program, const Compute& compute, const Group& group)
      : group_(group),
        outputs_(compute),
        self_(compute.op == "shoal::receive" ? kNoSlot : slot_of(compute, "self")),
        name_(compute.op),
        axis_(text_of(compute, "axis")),
        located_(dynamic_cast<comm::Located*>(group.communicator)),
        module_(compute.module) {
    if (compute.outputs.empty() || !compute.outputs[0]) return;
    const auto& type = program.types.at(compute.outputs[0]->index);
    shape_ = type.shape;
    bytes_ = ir::bytes_of(type);
  }

  void prepare(Slots& slots, observe::Trace* trace) final {
    trace_ = trace;
    ended_ = 0;
    tag_.microbatch = static_cast<std::uint16_t>(slots.microbatch);
    in_ = tensor_in(slots, self_);
    out_ = output(slots);
    if (out_.defined()) outputs_.put(slots, out_);
  }
  void begin() final {
    if (located_ != nullptr) located_->in_module(module_);
    if (trace_ != nullptr) began_ = observe::now();
    work_ = start(in_, out_);
  }
  bool done() final {
    if (work_ != nullptr && !work_->done()) return false;
    note_end();
    return true;
  }
  void finish() final {
    if (work_ != nullptr) work_->wait(group_.limit);
    drop();
    note_end();
  }
  void drop() noexcept final {
    work_.reset();
    in_.reset();
    out_.reset();
  }

 protected:
  virtual at::Tensor output(Slots& slots) = 0;
  // Null where nothing is sent.
  virtual std::unique_ptr<comm::Work> start(at::Tensor& in, at::Tensor& out) = 0;

  at::Tensor empty_like_in() const { return at::empty(shape_, in_.options()); }

  const Group group_;
  const Outputs outputs_;
  const std::uint32_t self_;
  std::vector<std::int64_t> shape_;  // of what is made
  at::Tensor in_, out_;
  comm::Tag tag_;  // of a message

 private:
  void note_end() {
    if (trace_ == nullptr || ended_ != 0) return;
    ended_ = observe::now();
    trace_->add({trace_->rank, axis_, name_, began_, ended_, bytes_});
  }

  const std::string name_, axis_;
  comm::Located* const located_;  // null: nobody keeps where calls are made
  const std::string module_;
  observe::Trace* trace_ = nullptr;
  std::int64_t bytes_ = 0, began_ = 0, ended_ = 0;
  std::unique_ptr<comm::Work> work_;  // last: it goes before what it writes
};

class AllReduce final : public Call {
 public:
  AllReduce(const Program& program, const Compute& compute, const Group& group)
      : Call(program, compute, group), op_(reduction_of(compute)), over_(compute.over.has_value()) {}

 private:
  at::Tensor output(Slots&) override { return over_ && in_.is_contiguous() ? in_ : empty_like_in(); }
  std::unique_ptr<comm::Work> start(at::Tensor& in, at::Tensor& out) override {
    if (!out.is_same(in)) out.copy_(in);
    return out.numel() > 0 ? group_.communicator->all_reduce(buffer_of(out), op_) : nullptr;
  }

  comm::ReduceOp op_;
  bool over_;  // nobody else looks at the memory
};

class ReduceScatter final : public Call {
 public:
  ReduceScatter(const Program& program, const Compute& compute, const Group& group)
      : Call(program, compute, group), op_(reduction_of(compute)) {}

 private:
  at::Tensor output(Slots&) override { return empty_like_in(); }
  std::unique_ptr<comm::Work> start(at::Tensor& in, at::Tensor& out) override {
    in = in.contiguous();
    return in.numel() > 0 ? group_.communicator->reduce_scatter(buffer_of(in), buffer_of(out), op_) : nullptr;
  }

  comm::ReduceOp op_;
};

class AllGather final : public Call {
 public:
  AllGather(const Program& program, const Compute& compute, const Group& group)
      : Call(program, compute, group),
        over_(compute.op == "shoal::all_gather_into" ? slots_of(compute, "wholes").at(0) : kNoSlot) {}

 private:
  at::Tensor output(Slots& slots) override { return over_ == kNoSlot ? empty_like_in() : slots[over_]; }
  std::unique_ptr<comm::Work> start(at::Tensor& in, at::Tensor& out) override {
    in = in.contiguous();
    return in.numel() > 0 ? group_.communicator->all_gather(buffer_of(in), buffer_of(out)) : nullptr;
  }

  std::uint32_t over_;
};

class AllToAll final : public Call {
 public:
  AllToAll(const Program& program, const Compute& compute, const Group& group)
      : Call(program, compute, group),
        sends_(std::get<std::vector<std::int64_t>>(argument_of(compute, "sends"))),
        receives_(std::get<std::vector<std::int64_t>>(argument_of(compute, "receives"))) {}

 private:
  at::Tensor output(Slots&) override { return empty_like_in(); }
  std::unique_ptr<comm::Work> start(at::Tensor& in, at::Tensor& out) override {
    in = in.contiguous();
    return group_.communicator->all_to_all(buffer_of(in), buffer_of(out), sends_, receives_);
  }

  std::vector<std::int64_t> sends_, receives_;
};

// Which of the program's messages to (or from) that rank this one is, from 1. Its other end has the same number:
// both ranks have them in one order.
std::uint16_t message_number(const Program& program, const Compute& compute, std::string_view peer) {
  std::uint16_t number = 1;
  for (const auto& segment : program.segments)
    for (const auto& instruction : segment.instructions) {
      const auto* other = std::get_if<Compute>(&instruction);
      if (other == &compute) return number;
      if (other != nullptr && other->op == compute.op &&
          text_of(*other, "axis") == text_of(compute, "axis") &&
          integer_of(*other, peer) == integer_of(compute, peer))
        ++number;
    }
  return number;
}

class Receive final : public Call {
 public:
  Receive(const Program& program, const Compute& compute, const Group& group)
      : Call(program, compute, group),
        dtype_(program.types.at(compute.outputs.at(0).value().index).dtype),
        from_(static_cast<int>(integer_of(compute, "from"))),
        device_(device_of(compute)) {
    tag_.message = message_number(program, compute, "from");
  }

 private:
  at::Tensor output(Slots&) override {
    return at::empty(shape_, at::TensorOptions(aten::to_torch(dtype_)).device(device_));
  }
  std::unique_ptr<comm::Work> start(at::Tensor&, at::Tensor& out) override {
    return out.numel() > 0 ? group_.communicator->receive(buffer_of(out), from_, tag_) : nullptr;
  }

  DType dtype_;
  int from_;
  at::Device device_;
};

// Goes on at once with a copy under way, in memory that the other rank reads without a further one: a
// pipeline's ranks send to each other, and neither may wait for the other to receive first.
class Send final : public Call, public UnderWay {
 public:
  Send(const Program& program, const Compute& compute, const Group& group)
      : Call(program, compute, group), to_(static_cast<int>(integer_of(compute, "to"))) {
    tag_.message = message_number(program, compute, "to");
  }
  Send(const Send&) = delete;
  Send& operator=(const Send&) = delete;
  ~Send() override {
    if (std::uncaught_exceptions() > 0)
      return;  // what is not waited for ends the group: nobody waits for long
    for (Sent& sent : under_way_) {
      try {
        sent.work->wait(group_.limit);
      } catch (const std::exception&) {  // the group has ended, and its next call says why
      }
    }
  }

  void go_on() override {
    if (!is_gone_) is_gone_ = under_way_.back().work->done();
  }
  void arrive() override {
    for (; !under_way_.empty(); under_way_.pop_front()) {
      under_way_.front().work->wait(group_.limit);
      copies_.push_back(std::move(under_way_.front().copy));
    }
    is_gone_ = true;
  }

 private:
  struct Sent {
    at::Tensor copy;
    std::unique_ptr<comm::Work> work;
  };

  at::Tensor output(Slots&) override { return {}; }
  std::unique_ptr<comm::Work> start(at::Tensor& in, at::Tensor&) override {
    if (in.numel() == 0) return nullptr;
    at::Tensor copy = next_copy(in);
    copy.copy_(in);
    const auto buffer = buffer_of(copy);
    under_way_.push_back({std::move(copy), group_.communicator->send(buffer, to_, tag_)});
    is_gone_ = false;
    return nullptr;
  }

  // That of a message which has come to its end, or a new one.
  at::Tensor next_copy(const at::Tensor& in) {
    if (!copies_.empty()) {
      at::Tensor copy = std::move(copies_.back());
      copies_.pop_back();
      return copy;
    }
    if (!under_way_.empty() && under_way_.front().work->done()) {
      under_way_.front().work->wait(group_.limit);
      at::Tensor copy = std::move(under_way_.front().copy);
      under_way_.pop_front();
      return copy;
    }
    if (!in.is_cpu()) return at::empty(in.sizes(), in.options());
    comm::Memory* memory = group_.communicator->allocate(static_cast<std::int64_t>(in.nbytes())).release();
    return at::from_blob(memory->data(), in.sizes(), [memory](void*) { delete memory; }, in.options());
  }

  int to_;
  std::deque<Sent> under_way_;
  std::vector<at::Tensor> copies_;  // of messages that have come to their end
  bool is_gone_ = true;             // the last one, and with it those before
};

using Make = std::unique_ptr<Message> (*)(const Program&, const Compute&, const Group&);

template <class K>
std::unique_ptr<Message> make(const Program& program, const Compute& compute, const Group& group) {
  return std::make_unique<K>(program, compute, group);
}

struct NamedMessage {
  std::string_view op;
  Make make;
};
constexpr NamedMessage kMessages[] = {
    {"shoal::all_gather", make<AllGather>},
    {"shoal::all_gather_into", make<AllGather>},
    {"shoal::all_reduce", make<AllReduce>},
    {"shoal::all_to_all", make<AllToAll>},
    {"shoal::receive", make<Receive>},
    {"shoal::reduce_scatter", make<ReduceScatter>},
    {"shoal::send", make<Send>},
};

}  // namespace

std::unique_ptr<Message> make_collective(const Program& program, const Compute& compute, const Groups* groups,
                                         std::vector<UnderWay*>* sends) {
  SHOAL_CHECK(groups != nullptr, InvalidInput, compute.op,
              ": this program is one of several ranks; run it with the communicators of its mesh");
  const auto* row = std::ranges::find(kMessages, std::string_view(compute.op), &NamedMessage::op);
  SHOAL_CHECK(row != std::end(kMessages), Internal, compute.op, " is not a collective");
  auto message = row->make(program, compute, groups->along(text_of(compute, "axis")));
  if (auto* send = dynamic_cast<UnderWay*>(message.get()); send != nullptr && sends != nullptr)
    sends->push_back(send);
  return message;
}

}  // namespace shoal::runtime
