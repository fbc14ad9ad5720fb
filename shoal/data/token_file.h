// SPDX-License-Identifier: Apache-2.0
// A tokenised corpus in a file, so that the next run need not make it again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "shoal/data/bpe.h"

namespace shoal::data {

struct TokenizedCorpus {
  Bpe bpe;
  std::vector<Token> train;
  std::vector<Token> held_out;
  friend bool operator==(const TokenizedCorpus&, const TokenizedCorpus&) = default;
};

// What a tokenised corpus depends on: the split's bytes and the size of the vocabulary.
std::uint64_t key_of(const Split& split, std::int64_t vocab_size);

TokenizedCorpus tokenize(const Split& split, std::int64_t vocab_size);

// Throws Infeasible naming the file when it cannot be written whole; a file that was there before is then
// still whole.
void write_tokens(const std::filesystem::path& path, const TokenizedCorpus& corpus, std::uint64_t key);

// nullopt when there is no file, it belongs to another key, or its bytes are not those that were written.
std::optional<TokenizedCorpus> read_tokens(const std::filesystem::path& path, std::uint64_t key);

}  // namespace shoal::data
