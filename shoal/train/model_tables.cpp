// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/model_tables.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "shoal/aten/memory.h"
#include "shoal/aten/types.h"
#include "shoal/base/error.h"
#include "shoal/capture/deferred.h"
#include "shoal/rewrite/place.h"
#include "shoal/train/agreement.h"

namespace shoal::train {

using TableNumber = ps::Worker::TableNumber;

static constexpr std::int64_t kRowsAtOnce = 1 << 14;

static ps::Numbers numbers_of(const at::Tensor& rows) {
  return {std::span(static_cast<const std::byte*>(rows.const_data_ptr()), rows.nbytes()),
          rows.scalar_type() == at::kDouble};
}

// A row is what stands at one index of the first dim; a parameter of one dim, or of none, is one row.
static std::int64_t width_of(const at::Tensor& parameter) {
  std::int64_t width = 1;
  for (std::int64_t dim = parameter.dim() < 2 ? 0 : 1; dim < parameter.dim(); ++dim)
    width *= parameter.size(dim);
  return width;
}
static std::int64_t num_rows_of(const at::Tensor& parameter) {
  const auto endless = endless_of(parameter);
  return endless ? static_cast<std::int64_t>(endless->rows) : parameter.dim() < 2 ? 1 : parameter.size(0);
}

// --- What the trainer's optimizer is for rows: one that leaves rows as they are which a step has not read.

namespace {

struct Found {
  std::size_t part = 0;
  ps::RowOptimizer optimizer;
};

// Of one parameter: what its first group says, or the optimizer itself.
template <class O>
struct Rates {
  Rates(const O& optimizer, const std::string& name, const ir::TensorType& type) : lr(optimizer.lr) {
    if constexpr (requires { optimizer.weight_decay; }) weight_decay = optimizer.weight_decay;
    for (const ParameterGroup& group : optimizer.groups)
      if (group.contains(name, type)) {
        lr = group.lr.value_or(lr);
        weight_decay = group.weight_decay.value_or(weight_decay);
        return;
      }
  }
  double lr, weight_decay = 0;
};

}  // namespace

static std::optional<ps::RowOptimizer> row_optimizer_of(const Optimizer& optimizer, const std::string& name,
                                                        const ir::TensorType& type) {
  if (const auto* sgd = std::get_if<SGD>(&optimizer)) {
    const Rates rates(*sgd, name, type);
    if (sgd->momentum != 0 || rates.weight_decay != 0 || sgd->maximize || rates.lr <= 0) return std::nullopt;
    return ps::RowOptimizer{.rule = ps::RowRule::Sgd, .rate = rates.lr};
  }
  if (const auto* adagrad = std::get_if<Adagrad>(&optimizer)) {
    const Rates rates(*adagrad, name, type);
    if (adagrad->lr_decay != 0 || rates.weight_decay != 0 || adagrad->maximize || rates.lr <= 0)
      return std::nullopt;
    return ps::RowOptimizer{.rule = ps::RowRule::Adagrad, .rate = rates.lr, .epsilon = adagrad->eps};
  }
  return std::nullopt;
}

static Found found_for(const std::vector<OptimizerPart>& optimizers, const std::string& name,
                       const ir::TensorType& type) {
  for (std::size_t part = 0; part < optimizers.size(); ++part) {
    if (optimizers[part].contains && !optimizers[part].contains(name)) continue;
    const auto found = row_optimizer_of(optimizers[part].optimizer, name, type);
    SHOAL_CHECK(
        found, InvalidInput, "tables: ", name,
        " is updated row by row, and the trainer's optimizer also moves rows that a step has not read "
        "(momentum, Adam's moments, weight decay), or is none that rows have. Remedy: "
        "TablePlacement::optimizer says what updates a row, or SGD or Adagrad without these");
    return {part, *found};
  }
  return {};  // it is not updated
}

// --- Definitions.

static ps::Definition definition_of(const TablePlacement& placement, const std::string& name,
                                    const at::Tensor& parameter, const ps::RowOptimizer& optimizer,
                                    const std::optional<ps::Initial>& initial) {
  const auto width = static_cast<std::uint32_t>(width_of(parameter));
  const DType own = aten::from_torch(parameter.scalar_type());
  ps::Definition definition{.name = name,
                            .seed = placement.seed,
                            .dtype = placement.dtype.value_or(own),
                            .shards = placement.shards,
                            .parts = placement.parts,
                            .admission = placement.admission,
                            .scored = placement.scored,
                            .life = placement.life};
  SHOAL_CHECK(definition.dtype == own || (own == DType::Float32 && definition.dtype == DType::BFloat16),
              InvalidInput, "tables: rows of ", name, " are to be ", name_of(definition.dtype),
              ", and the model computes with ", name_of(own), "; wanted that, or bf16 for f32");
  if (definition.parts.empty())
    definition.parts = {
        {.width = width,
         .optimizer = optimizer,
         .initial = initial.value_or(ps::Initial{.rule = ps::InitialRule::Constant, .scale = 0})}};
  std::uint32_t sum = 0;
  for (const ps::Part& part : definition.parts) sum += part.width;
  SHOAL_CHECK(sum == width, InvalidInput, "tables: the parts of ", name, " are ", sum,
              " wide together, and its rows are ", width);
  return definition;
}

// What rows begin with: as said, as the model was made, or (nothing) as its values are.
static std::optional<ps::Initial> initial_of(const TablePlacement& placement, const std::string& name,
                                             const at::Tensor& parameter) {
  const auto endless = endless_of(parameter);
  if (placement.initial || !endless) return placement.initial;
  const auto [rows, begin, first, second] = *endless;
  using enum Endless::Begin;
  const auto scale = static_cast<float>(begin == Constant ? first : second);
  if (begin == Constant) return ps::Initial{.rule = ps::InitialRule::Constant, .scale = scale};
  if (begin == Uniform && first == -second)
    return ps::Initial{.rule = ps::InitialRule::Uniform, .scale = scale};
  if (begin == Normal && first == 0) return ps::Initial{.rule = ps::InitialRule::Normal, .scale = scale};
  fail(ErrorKind::InvalidInput, "tables: ", name, " has ", rows,
       " rows, and the model makes them neither constant, nor uniform or normal around 0, as each row has to "
       "begin by itself. Remedy: TablePlacement::initial");
}

static void check_can_be_table(const std::string& name, const at::Tensor& parameter) {
  SHOAL_CHECK(parameter.defined() && width_of(parameter) > 0 && num_rows_of(parameter) > 0, InvalidInput,
              "tables: parameter ", name, " has no elements. Remedy: leave it out of the tables");
  SHOAL_CHECK(
      parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble, InvalidInput,
      "tables: parameter ", name, " is ", name_of(aten::from_torch(parameter.scalar_type())),
      ", and rows are f32 or f64. Remedy: a model in float32; TablePlacement::dtype keeps rows in bf16");
  SHOAL_CHECK(parameter.is_cpu(), InvalidInput, "tables: parameter ", name, " is on ", parameter.device(),
              ", and rows come and go in main memory. Remedy: keep the model on the CPU");
}

// --- The room.

ModelTables::ModelTables(const TableOptions& options, const std::vector<rewrite::TableSpec>& of_plan,
                         const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                         const std::vector<OptimizerPart>& optimizers, const runtime::Group* control)
    : control_(control), tables_(options.tables), save_deltas_(options.save_deltas) {
  const int ranks = control_ == nullptr ? 1 : control_->size();
  on_all([&] {  // and none goes on before the first has put its rows there
    SHOAL_CHECK(tables_ != nullptr || ranks == 1, InvalidInput, "tables: ", ranks,
                " ranks share rows, which servers have, and the trainer knows of none. Remedy: shoal run "
                "--servers=1, and in C++ TableOptions::tables, which World::tables() makes");
    SHOAL_CHECK(
        tables_ == nullptr || options.memory_bytes == 0, InvalidInput, "tables: memory of ",
        human_bytes(options.memory_bytes),
        " bounds tables in this process, and these are on servers. Remedy: shoal run --server-memory");
    if (tables_ == nullptr) {
      own_ = ps::tables_in_process({.memory_bytes = options.memory_bytes, .folder = options.cold_folder});
      tables_ = own_.get();
    }
    ps::ExchangeOptions exchange = options.exchange;
    exchange.worker = static_cast<std::uint32_t>(control_ ? control_->rank() : 0);
    exchange.workers = static_cast<std::uint32_t>(ranks);
    worker_ = std::make_unique<ps::Worker>(*tables_, exchange);
    rows_.worker = worker_.get();
    std::vector<TablePlacement> placements = options.placements;
    for (const auto& [pattern, clicks] : of_plan)
      placements.push_back({.parameters = pattern, .clicks = clicks});
    for (const TablePlacement& placement : placements) {
      bool fits = false;
      for (const auto& [name, parameter] : parameters) {
        if (!rewrite::matches(placement.parameters, name)) continue;
        fits = true;
        if (!has(name)) add(options, placement, name, parameter, optimizers);
      }
      SHOAL_CHECK(fits, InvalidInput, "tables: no parameter of the model is called \"", placement.parameters,
                  "\"");
    }
  });
}

ModelTables::~ModelTables() {
  if (std::uncaught_exceptions() > exceptions_) return;
  try {
    worker_->flush();
  } catch (const std::exception& error) {
    TORCH_WARN("tables: what the last steps made of rows did not reach them: ", error.what());
  }
}

void ModelTables::add(const TableOptions& options, const TablePlacement& placement, const std::string& name,
                      const at::Tensor& parameter, const std::vector<OptimizerPart>& optimizers) {
  check_can_be_table(name, parameter);
  SHOAL_CHECK(placement.clicks.empty() || placement.scored, InvalidInput, "tables: clicks of ", name,
              " are input \"", placement.clicks,
              "\", and its rows have no score that these count for. Remedy: scored, or no clicks");
  const ir::TensorType type = aten::type_of(parameter);
  const bool is_said = placement.optimizer || !placement.parts.empty() || !parameter.requires_grad();
  const Found found = is_said ? Found{} : found_for(optimizers, name, type);
  const auto initial = initial_of(placement, name, parameter);
  const auto definition =
      definition_of(placement, name, parameter, placement.optimizer.value_or(found.optimizer), initial);
  const bool has_values = !initial && placement.parts.empty();
  const TableNumber number = worker_->add(definition, static_cast<std::uint64_t>(num_rows_of(parameter)),
                                          has_values ? ps::Worker::Padding::Row : ps::Worker::Padding::Zeros);
  if (!is_said)
    of_parts_.push_back({.name = name, .table = number, .part = found.part, .optimizer = found.optimizer});
  rows_.numbers.emplace(name, number);
  parameters_.push_back({name, parameter});
  specs_.push_back({.parameters = name, .clicks = placement.clicks});
  if (is_first()) {
    using enum TableOptions::Before;
    if (options.before == Clear) worker_->clear(number);
    const std::int64_t rows = worker_->num_rows(number);
    SHOAL_CHECK(rows == 0 || options.before == Keep, InvalidInput, "tables: ", name, " has ", rows,
                " rows already, of a run before. Remedy: TableOptions::before says whether they are kept or "
                "cleared");
    if (has_values && rows == 0) {
      shoal::materialize(parameter, name);
      const at::Tensor values = parameter.detach().reshape({num_rows_of(parameter), width_of(parameter)});
      for (std::int64_t first = 0; first < values.size(0); first += kRowsAtOnce)
        worker_->put(number, first,
                     numbers_of(values.narrow(0, first, std::min(kRowsAtOnce, values.size(0) - first))));
    }
  }
  take_memory(name, parameter);
}

std::vector<std::pair<std::string, at::Tensor>> ModelTables::without(
    std::vector<std::pair<std::string, at::Tensor>> parameters) const {
  std::size_t found = 0;
  std::erase_if(parameters, [&](const auto& each) {
    if (!has(each.first)) return false;
    SHOAL_CHECK(parameter(each.first).is_same(each.second), InvalidInput, "tables: parameter ", each.first,
                " is another tensor than when its rows were put in a table. Remedy: a new Trainer");
    ++found;
    return true;
  });
  SHOAL_CHECK(
      found == parameters_.size(), InvalidInput,
      "tables: a parameter whose rows are in a table is no longer the model's. Remedy: a new Trainer");
  return parameters;
}

const at::Tensor& ModelTables::parameter(const std::string& name) const {
  return std::ranges::find(parameters_, name, &capture::NamedTensor::name)->tensor;
}

void ModelTables::take_memory(const std::string& name, const at::Tensor& parameter) {
  aten::take_memory(
      parameter,
      concat("the rows of parameter ", name,
             " are in a table, and this tensor has no data. Remedy: Trainer::materialize() reads them into "
             "it until the next step, and Trainer::rows() gives some of them"));
}

void ModelTables::check() {
  for (const auto& [name, parameter] : parameters_) {
    if (!aten::has_memory(parameter)) continue;
    SHOAL_CHECK(is_materialized_ && has_room(name) && parameter.detach().equal(read(name)), InvalidInput,
                "tables: parameter ", name,
                " was given values while its rows are in a table, which does not see them. Remedy: "
                "Trainer::set_rows() puts them there");
    take_memory(name, parameter);
  }
  is_materialized_ = false;
  loaded_step_.reset();
}

void ModelTables::set_learning_rate(std::size_t part, double lr) {
  for (const OfPart& of : of_parts_)
    if (of.part == part) worker_->set_rate(of.table, lr / of.optimizer.rate);
}

void ModelTables::follow(const std::vector<OptimizerPart>& optimizers) {
  for (OfPart& of : of_parts_) {
    Found now = found_for(optimizers, of.name, aten::type_of(parameter(of.name)));
    const double rate = std::exchange(now.optimizer.rate, of.optimizer.rate);
    SHOAL_CHECK(
        now.optimizer == of.optimizer, InvalidInput, "tables: the rows of ", of.name,
        " are updated by the optimizer that they began with, and it has other settings now. Remedy: a "
        "new Trainer, or other learning rates alone");
    of.part = now.part;
    worker_->set_rate(of.table, rate / of.optimizer.rate);
  }
}

bool ModelTables::has_room(const std::string& name) const {
  constexpr std::uint64_t kMost = std::uint64_t{2} << 30;
  const TableNumber number = rows_.numbers.at(name);
  const std::uint64_t ids = worker_->num_ids(number);
  return ids > 0 && ids <= kMost / sizeof(double) / worker_->width(number);
}

at::Tensor ModelTables::read(const std::string& name) {
  worker_->flush();
  const TableNumber number = rows_.numbers.at(name);
  const auto num_ids = static_cast<std::int64_t>(worker_->num_ids(number));
  SHOAL_CHECK(has_room(name), InvalidInput, "tables: ", name,
              " has more rows than fit into a tensor. Remedy: ask for those of some ids");
  at::Tensor rows = at::empty({num_ids, width_of(parameter(name))}, parameter(name).scalar_type());
  for (std::int64_t first = 0; first < num_ids; first += kRowsAtOnce) {
    at::Tensor some = rows.narrow(0, first, std::min(kRowsAtOnce, num_ids - first));
    worker_->read(number, first,
                  {std::span(static_cast<std::byte*>(some.mutable_data_ptr()), some.nbytes()),
                   some.scalar_type() == at::kDouble});
  }
  return rows.view(parameter(name).sizes());
}

at::Tensor ModelTables::read(const std::string& name, const at::Tensor& ids) {
  worker_->flush();
  const at::Tensor wanted = ids.detach().to(at::kCPU, at::kLong).contiguous();
  auto sizes = wanted.sizes().vec();
  sizes.push_back(width_of(parameter(name)));
  at::Tensor rows = at::empty(sizes, parameter(name).scalar_type());
  std::vector<std::int32_t> places(static_cast<std::size_t>(wanted.numel()));
  worker_->pull(rows_.numbers.at(name), {wanted.const_data_ptr<std::int64_t>(), places.size()}, -1, places,
                {std::span(static_cast<std::byte*>(rows.mutable_data_ptr()), rows.nbytes()),
                 rows.scalar_type() == at::kDouble});
  return rows;
}

void ModelTables::write(const std::string& name, const at::Tensor& ids, const at::Tensor& values) {
  const at::Tensor& like = parameter(name);
  const std::int64_t width = width_of(like);
  loaded_step_.reset();
  on_all([&] { worker_->flush(); });  // or what others keep back would come on top
  on_all([&] {
    SHOAL_CHECK(
        values.dim() == ids.dim() + 1 && values.size(-1) == width && values.numel() == ids.numel() * width,
        InvalidInput, "tables: ", ids.numel(), " rows of ", name, " are ", width,
        " wide, and the values have ", values.numel(), " numbers");
    const at::Tensor wanted = ids.detach().to(at::kCPU, at::kLong).contiguous();
    const at::Tensor rows = values.detach().to(at::kCPU, like.scalar_type()).contiguous();
    const std::span all(wanted.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(wanted.numel()));
    if (is_first()) worker_->put(rows_.numbers.at(name), all, numbers_of(rows));
    worker_->note_put(rows_.numbers.at(name), all);
  });
}

void ModelTables::materialize() {
  if (std::exchange(is_materialized_, true)) return;
  const at::NoGradGuard no_grad;
  worker_->settle();
  for (const auto& [name, parameter] : parameters_) {
    if (!has_room(name)) continue;
    const at::Tensor rows = read(name);
    aten::give_memory(parameter);
    parameter.detach().copy_(rows);
  }
}

}  // namespace shoal::train
