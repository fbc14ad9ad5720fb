// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/serving.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/file_system.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/checkpoint/weights.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/ps_rows.h"
#include "shoal/cli/run_checkpoints.h"
#include "shoal/cli/sample.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/plan.h"
#include "shoal/ir/rebuild.h"
#include "shoal/ir/text.h"
#include "shoal/observe/file.h"
#include "shoal/program/program.h"
#include "shoal/ps/save.h"
#include "shoal/ps/save_format.h"
#include "shoal/rewrite/tables.h"
#include "shoal/train/training_state.h"

namespace shoal::cli {

namespace fs = std::filesystem;
using nlohmann::json;

static constexpr const char *kIds = "ids.txt", *kDense = "dense.txt", *kTensors = "dense.safetensors",
                            *kAbout = "serving.json";
static constexpr int kVersion = 1;

static std::string ids_of(std::size_t lookup) { return concat("ids.", lookup); }
static std::string rows_of(std::size_t lookup) { return concat("rows.", lookup); }

using Named = std::vector<std::pair<std::string, ir::ValueId>>;

// What the results depend on, where `given` come from outside.
static ir::Graph part_of(const ir::Graph& whole, const Named& results, const Named& given) {
  std::vector<bool> is_needed(whole.values.size()), is_given(whole.values.size());
  for (const auto& [name, value] : results) is_needed[value.index] = true;
  for (const auto& [name, value] : given) is_given[value.index] = true;
  const auto is_made = [&](const ir::Node& node) {
    return std::ranges::any_of(node.outputs, [&](const std::optional<ir::ValueId>& made) {
      return made && is_needed[made->index] && !is_given[made->index];
    });
  };
  for (std::size_t i = whole.nodes.size(); i-- > 0;)
    if (is_made(whole.nodes[i]))
      for (const ir::ValueId value : ir::inputs_of(whole.nodes[i])) is_needed[value.index] = true;
  ir::Graph made;
  ir::Mapped stands_for(whole.values.size());
  for (const ir::Source& source : whole.sources) {
    if (!is_needed[source.value.index]) continue;
    const ir::Value& value = whole.at(source.value);
    using enum ir::Role;
    SHOAL_CHECK(
        value.role == Parameter || value.role == Buffer || value.role == Constant || value.role == Input,
        Infeasible, "ps export: the model reads ", ir::name_of(value.role), " ", in_quotes(source.name),
        ", which no sample has");
    stands_for.set(source.value, made.add_source(value.role, source.name, value.type, source.fingerprint));
  }
  for (const auto& [name, value] : given)
    if (is_needed[value.index])
      stands_for.set(value, made.add_source(ir::Role::Input, name, whole.at(value).type));
  for (const ir::Node& node : whole.nodes) {
    if (!is_made(node)) continue;
    SHOAL_CHECK(node.op != "shoal::pull_rows", Infeasible,
                "ps export: ids of a lookup are made of rows of another (module ", in_quotes(node.module),
                ")");
    const ir::Outputs outputs = ir::copy(whole, node, stands_for, made);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      if (node.outputs[i] && !is_given[node.outputs[i]->index]) stands_for.set(*node.outputs[i], outputs[i]);
  }
  for (const auto& [name, value] : results) made.add_result(ir::Role::Output, name, stands_for(value));
  return made;
}

Cut cut_after_lookups(const ir::Graph& graph) {
  Cut cut;
  Named ids, rows, logits;
  for (const ir::Node& node : graph.nodes) {
    SHOAL_CHECK(!node.outputs.empty(), Infeasible, "ps export: the model checks values (", node.op,
                ", module ", in_quotes(node.module), "), which a graph in two would not");
    if (node.op != "shoal::pull_rows") continue;
    const auto value_of = [&](const char* name) { return std::get<ir::ValueId>(*ir::find(node, name)); };
    const auto table = std::ranges::find(graph.sources, value_of("table"), &ir::Source::value);
    ids.emplace_back(ids_of(cut.lookups.size()), value_of("ids"));
    rows.emplace_back(rows_of(cut.lookups.size()), node.outputs.at(0).value());
    cut.lookups.push_back(
        {.table = table->name, .padding = std::get<std::int64_t>(*ir::find(node, "padding_idx"))});
  }
  for (const ir::Result& result : graph.results)
    if (result.role == ir::Role::Output) logits.emplace_back(result.name, result.value);
  cut.ids = part_of(graph, ids, {});
  cut.dense = part_of(graph, logits, rows);
  return cut;
}

// --- Writing.

static std::vector<rewrite::TableSpec> tables_among(const torch::nn::AnyModule& model, const Recipe& recipe) {
  const compile::Plan plan = {.tables = table_specs(recipe)};
  std::vector<rewrite::TableSpec> tables;
  for (const auto& item : model.ptr()->named_parameters())
    if (compile::is_table(plan, item.key())) tables.push_back({.parameters = item.key()});
  return tables;
}

// In the file of tensors: constants have names that parameters may have too.
static std::string key_of(const ir::Graph& graph, const ir::Source& source) {
  return graph.at(source.value).role == ir::Role::Constant ? concat("constant/", source.name) : source.name;
}

// Of all sources but inputs and those that are there already.
static void read_tensors(const ir::Graph& graph, FileSystem& files, const fs::path& from,
                         std::map<std::string, at::Tensor>& tensors) {
  const checkpoint::Weights weights(files, from);
  for (const ir::Source& source : graph.sources) {
    const ir::Value& value = graph.at(source.value);
    const std::string key = key_of(graph, source);
    if (value.role == ir::Role::Input || tensors.contains(key)) continue;
    const auto& all = weights.tensors();
    const auto found = std::ranges::find(all, key, &checkpoint::TensorShape::name);
    SHOAL_CHECK(found != all.end(), InvalidInput, from.string(), ": has no ", in_quotes(key),
                ", which the model of its recipe has");
    SHOAL_CHECK(found->shape == value.type.shape && found->dtype == value.type.dtype, InvalidInput,
                from.string(), ": ", in_quotes(key),
                " is of another shape or type than the model of its recipe has, ", ir::to_text(value.type));
    const auto index = static_cast<std::size_t>(found - all.begin());
    const auto read = [&](std::span<std::byte> to) { weights.read(index, to); };
    tensors.emplace(key, train::read_tensor(*found, read));
  }
}

static std::map<std::string, at::Tensor> constants_of(const capture::Captured& captured) {
  std::map<std::string, at::Tensor> constants;
  auto next = captured.constants.begin();
  for (const ir::Source& source : captured.graph.sources)
    if (captured.graph.at(source.value).role == ir::Role::Constant)
      constants.emplace(key_of(captured.graph, source), *next++);
  return constants;
}

void export_model(const fs::path& run, const fs::path& to, double min_score, std::int64_t batch) {
  DiskFileSystem files;
  const fs::path folder = fs::is_directory(run / "checkpoint") ? run / "checkpoint" : run;
  const auto newest = checkpoint::newest_whole(files, folder);
  for (const std::string& fault : newest.broken) warn(fault + "; the checkpoint before it is taken");
  SHOAL_CHECK(
      newest.checkpoint, InvalidInput, folder.string(),
      ": holds no whole checkpoint, and is no saved table. Remedy: a run's job.dump_folder, trained with "
      "--checkpoint.enable=true");
  const fs::path written = fs::weakly_canonical(to).lexically_relative(fs::weakly_canonical(folder));
  SHOAL_CHECK(written.empty() || *written.begin() == "..", InvalidInput, "ps export: ", to.string(),
              " is among the checkpoints of the run, ", folder.string(), ". Remedy: another folder");
  const checkpoint::Checkpoint& from = *newest.checkpoint;
  const Recipe recipe = recipe_of(from);
  const torch::nn::AnyModule model = hollow_model(recipe);
  const auto tables = tables_among(model, recipe);
  SHOAL_CHECK(
      !tables.empty(), InvalidInput, from.folder().string(),
      ": none of its parameters is in tables. Remedy: shoal generate, or its safetensors, for such models");
  const capture::Captured captured = captured_logits(recipe, model, batch);
  const Cut cut = cut_after_lookups(rewrite::tables(captured.graph, tables, rewrite::RowGradients::None));
  observe::make_folder(to);
  files.remove(to / kAbout);  // written last: what ends before is none
  std::int64_t rows = 0;
  for (const rewrite::TableSpec& table : tables)
    rows += export_rows(files, folder / "rows" / from.folder().filename() / table.parameters,
                        to / table.parameters, min_score)
                .rows;
  auto tensors = constants_of(captured);
  read_tensors(cut.dense, files, from.folder(), tensors);
  write_tensors(std::move(tensors), to / kTensors);
  observe::write_file(to / kIds, ir::to_text(cut.ids));
  observe::write_file(to / kDense, ir::to_text(cut.dense));
  json lookups = json::array();
  for (std::size_t i = 0; i < cut.lookups.size(); ++i)
    lookups.push_back({{"ids", ids_of(i)},
                       {"rows", rows_of(i)},
                       {"table", cut.lookups[i].table},
                       {"padding_idx", cut.lookups[i].padding}});
  observe::write_file(to / kAbout, json{{"version", kVersion},
                                        {"batch", batch},
                                        {"step", from.manifest().step},
                                        {"lookups", lookups},
                                        {"recipe", settings_of(recipe)}}
                                           .dump(2, ' ', false, json::error_handler_t::replace) +
                                       "\n");
  say(concat(to.string(), ": step ", from.manifest().step, ", ", cut.lookups.size(), " lookups, ", rows,
             " rows, ", cut.dense.nodes.size(), " ops after them, for ", batch, " samples at once"));
}

// --- Scoring.

static ps::Definition definition_of(FileSystem& files, const fs::path& path) {
  return ps::definition_from_text(
      ps::SavedFile(files, ps::files_of(files, path).front()).header().definition);
}

Scorer::Scorer(const fs::path& folder) {
  DiskFileSystem files;
  const fs::path about = folder / kAbout;
  json said;
  std::map<std::string, std::string> settings;
  std::vector<std::string> tables;
  try {
    said = json::parse(read_text(files, about));
    SHOAL_CHECK(said.at("version") == kVersion, InvalidInput, about.string(), ": is of version ",
                said.at("version").dump(), ", this shoal reads ", kVersion);
    said.at("batch").get_to(batch_);
    said.at("recipe").get_to(settings);
    for (const json& lookup : said.at("lookups")) {
      tables.push_back(lookup.at("table").get<std::string>());
      SHOAL_CHECK(lookup.at("padding_idx").get<std::int64_t>() < 0, Infeasible, about.string(),
                  ": scores of lookups with a padding_idx are not there yet");
    }
  } catch (const json::exception& error) {
    fail(ErrorKind::Corrupt, about.string(), ": was not written by shoal ps export: ", error.what());
  }
  recipe_ = recipe_from(settings, about.string());
  std::map<std::string, ps::Worker::TableNumber> numbers;
  for (const std::string& table : tables) {
    if (!numbers.contains(table)) {
      const auto number = worker_.add(definition_of(files, folder / table), 0);
      worker_.load(number, folder / table);
      numbers.emplace(table, number);
    }
    lookups_.push_back(numbers.at(table));
  }
  ids_.emplace(program::lower(ir::from_text(read_text(files, folder / kIds))));
  const ir::Graph dense = ir::from_text(read_text(files, folder / kDense));
  std::map<std::string, at::Tensor> tensors;
  read_tensors(dense, files, folder / kTensors, tensors);
  dense_.emplace(program::lower(dense));
  for (const ir::Source& source : dense.sources)
    if (const auto found = tensors.find(key_of(dense, source)); found != tensors.end())
      dense_->bind(dense.at(source.value).role, source.name, found->second);
}

static void bind_items(runtime::Executor& executor, const Batch& samples) {
  for (const auto& source : executor.program().sources)
    if (source.role == ir::Role::Input)
      for_each_leaf(samples, [&](const std::string& path, const Batch& leaf) {
        if (path == source.name) executor.bind(ir::Role::Input, path, leaf.tensor());
      });
}

at::Tensor Scorer::operator()(const Batch& samples) {
  bind_items(*ids_, samples);
  bind_items(*dense_, samples);
  ids_->run_gradients();
  for (std::size_t i = 0; i < lookups_.size(); ++i) {
    const at::Tensor ids = ids_->result(ir::Role::Output, ids_of(i)).contiguous();
    const bool is_wide = ps::is_wide(worker_.definition(lookups_[i]).dtype);
    std::vector<std::int64_t> shape = ids.sizes().vec();
    shape.push_back(static_cast<std::int64_t>(worker_.width(lookups_[i])));
    const at::Tensor rows = at::empty(shape, is_wide ? at::kDouble : at::kFloat);
    std::vector<std::int32_t> places(static_cast<std::size_t>(ids.numel()));
    const std::span bytes(static_cast<std::byte*>(rows.mutable_data_ptr()), rows.nbytes());
    worker_.pull(lookups_[i], {ids.const_data_ptr<std::int64_t>(), places.size()}, -1, places,
                 ps::WritableNumbers(bytes, is_wide));
    dense_->bind(ir::Role::Input, rows_of(i), rows);
  }
  dense_->run_gradients();
  return dense_->result(ir::Role::Output, "logits").clone();
}

}  // namespace shoal::cli
