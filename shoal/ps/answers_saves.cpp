// SPDX-License-Identifier: Apache-2.0
// Tables that go to files, and come back.
#include <bit>
#include <filesystem>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/answers.h"

namespace shoal::ps {

using wire::Operation;

SaveReport Answers::save_or_load(const wire::Head& head, const wire::Note& note) {
  Table& whole = table(head);
  SHOAL_CHECK(files_ != nullptr, InvalidInput, "ps: this server has no files to keep table ",
              in_quotes(whole.definition().name), " in");
  const std::filesystem::path path(note.text);
  if (head.operation == Operation::Export)
    return save(whole, *files_, file_of(path, part_),
                {.kind = SaveKind::Base,
                 .part = part_,
                 .parts = parts_,
                 .min_score = static_cast<float>(std::bit_cast<double>(note.number))});
  return load(whole, *files_, files_of(*files_, path),
              [&](std::uint64_t key) { return whole.shard_of(key) % parts_ == part_; });
}

void Answers::begin_save(const wire::Head& head, const wire::Note& note) {
  Table& whole = table(head);
  const ps::Saved as = {.origin = note.number, .number = head.count};
  if (const auto last = saves_.find(head.table); last != saves_.end()) last->second.look();
  if (const auto last = saves_.find(head.table); last != saves_.end() && last->second.saving) {
    const Save& save = last->second;
    if (save.as == as && save.path == note.text) return;  // asked for again
    fail(ErrorKind::Infeasible, "ps: table ", in_quotes(whole.definition().name), " is being saved to ",
         save.path, "; wait until that is done");
  }
  saves_.erase(head.table);
  SHOAL_CHECK(files_ != nullptr, InvalidInput, "ps: this server has no files to keep table ",
              in_quotes(whole.definition().name), " in");
  SaveOptions options = options_of(as);
  options.part = part_;
  options.parts = parts_;
  auto saving =
      std::make_unique<Saving>(whole, *files_, file_of(std::filesystem::path(note.text), part_), options);
  saves_[head.table] = {.as = as, .path = std::string(note.text), .saving = std::move(saving)};
}

void Answers::Save::look() {
  if (saving) saving->advance(0);  // where something else has visited the last rows
  if (!saving || !saving->is_written()) return;
  try {
    report = saving->finish();
  } catch (const Error& error) {
    failure = error.what();
  }
  saving.reset();
}

// Whether it is whole.
bool Answers::saved(const wire::Head& head, std::uint64_t origin, SaveReport& report) {
  const auto found = saves_.find(head.table);
  const ps::Saved as = {.origin = origin, .number = head.count};
  SHOAL_CHECK(
      found != saves_.end() && found->second.as == as, Infeasible, "ps: table ",
      in_quotes(table(head).definition().name),
      ": its save was given up, as the server that made it has gone; the saves before are as they were");
  Save& save = found->second;
  save.look();
  SHOAL_CHECK(save.failure.empty(), Infeasible, save.failure);
  if (save.report) report = *save.report;
  return save.report.has_value();
}

bool Answers::has_saves() const {
  return std::ranges::any_of(tables_, [](const auto& table) { return table->is_being_saved(); });
}

bool Answers::advance_saves(std::size_t rows) {
  for (std::uint32_t table = 0; table < tables_.size(); ++table) {
    if (!tables_[table]->is_being_saved()) continue;
    const auto save = saves_.find(table);
    if (save != saves_.end() && save->second.saving)
      save->second.saving->advance(rows);
    else
      tables_[table]->advance_save(rows);  // of a copy
  }
  return has_saves();
}

}  // namespace shoal::ps
