// SPDX-License-Identifier: Apache-2.0
#include "shoal/runtime/row_kernels.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/runtime/arguments.h"
#include "shoal/runtime/typed_kernel.h"

namespace shoal::runtime {

using program::Compute;
using program::Program;
using TableNumber = ps::Worker::TableNumber;

static constexpr std::array<std::string_view, 4> kOps = {"shoal::add_up_rows", "shoal::pull_rows",
                                                         "shoal::push_rows", "shoal::push_sums"};

bool is_of_rows(std::string_view op) { return std::ranges::find(kOps, op) != kOps.end(); }

template <class T>
static std::span<const T> span_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

static ps::Numbers numbers_of(const at::Tensor& tensor) {
  return {std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()),
          tensor.scalar_type() == at::kDouble};
}

namespace {

// Which table an input is, by the name of its source.
class Named {
 public:
  Named(const Program& program, const RowTables* tables) : program_(program), tables_(tables) {}
  TableNumber operator()(std::uint32_t slot) const {
    for (const auto& source : program_.sources) {
      if (source.slot.index != slot) continue;
      const auto found = tables_->numbers.find(source.name);
      SHOAL_CHECK(found != tables_->numbers.end(), InvalidInput, "executor: the program reads rows of ",
                  source.name, ", which is no table");
      return found->second;
    }
    fail(ErrorKind::Internal, "executor: slot %", slot, " is to be a table, and is no source");
  }

 private:
  const Program& program_;
  const RowTables* tables_;
};

class Pull final : public Kernel {
 public:
  Pull(const Program& program, const Compute& compute, const RowTables* tables)
      : worker_(*tables->worker),
        table_(Named(program, tables)(slot_of(compute, "table"))),
        ids_(slot_of(compute, "ids")),
        padding_(integer_of(compute, "padding_idx")),
        dtype_(aten::to_torch(program.types.at(compute.outputs.at(0)->index).dtype)),
        outputs_(compute) {}

  void run(Slots& slots) override {
    const at::Tensor ids = slots[ids_].to(at::kLong).contiguous();
    auto sizes = ids.sizes().vec();
    at::Tensor places = at::empty(sizes, at::kInt);
    sizes.push_back(static_cast<std::int64_t>(worker_.width(table_)));
    at::Tensor rows = at::empty(sizes, dtype_);
    worker_.pull(
        table_, span_of<std::int64_t>(ids), padding_,
        {places.mutable_data_ptr<std::int32_t>(), static_cast<std::size_t>(places.numel())},
        {std::span(static_cast<std::byte*>(rows.mutable_data_ptr()), rows.nbytes()), dtype_ == at::kDouble});
    outputs_.put(slots, std::tuple(std::move(rows), std::move(places)));
  }

 private:
  ps::Worker& worker_;
  TableNumber table_;
  std::uint32_t ids_;
  std::int64_t padding_;
  at::ScalarType dtype_;
  Outputs outputs_;
};

// The gradients of several lookups, as they lie in the slots.
class Gradients {
 public:
  Gradients(const Program& program, const Compute& compute, const RowTables* tables)
      : ids_(slots_of(compute, "ids")),
        places_(slots_of(compute, "places")),
        gradients_(slots_of(compute, "gradients")),
        counts_(slots_of(compute, "counts")),
        clicks_(optional_slots_of(compute, "clicks")) {
    const Named named(program, tables);
    const auto tables_read = slots_of(compute, "tables");
    for (const std::int64_t table : std::get<std::vector<std::int64_t>>(argument_of(compute, "of")))
      of_.push_back(named(tables_read.at(static_cast<std::size_t>(table))));
  }

