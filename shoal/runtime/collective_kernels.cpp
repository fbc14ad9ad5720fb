// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/collective_kernels.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/comm/located.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/redistribution.h"
#include "shoal/runtime/typed_kernel.h"
#include "shoal/runtime/update_kernels.h"
#include "shoal/runtime/update_rows.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;
using sharding::Shard;

static const std::vector<std::int64_t>& numbers_of(const Compute& compute, std::string_view name) {
  const auto* numbers = std::get_if<std::vector<std::int64_t>>(&argument_of(compute, name));
  SHOAL_CHECK(numbers != nullptr, InvalidInput, compute.op, ": argument ", name,
              " is not a list of integers");
  return *numbers;
}

static comm::ReduceOp reduction_of(const Compute& compute) {
  const std::string& name = text_of(compute, "combine");
  if (name == "min") return comm::ReduceOp::Min;
  if (name == "max") return comm::ReduceOp::Max;
  SHOAL_CHECK(name == "sum", InvalidInput, compute.op, ": combine is '", name, "', not sum, min or max");
  return comm::ReduceOp::Sum;
}

static std::vector<Shard> shards_of(const Compute& compute) {
  const auto &dims = numbers_of(compute, "dims"), &outers = numbers_of(compute, "outers"),
             &units = numbers_of(compute, "units");
  SHOAL_CHECK(dims.size() == outers.size() && dims.size() == units.size(), InvalidInput, compute.op,
              ": dims, outers and units are not equally many");
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < dims.size(); ++i)
    shards.push_back({.dim = static_cast<int>(dims[i]), .outer = outers[i], .unit = units[i]});
  return shards;
}

static Cut cut_of(const Compute& compute, std::string_view name) {
  const auto& numbers = numbers_of(compute, name);
  SHOAL_CHECK(numbers.size() == 4, InvalidInput, compute.op, ": ", name, " is not [dim, outer, unit, whole]");
  return {{.dim = static_cast<int>(numbers[0]), .outer = numbers[1], .unit = numbers[2]}, numbers[3]};
}

namespace {

class AllReduce final : public Kernel {
 public:
  AllReduce(const Compute& compute, const Group& group)
      : group_(group),
        op_(reduction_of(compute)),
        tensors_(slots_of(compute, "tensors")),
        in_place_(std::ranges::find(compute.arguments, "in_place", &ir::Argument::name) !=
                      compute.arguments.end() &&
                  truth_of(compute, "in_place")),
        outputs_(compute) {}

  void run(Slots& slots) override {
    std::vector<at::Tensor> sums;
    for (const auto slot : tensors_) {
      const at::Tensor& tensor = slots[slot];
      // Nobody else may look at the memory: a gradient may be a view of another one.
      const bool is_free = in_place_ && tensor.is_contiguous() && tensor.storage().use_count() == 1;
      sums.push_back(is_free ? tensor : tensor.clone(at::MemoryFormat::Contiguous));
    }
    all_reduce(sums, op_, group_);
    outputs_.put(slots, std::move(sums));
  }

 private:
  Group group_;
  comm::ReduceOp op_;
  std::vector<std::uint32_t> tensors_;
  bool in_place_;
  Outputs outputs_;
};

class ReduceScatter final : public Kernel {
 public:
  ReduceScatter(const Compute& compute, const Group& group)
      : group_(group),
        op_(reduction_of(compute)),
        tensors_(slots_of(compute, "tensors")),
        shards_(shards_of(compute)),
        outputs_(compute) {}

  void run(Slots& slots) override {
    outputs_.put(slots, reduce_scatter(tensors_in(slots, tensors_), shards_, op_, group_));
  }

 private:
  Group group_;
  comm::ReduceOp op_;
  std::vector<std::uint32_t> tensors_;
  std::vector<Shard> shards_;
  Outputs outputs_;
};

class AllGather final : public Kernel {
 public:
  AllGather(const Compute& compute, const Group& group)
      : group_(group),
        tensors_(slots_of(compute, "tensors")),
        shards_(shards_of(compute)),
        wholes_(numbers_of(compute, "wholes")),
        outputs_(compute) {}

