// SPDX-License-Identifier: Apache-2.0
// Rows by key, in shards that share nothing but where they get memory from.
//
//   key ─mixed─► shard ─► Index: bucket of 5 keys ─► slot ─┬► Arena: values of the parts | their state
//                                                         │         (of a part to be earned: another arena)
//                                                         └► Arena: shows, clicks, day (of a scored table)
//
// With a cold store, a shard has a bound of rows in memory. A push brings the rows that it wants there first,
// and those go that were pushed least of late (a clock with counts); where a row is in memory, what lies on
// disk under its key is old. A pull reads rows where they are.
//
// A whole batch goes through at once, so that memory is asked for what is needed next while the row before is
// worked on. Calls with keys of different shards may run at the same time; everything else takes turns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/ps/arena.h"
#include "shoal/ps/candidates.h"
#include "shoal/ps/cold_store.h"
#include "shoal/ps/definition.h"
#include "shoal/ps/index.h"
#include "shoal/ps/numbers.h"

namespace shoal::ps {

// Gradients of keys, one row of the table's width each, summed for each key; or what is added to their values
// as it is. Borrowed.
enum class PushOf : std::uint8_t { Gradients, Differences };
// What comes to rows, by key.
struct Push {
  std::span<const std::uint64_t> keys;             // that differ
  Numbers gradients;                               // keys.size() × width, row after row
  std::span<const float> shows = {}, clicks = {};  // of each key; none: 1 and 0
  std::uint64_t step = 0;                          // with the key, what admission by probability draws from
  double rate = 1;                                 // multiplies every part's
  PushOf of = PushOf::Gradients;                   // what they are
  // Of several workers: which of how many this is, and the number of the push, which grows from 1 on.
  std::uint32_t worker = 0, workers = 0;
  std::uint64_t round = 0;
  // Those of all workers of a number are one push (joint_push.h); or each is applied as it comes.
  bool is_joint = false;
};

// A pull that is answered when the pushes of so many workers up to this number are applied.
struct After {
  std::uint64_t round = 0;    // that number
  std::uint32_t workers = 0;  // 0: waits for none
};

// Throws InvalidInput, naming table and key, where it is not of the right size and type, has a number that is
// not finite, or a rate, shows or clicks below 0. `width`: of a row of that table.
void check(const Push& push, const Definition& table, std::size_t width);

// How a row was used.
struct Usage {
  float shows = 0, clicks = 0;  // what pushes brought, less what shrinks took
  std::uint32_t day = 0;        // of its last push
  friend bool operator==(const Usage&, const Usage&) = default;
};

// A row as it is stored. Borrowed; until the table changes.
struct Row {
  std::uint64_t key = 0;                            // whose it is
  Usage usage;                                      // zeros in a table that is not scored
  std::uint32_t parts = 0;                          // bits: those that it has
  std::vector<std::span<const std::byte>> content;  // two for each of them: values, state
};

struct Shrunk {                                            // what a shrink did
  std::int64_t rows = 0;                                   // that were there
  std::int64_t low_score = 0, unseen = 0, over_bound = 0;  // removed, and why
  friend bool operator==(const Shrunk&, const Shrunk&) = default;
};

// "12 of 400 rows went (3 of low score, 9 unseen, 0 above the bound)"
std::string to_text(const Shrunk& shrunk);

// What there is of a table on a part, and what its server was asked of it so far.
struct TableState {
  std::string definition;                           // as text
  std::uint32_t day = 0;                            // Table::day()
  std::int64_t rows = 0, cold_rows = 0, bytes = 0;  // in memory
  std::uint64_t pulled = 0, pushed = 0;             // rows
  friend bool operator==(const TableState&, const TableState&) = default;
};

// Which save a table is as of: a full one (origin 0: none), and how many deltas after it.
struct Saved {
  std::uint64_t origin = 0;  // SaveOptions::origin
  std::uint32_t number = 0;  // of deltas
  friend bool operator==(const Saved&, const Saved&) = default;
};

// Throws what the cold store does, where there is one: Infeasible where the disk takes no more, Corrupt for a
// damaged record.
class Table {
 public:
  // Throws InvalidInput for a definition that is wrong, or memory that is too small.
  explicit Table(Definition definition, Cold cold = {});

