// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/memory_choice.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/cli/forecast.h"
#include "shoal/cli/hollow.h"
#include "shoal/cli/ranks.h"
#include "shoal/cli/verbs.h"
#include "shoal/compile/fit.h"
#include "shoal/compile/stretches.h"
#include "shoal/runtime/file_memory.h"

namespace shoal::cli {

using compile::Whole;
using rewrite::RecomputeMode;

void recompute_within(Recipe& recipe, std::int64_t activations) {
  if (activations == 0) return;
  recipe.recompute.mode = RecomputeMode::Auto;
  recipe.recompute.bytes = concat(activations, 'B');
}

std::int64_t offload_in(const Recipe& recipe) {
  const auto& offload = recipe.offload;
  return offload.parameters | offload.optimizer_state << 1 | offload.gradients << 2 |
         offload.activations << 3;
}

void set_offload(Recipe& recipe, std::int64_t bits) {
  auto& offload = recipe.offload;
  int bit = 0;
  for (bool* goes : {&offload.parameters, &offload.optimizer_state, &offload.gradients, &offload.activations})
    *goes = (bits >> bit++ & 1) != 0;
}

// What is offloaded besides, one after the other: what is read once a step first.
static constexpr std::int64_t kOffloads[] = {0, 0b0010, 0b0110, 0b1110, 0b1111};

// Of the kind of rank that takes most.
struct WithinLimit::Tried {
  std::vector<Phase> phases;
  Phase largest;
  std::int64_t activations = 0;  // at once, at most
  double work = 0;               // of a step: forward and backward of all micro-batches, and the update
};

struct WithinLimit::Candidate {
  Recipe recipe;
  double cost = 0;  // work that it makes more, as a share
  std::int64_t bytes = 0;
};

// A recipe with micro-batches of one size.
class WithinLimit::Sized {
 public:
  Sized(Recipe recipe, int ranks, int threads, bool overlaps)
      : recipe_(std::move(recipe)),
        threads_(threads),
        parallelism_(parallelism_of(recipe_, ranks, overlaps)),
        sizes_(sizes_of(recipe_, parallelism_)),
        part_{{}, optimizer_of(recipe_)} {
    compile::Settings settings = settings_of(recipe_, part_, "");
    settings.plan_name = parallelism_.plan_name;
    settings.verifies = false;
    const bool is_staged = compile::num_stages_of(parallelism_.plan, parallelism_.mesh) > 1;
    if (sizes_.num_microbatches > 1 || is_staged) settings.then = compile::Then::Accumulate;
    auto [graph, captured] = captured_step(recipe_, hollow_model(recipe_), sizes_.microbatch);
    captured_ = captured;
    whole_ = compile::compile_whole(std::move(graph), parallelism_.plan, parallelism_.mesh, settings);
    if (settings.then == compile::Then::Accumulate) sums_ = update_of_sums(whole_);
  }
  Sized(const Sized&) = delete;
  Sized& operator=(const Sized&) = delete;

  bool is_staged() const { return !whole_.stages.owners.empty(); }

  // Whether it would be the same model in other micro-batches, and the same loss.
  bool may_be_cut() const {
    const auto is_written = [](const ir::Result& result) { return result.role == ir::Role::Buffer; };
    return !is_staged() && std::ranges::none_of(whole_.graph.results, is_written);
  }

  // 0: nothing is made again. `offload`: as offload_in. Throws Unfit. Tried once, whatever the limit.
  const Tried& tried(std::int64_t activations, std::int64_t offload) {
    const auto [known, is_new] = tried_.try_emplace({activations, offload});
    Outcome& outcome = known->second;
    if (is_new) {
      try {
        outcome.tried = tried_now(activations, offload);
      } catch (const compile::Unfit&) {
        outcome.unfit = std::current_exception();
      }
    }
    if (outcome.unfit) std::rethrow_exception(outcome.unfit);
    return outcome.tried;
  }
  Recipe with(std::int64_t activations, std::int64_t offload) const {
    Recipe recipe = recipe_;
    recompute_within(recipe, activations);
    set_offload(recipe, offload);
    return recipe;
  }

 private:
  struct Outcome {
    Tried tried = {};
    std::exception_ptr unfit = nullptr;
  };