  void run(Slots& slots) override {
    const auto parts = tensors_in(slots, tensors_);
    std::vector<at::Tensor> wholes;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      auto shape = parts[i].sizes().vec();
      shape[static_cast<std::size_t>(shards_[i].dim)] = wholes_[i];
      wholes.push_back(at::empty(shape, parts[i].options()));
    }
    gather_into(wholes, parts, shards_, group_);
    outputs_.put(slots, std::move(wholes));
  }

 private:
  Group group_;
  std::vector<std::uint32_t> tensors_;
  std::vector<Shard> shards_;
  std::vector<std::int64_t> wholes_;
  Outputs outputs_;
};

class GatherInto final : public Kernel {
 public:
  GatherInto(const Compute& compute, const Group& group)
      : group_(group),
        wholes_(slots_of(compute, "wholes")),
        parts_(slots_of(compute, "parts")),
        shards_(shards_of(compute)) {}

  void run(Slots& slots) override {
    auto wholes = tensors_in(slots, wholes_);
    gather_into(wholes, tensors_in(slots, parts_), shards_, group_);
  }

 private:
  Group group_;
  std::vector<std::uint32_t> wholes_, parts_;
  std::vector<Shard> shards_;
};

class AllToAll final : public Kernel {
 public:
  AllToAll(const Compute& compute, const Group& group)
      : group_(group),
        self_(slot_of(compute, "self")),
        from_(cut_of(compute, "from")),
        to_(cut_of(compute, "to")),
        outputs_(compute) {}

  void run(Slots& slots) override { outputs_.put(slots, all_to_all(slots[self_], from_, to_, group_)); }

 private:
  Group group_;
  std::uint32_t self_;
  Cut from_, to_;
  Outputs outputs_;
};

class Part final : public Kernel {
 public:
  explicit Part(const Compute& compute)
      : self_(slot_of(compute, "self")),
        shard_{.dim = static_cast<int>(integer_of(compute, "dim")),
               .outer = integer_of(compute, "outer"),
               .unit = integer_of(compute, "unit")},
        index_(static_cast<int>(integer_of(compute, "index"))),
        count_(static_cast<int>(integer_of(compute, "count"))),
        outputs_(compute) {}

  // Contiguous: what comes after may be a view that only a gapless tensor has.
  void run(Slots& slots) override {
    outputs_.put(slots, part_of(slots[self_], shard_, index_, count_).contiguous());
  }

 private:
  std::uint32_t self_;
  Shard shard_;
  int index_, count_;
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

using Make = std::unique_ptr<Kernel> (*)(const Compute&, const Group&);

template <class K>
std::unique_ptr<Kernel> make(const Compute& compute, const Group& group) {
  return std::make_unique<K>(compute, group);
}

struct Collective {
  std::string_view op;
  Make make;
};
constexpr Collective kCollectives[] = {
    {"shoal::all_gather", make<AllGather>},         {"shoal::all_reduce", make<AllReduce>},
    {"shoal::all_to_all", make<AllToAll>},          {"shoal::gather_into", make<GatherInto>},
    {"shoal::reduce_scatter", make<ReduceScatter>},
};

}  // namespace

static bool is_of_parts(const Compute& compute) {
  return compute.op == "shoal::lamb" &&
         std::ranges::find(compute.arguments, "axes", &ir::Argument::name) != compute.arguments.end();
}

bool is_collective(const Compute& compute) {
  return is_of_parts(compute) || std::ranges::find(kCollectives, std::string_view(compute.op),
                                                   &Collective::op) != std::end(kCollectives);
}

std::unique_ptr<Kernel> make_collective(const Program&, const Compute& compute, const Groups* groups) {
  SHOAL_CHECK(groups != nullptr, InvalidInput, compute.op,
              ": this program is one of several ranks; run it with the communicators of its mesh");
  if (is_of_parts(compute)) return make_lamb_of_parts(compute, *groups);
  const auto* row = std::ranges::find(kCollectives, std::string_view(compute.op), &Collective::op);
  SHOAL_CHECK(row != std::end(kCollectives), Internal, compute.op, " is not a collective");
  const Group& group = groups->along(text_of(compute, "axis"));
  auto kernel = row->make(compute, group);
  if (auto* located = dynamic_cast<comm::Located*>(group.communicator))
    return std::make_unique<InModule>(std::move(kernel), *located, compute.module);
  return kernel;
}

std::unique_ptr<Kernel> make_part(const Program&, const Compute& compute) {
  return std::make_unique<Part>(compute);
}

}  // namespace shoal::runtime