  const Definition& definition() const { return definition_; }  // as given
  std::size_t width() const { return width_; }                  // values of all parts
  // The number of the shard that has the key, from 0.
  std::uint32_t shard_of(std::uint64_t key) const { return static_cast<std::uint32_t>(shard_at(mixed(key))); }

  // A key without a row reads as the row that it would begin with, a part that is not earned as zeros. Makes
  // nothing, so that evaluation leaves no trace. `rows`: room for keys.size() × width() numbers, row after
  // row, double where the table is of float64; else throws InvalidInput.
  void pull(std::span<const std::uint64_t> keys, WritableNumbers rows) const;
  // All or nothing: throws InvalidInput as check() does, and changes nothing then.
  void push(const Push& push);

  void set_day(std::uint32_t day) { day_ = day; }  // what shrink() and usage count in
  std::uint32_t day() const { return day_; }       // 0 at first
  // Decays all scores, then removes what expires. Bounds are those of all `shares` that the table's shards
  // are spread over, and this is one of them. Does nothing where the table is not scored.
  Shrunk shrink(std::uint32_t shares = 1);

  bool contains(std::uint64_t key) const;   // whether the key has a row
  Usage usage_of(std::uint64_t key) const;  // zeros for a key without a row, or a table that is not scored
  float score(const Usage& usage) const;    // as Life has it
  std::int64_t num_rows() const;            // of all shards
  std::int64_t num_cold_rows() const;       // of those, on disk alone
  std::int64_t memory_bytes() const;        // of rows, index, candidates and the cold store
  std::int64_t index_bytes() const;         // of these, of the index
  std::int64_t candidate_bytes() const;     // and of keys that were not admitted
  std::int64_t bytes_a_row() const;         // at its full length, with what is kept beside it
  // A number that only equal rows have, whatever the history: of keys, usage, values and state.
  std::uint64_t digest() const;

  void for_each_row(std::uint32_t shard,
                    const std::function<void(const Row&)>& visit) const;  // all of a shard

  // For saving. Keys that went since the save before; and rows, all or those changed since then, as they are when this
  // begins: they are visited while the table changes, each before it does. `visit` may be empty, of who only counts
  // what changes from here on.
  std::span<const std::uint64_t> removed(std::uint32_t shard) const { return shards_[shard].removed; }
  void begin_save(const Saved& as, bool only_changed, std::function<void(const Row&)> visit);
  // Visits so many more, or a few above; whether all have been.
  bool advance_save(std::size_t rows);
  bool is_being_saved() const { return image_.has_value(); }  // rows are still to be visited
  // What was visited is where it has to be; else it is as if there had been no such save, and all rows count as
  // changed.
  void end_save(bool is_whole);
  void mark_saved(const Saved& saved);  // of a table as it was loaded
  const Saved& saved() const { return saved_; }
  std::uint32_t shrinks_since_save() const { return shrinks_ - shrinks_saved_; }
  void decay(std::uint32_t times);  // as so many shrinks do, without what they remove
  // For loading: makes or overwrites a row, whose content fits the definition; state that is empty begins
  // anew.
  void put(const Row& row);
  // Rows that begin with these values, but for parts that are to be earned: as pull() gives them. Throws
  // InvalidInput as push() does.
  void put(std::span<const std::uint64_t> keys, Numbers values);
  // For copying a shard with its rows: what keys without a row have gathered; and a shard that has this and no
  // rows.
  std::span<const std::byte> candidates(std::uint32_t shard) const {
    return shards_[shard].candidates.content();
  }
  void begin_shard(std::uint32_t shard, std::span<const std::byte> candidates);
  bool erase(std::uint64_t key);  // whether there was a row
  void clear();                   // as it was made
  // Bytes of a part's values, and of these and its state.
  std::size_t value_bytes(std::size_t part) const { return places_[part].value_bytes; }
  std::size_t part_bytes(std::size_t part) const {
    return places_[part].value_bytes + places_[part].state_bytes;
  }

