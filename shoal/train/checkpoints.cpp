// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/checkpoints.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/checkpoint/reader.h"
#include "shoal/train/agreement.h"

namespace shoal::train {

using nlohmann::json;

Checkpoints::Checkpoints(const runtime::Group* control) : control_(control) {
  if (const char* readers = std::getenv("SHOAL_FILES"); readers != nullptr) set_readers(readers);
}

void Checkpoints::on_all(const std::function<void()>& act) const {
  if (control_ == nullptr)
    act();
  else
    together(*control_, act);
}

static void throw_failures(checkpoint::Saver& saver) {
  saver.wait();
  std::string text;
  for (const std::string& failure : saver.take_failures()) text += concat(text.empty() ? "" : "; ", failure);
  SHOAL_CHECK(text.empty(), Infeasible, text, ". The model is as it was");
}

void Checkpoints::save(const std::filesystem::path& folder, const TrainingState& state,
                       const std::string& note, std::int64_t keep, std::future<std::string> ready) {
  SHOAL_CHECK(keep >= 0, InvalidInput, "trainer: save keeps the newest ", keep,
              " checkpoints; it is how many stay, 0 for all");
  on_all([&] {
    if (!is_first()) return;
    auto& [saver, kept] = savers_[folder];
    if (saver != nullptr) throw_failures(*saver);
    if (saver == nullptr || kept != keep)
      saver = std::make_unique<checkpoint::Saver>(files_, folder,
                                                  checkpoint::SaverOptions{.keep_latest_k = keep});
    kept = keep;
    std::string document;
    try {
      document = json({{"trainer", json::parse(counts_of(state))}, {"note", note}}).dump();
    } catch (const json::exception& error) {
      fail(ErrorKind::InvalidInput, "trainer: the note of a checkpoint is text in UTF-8: ", error.what());
    }
    saver->save(state.step + state.backwards, document, snapshot_of(state).tensors, std::move(ready));
  });
}

void Checkpoints::wait() {
  on_all([&] {
    for (auto& [folder, kept] : savers_) throw_failures(*kept.saver);
  });
}

std::optional<Checkpoints::Found> Checkpoints::load(const std::filesystem::path& folder,
                                                    std::optional<std::int64_t> wanted) {
  std::int64_t step = wanted.value_or(-1);
  on_all([&] {
    if (!is_first()) return;
    if (const auto saver = savers_.find(folder); saver != savers_.end()) throw_failures(*saver->second.saver);
    if (wanted) return;
    const checkpoint::Newest newest = checkpoint::newest_whole(files_, folder);
    for (const std::string& fault : newest.broken) TORCH_WARN(fault, "; the checkpoint before it is tried");
    SHOAL_CHECK(newest.checkpoint || newest.broken.empty(), Corrupt, folder.string(),
                ": none of its checkpoints is whole. Remedy: another folder, or begin anew");
    if (newest.checkpoint) step = newest.checkpoint->manifest().step;
  });
  if (control_ != nullptr)
    control_->communicator->broadcast({&step, 1, DType::Int64}, 0)->wait(control_->limit);
  if (step < 0 && !wanted) return std::nullopt;
  Found found;
  on_all([&] {
    const checkpoint::Checkpoint checkpoint = checkpoint::checkpoint_of_step(files_, folder, step);
    const json state = json::parse(checkpoint.manifest().state, nullptr, false);
    SHOAL_CHECK(state.is_object() && state.contains("trainer") && state["trainer"].is_object(), Corrupt,
                checkpoint.folder().string(), ": was made by no trainer: its state has no counts of one");
    found = {read_state(checkpoint, state["trainer"].dump()), state.value("note", "")};
  });
  return found;
}

}  // namespace shoal::train
