// SPDX-License-Identifier: Apache-2.0
// A table against a std::map over random operations.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "shoal/ps/table.h"

using namespace shoal;
using namespace shoal::ps;

namespace {

struct ModelRow {
  Usage usage;
  std::vector<float> values, state;
};

// What the header says a table does, in the plainest way.
class Model {
 public:
  explicit Model(const Definition& definition) : definition_(definition) {}

  void push(std::uint64_t key, std::span<const float> gradient, float shows, float clicks,
            std::uint32_t day) {
    auto row = rows.find(key);
    if (row == rows.end()) {
      if (++counts_[key] < definition_.admission.threshold) return;
      counts_.erase(key);
      const Part& part = definition_.parts[0];
      ModelRow made = {.values = std::vector<float>(part.width),
                       .state = std::vector<float>(state_width(part.optimizer, part.width))};
      fill(part.initial, stream_of(definition_.seed, definition_.name), key, 0, made.values);
      begin_state(part.optimizer, part.width, made.state);
      row = rows.emplace(key, made).first;
    }
    Usage& usage = row->second.usage;
    usage = {usage.shows + shows, usage.clicks + clicks, day};
    update(definition_.parts[0].optimizer, 1, row->second.values, row->second.state, gradient);
  }

  Shrunk shrink(std::uint32_t day) {
    const Life& life = definition_.life;
    Shrunk shrunk = {.rows = static_cast<std::int64_t>(rows.size())};
    for (auto& [key, row] : rows) {
      row.usage.shows *= life.decay;
      row.usage.clicks *= life.decay;
    }
    shrunk.low_score = erase([&](const auto& row) { return score(row.second) < life.min_score; });
    shrunk.unseen = erase([&](const auto& row) {
      const auto slot = static_cast<std::uint32_t>(row.first >> (63 - life.slot_bits));
      const auto own = std::ranges::find(life.slot_days, slot, &SlotDays::value_type::first);
      const std::uint32_t most = own == life.slot_days.end() ? life.max_unseen_days : own->second;
      const bool is_gone = most > 0 && day - row.second.usage.day > most;
      if (is_gone) ++unseen_of_slot[slot];
      return is_gone;
    });
    if (rows.size() > life.max_rows) {
      std::vector<std::tuple<float, std::uint32_t, std::uint64_t>> ranks;
      for (const auto& [key, row] : rows)
        ranks.emplace_back(score(row), static_cast<std::uint32_t>(mixed(key)), key);
      std::ranges::sort(ranks);
      ranks.resize(rows.size() - life.max_rows);
      for (const auto& rank : ranks) rows.erase(std::get<2>(rank));
      shrunk.over_bound = static_cast<std::int64_t>(ranks.size());
    }
    return shrunk;
  }

  std::map<std::uint64_t, ModelRow> rows;
  std::map<std::uint32_t, int> unseen_of_slot;  // that went

 private:
  float score(const ModelRow& row) const {
    const Life& life = definition_.life;
    return life.show_weight * (row.usage.shows - row.usage.clicks) + life.click_weight * row.usage.clicks;
  }
  std::int64_t erase(const auto& is_gone) {
    return static_cast<std::int64_t>(std::erase_if(rows, [&](const auto& row) { return is_gone(row); }));
  }

  Definition definition_;
  std::map<std::uint64_t, float> counts_;
};

}  // namespace

static void check_equal(const Table& table, const Model& model) {
  REQUIRE(table.num_rows() == static_cast<std::int64_t>(model.rows.size()));
  for (const auto& [key, row] : model.rows) {
    std::vector<float> values(table.width());
    table.pull(std::span(&key, 1), values);
    REQUIRE(table.contains(key));
    REQUIRE(values == row.values);
    REQUIRE(table.usage_of(key) == row.usage);
  }
}

TEST_CASE("after any pushes, days and shrinks a table holds what a map holds") {
  Shrunk all;
  std::map<std::uint32_t, int> unseen_of_slot;
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const bool has_slots = seed % 2 == 1;
    Definition definition = {
        .name = "ids",
        .seed = seed,
        .shards = 1U << (seed % 5),
        .parts = {{.width = 1 + seed % 9}},
        .admission = {.rule = AdmissionRule::Count,
                      .threshold = static_cast<float>(1 + seed % 4),
                      .candidates = 1 << 14},
        .scored = true,
        .life = {.decay = 0.75f, .min_score = 0.09f, .max_unseen_days = 3, .max_rows = 500}};
    if (has_slots) {
      definition.life.slot_bits = 6;
      definition.life.slot_days = {{1, 1}, {2, 0}, {9, 2}};
    }
    Table table(definition);
    Model model(definition);
    for (int round = 0; round < 60; ++round) {
      std::vector<std::uint64_t> keys;
      std::vector<float> gradients, shows, clicks;
      for (std::uint64_t i = random() % 200; i > 0; --i) {
        const std::uint64_t id =
            std::min(random() % 1500, random() % 1500);  // some come again in the same push
        // Slots 0 to 3, and 66, which 6 bits below the sign do not name.
        keys.push_back(has_slots ? id | (id % 5 == 4 ? 66 : id % 5) << 57 : id);
        shows.push_back(static_cast<float>(random() % 4));
        clicks.push_back(static_cast<float>(random() % 2));
        for (std::size_t j = 0; j < table.width(); ++j)
          gradients.push_back(static_cast<float>(random() % 1000) * 0.002f - 1);
      }
      table.push({.keys = keys, .gradients = gradients, .shows = shows, .clicks = clicks});
      for (std::size_t i = 0; i < keys.size(); ++i)
        model.push(keys[i], std::span(gradients).subspan(i * table.width(), table.width()), shows[i],
                   clicks[i], table.day());
      if (random() % 3 == 0) table.set_day(table.day() + 1);
      if (random() % 6 == 0) {
        const Shrunk shrunk = table.shrink();
        CHECK(shrunk == model.shrink(table.day()));
        all.low_score += shrunk.low_score;
        all.unseen += shrunk.unseen;
        all.over_bound += shrunk.over_bound;
      }
    }
    check_equal(table, model);
    if (has_slots)
      for (const auto& [slot, rows] : model.unseen_of_slot) unseen_of_slot[slot] += rows;
  }
  CHECK(unseen_of_slot[1] > unseen_of_slot[0] + 100);
  CHECK(unseen_of_slot[0] > 20);
  CHECK(unseen_of_slot[66] > 20);
  CHECK(!unseen_of_slot.contains(2));
  CHECK(all.low_score > 100);  // each reason was met
  CHECK(all.unseen > 100);
  CHECK(all.over_bound > 100);
}