 private:
  static constexpr std::size_t kUsage = 1, kLateSlots = 2;  // columns of rows_

  // Where a part lies.
  struct Place {
    std::size_t first = 0;  // its first value in a pulled row
    std::size_t width = 0, value_bytes = 0, state_width = 0, state_bytes = 0;
    std::size_t values = 0, state = 0;  // bytes from the begin of its row
    int late = -1;                      // which of the arenas for parts to be earned; -1: the main one
  };
  struct Shard {
    explicit Shard(std::uint64_t keys) : candidates(keys) {}
    Slots slots;
    std::vector<Slots> late;
    Candidates candidates;
    std::vector<std::uint64_t> removed;  // since the last save
    std::size_t cold_rows = 0;           // on disk alone
    std::size_t hand = 0;                // of the clock: a bucket of the index
    std::uint32_t cut = 0;               // Table::cuts_, when its rows last began to count as unchanged
  };
  // Of a save whose rows are still to be visited: from this shard and bucket on.
  struct Image {
    bool only_changed;
    std::function<void(const Row&)> visit;
    std::uint32_t shard = 0;
    std::size_t bucket = 0;
  };
  // What there was before a save that is not whole yet.
  struct Before {
    Saved saved;
    std::uint32_t cut, shrinks;
    std::vector<std::vector<std::uint64_t>> removed;  // by shard
  };
  // A row on disk; values and state of its parts come behind.
  struct ColdHead {
    std::uint64_t key = 0;
    Usage usage;
    std::uint32_t parts = 0;
    std::uint32_t shrinks = 0;  // of the table until then: later ones' decay is still to come
    std::uint32_t changed = 0;  // cuts_ + 1 when it was written, of a row that had changed; else 0
  };
  struct Demotion {
    ColdStore::Changes changes;
    std::vector<std::uint64_t> keys;
  };

  std::size_t shard_at(std::uint64_t hash) const { return (hash >> 32) >> shard_shift_; }
  std::uint64_t candidates_a_shard() const {
    return std::max<std::uint64_t>(16, definition_.admission.candidates / definition_.shards);
  }
  void lay_out();
  std::byte* part_at(std::uint32_t slot, const Place& place) const;  // null where it is not earned
  Usage& usage(std::uint32_t slot) const { return *reinterpret_cast<Usage*>(rows_->at(slot, kUsage)); }
  std::uint32_t& late_slot(std::uint32_t slot, int late) const {
    return reinterpret_cast<std::uint32_t*>(rows_->at(slot, kLateSlots))[late];
  }
  // Rows as they are handed out.
  std::size_t row_bytes() const { return width_ * number_bytes_; }
  void copy_row(std::uint32_t slot, std::byte* to) const;
  void copy_initial(std::uint64_t key, std::byte* to) const;
  void copy_values(const std::byte* from, const Place& place, std::byte* to) const;
  void begin_values(std::size_t part, std::uint64_t key, std::byte* values) const;
  bool is_admitted(std::uint64_t hash, std::uint64_t key, const Usage& seen, std::uint64_t step);
  std::uint32_t make_row(std::uint64_t hash, std::uint64_t key);
  void begin_part(std::size_t part, std::byte* row, std::uint64_t key) const;
  std::byte* make_late(std::uint64_t hash, std::uint32_t slot, std::size_t part, std::uint64_t key);
  void push_one(const Push& push, std::size_t at, std::uint64_t hash, std::uint32_t slot,
                std::span<float> scratch);
  void apply(std::size_t part, std::byte* row, const Push& push, std::size_t at,
             std::span<float> scratch) const;
  template <class T>
  void apply_in(std::size_t part, std::byte* row, const Push& push, std::size_t at,
                std::span<T> values) const;
  bool erase_quietly(std::uint64_t key);  // the save hears nothing of it
  bool erase_here(std::uint64_t key);     // in memory
  void erase_all(std::uint32_t shard, std::span<const std::uint64_t> keys);
  void describe(Row& row, std::uint64_t key, std::uint32_t slot) const;
  // visit(key, usage); with the cold ones.
  void for_each_usage(std::uint32_t shard,
                      const std::function<void(std::uint64_t, const Usage&)>& visit) const;
  void put_here(const Row& row);

