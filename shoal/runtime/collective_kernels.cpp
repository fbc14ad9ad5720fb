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

// What every message has: a tensor that goes out, and the shape of what comes of it.
struct Ends {
  Ends(const Program& program, const Compute& compute)
      : self(slot_of(compute, "self")),
        shape(program.types.at(compute.outputs.at(0).value().index).shape),
        outputs(compute) {}

  at::Tensor in(const Slots& slots) const { return slots[self].contiguous(); }
  at::Tensor out(const Slots& slots) const { return at::empty(shape, slots[self].options()); }

  std::uint32_t self;
  std::vector<std::int64_t> shape;
  Outputs outputs;
};

class AllReduce final : public Kernel {
 public:
  AllReduce(const Program& program, const Compute& compute, const Group& group)
      : ends_(program, compute), group_(group), op_(reduction_of(compute)), over_(compute.over.has_value()) {}

  void run(Slots& slots) override {
    at::Tensor sum = over_ ? ends_.in(slots) : slots[ends_.self].clone(at::MemoryFormat::Contiguous);
    all_reduce(sum, op_, group_);
    ends_.outputs.put(slots, std::move(sum));
  }

 private:
  Ends ends_;
  Group group_;
  comm::ReduceOp op_;
  bool over_;  // nobody else looks at the memory
};

class ReduceScatter final : public Kernel {
 public:
  ReduceScatter(const Program& program, const Compute& compute, const Group& group)
      : ends_(program, compute), group_(group), op_(reduction_of(compute)) {}

  void run(Slots& slots) override {
    const at::Tensor in = ends_.in(slots);
    at::Tensor out = ends_.out(slots);
    if (in.numel() > 0)
      group_.communicator->reduce_scatter(buffer_of(in), buffer_of(out), op_)->wait(group_.limit);
    ends_.outputs.put(slots, std::move(out));
  }

 private:
  Ends ends_;
  Group group_;
  comm::ReduceOp op_;
};

class AllGather final : public Kernel {
 public:
  AllGather(const Program& program, const Compute& compute, const Group& group)
      : ends_(program, compute), group_(group) {
    if (compute.op == "shoal::all_gather_into") over_ = slots_of(compute, "wholes").at(0);
  }

  void run(Slots& slots) override {
    const at::Tensor in = ends_.in(slots);
    at::Tensor out = over_ == kNoSlot ? ends_.out(slots) : slots[over_];
    if (in.numel() > 0) group_.communicator->all_gather(buffer_of(in), buffer_of(out))->wait(group_.limit);
    if (over_ == kNoSlot) ends_.outputs.put(slots, std::move(out));
  }

 private:
  Ends ends_;
  Group group_;
  std::uint32_t over_ = kNoSlot;
};

class AllToAll final : public Kernel {
 public:
  AllToAll(const Program& program, const Compute& compute, const Group& group)
      : ends_(program, compute),
        group_(group),
        sends_(std::get<std::vector<std::int64_t>>(argument_of(compute, "sends"))),
        receives_(std::get<std::vector<std::int64_t>>(argument_of(compute, "receives"))) {}

  void run(Slots& slots) override {
    const at::Tensor in = ends_.in(slots);
    at::Tensor out = ends_.out(slots);
    group_.communicator->all_to_all(buffer_of(in), buffer_of(out), sends_, receives_)->wait(group_.limit);
    ends_.outputs.put(slots, std::move(out));
  }

 private:
  Ends ends_;
  Group group_;
  std::vector<std::int64_t> sends_, receives_;
};

// Goes on at once with a copy under way, in memory that the other rank reads without a further one: a
// pipeline's ranks send to each other, and neither may wait for the other to receive first.
class Send final : public Kernel, public UnderWay {
 public:
  Send(const Program&, const Compute& compute, const Group& group)
      : self_(slot_of(compute, "self")), to_(static_cast<int>(integer_of(compute, "to"))), group_(group) {}
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

  void run(Slots& slots) override {
    const at::Tensor& in = slots[self_];
    if (in.numel() == 0) return;
    at::Tensor copy = next_copy(in);
    copy.copy_(in);
    const auto buffer = buffer_of(copy);
    under_way_.push_back({std::move(copy), group_.communicator->send(buffer, to_)});
    is_gone_ = false;
  }
  void go_on() override {
    if (!is_gone_) is_gone_ = under_way_.back().work->done();
  }

 private:
  struct Sent {
    at::Tensor copy;
    std::unique_ptr<comm::Work> work;
  };

  // That of a message which has come to its end, or a new one.
  at::Tensor next_copy(const at::Tensor& in) {
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

  std::uint32_t self_;
  int to_;
  Group group_;
  std::deque<Sent> under_way_;
  bool is_gone_ = true;  // the last one, and with it those before
};

class Receive final : public Kernel {
 public:
  Receive(const Program& program, const Compute& compute, const Group& group)
      : type_(program.types.at(compute.outputs.at(0).value().index)),
        from_(static_cast<int>(integer_of(compute, "from"))),
        device_(device_of(compute)),
        group_(group),
        outputs_(compute) {}

  void run(Slots& slots) override {
    const auto options = at::TensorOptions(aten::to_torch(type_.dtype)).device(device_);
    at::Tensor out = at::empty(type_.shape, options);
    if (out.numel() > 0) group_.communicator->receive(buffer_of(out), from_)->wait(group_.limit);
    outputs_.put(slots, std::move(out));
  }

 private:
  ir::TensorType type_;
  int from_;
  at::Device device_;
  Group group_;
  Outputs outputs_;
};

// Tells a communicator that keeps it where in the model its calls are made, for errors and reports.
class InModule final : public Kernel {
 public:
  InModule(std::unique_ptr<Kernel> kernel, comm::Located& located, std::string module)
      : kernel_(std::move(kernel)), located_(located), module_(std::move(module)) {}

  void run(Slots& slots) override {
    located_.in_module(module_);
    kernel_->run(slots);
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  comm::Located& located_;
  std::string module_;
};

using Make = std::unique_ptr<Kernel> (*)(const Program&, const Compute&, const Group&);

template <class K>
std::unique_ptr<Kernel> make(const Program& program, const Compute& compute, const Group& group) {
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

std::unique_ptr<Kernel> make_collective(const Program& program, const Compute& compute, const Groups* groups,
                                        std::vector<UnderWay*>* sends) {
  SHOAL_CHECK(groups != nullptr, InvalidInput, compute.op,
              ": this program is one of several ranks; run it with the communicators of its mesh");
  const auto* row = std::ranges::find(kMessages, std::string_view(compute.op), &NamedMessage::op);
  SHOAL_CHECK(row != std::end(kMessages), Internal, compute.op, " is not a collective");
  const Group& group = groups->along(text_of(compute, "axis"));
  auto kernel = row->make(program, compute, group);
  if (auto* send = dynamic_cast<UnderWay*>(kernel.get()); send != nullptr && sends != nullptr)
    sends->push_back(send);
  if (auto* located = dynamic_cast<comm::Located*>(group.communicator))
    return std::make_unique<InModule>(std::move(kernel), *located, compute.module);
  return kernel;
}

}  // namespace shoal::runtime
