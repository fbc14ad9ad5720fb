// SPDX-License-Identifier: Apache-2.0
#include "shoal/cli/text_source.h"

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/data/trigram.h"
#include "shoal/observe/summary.h"

namespace shoal::cli {

TextSource read_text(const Recipe& recipe) {
  auto documents =
      recipe.dataset.path.empty() ? data::find_corpus({}) : data::read_corpus(recipe.dataset.path);
  const auto num_documents = static_cast<std::int64_t>(documents.size());
  TextSource source = {.split = data::split(std::move(documents), recipe.dataset.held_out_bytes,
                                            static_cast<std::uint64_t>(recipe.training.seed))};
  source.trigram_bits_per_byte = data::Trigram(source.split.train).bits_per_byte(source.split.held_out);
  source.description = concat(
      recipe.dataset.path.empty() ? "Python's library and licence texts" : recipe.dataset.path, ", ",
      observe::with_commas(num_documents), " documents, ", human_bytes(data::bytes_of(source.split.train)),
      " to train on, ", human_bytes(data::bytes_of(source.split.held_out)), " held out");
  return source;
}

}  // namespace shoal::cli
