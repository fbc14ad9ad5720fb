// SPDX-License-Identifier: Apache-2.0
// A plan read from text. A change here is one of plan_text.cpp, which writes it.
#include "shoal/compile/plan.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/compile/plan_words.h"

namespace shoal::compile {

using sharding::Layout;

static std::string_view take_word(std::string_view& text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::size_t end = 0;
  int depth = 0;  // a placement may have spaces within its brackets; a name has none
  bool in_value = false;
  while (end < text.size() && (depth > 0 || (text[end] != ' ' && text[end] != '\t' && text[end] != '\r'))) {
    in_value = in_value || text[end] == '=';
    depth += in_value && text[end] == '(' ? 1 : in_value && text[end] == ')' ? -1 : 0;
    ++end;
  }
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end < text.size() && text[end] == '\r' ? text.size() : end);
  return word;
}

// The words of one line after its verb.
namespace {
class Line {
 public:
  Line(std::string_view verb, std::string_view text, const std::string& where, Plan& plan)
      : verb_(verb), text_(text), where_(where), plan_(plan) {}
  void read_mesh() {
    refuse_again(!plan_.mesh.empty());
    for (std::string_view word = next(); !word.empty(); word = next()) {
      const auto [name, size] = setting(word, "NAME=SIZE, as in shard=4");
      plan_.mesh.push_back({.name = std::string(name), .size = static_cast<int>(integer(word, size))});
      SHOAL_CHECK(plan_.mesh.back().size >= 1 || plan_.mesh.back().size == -1, InvalidInput, where_, "'",
                  word, "': a size is at least 1, or -1: what is left of the ranks");
    }
    SHOAL_CHECK(!plan_.mesh.empty(), InvalidInput, where_, "a mesh has an axis at least");
  }
  void read_batch() {
    plan_.batch_axes.clear();
    for (std::string_view word = next(); !word.empty(); word = next()) plan_.batch_axes.emplace_back(word);
  }
  void read_input() {
    const std::string input = name();
    const std::string_view word = next();
    if (word == "whole") {
      plan_.whole_inputs.push_back(input);
    } else {
      const auto [key, value] = setting(word, "'whole', or dim=NUMBER");
      SHOAL_CHECK(key == "dim", InvalidInput, where_, "'", word, "' is neither 'whole' nor dim=NUMBER");
      plan_.batch_dims[input] = static_cast<int>(integer(word, value));
    }
    end();
  }
  void read_zero() {
    plan_.zero_axis = name();
    for (std::string_view word = next(); !word.empty(); word = next()) {
      const auto [key, value] = setting(word, "stage=0, 1, 2 or 3, or gathers=once");
      if (key == "stage")
        plan_.zero_stage = static_cast<int>(integer(word, value));
      else if (key == "gathers" && (value == "once" || value == "again"))
        plan_.gathers_again = value == "again";
      else if (key == "parts" && !value.empty())
        plan_.zero_parts.emplace_back(value);
      else
        fail(ErrorKind::InvalidInput, where_, "'", word,
             "' is none of stage=, gathers=once|again and parts=");
    }
    SHOAL_CHECK(plan_.zero_parts.empty() || plan_.zero_stage == 2, InvalidInput, where_,
                "parts= is of stage=2, and the stage is ", plan_.zero_stage);
    SHOAL_CHECK(plan_.zero_stage >= -1 && plan_.zero_stage <= 3, InvalidInput, where_, "ZeRO stage ",
                plan_.zero_stage, "; it is 0, 1, 2 or 3, or -1: 3 where the axis has several ranks");
  }
  void read_pipeline() {
    plan_.pipeline_axis = name();
    for (std::string_view word = next(); !word.empty(); word = next()) {
      const auto [key, value] = setting(word, "schedule=NAME, stages_per_rank=NUMBER or microbatches=NUMBER");
      if (key == "schedule")
        plan_.schedule = value;
      else if (key == "stages_per_rank")
        plan_.stages_per_rank = static_cast<int>(integer(word, value));
      else if (key == "microbatches")
        plan_.microbatches = static_cast<int>(integer(word, value));
      else
        fail(ErrorKind::InvalidInput, where_, "'", word,
             "' is none of schedule=NAME, stages_per_rank=NUMBER and microbatches=NUMBER");
    }
    SHOAL_CHECK(plan_.stages_per_rank >= 0, InvalidInput, where_, "stages_per_rank=", plan_.stages_per_rank,
                "; it is at least 1, or 0: as many as the schedule has");
    SHOAL_CHECK(plan_.microbatches >= 0, InvalidInput, where_, "microbatches=", plan_.microbatches,
                "; it is at least 1, or 0: as many as there are stages");
  }
  // All of them at once, when all are there.
  void read_actions(std::string& rows) { rows += concat(std::exchange(text_, ""), '\n'); }
  void read_found() {
    plan_.found_axes.push_back(name());
    end();
  }
  void read_split() {
    plan_.splits.push_back(name());
    end();
  }
  void read_planner() {
    refuse_again(plan_.planner != Planner{});
    for (std::string_view word = next(); !word.empty(); word = next()) {
      const auto [key, value] = setting(word, "tensor_batch=true, kept=BYTES or budget=SECONDS");
      const auto* const rate = std::ranges::find(kRates, key, [](const auto& each) { return each.first; });
      if (rate != std::end(kRates))
        plan_.planner.rates.*(rate->second) = number(word, value);
      else if (key == "tensor_batch" && (value == "true" || value == "false"))
        plan_.planner.tensor_batch = value == "true";
      else if (key == "zero" && (value == "true" || value == "false"))
        plan_.planner.zero = value == "true";
      else if (key == "kept")
        plan_.planner.kept = bytes_of(value);
      else if (key == "budget")
        plan_.planner.budget = number(word, value);
      else
        fail(ErrorKind::InvalidInput, where_, "'", word,
             "' is none of tensor_batch=true|false, zero=true|false, kept=300MiB, budget=SECONDS, flops, "
             "memory, link, latency=");
    }
    checked(plan_.planner);
  }
  void read_table() {
    plan_.tables.push_back({.parameters = name()});
    for (std::string_view word = next(); !word.empty(); word = next())
      plan_.tables.back().clicks = setting(word, "clicks=INPUT", "clicks").second;
  }
  void read_stage() {
    plan_.stages.push_back(name());
    end();
  }
  void read_accumulate() {
    const std::string_view word = next();
    SHOAL_CHECK(word == "reduce=once" || word == "reduce=each", InvalidInput, where_, "'", word,
                "' is neither reduce=once nor reduce=each");
    plan_.reduces_each = word == "reduce=each";
    end();
  }
  void read_precision() {
    rewrite::Precision precision;
    precision.compute = float_type(name());
    for (std::string_view word = next(); !word.empty(); word = next()) {
      const auto [key, value] =
          setting(word, "lower=OP, full=OP, scale=NUMBER, grows_after=NUMBER, master=kahan or reduce=TYPE");
      if ((key == "lower" || key == "full") && value.find("::") != std::string_view::npos)
        (key == "lower" ? precision.lower : precision.full).emplace_back(value);
      else if (key == "scale")
        precision.scale = number(word, value);
      else if (key == "grows_after")
        precision.grows_after = integer(word, value);
      else if (key == "master")
        precision.master = master(value);
      else if (key == "reduce")
        precision.reduce = float_type(value);
      else
        fail(ErrorKind::InvalidInput, where_, "'", word,
             "' is none of lower=OP, full=OP, as in full=aten::bmm, scale=NUMBER, grows_after=NUMBER, "
             "master=kahan and reduce=bfloat16");
    }
    checked(precision);
    plan_.precision = std::move(precision);
  }
  DType float_type(std::string_view word) {
    const auto* const found = std::ranges::find(kFloats, word, &std::pair<std::string_view, DType>::first);
    SHOAL_CHECK(found != std::end(kFloats), InvalidInput, where_, "'", word,
                "' is none of bfloat16, float16 and float32");
    return found->second;
  }
  rewrite::Master master(std::string_view word) {
    const auto* const found = std::ranges::find(kMasters, word, [](auto each) { return name_of(each); });
    SHOAL_CHECK(found != std::end(kMasters), InvalidInput, where_, "master is '", word,
                "'; it is float32, none or kahan");
    return *found;
  }
  void read_recompute() {
    rewrite::Recompute recompute;
    const std::string mode = name();
    const auto* const found = std::ranges::find(kModes, mode, [](auto each) { return name_of(each); });
    SHOAL_CHECK(found != std::end(kModes), InvalidInput, where_, "'", mode,
                "' is none of none, full, selective and auto");
    recompute.mode = *found;
    for (std::string_view word = next(); !word.empty(); word = next()) {
      if (word.starts_with("bytes="))
        recompute.bytes = bytes_of(word.substr(6));
      else if (word == "collectives=again")
        recompute.collectives = true;
      else if (word.find('=') == std::string_view::npos)
        recompute.modules.emplace_back(word);
      else
        fail(ErrorKind::InvalidInput, where_, "'", word, "' is no module, bytes=NUMBER or collectives=again");
    }
    checked(recompute);
    plan_.recompute = std::move(recompute);
  }
  void read_offload() {
    rewrite::Offload offload;
    for (std::string_view word = next(); !word.empty(); word = next()) {
      const auto* const kind = std::ranges::find(kOffloaded, word, [](auto each) { return each.first; });
      if (kind != std::end(kOffloaded))
        offload.*(kind->second) = true;
      else if (word.starts_with("least="))
        offload.least = bytes_of(word.substr(6));
      else
        fail(ErrorKind::InvalidInput, where_, "'", word,
             "' is none of parameters, optimizer_state, gradients, activations and least=NUMBER");
    }
    checked(offload);
    plan_.offload = offload;
  }
  std::int64_t read_bytes() {
    const std::int64_t bytes = bytes_of(next());
    end();
    return bytes;
  }
  void read_placements(PlanLine::Kind kind) {
    PlanLine line = {.kind = kind, .pattern = name(), .placements = {}};
    for (std::string_view word = next(); !word.empty(); word = next()) {
      const auto [axis, value] = setting(word, "AXIS=PLACEMENT, as in tensor=S(1)");
      Layout layout;
      try {
        layout = sharding::layout_from_text(concat("[", value, "]"));
      } catch (const Error& error) {
        fail(ErrorKind::InvalidInput, where_, error.what());
      }
      SHOAL_CHECK(layout.placements.size() == 1, InvalidInput, where_, "'", word, "' is not one placement");
      const bool is_new = line.placements.emplace(axis, layout.placements[0]).second;
      SHOAL_CHECK(is_new, InvalidInput, where_, "axis '", axis, "' is there twice");
    }
    SHOAL_CHECK(!line.placements.empty(), InvalidInput, where_, "no placement is given for ", line.pattern);
    plan_.lines.push_back(std::move(line));
  }

