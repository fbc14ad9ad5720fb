// SPDX-License-Identifier: Apache-2.0
// Byte-level byte-pair encoding: tokens 0…255 are the bytes, the rest are pairs that were joined in training,
// the last one ends a document. Any bytes encode, and decode to themselves. Sennrich et al.,
// arXiv:1508.07909; on bytes as in GPT-2. Why our own: docs/decisions/001_own_bpe.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/data/corpus.h"

namespace shoal::data {

using Token = std::uint32_t;

struct Bpe {
  std::vector<std::pair<Token, Token>> merges;  // merge i makes token 256 + i

  Token end_of_text() const { return static_cast<Token>(256 + merges.size()); }
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(merges.size()) + 257; }
  friend bool operator==(const Bpe&, const Bpe&) = default;
};

// The merges that a vocabulary of that size learns from the documents: the most frequent pair first, of
// equally frequent ones the smaller. Fewer when no pair occurs twice any more. Throws InvalidInput below 257
// tokens.
Bpe train_bpe(const std::vector<Document>& documents, std::int64_t vocab_size);

std::vector<Token> encode(const Bpe& bpe, std::string_view text);
std::string decode(const Bpe& bpe, const std::vector<Token>& tokens);  // end_of_text decodes to nothing

// All documents in a row, an end_of_text before each and after the last.
std::vector<Token> encode_all(const Bpe& bpe, const std::vector<Document>& documents);

// What merges never cross the borders of: a word, a number's digits by threes, or punctuation, each with one
// space before it; a line break with the indentation after it. Concatenated, the pieces are the text.
std::vector<std::string_view> pieces_of(std::string_view text);

}  // namespace shoal::data