  // Of a save under way: rows that are still to be visited are, before these keys' rows change.
  void preserve(std::span<const std::uint64_t> keys);
  void preserve_cold(std::span<const std::uint64_t> keys);
  void reach(std::uint32_t shard);
  bool is_before(std::uint32_t shard) const { return image_ && shard >= image_->shard; }  // its visit
  bool is_due(const ColdHead& head) const;
  void visit_due(std::uint32_t shard, std::uint64_t key, std::uint32_t slot);
  void finish_visits();

  // Of a table with a cold store.
  void bound_memory(const Cold& cold);
  std::uint8_t& touched(std::uint32_t slot) const {
    return *reinterpret_cast<std::uint8_t*>(rows_->at(slot, touched_));
  }
  void touch(std::uint32_t slot) const;
  void push_cold(const Push& push);
  std::size_t end_of_block(std::span<const std::uint64_t> keys, std::size_t begin) const;
  void warm(std::vector<std::uint64_t> hashes);
  void choose(std::uint32_t shard, std::size_t count, Demotion& demotion);
  void demote(const Demotion& demotion);
  void make_room(std::uint32_t shard);
  void pull_cold(std::span<const std::uint64_t> keys, std::span<const std::size_t> missing,
                 std::byte* rows) const;
  std::string record_of(const Row& row, bool changed) const;
  ColdHead read_record(std::string_view record, Row& row) const;
  bool is_cold(std::uint64_t key, Usage* usage = nullptr) const;
  // Those on disk alone. visit(head, row)
  void for_each_cold(std::uint32_t shard,
                     const std::function<void(const ColdHead&, const Row&)>& visit) const;
  std::uint64_t rank_of_lowest(std::int64_t count) const;
  std::int64_t remove_lowest(std::int64_t count);

  Definition definition_;
  Stream stream_;
  int shard_shift_ = 0;
  std::size_t width_ = 0;
  std::vector<Place> places_;  // as definition_.parts
  bool has_late_ = false;
  bool is_plain_ = false;                     // one part, not of bfloat16: a row's values are what is pulled
  bool is_wide_ = false;                      // of float64
  std::size_t number_bytes_ = sizeof(float);  // of what is pulled, and of state
  std::uint32_t day_ = 0;
  std::unique_ptr<Arena> rows_;  // columns: parts, usage, slots in late_; what there is none of has none
  std::vector<std::unique_ptr<Arena>> late_;  // of parts to be earned
  std::vector<Index> indices_;  // of the shards; apart from the rest of them, so that all lie in a cache
  std::vector<Shard> shards_;
  Saved saved_;
  std::unique_ptr<ColdStore> cold_;
  std::size_t touched_ = 0;  // a column of rows_: how often a row was pushed of late, and whether it is held
  std::size_t rows_a_shard_ = 0;  // in memory, at most
  std::uint32_t shrinks_ = 0, shrinks_saved_ = 0;
  std::uint32_t cuts_ = 0, cut_saved_ = 0;  // saves that began; that of saved_
  std::optional<Image> image_;
  std::optional<Before> before_;
  std::string failure_;  // of the store, in the middle of a push
};

}  // namespace shoal::ps
