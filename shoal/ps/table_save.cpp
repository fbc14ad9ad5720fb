// SPDX-License-Identifier: Apache-2.0
// A save while the table changes. All rows of a shard are due when it begins, or those that had changed; who takes a
// row from what is due visits it. That is the save when it comes to the row, or whoever is about to change it:
//
//   save     |shard 0|shard 1|shard 2 …            a row that is pushed in shard 7 is visited first,
//   push                  7, 1                     one in shard 1 has been
//
// Shards find out that a save began when they are come to, so that its begin costs nothing by row.
#include <utility>

#include "shoal/ps/table.h"

namespace shoal::ps {

void Table::begin_save(const Saved& as, bool only_changed, std::function<void(const Row&)> visit) {
  finish_visits();
  before_ = {.saved = saved_, .cut = cut_saved_, .shrinks = shrinks_saved_, .removed = {}};
  for (Shard& shard : shards_) before_->removed.push_back(std::exchange(shard.removed, {}));
  image_ = {.only_changed = only_changed, .visit = std::move(visit)};
  saved_ = as;
  shrinks_saved_ = shrinks_;
  cut_saved_ = ++cuts_;
}

bool Table::advance_save(std::size_t rows) {
  std::size_t left = rows;
  while (image_ && left > 0) {
    const std::uint32_t shard = image_->shard;
    if (shard == definition_.shards) {
      if (!image_->visit) before_.reset();
      image_.reset();
      break;
    }
    reach(shard);
    Index& index = indices_[shard];
    if (index.num_due() == 0) {
      if (cold_ && image_->visit)
        for_each_cold(shard, [&](const ColdHead& head, const Row& row) {
          if (is_due(head)) image_->visit(row);
        });
      index.end_due();
      ++image_->shard;
      image_->bucket = 0;
      continue;
    }
    if (image_->bucket >= index.num_buckets()) image_->bucket = 0;  // some moved to where it had been
    Row row;
    index.take_due_in(image_->bucket++, [&](std::uint64_t key, std::uint32_t slot) {
      if (image_->visit) {
        describe(row, key, slot);
        image_->visit(row);
      }
      left -= left > 0 ? 1 : 0;
    });
  }
  return !image_;
}

void Table::finish_visits() {
  while (image_) advance_save(~std::size_t{0});
}

void Table::end_save(bool is_whole) {
  if (is_whole) finish_visits();
  if (!is_whole && before_) {
    image_.reset();
    saved_ = before_->saved;
    cut_saved_ = before_->cut;
    shrinks_saved_ = before_->shrinks;
    for (std::uint32_t shard = 0; shard < definition_.shards; ++shard) {
      auto& removed = shards_[shard].removed;
      removed.insert(removed.begin(), before_->removed[shard].begin(), before_->removed[shard].end());
      shards_[shard].cut = cuts_;
      indices_[shard].end_due();
      indices_[shard].mark_changed();
    }
  }
  before_.reset();
}

void Table::mark_saved(const Saved& saved) {
  finish_visits();
  before_.reset();
  saved_ = saved;
  shrinks_saved_ = shrinks_;
  cut_saved_ = ++cuts_;
  for (std::uint32_t shard = 0; shard < definition_.shards; ++shard) {
    indices_[shard].clear_changed();
    shards_[shard].removed = {};
    shards_[shard].cut = cuts_;
  }
}

void Table::reach(std::uint32_t shard) {
  if (shards_[shard].cut == cuts_) return;
  indices_[shard].begin_due(image_->only_changed);
  shards_[shard].cut = cuts_;
}

void Table::visit_due(std::uint32_t shard, std::uint64_t key, std::uint32_t slot) {
  Index& index = indices_[shard];
  if (!index.take_due(index.home(mixed(key)), key) || !image_->visit) return;
  Row row;
  describe(row, key, slot);
  image_->visit(row);
}

void Table::preserve(std::span<const std::uint64_t> keys) {
  if (!image_) return;
  for (const std::uint64_t key : keys) {
    const std::uint32_t shard = shard_of(key);
    if (!is_before(shard)) continue;
    reach(shard);
    const Index& index = indices_[shard];
    const std::uint32_t slot = index.find(index.home(mixed(key)), key);
    if (slot != Index::kAbsent) visit_due(shard, key, slot);
  }
}

// Of those on disk alone, which a push brings to memory first.
void Table::preserve_cold(std::span<const std::uint64_t> keys) {
  if (!image_ || !cold_ || !image_->visit) return;
  for (const std::uint64_t key : keys) {
    const std::uint64_t hash = mixed(key);
    const Index& index = indices_[shard_of(key)];
    if (!is_before(shard_of(key)) || index.find(index.home(hash), key) != Index::kAbsent) continue;
    cold_->read({&hash, 1}, [&](std::size_t, std::string_view record) {
      Row row;
      if (is_due(read_record(record, row))) image_->visit(row);
    });
  }
}

// A record that was written since is of a row that was visited.
bool Table::is_due(const ColdHead& head) const {
  return head.changed <= cuts_ && (!image_->only_changed || head.changed > before_->cut);
}

}  // namespace shoal::ps
