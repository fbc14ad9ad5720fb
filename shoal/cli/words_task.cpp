// SPDX-License-Identifier: Apache-2.0
// dataset.name = "words": a word, its neighbour in the text, and words drawn at random; which is the neighbour?
// A word's id is drawn by its letters, so that there is no vocabulary to be made, or, where the model has ids for
// fewer words, one for each of the commonest.
//
//   "the quick brown fox", window 2        brown: the quick fox …    neighbours within 1 to 2 words, drawn
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/cli/task.h"
#include "shoal/cli/text_source.h"
#include "shoal/data/hash.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

static constexpr std::int64_t kLeastCount = 5;  // of a word that is learnt

namespace {

struct Words {
  std::vector<std::int64_t> text;   // ids, one word after the other
  std::vector<std::int64_t> drawn;  // ids, as often as they are to be drawn, about
};

}  // namespace

template <class Visit>
static void each_word(const std::vector<data::Document>& documents, const Visit& visit) {
  std::string word;
  for (const data::Document& document : documents)
    for (std::size_t i = 0; i <= document.text.size(); ++i) {
      const char letter = i < document.text.size() ? document.text[i] : ' ';
      if (std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_') {
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
      } else if (!word.empty()) {
        visit(word);
        word.clear();
      }
    }
}

// Of the commonest words: at most as many as the model has ids for.
static std::unordered_map<std::string, std::int64_t> ids_of(const std::vector<data::Document>& documents,
                                                            std::int64_t most, Words& words) {
  std::unordered_map<std::string, std::int64_t> counts;
  each_word(documents, [&](const std::string& word) { ++counts[word]; });
  std::vector<std::pair<std::int64_t, std::string>> common;
  for (const auto& [word, count] : counts)
    if (count >= kLeastCount) common.emplace_back(-count, word);
  std::ranges::sort(common);
  if (std::ssize(common) > most) common.resize(static_cast<std::size_t>(most));
  std::unordered_map<std::string, std::int64_t> ids;
  double weights = 0;
  for (const auto& [count, word] : common) weights += std::pow(-count, 0.75);
  constexpr double kDrawn = 1 << 20;
  for (const auto& [count, word] : common) {
    const std::int64_t hashed = static_cast<std::int64_t>(data::hash_bytes(word) >> 2);
    const auto id = hashed < most ? hashed : std::ssize(ids);
    ids.emplace(word, id);
    const auto times = static_cast<std::size_t>(std::ceil(kDrawn * std::pow(-count, 0.75) / weights));
    words.drawn.insert(words.drawn.end(), times, id);
  }
  return ids;
}

static Words read_words(const std::vector<data::Document>& documents, std::int64_t most) {
  Words words;
  const auto ids = ids_of(documents, most, words);
  each_word(documents, [&](const std::string& word) {
    if (const auto found = ids.find(word); found != ids.end()) words.text.push_back(found->second);
  });
  return words;
}

Task make_words_task(const Recipe& recipe) {
  const auto& config = std::get<models::Word2VecConfig>(recipe.model.config);
  const TextSource text = read_text(recipe);
  std::vector<data::Document> all = text.split.train;
  all.insert(all.end(), text.split.held_out.begin(), text.split.held_out.end());
  const auto words = std::make_shared<const Words>(read_words(all, config.words));
  const auto count = std::ssize(words->text);
  const std::int64_t batch = recipe.training.local_batch_size, window = recipe.dataset.window,
                     held_out = std::min(count / 20, recipe.dataset.held_out);
  SHOAL_CHECK(held_out >= batch && count > 2 * held_out, InvalidInput, text.description, ": has ", count,
              " words that occur ", kLeastCount, " times, too few for batches of ", batch);
  const auto type = recipe.training.dtype == FloatType::Float64 ? at::kDouble : at::kFloat;
  // A sample is a function of its number: a place in the text, and what is drawn there.
  const auto make = [=](std::int64_t number, std::int64_t begin, std::int64_t end, std::int64_t* centre,
                        std::int64_t* beside) {
    auto draw = [&, at = std::uint64_t{0}](std::int64_t below) mutable {
      return static_cast<std::int64_t>(data::mix(data::mix(static_cast<std::uint64_t>(number)) + ++at) %
                                       static_cast<std::uint64_t>(below));
    };
    const std::int64_t place = begin + draw(end - begin), reach = 1 + draw(window);
    const std::int64_t distance = 1 + draw(reach);
    const std::int64_t other = draw(2) == 0 ? place - distance : place + distance;
    *centre = words->text[static_cast<std::size_t>(place)];
    *beside++ = words->text[static_cast<std::size_t>(std::clamp(other, begin, end - 1))];
    for (std::int64_t i = 0; i < config.negatives; ++i)
      *beside++ = words->drawn[static_cast<std::size_t>(draw(std::ssize(words->drawn)))];
  };
  const auto batch_of = [=](std::int64_t number, std::int64_t samples, std::int64_t begin,
                            std::int64_t end) -> Batch {
    const std::int64_t width = 1 + config.negatives;
    const at::Tensor centres = at::empty({samples}, at::kLong),
                     beside = at::empty({samples, width}, at::kLong),
                     targets = at::zeros({samples, width}, type);
    for (std::int64_t i = 0; i < samples; ++i)
      make(number + i, begin, end, centres.mutable_data_ptr<std::int64_t>() + i,
           beside.mutable_data_ptr<std::int64_t>() + i * width);
    targets.select(1, 0).fill_(1);
    return {{"inputs", centres}, {"categories", beside}, {"targets", targets}};
  };
  Task task;
  task.description = concat(text.description, ": ", observe::with_commas(count), " words");
  task.unit = "words";
  task.units_per_sample = 1;
  task.num_samples = count - held_out;
  task.dataset_key = data::mix(static_cast<std::uint64_t>(count) ^ data::mix(words->text.front()));
  task.batch = [=](const Share& share) {
    return batch_of(share.begin(), share.count(), 0, count - held_out);
  };
  task.held_out.num_batches = held_out / batch;
  task.held_out.num_targets = [=](std::int64_t) { return batch * (1 + config.negatives); };
  task.held_out.batch = [=](std::int64_t index) {
    return batch_of(index * batch, batch, count - held_out, count);
  };
  return task;
}

}  // namespace shoal::cli
