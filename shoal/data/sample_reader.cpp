// SPDX-License-Identifier: Apache-2.0
#include "shoal/data/sample_reader.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/data/hash.h"
#include "shoal/data/sampler.h"

namespace shoal::data {

std::string to_text(const ReadPosition& position) {
  std::string text = concat(position.key, " ", position.epoch);
  for (const Unread& unread : position.unread) text += concat(" ", unread.part, ":", unread.lines);
  return text;
}

ReadPosition read_position_from_text(std::string_view text) {
  ReadPosition position;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](auto& to, char before) {
    const bool begins = before == 0 || (at != end && *at == before);
    if (before != 0 && at != end) ++at;
    const auto [stop, error] = std::from_chars(at, end, to);
    SHOAL_CHECK(begins && error == std::errc(), Corrupt, "a reader's position is damaged at byte ",
                at - text.data(), " of ", text.size());
    at = stop;
  };
  number(position.key, 0);
  number(position.epoch, ' ');
  while (at != end) {
    Unread& unread = position.unread.emplace_back();
    number(unread.part, ' ');
    number(unread.lines, ':');
  }
  return position;
}

std::vector<ReadPosition> dealt(std::span<const ReadPosition> positions, int workers) {
  SHOAL_CHECK(!positions.empty() && workers > 0, InvalidInput, "positions of ", positions.size(),
              " readers cannot be dealt to ", workers);
  std::vector<Unread> all;
  for (const ReadPosition& position : positions) {
    SHOAL_CHECK(position.key == positions[0].key && position.epoch == positions[0].epoch, InvalidInput,
                "readers are not in one epoch of the same files: epochs ", positions[0].epoch, " and ",
                position.epoch);
    all.insert(all.end(), position.unread.begin(), position.unread.end());
  }
  const auto n = static_cast<std::size_t>(workers);
  std::vector<ReadPosition> result(n, {.key = positions[0].key, .epoch = positions[0].epoch});
  for (std::size_t i = 0; i < all.size(); ++i) result[i % n].unread.push_back(all[i]);
  return result;
}

SampleReader::SampleReader(FileSystem& files, std::vector<std::filesystem::path> paths,
                           const LineParser& parser, ReadOptions options)
    : files_(files, std::move(paths), options.shuffle_bytes),
      parser_(parser),
      options_(options),
      reader_(files_) {
  begin(0);
}

void SampleReader::begin(std::int64_t epoch, int worker, int workers) {
  SHOAL_CHECK(worker >= 0 && worker < workers, InvalidInput, "reader: worker ", worker, " of ", workers);
  const auto num_parts = static_cast<std::int64_t>(files_.parts.size());
  ReadPosition position = {.key = mix(files_.key ^ mix(mix(options_.seed) ^ (options_.is_shuffled ? 1 : 0))),
                           .epoch = epoch};
  const Order order = {.seed = options_.seed, .num_samples = num_parts};
  for (std::int64_t i = worker; i < num_parts; i += workers) {
    const std::int64_t part = options_.is_shuffled ? sample_at(order, epoch * num_parts + i) : i;
    position.unread.push_back({.part = static_cast<std::uint64_t>(part)});
  }
  position_.key = position.key;
  start(std::move(position));
}

void SampleReader::resume(const ReadPosition& position) {
  SHOAL_CHECK(position.key == position_.key, InvalidInput,
              "the position is that of a reader of other files, or of another seed or shuffle_bytes");
  for (const Unread& unread : position.unread)
    SHOAL_CHECK(unread.part < files_.parts.size(), Corrupt, "the position names part ", unread.part, " of ",
                files_.parts.size());
  start(position);
}

void SampleReader::start(ReadPosition position) {
  position_ = std::move(position);
  is_open_ = false;
  lines_.clear();
  order_.clear();
  at_ = 0;
  malformed_ = 0;
  first_malformed_.clear();
}

// Fisher and Yates'.
static void shuffle(std::vector<std::uint32_t>& order, std::uint64_t seed) {
  for (std::size_t i = order.size(); i > 1; --i) {
    const auto drawn = static_cast<std::size_t>(((mix(seed + i) >> 32) * i) >> 32);
    std::swap(order[i - 1], order[drawn]);
  }
}

// Of the open part, or of the next one that has any.
bool SampleReader::next_block() {
  while (!position_.unread.empty()) {
    const Unread& front = position_.unread.front();
    if (!is_open_) {
      reader_.open(front.part);
      is_open_ = true;
      block_ = 0;
      to_skip_ = front.lines;
    }
    if (reader_.next(lines_)) {
      order_.resize(lines_.size());
      std::iota(order_.begin(), order_.end(), 0u);
      const auto epoch = static_cast<std::uint64_t>(position_.epoch);
      if (options_.is_shuffled)
        shuffle(order_, mix(options_.seed ^ mix(epoch ^ mix(front.part ^ mix(block_)))));
      ++block_;
      at_ = std::min<std::size_t>(to_skip_, order_.size());
      to_skip_ -= at_;
      if (at_ < order_.size()) return true;
    } else {
      is_open_ = false;
      position_.unread.erase(position_.unread.begin());
    }
  }
  lines_.clear();
  order_.clear();
  at_ = 0;
  return false;
}

void SampleReader::note_malformed(std::size_t line, const Malformed& malformed) {
  const std::string message = concat(reader_.place_of(line), ": slot ", malformed.slot, ": ", malformed.why);
  SHOAL_CHECK(malformed_ < options_.max_malformed, InvalidInput, message, "; ", malformed_,
              " malformed lines were skipped before it, and max_malformed is ", options_.max_malformed);
  ++malformed_;
  constexpr std::size_t kKept = 10;
  if (first_malformed_.size() < kKept) first_malformed_.push_back(message);
}

void SampleReader::read(SlotBatch& batch, std::size_t size) {
  batch.clear();
  constexpr std::size_t kAhead = 4, kLine = 64;
  while (batch.size() < size) {
    if (at_ == order_.size() && !next_block()) return;
    if (at_ + kAhead < order_.size()) {
      const std::string_view ahead = lines_[order_[at_ + kAhead]];
      for (std::size_t i = 0; i < ahead.size(); i += kLine) __builtin_prefetch(ahead.data() + i);
    }
    const std::size_t line = order_[at_++];
    ++position_.unread.front().lines;
    if (const auto malformed = parser_.add(lines_[line], batch)) note_malformed(line, *malformed);
  }
}

}  // namespace shoal::data