  template <class Act>
  void with(const Slots& slots, const Act& act) const {
    std::vector<at::Tensor> kept;  // that the spans are of
    std::vector<ps::Worker::Pulled> pulled;
    kept.reserve(4 * of_.size());
    for (std::size_t i = 0; i < of_.size(); ++i) {
      const at::Tensor& ids = kept.emplace_back(slots[ids_[i]].to(at::kLong).contiguous());
      const at::Tensor& places = kept.emplace_back(slots[places_[i]].contiguous());
      const at::Tensor& gradients = kept.emplace_back(slots[gradients_[i]].contiguous());
      pulled.push_back({.table = of_[i],
                        .ids = span_of<std::int64_t>(ids),
                        .places = span_of<std::int32_t>(places),
                        .gradients = numbers_of(gradients),
                        .count = slots[counts_[i]].item<float>()});
      if (clicks_[i] == kNoSlot) continue;
      const at::Tensor& clicks = kept.emplace_back(slots[clicks_[i]].to(at::kFloat).contiguous());
      pulled.back().clicks = span_of<float>(clicks);
    }
    act(pulled);
  }

 private:
  std::vector<TableNumber> of_;  // by lookup
  std::vector<std::uint32_t> ids_, places_, gradients_, counts_, clicks_;
};

}  // namespace

std::unique_ptr<Kernel> make_of_rows(const Program& program, const Compute& compute,
                                     const RowTables* tables) {
  if (tables == nullptr || tables->worker == nullptr)
    return kernel_of([op = compute.op](Slots&) {
      fail(ErrorKind::InvalidInput, op,
           ": the program has rows of tables, and there are none. Remedy: tell the Trainer of them "
           "(TrainerOptions::tables)");
    });
  if (compute.op == "shoal::pull_rows") return std::make_unique<Pull>(program, compute, tables);
  ps::Worker& worker = *tables->worker;
  const auto scalar = [&](std::string_view name) { return slot_of(compute, name); };
  if (compute.op == "shoal::push_sums")
    return kernel_of(
        [&worker, divisor = scalar("divisor"), step = scalar("step"), rate = scalar("rate")](Slots& slots) {
          worker.push_sums(slots[divisor].item<double>(),
                           static_cast<std::uint64_t>(slots[step].item<std::int64_t>()),
                           slots[rate].item<double>());
        });
  const Gradients gradients(program, compute, tables);
  if (compute.op == "shoal::push_rows")
    return kernel_of([&worker, gradients, step = scalar("step"), rate = scalar("rate")](Slots& slots) {
      gradients.with(slots, [&](const auto& pulled) {
        worker.push(pulled, static_cast<std::uint64_t>(slots[step].item<std::int64_t>()),
                    slots[rate].item<double>());
      });
    });
  return kernel_of([&worker, gradients, keep = scalar("keep"), weight = scalar("weight")](Slots& slots) {
    gradients.with(slots, [&](const auto& pulled) {
      worker.add_up(pulled, slots[keep].item<double>() == 0, slots[weight].item<double>());
    });
  });
}

static void expect_rows_of(const Program& program, const Compute& pull, const RowTables& tables,
                           const std::function<const at::Tensor*(const std::string&)>& input) {
  const std::uint32_t slot = slot_of(pull, "ids");
  const auto source =
      std::ranges::find(program.sources, slot, [](const auto& each) { return each.slot.index; });
  if (source == program.sources.end() || source->role != ir::Role::Input) return;
  const at::Tensor* const given = input(source->name);
  if (given == nullptr || !at::isIntegralType(given->scalar_type(), false)) return;
  const at::Tensor ids = given->to(at::kLong).contiguous();
  tables.worker->expect(Named(program, &tables)(slot_of(pull, "table")), span_of<std::int64_t>(ids),
                        integer_of(pull, "padding_idx"));
}

void expect_rows(const Program& program, const RowTables& tables,
                 const std::function<const at::Tensor*(const std::string&)>& input) {
  for (const auto& segment : program.segments)
    for (const auto& instruction : segment.instructions)
      if (const auto* compute = std::get_if<Compute>(&instruction);
          compute && compute->op == "shoal::pull_rows")
        expect_rows_of(program, *compute, tables, input);
}

}  // namespace shoal::runtime