 private:
  using enum rewrite::RecomputeMode;
  static constexpr rewrite::RecomputeMode kModes[] = {None, Full, Selective, Auto};
  std::int64_t bytes_of(std::string_view word) const {
    const auto digits = std::min(word.find_first_not_of("0123456789"), word.size());
    constexpr std::pair<std::string_view, int> kUnits[] = {
        {"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    const auto* unit = std::ranges::find(kUnits, word.substr(digits), [](auto each) { return each.first; });
    SHOAL_CHECK(digits > 0 && digits <= 15 && unit != std::end(kUnits), InvalidInput, where_, "'", word,
                "' is no number of bytes, as 25MiB is");
    const std::int64_t number = integer(word, word.substr(0, digits));
    SHOAL_CHECK(number <= std::int64_t{1} << (60 - unit->second), InvalidInput, where_, "'", word,
                "' is more than any memory");
    return number << unit->second;
  }
  void checked(const auto& part) const {
    try {
      check(part);
    } catch (const Error& error) {
      fail(ErrorKind::InvalidInput, where_, error.what());
    }
  }
  std::string_view next() { return take_word(text_); }
  void end() {
    const std::string_view word = next();
    SHOAL_CHECK(word.empty(), InvalidInput, where_, "'", word, "' is one word too many");
  }
  void refuse_again(bool is_there) {
    SHOAL_CHECK(!is_there, InvalidInput, where_, "a second line '", verb_, "'; leave one of them out");
  }
  std::string name() {
    const std::string_view word = next();
    SHOAL_CHECK(!word.empty(), InvalidInput, where_, "a name is wanted after '", verb_, "'");
    return std::string(word);
  }
  // `key`: the only one that there is.
  std::pair<std::string_view, std::string_view> setting(std::string_view word, const char* wanted,
                                                        std::string_view key = {}) const {
    const std::size_t equals = word.find('=');
    const bool is_one = equals != std::string_view::npos && equals > 0;
    SHOAL_CHECK(is_one && (key.empty() || word.substr(0, equals) == key), InvalidInput, where_, "'", word,
                "' is not ", wanted);
    return {word.substr(0, equals), word.substr(equals + 1)};
  }
  template <class Number>
  Number parsed(std::string_view word, std::string_view value, const char* wanted) const {
    Number number = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    SHOAL_CHECK(error == std::errc() && stop == value.data() + value.size(), InvalidInput, where_, "'", word,
                "': '", value, "' is not a ", wanted);
    return number;
  }
  std::int64_t integer(std::string_view word, std::string_view value) const {
    return parsed<std::int64_t>(word, value, "whole number");
  }
  double number(std::string_view word, std::string_view value) const {
    return parsed<double>(word, value, "number");
  }

  std::string_view verb_, text_;
  const std::string& where_;
  Plan& plan_;
};
}  // namespace

static constexpr std::string_view kVerbs[] = {
    "mesh",      "batch", "input",      "zero",      "parameter", "output",       "find",
    "pipeline",  "stage", "accumulate", "recompute", "offload",   "gather_ahead", "buckets",
    "precision", "table", "split",      "overlap",   "prefetch",  "planner",      "actions"};

static void read_line(std::string_view text, const std::string& where, Plan& plan, std::string& actions) {
  text = text.substr(0, text.find('#'));
  const std::string_view verb = take_word(text);
  if (verb.empty()) return;
  Line line(verb, text, where, plan);
  if (verb == "mesh")
    line.read_mesh();
  else if (verb == "batch")
    line.read_batch();
  else if (verb == "input")
    line.read_input();
  else if (verb == "zero")
    line.read_zero();
  else if (verb == "parameter")
    line.read_placements(PlanLine::Kind::Parameter);
  else if (verb == "output")
    line.read_placements(PlanLine::Kind::Output);
  else if (verb == "find")
    line.read_found();
  else if (verb == "pipeline")
    line.read_pipeline();
  else if (verb == "actions")
    line.read_actions(actions);
  else if (verb == "stage")
    line.read_stage();
  else if (verb == "accumulate")
    line.read_accumulate();
  else if (verb == "precision")
    line.read_precision();
  else if (verb == "recompute")
    line.read_recompute();
  else if (verb == "split")
    line.read_split();
  else if (verb == "planner")
    line.read_planner();
  else if (verb == "table")
    line.read_table();
  else if (verb == "offload")
    line.read_offload();
  else if (verb == "gather_ahead")
    plan.gather_bytes = line.read_bytes();
  else if (verb == "buckets")
    plan.bucket_bytes = line.read_bytes();
  else if (verb == "overlap")
    plan.overlap_bytes = line.read_bytes();
  else if (verb == "prefetch")
    plan.prefetch_bytes = line.read_bytes();
  else
    fail(ErrorKind::InvalidInput, where, "'", verb, "' is no line of a plan; did you mean '",
         nearest(verb, kVerbs), "'?");
}

Plan plan_from_text(std::string_view text, std::string_view name) {
  Plan plan;
  std::string actions;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    read_line(text.substr(0, end), concat(name, ":", number, ": "), plan, actions);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  set_actions(plan, actions, name);
  return plan;
}

void resolve_overlap(Plan& plan) {
  if (!plan.prefetch_bytes) plan.prefetch_bytes = plan.bucket_bytes;
  if (!plan.overlap_bytes) plan.overlap_bytes = 2 * plan.bucket_bytes;
}

rewrite::Precision precision_from_text(std::string_view words, std::string_view name) {
  return plan_from_text(concat("precision ", words), name).precision;
}

Planner planner_from_text(std::string_view words, std::string_view name) {
  return plan_from_text(concat("planner ", words), name).planner;
}

rewrite::Offload offload_from_text(std::string_view words, std::string_view name) {
  return plan_from_text(concat("offload ", words), name).offload;
}

rewrite::Recompute recompute_from_text(std::string_view words, std::string_view name) {
  return plan_from_text(concat("recompute ", words), name).recompute;
}

}  // namespace shoal::compile