  Tried tried_now(std::int64_t activations, std::int64_t offload) {
    Recipe recipe = with(activations, offload);
    whole_.plan.offload = parallelism_of(recipe, whole_.mesh.size()).plan.offload;
    if (sums_) sums_->plan.offload = whole_.plan.offload;
    whole_.plan.recompute = {};
    if (activations > 0) whole_.plan.recompute = {.mode = RecomputeMode::Auto, .bytes = activations};
    Tried most;
    for (const auto& kind : kinds_of_ranks(whole_)) {
      const Forecast forecast =
          forecast_of(recipe, whole_, captured_, kind.first(), threads_, sums_ ? &*sums_ : nullptr);
      double work = work_of(forecast.local) * static_cast<double>(sizes_.num_microbatches);
      if (sums_) work += work_of(sums_->graph);
      work += work_of_files(forecast.program);
      most.work = std::max(most.work, work);
      if (forecast.largest().bytes > most.largest.bytes) {
        most.largest = forecast.largest();
        most.phases = forecast.phases;
      }
      for (const auto& segment : forecast.step.activations)
        for (const program::MemoryUse& use : segment) most.activations = std::max(most.activations, use.peak);
    }
    return most;
  }
  // Of what is kept from step to step in a file: it is read, written, and written to the disk.
  static double work_of_files(const program::Program& program) {
    constexpr double kFile = 8;
    double work = 0;
    for (const auto& source : program.sources)
      if (source.is_offloaded)
        work += kFile * static_cast<double>(ir::bytes_of(program.types.at(source.slot.index)));
    return work;
  }
  // An op takes some microseconds, however little it does.
  static double work_of(const ir::Graph& graph) {
    constexpr double kLeast = 32768;  // bytes that are moved in that time
    double work = 0;
    for (const ir::Node& node : graph.nodes) work += std::max(compile::time_of(graph, node), kLeast);
    return work;
  }

  Recipe recipe_;
  int threads_;
  Parallelism parallelism_;
  StepSizes sizes_;
  OptimizerPart part_;
  std::int64_t captured_ = 0;  // bytes
  Whole whole_;
  std::optional<Whole> sums_;
  std::map<std::pair<std::int64_t, std::int64_t>, Outcome> tried_ = {};  // by activations and offload
};

class WithinLimit::Search {
 public:
  Search(const Recipe& recipe, int ranks, int threads, bool overlaps)
      : recipe_(recipe),
        ranks_(ranks),
        threads_(threads),
        overlaps_(overlaps),
        as_given_(sizes_of(recipe, parallelism_of(recipe, ranks))),
        data_ranks_(data_ranks_of(parallelism_of(recipe, ranks))),
        offloads_(offloads_for(recipe)) {}

  Candidate run(DataMemory data) {
    data_ = data;
    limit_ = parse_bytes(recipe_.memory.limit).value();
    if (look()) return std::move(*best_);
    const Phase least = least_;
    // What is tried follows the limit: one just below what was found may find less.
    std::int64_t bytes = least.bytes;
    for (limit_ = bytes - 1; look(); limit_ = bytes - 1) bytes = best_->bytes;
    constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
    fail(ErrorKind::Infeasible, "memory.limit is ", recipe_.memory.limit,
         ", and the least that a rank takes is ", bytes, " bytes, for ", least.name, ": ", least.where,
         ", with all recompute there is", offloads_.size() > 1 ? ", all that can be offloaded in a file" : "",
         may_be_cut_ ? " and in micro-batches of one sample" : "", ". ", (bytes + kMebibyte - 1) / kMebibyte,
         "MiB would do. Remedy: that limit, or more ranks that share layers or store parts (parallelism, "
         "zero.stage)");
  }

 private:
  // Whether something keeps the limit: the best that does, and the least there is.
  bool look() {
    best_.reset();
    least_ = {};
    std::vector<std::int64_t> counts = counts_of_microbatches();
    may_be_cut_ = may_be_cut(counts.back());
    if (!may_be_cut_) counts.resize(1);
    const std::int64_t of_capture = bytes_of_capture(sized(counts.back()));
    for (const std::int64_t count : counts) {
      const bool is_smallest = count == counts.back();
      // As large a batch, or as large parts of it, as that one's.
      if (of_capture * counts.back() / count > limit_ && !is_smallest) continue;
      if (!look_at(sized(count), is_smallest)) break;  // those that are smaller still cost more
    }
    return best_.has_value();
  }

