// SPDX-License-Identifier: Apache-2.0
// A tokenised corpus in a file, so that the next run need not make it again, mapped into memory: a corpus
// larger than memory is trained on page by page.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "shoal/base/file_system.h"
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

// A corpus in its file. The spans point into it, and stay when it is moved.
struct MappedCorpus {
  MappedFile file;
  std::uint64_t key = 0;
  Bpe bpe;
  std::span<const Token> train;
  std::span<const Token> held_out;
};

// nullopt when there is no such file, or its bytes are not those that were written.
std::optional<MappedCorpus> map_tokens(const std::filesystem::path& path);

}  // namespace shoal::data
