// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/tables.h"

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/python/bindings.h"

namespace shoal::python {

// One of these by its name.
template <class Value>
static Value chosen(std::string_view what, const std::string& name,
                    std::optional<Value> (*parse)(std::string_view), std::string_view all) {
  const auto found = parse(name);
  SHOAL_CHECK(found, InvalidInput, "tables: ", what, " is ", in_quotes(name), "; give one of ", all);
  return *found;
}

static constexpr std::string_view kRules =
    "sgd, momentum, adagrad, row_adagrad, adam, row_adam, rms_prop, ftrl";
static constexpr std::string_view kInitials = "constant, uniform, normal";
static constexpr std::string_view kAdmissions = "always, count, probability, score";
static constexpr std::string_view kModes = "sync, async, half_async, geo";

namespace {

// What updates a row, and what it begins with.
struct RowSaid {
  std::optional<std::string> optimizer;
  std::optional<double> lr, beta1, beta2, eps, start, l1, l2;
  std::optional<std::string> initial;
  std::optional<double> scale;
};

}  // namespace

static std::optional<ps::RowOptimizer> optimizer_of(const RowSaid& said) {
  ps::RowOptimizer optimizer;
  const auto set = [&](const char* name, double& value, const std::optional<double>& to) {
    if (!to) return;
    SHOAL_CHECK(said.optimizer, InvalidInput, "tables: ", name, " is ", *to,
                ", and no optimizer of rows is named, so that it is the Trainer's. Remedy: "
                "optimizer=\"adagrad\", say");
    SHOAL_CHECK(std::isfinite(*to) && *to >= 0, InvalidInput, "tables: ", name, " is ", *to,
                "; it is a number of at least 0");
    value = *to;
  };
  set("lr", optimizer.rate, said.lr);
  set("beta1", optimizer.beta1, said.beta1);
  set("beta2", optimizer.beta2, said.beta2);
  set("eps", optimizer.epsilon, said.eps);
  set("start", optimizer.start, said.start);
  set("l1", optimizer.l1, said.l1);
  set("l2", optimizer.l2, said.l2);
  if (!said.optimizer) return std::nullopt;
  optimizer.rule = chosen("optimizer", *said.optimizer, ps::parse_rule, kRules);
  return optimizer;
}

static std::optional<ps::Initial> initial_of(const RowSaid& said) {
  if (!said.initial) {
    SHOAL_CHECK(!said.scale, InvalidInput, "tables: scale is ", said.scale.value_or(0),
                ", and rows begin as the model's. Remedy: initial=\"normal\", say, or no scale");
    return std::nullopt;
  }
  ps::Initial initial = {.rule = chosen("initial", *said.initial, ps::parse_initial, kInitials)};
  if (said.scale) initial.scale = static_cast<float>(*said.scale);
  return initial;
}

namespace {

struct RowPart {  // as it is said
  std::uint32_t width = 0;
  RowSaid said;
  std::optional<float> lowest, highest;
  float earned_at = 0;
};

}  // namespace

// What a part does not say, its table does.
static ps::Part part_of(const RowPart& given, const TablePlacement& table) {
  ps::Part part = {.width = given.width, .earned_at = given.earned_at};
  const auto optimizer = optimizer_of(given.said);
  const auto initial = initial_of(given.said);
  SHOAL_CHECK(optimizer || table.optimizer, InvalidInput, "tables: a RowPart of width ", given.width, " of ",
              table.parameters,
              " has no optimizer, and its Table has none either. Remedy: optimizer=\"adagrad\", say, in "
              "one of them");
  SHOAL_CHECK(initial || table.initial, InvalidInput, "tables: a RowPart of width ", given.width, " of ",
              table.parameters,
              " has no initial, and its Table has none either. Remedy: initial=\"normal\", say, in one of "
              "them");
  part.optimizer = optimizer ? *optimizer : *table.optimizer;
  part.initial = initial ? *initial : *table.initial;
  part.lowest = given.lowest.value_or(part.lowest);
  part.highest = given.highest.value_or(part.highest);
  return part;
}

static std::optional<DType> dtype_in(const py::object& dtype) {
  if (dtype.is_none()) return std::nullopt;
  const auto name = py::cast<std::string>(py::str(dtype));  // "torch.bfloat16"
  for (const auto& [known, meant] :
       {std::pair{"float32", DType::Float32}, {"float64", DType::Float64}, {"bfloat16", DType::BFloat16}})
    if (name == known || name == concat("torch.", known)) return meant;
  fail(ErrorKind::InvalidInput, "tables: dtype is ", name, "; rows are float32, float64 or bfloat16");
}

static void set_exchange(ps::ExchangeOptions& exchange, const std::string& mode, std::int64_t staleness,
                         std::int64_t geo_steps, std::int64_t cache_rows) {
  exchange.mode = chosen("mode", mode, ps::parse_mode, kModes);
  const auto bounded = [](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    SHOAL_CHECK(value >= least && value <= most, InvalidInput, "tables: ", name, " is ", value, "; wanted ",
                least, " to ", most);
    return value;
  };
  exchange.staleness = static_cast<std::uint32_t>(bounded("staleness", staleness, 0, 1000));
  exchange.geo_steps = static_cast<std::uint32_t>(bounded("geo_steps", geo_steps, 1, 1'000'000));
  const bool keeps = exchange.mode == ps::Mode::HalfAsync;
  exchange.cache_rows =
      keeps ? static_cast<std::size_t>(bounded("cache_rows", cache_rows, 0, 1'000'000'000)) : 0;
}

static TableOptions::Before before_of(const std::string& name) {
  using enum TableOptions::Before;
  for (const auto& [known, meant] : {std::pair{"refuse", Refuse}, {"clear", Clear}, {"keep", Keep}})
    if (name == known) return meant;
  fail(ErrorKind::InvalidInput, "tables: before is ", in_quotes(name), "; give one of refuse, clear, keep");
}

TableOptions tables_in(const py::object& given) {
  if (given.is_none()) return {};
  if (py::isinstance<TableOptions>(given)) return py::cast<TableOptions>(given);
  TableOptions options;
  if (py::isinstance<TablePlacement>(given)) {
    options.placements.push_back(py::cast<TablePlacement>(given));
    return options;
  }
  SHOAL_CHECK(py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given), InvalidInput, "tables: a ",
              std::string(py::str(py::type::handle_of(given).attr("__name__"))),
              " was given; give shoal.Table, a list of them, or shoal.Tables");
  for (const py::handle each : given) {
    SHOAL_CHECK(py::isinstance<TablePlacement>(each), InvalidInput, "tables: a list with a ",
                std::string(py::str(py::type::handle_of(each).attr("__name__"))),
                " was given; give a list of shoal.Table");
    options.placements.push_back(py::cast<TablePlacement>(each));
  }
  return options;
}

static std::int64_t bytes_in(const std::string& memory, const std::string& folder) {
  if (memory.empty() && folder.empty()) return 0;
  const auto bytes = parse_bytes(memory);
  SHOAL_CHECK(bytes && *bytes > 0, InvalidInput, "tables: memory is ", in_quotes(memory),
              "; it is a number above 0 with a unit, B, KiB, MiB, GiB or TiB: \"8GiB\"");
  SHOAL_CHECK(!folder.empty(), InvalidInput, "tables: memory is ", memory,
              ", and rows beyond it have nowhere to lie. Remedy: cold_folder");
  return *bytes;
}

void bind_tables(py::module_& module) {
  py::class_<RowPart>(module, "RowPart", "A stretch of a table's rows with an optimizer of its own.")
      .def(py::init([](std::uint32_t width, std::optional<std::string> optimizer, std::optional<double> lr,
                       std::optional<double> beta1, std::optional<double> beta2, std::optional<double> eps,
                       std::optional<double> start, std::optional<double> l1, std::optional<double> l2,
                       std::optional<std::string> initial, std::optional<double> scale,
                       std::optional<float> lowest, std::optional<float> highest, float earned_at) {
             return RowPart{
                 width,
                 {std::move(optimizer), lr, beta1, beta2, eps, start, l1, l2, std::move(initial), scale},
                 lowest,
                 highest,
                 earned_at};
           }),
           py::arg("width"), py::kw_only(), py::arg("optimizer") = py::none(), py::arg("lr") = py::none(),
           py::arg("beta1") = py::none(), py::arg("beta2") = py::none(), py::arg("eps") = py::none(),
           py::arg("start") = py::none(), py::arg("l1") = py::none(), py::arg("l2") = py::none(),
           py::arg("initial") = py::none(), py::arg("scale") = py::none(), py::arg("lowest") = py::none(),
           py::arg("highest") = py::none(), py::arg("earned_at") = 0.0f);
  py::class_<TablePlacement>(module, "Table", "Parameters of a model whose rows are in a table.")
      .def(py::init([](std::string parameters, std::optional<std::string> optimizer, std::optional<double> lr,
                       std::optional<double> beta1, std::optional<double> beta2, std::optional<double> eps,
                       std::optional<double> start, std::optional<double> l1, std::optional<double> l2,
                       std::optional<std::string> initial, std::optional<double> scale, std::uint64_t seed,
                       const py::object& dtype, const std::vector<RowPart>& parts,
                       const std::string& admission, float threshold, std::uint64_t candidates, bool scored,
                       float show_weight, float click_weight, float decay, float min_score,
                       std::uint32_t max_unseen_days, std::uint64_t max_rows, std::uint64_t max_bytes,
                       std::uint32_t shards, std::string clicks,
                       const std::map<std::uint32_t, std::uint32_t>& slot_days, std::uint32_t slot_bits) {
             const RowSaid said = {std::move(optimizer), lr,   beta1, beta2, eps, start, l1, l2,
                                   std::move(initial),   scale};
             TablePlacement placement{
                 .parameters = std::move(parameters),
                 .optimizer = optimizer_of(said),
                 .initial = initial_of(said),
                 .seed = seed,
                 .dtype = dtype_in(dtype),
                 .admission = {.rule = chosen("admission", admission, ps::parse_admission, kAdmissions),
                               .threshold = threshold,
                               .candidates = candidates},
                 .scored = scored,
                 .life = {.show_weight = show_weight,
                          .click_weight = click_weight,
                          .decay = decay,
                          .min_score = min_score,
                          .max_unseen_days = max_unseen_days,
                          .max_rows = max_rows,
                          .max_bytes = max_bytes,
                          .slot_days = ps::SlotDays(slot_days.begin(), slot_days.end()),
                          .slot_bits = slot_bits},
                 .clicks = std::move(clicks),
                 .shards = shards};
             for (const RowPart& part : parts) placement.parts.push_back(part_of(part, placement));
             return placement;
           }),
           py::arg("parameters"), py::kw_only(), py::arg("optimizer") = py::none(),
           py::arg("lr") = py::none(), py::arg("beta1") = py::none(), py::arg("beta2") = py::none(),
           py::arg("eps") = py::none(), py::arg("start") = py::none(), py::arg("l1") = py::none(),
           py::arg("l2") = py::none(), py::arg("initial") = py::none(), py::arg("scale") = py::none(),
           py::arg("seed") = 0, py::arg("dtype") = py::none(), py::arg("parts") = std::vector<RowPart>(),
           py::arg("admission") = "always", py::arg("threshold") = 0.0f,
           py::arg("candidates") = ps::Admission().candidates, py::arg("scored") = false,
           py::arg("show_weight") = ps::Life().show_weight, py::arg("click_weight") = ps::Life().click_weight,
           py::arg("decay") = ps::Life().decay, py::arg("min_score") = ps::Life().min_score,
           py::arg("max_unseen_days") = 0, py::arg("max_rows") = 0, py::arg("max_bytes") = 0,
           py::arg("shards") = TablePlacement().shards, py::arg("clicks") = "",
           py::arg("slot_days") = std::map<std::uint32_t, std::uint32_t>(),
           py::arg("slot_bits") = ps::Life().slot_bits);
  py::class_<TableOptions>(module, "Tables", "Several tables, and how steps reach them.")
      .def(py::init([](const py::object& tables, const std::string& mode, std::int64_t staleness,
                       std::int64_t geo_steps, std::int64_t cache_rows, const std::string& before,
                       const std::string& memory, const std::string& cold_folder,
                       const py::object& wire_dtype, std::int64_t save_deltas) {
             TableOptions options = tables_in(tables);
             set_exchange(options.exchange, mode, staleness, geo_steps, cache_rows);
             options.before = before_of(before);
             options.memory_bytes = bytes_in(memory, cold_folder);
             options.cold_folder = cold_folder;
             if (const auto wire = dtype_in(wire_dtype)) options.exchange.wire = *wire;
             SHOAL_CHECK(save_deltas >= 0 && save_deltas <= 1'000'000, InvalidInput,
                         "tables: save_deltas is ", save_deltas, "; wanted a number from 0 to 1000000");
             options.save_deltas = static_cast<std::uint32_t>(save_deltas);
             ps::check(options.exchange);
             return options;
           }),
           py::arg("tables"), py::kw_only(), py::arg("mode") = "sync", py::arg("staleness") = 4,
           py::arg("geo_steps") = 20, py::arg("cache_rows") = 65536, py::arg("before") = "refuse",
           py::arg("memory") = "", py::arg("cold_folder") = "", py::arg("wire_dtype") = py::none(),
           py::arg("save_deltas") = 0);
}

}  // namespace shoal::python
