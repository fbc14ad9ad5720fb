// SPDX-License-Identifier: Apache-2.0
// The tables of a trainer: which of the model's parameters they stand for, and what a step asks of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shoal/capture/capture.h"
#include "shoal/compile/optimizer.h"
#include "shoal/ps/worker.h"
#include "shoal/rewrite/table_spec.h"
#include "shoal/runtime/groups.h"
#include "shoal/runtime/row_kernels.h"
#include "shoal/train/agreement.h"
#include "shoal/train/tables.h"

namespace shoal::train {

class ModelTables {
 public:
  using NamedTensors = std::vector<capture::NamedTensor>;

  // Takes the memory of those of the parameters that `options` names, which all have to be there. `control`: of
  // several ranks, who all call it at once. Throws InvalidInput naming a parameter that cannot be a table.
  ModelTables(const TableOptions& options, const std::vector<rewrite::TableSpec>& of_plan,
              const std::vector<std::pair<std::string, at::Tensor>>& parameters,
              const std::vector<OptimizerPart>& optimizers, const runtime::Group* control);
  ModelTables(const ModelTables&) = delete;
  ModelTables& operator=(const ModelTables&) = delete;
  ~ModelTables();  // what was kept back goes to the tables, unless an error ends its scope

  // The others. Throws InvalidInput where a table's parameter is another tensor now.
  std::vector<std::pair<std::string, at::Tensor>> without(
      std::vector<std::pair<std::string, at::Tensor>> parameters) const;
  // Before a step or an evaluation: throws InvalidInput where a parameter was given data, or was written to while
  // it had some, which its table does not see.
  void check();
  bool has(const std::string& parameter) const { return rows_.numbers.contains(parameter); }
  const NamedTensors& parameters() const { return parameters_; }           // without memory
  const std::vector<rewrite::TableSpec>& specs() const { return specs_; }  // of each, as a plan has them
  const runtime::RowTables* rows() const { return &rows_; }
  const ps::Worker& worker() const { return *worker_; }

  // Of a part of the optimizers, what was set for it in place of what its optimizer says.
  void set_learning_rate(std::size_t part, double lr);
  // Other settings of the trainer's optimizers. Throws InvalidInput where they would be others of rows.
  void follow(const std::vector<OptimizerPart>& optimizers);

  // All ranks call it at once: what is read later has all steps of all of them.
  void settle() { worker_->settle(); }
  // All rows of a table whose ids have a bound, as they are now; of other ranks, what they have sent.
  at::Tensor read(const std::string& parameter);
  // Rows of these ids.
  at::Tensor read(const std::string& parameter, const at::Tensor& ids);
  // All ranks call it at once; the first one's count.
  void write(const std::string& parameter, const at::Tensor& ids, const at::Tensor& values);
  // Of each table with scores, on the first rank: what expired. All ranks call it at once.
  std::map<std::string, ps::Shrunk> end_day(std::uint32_t day);
  // Beside the checkpoint of a step, in its folder: FOLDER/rows/step_00000100/PARAMETER.0, …, with all rows, or those
  // that changed since the save that its file "follows" names. All ranks call them
  // alike; the first one has the tables do it. What no checkpoint needs any more goes with the next save.
  // begin_save() takes the rows of this moment, and training may go on; once go_on_saving() or finish_save() of the
  // first rank have found them whole there, or not, the future says so: nothing, or why not.
  std::future<std::string> begin_save(const std::filesystem::path& folder, std::int64_t step);
  void go_on_saving();
  void finish_save();
  void load(const std::filesystem::path& folder, std::int64_t step);
  std::optional<std::int64_t> loaded_step() const { return loaded_step_; }

  // Gives the parameters their memory and values, until check(); those without a bound, or of more than 2 GiB,
  // stay without.
  void materialize();

 private:
  struct OfPart {
    std::string name;
    ps::Worker::TableNumber table;
    std::size_t part;
    ps::RowOptimizer optimizer;
  };

  void add(const TableOptions& options, const TablePlacement& placement, const std::string& name,
           const at::Tensor& parameter, const std::vector<OptimizerPart>& optimizers);
  bool has_room(const std::string& name) const;
  void have_changed();  // the rows, behind what the parameters were given
  static void take_memory(const std::string& name, const at::Tensor& parameter);
  const at::Tensor& parameter(const std::string& name) const;
  template <class Act>
  void on_all(const Act& act) const {
    control_ != nullptr ? together(*control_, act) : act();
  }
  void look_at_save();
  bool is_save_whole();
  void end_save(const std::string& why);  // nothing: it is whole
  void place_save();
  ps::Saved next_save(const std::filesystem::path& folder, std::int64_t step);
  bool is_first() const { return control_ == nullptr || control_->rank() == 0; }

  const runtime::Group* control_;
  std::unique_ptr<ps::Tables> own_;
  ps::Tables* tables_;
  std::unique_ptr<ps::Worker> worker_;
  runtime::RowTables rows_;
  NamedTensors parameters_;
  std::vector<rewrite::TableSpec> specs_;
  std::vector<OfPart> of_parts_;  // tables whose rate is that of an optimizer of the trainer
  struct Save {
    std::filesystem::path folder;
    std::int64_t step = 0;
    ps::Saved as = {};
    std::set<std::string> whole = {};  // tables
    std::promise<std::string> done = {};
    std::chrono::steady_clock::time_point looked = {};
  };
  std::optional<Save> save_;  // that is under way, of the first rank
  struct LastSave {  // that is where it belongs, with all that it follows; none after a load or a failure
    std::filesystem::path folder;
    std::int64_t step = 0;
    ps::Saved as;
  };
  std::optional<LastSave> last_save_;
  const std::uint32_t save_deltas_;
  bool is_materialized_ = false;
  std::optional<std::int64_t> loaded_step_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace shoal::train