  // As many as are given, and more: those that share the batch among the ranks alike.
  std::vector<std::int64_t> counts_of_microbatches() const {
    std::vector<std::int64_t> counts = {as_given_.num_microbatches};
    const std::int64_t samples = as_given_.samples();
    for (std::int64_t count = counts[0] + 1; count * data_ranks_ <= samples; ++count)
      if (samples % (count * data_ranks_) == 0) counts.push_back(count);
    return counts;
  }
  // False where the model takes no such batch, as batch norm takes none of one sample.
  bool may_be_cut(std::int64_t count) {
    try {
      return sized(count).may_be_cut();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::InvalidInput || count == as_given_.num_microbatches) throw;
      return false;
    }
  }
  Sized& sized(std::int64_t count) {
    auto& known = sized_[count];
    if (known == nullptr) known = std::make_unique<Sized>(in(count), ranks_, threads_, overlaps_);
    return *known;
  }
  Recipe in(std::int64_t count) const {
    if (count == as_given_.num_microbatches) return recipe_;
    Recipe recipe = recipe_;
    recipe.training.global_batch_size = as_given_.samples();
    recipe.training.local_batch_size = as_given_.samples() / count / data_ranks_;
    return recipe;
  }
  // 0 but for an LSTM, whose layer is run for it: what is not to be tried on a batch that it has no room for.
  static std::int64_t bytes_of_capture(Sized& sized) {
    for (const Phase& phase : sized.tried(0, 0).phases)
      if (phase.name == "capture") return phase.bytes;
    return 0;
  }
  Tried tried(Sized& sized, std::int64_t activations, std::int64_t offload) const {
    Tried tried = sized.tried(activations, offload);
    tried.largest = data_.beside(std::move(tried.largest));
    return tried;
  }
  void look_at(const Tried& tried, const Sized& sized, std::int64_t activations, std::int64_t offload) {
    if (least_.name.empty() || tried.largest.bytes < least_.bytes) least_ = tried.largest;
    const double cost = tried.work / work_as_given_ - 1;
    if (tried.largest.bytes <= limit_ && (!best_ || cost < best_->cost))
      best_ = {.recipe = sized.with(activations, offload), .cost = cost, .bytes = tried.largest.bytes};
  }

  // False where it costs more than the best, with nothing made again even.
  bool look_at(Sized& sized, bool is_smallest) {
    for (const std::int64_t offload : offloads_) {
      const Tried plain = tried(sized, 0, offload);
      if (work_as_given_ == 0) work_as_given_ = plain.work;
      if (best_ && plain.work / work_as_given_ - 1 >= best_->cost) return offload != offloads_.front();
      look_at(plain, sized, 0, offload);
      if (plain.largest.bytes <= limit_) break;
      // A search of its own: where it may do, and for the least there is.
      const bool is_last = offload == offloads_.back();
      const bool may_do = sized.is_staged() || plain.largest.bytes - plain.activations <= limit_;
      if ((may_do && (is_last || offload == offloads_.front())) || (is_last && is_smallest))
        look_at_recompute(sized, plain, offload);
    }
    return true;
  }
  // What activations may take, by what the whole takes more than it may.
  void look_at_recompute(Sized& sized, const Tried& plain, std::int64_t offload) {
    constexpr int kTries = 8;
    std::int64_t activations = plain.activations, bytes = plain.largest.bytes;
    for (int i = 0; i < kTries && activations > 1 && bytes > limit_; ++i) {
      const std::int64_t less = std::max(bytes - limit_, activations / 64 + 1);
      activations = std::max<std::int64_t>(activations - less, 1);
      const auto [now, least] = tried_or_least(sized, activations, offload);
      look_at(now, sized, std::max(activations, least), offload);
      if (least > activations) return;
      bytes = now.largest.bytes;
    }
  }
  // With so many bytes of activations, or the least that each kind of rank, each stage of a pipeline, can do with.
  std::pair<Tried, std::int64_t> tried_or_least(Sized& sized, std::int64_t activations,
                                                std::int64_t offload) const {
    while (true) {
      try {
        return {tried(sized, activations, offload), activations};
      } catch (const compile::Unfit& error) {
        SHOAL_CHECK(error.least() > activations, Internal, "memory.auto: ", error.what());
        activations = error.least();
      }
    }
  }

  // None where there is no disk to offload to.
  static std::vector<std::int64_t> offloads_for(const Recipe& recipe) {
    if (const std::int64_t said = offload_in(recipe); said != 0) return {said};
    try {
      const std::string& folder = recipe.offload.folder;
      const runtime::FileMemory there(folder.empty() ? runtime::kOffloadFolder : folder);
    } catch (const Error&) {
      return {0};
    }
    return {std::begin(kOffloads), std::end(kOffloads)};
  }

  const Recipe& recipe_;
  int ranks_, threads_;
  bool overlaps_;
  DataMemory data_ = {};
  std::int64_t limit_ = 0;
  StepSizes as_given_;
  std::int64_t data_ranks_;
  std::vector<std::int64_t> offloads_;  // that are tried; none but what is said, where something is
  double work_as_given_ = 0;
  std::optional<Candidate> best_;
  Phase least_;
  bool may_be_cut_ = false;
  std::map<std::int64_t, std::unique_ptr<Sized>> sized_;  // by the number of micro-batches
};

std::string WithinLimit::text_of(const Candidate& chosen) const {
  const StepSizes before = sizes_of(recipe_, parallelism_of(recipe_, ranks_));
  const StepSizes after = sizes_of(chosen.recipe, parallelism_of(chosen.recipe, ranks_));
  std::string text;
  if (chosen.recipe.recompute.mode == RecomputeMode::Auto)
    text += concat("recompute until activations fit in ",
                   human_bytes(parse_bytes(chosen.recipe.recompute.bytes).value()));
  if (const std::int64_t offload = offload_in(chosen.recipe); offload != offload_in(recipe_)) {
    std::string kinds;
    int bit = 0;
    for (const char* kind : {"parameters", "optimizer state", "gradients", "activations"})
      if ((offload >> bit++ & 1) != 0) kinds += concat(kinds.empty() ? "" : ", ", kind);
    text += concat(text.empty() ? "" : ", ", kinds, " offloaded to a file");
  }
  if (after.num_microbatches != before.num_microbatches)
    text += concat(text.empty() ? "" : ", ", after.num_microbatches, " micro-batches of ", after.microbatch,
                   " samples in place of ", before.num_microbatches);
  char cost[64];
  std::snprintf(cost, sizeof cost, "%.1f %% more work", 100 * std::max(chosen.cost, 0.0));
  return concat("memory.auto: ", text.empty() ? "as it is" : concat(text, ", ", cost), ", ",
                human_bytes(chosen.bytes), " of ", recipe_.memory.limit);
}

Phase DataMemory::beside(Phase largest) const {
  largest.bytes += kept;
  return largest.bytes >= most ? std::move(largest) : Phase{"the data", most, "while they are read"};
}

WithinLimit::WithinLimit(Recipe recipe, int ranks, int threads, bool overlaps)
    : recipe_(std::move(recipe)), ranks_(ranks), threads_(threads), overlaps_(overlaps) {}
WithinLimit::~WithinLimit() = default;

MemoryChoice WithinLimit::choose(DataMemory data) {
  if (!recipe_.memory.automatic) return {.recipe = recipe_, .text = ""};
  SHOAL_CHECK(!recipe_.memory.limit.empty(), InvalidInput,
              "memory.auto chooses what keeps memory.limit, and there is none. Remedy: --memory.limit=2GiB");
  SHOAL_CHECK(parallelism_of(recipe_, ranks_).plan.recompute.mode == RecomputeMode::None, InvalidInput,
              "memory.auto chooses what is made again, and recompute is said. Remedy: leave one of them out");
  check_device_of_limit(recipe_);
  if (search_ == nullptr) search_ = std::make_unique<Search>(recipe_, ranks_, threads_, overlaps_);
  Candidate chosen = search_->run(data);
  std::string text = text_of(chosen);
  return {std::move(chosen.recipe), std::move(text), chosen.bytes};
}

}  // namespace shoal::cli
