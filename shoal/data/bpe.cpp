// SPDX-License-Identifier: Apache-2.0
// Training keeps each distinct piece once with its count; joining a pair touches only the pieces that have
// it:
//
//   pieces   " return" ×9123, "\n    " ×60211, …
//   pairs    pair → count, and the pieces it was seen in; a heap finds the most frequent pair, stale entries
//            are skipped
#include "shoal/data/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "shoal/base/error.h"

namespace shoal::data {

namespace {

enum class Kind { Word, Digit, Space, Break, Other };

struct Piece {
  std::vector<Token> tokens;
  std::int64_t count = 0;
};

constexpr std::size_t kMaxDigits = 3;

std::uint64_t key_of(Token left, Token right) { return (std::uint64_t{left} << 32) | right; }

class Trainer {
 public:
  explicit Trainer(const std::vector<Document>& documents);
  Bpe train(std::size_t num_merges);

 private:
  struct Candidate {
    std::int64_t count;
    std::uint64_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void add(std::uint64_t pair, std::int64_t change, std::size_t piece);
  void join(std::uint64_t pair, Token joined);

  std::vector<Piece> pieces_;
  std::unordered_map<std::uint64_t, std::int64_t> counts_;
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> places_;  // some more than once, some no longer
  std::priority_queue<Candidate> queue_;
};

}  // namespace

static Kind kind_of(char character) {
  const auto c = static_cast<unsigned char>(character);
  if (c == '\n' || c == '\r') return Kind::Break;
  if (c == ' ' || c == '\t') return Kind::Space;
  if (c >= '0' && c <= '9') return Kind::Digit;
  if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return Kind::Word;
  return c == '_' || c >= 0x80 ? Kind::Word : Kind::Other;
}

// The piece that starts at `begin`: its end.
static std::size_t end_of_piece(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  const auto run = [&](Kind kind, std::size_t longest = std::numeric_limits<std::size_t>::max()) {
    for (std::size_t count = 0; end < text.size() && count < longest && kind_of(text[end]) == kind; ++count)
      ++end;
  };
  if (kind_of(text[begin]) == Kind::Break) {
    run(Kind::Break);
    run(Kind::Space);
    return end;
  }
  if (kind_of(text[begin]) == Kind::Space) {
    run(Kind::Space);
    const bool before_text = end < text.size() && kind_of(text[end]) != Kind::Break && text[end - 1] == ' ';
    if (before_text && end - begin > 1) return end - 1;  // the last space goes with what follows it
    if (!before_text) return end;
  }
  const Kind kind = kind_of(text[end]);
  run(kind, kind == Kind::Digit ? kMaxDigits : std::numeric_limits<std::size_t>::max());
  return end;
}

std::vector<std::string_view> pieces_of(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = end_of_piece(text, begin);
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

static std::vector<Token> bytes_as_tokens(std::string_view text) {
  std::vector<Token> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

Trainer::Trainer(const std::vector<Document>& documents) {
  std::unordered_map<std::string_view, std::size_t> index;
  for (const Document& document : documents)
    for (const std::string_view text : pieces_of(document.text)) {
      const auto [it, is_new] = index.try_emplace(text, pieces_.size());
      if (is_new) pieces_.push_back({bytes_as_tokens(text), 0});
      ++pieces_[it->second].count;
    }
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    for (std::size_t at = 1; at < pieces_[i].tokens.size(); ++at)
      add(key_of(pieces_[i].tokens[at - 1], pieces_[i].tokens[at]), pieces_[i].count, i);
  for (const auto& [pair, count] : counts_) queue_.push({count, pair});
}

void Trainer::add(std::uint64_t pair, std::int64_t change, std::size_t piece) {
  counts_[pair] += change;
  if (change <= 0) return;
  std::vector<std::size_t>& places = places_[pair];
  if (places.empty() || places.back() != piece) places.push_back(piece);
}

void Trainer::join(std::uint64_t pair, Token joined) {
  const auto left = static_cast<Token>(pair >> 32);
  const auto right = static_cast<Token>(pair & 0xffffffffU);
  std::unordered_set<std::uint64_t> changed;
  const auto change = [&](Token a, Token b, std::int64_t count, std::size_t piece) {
    add(key_of(a, b), count, piece);
    changed.insert(key_of(a, b));
  };
  const std::vector<std::size_t> places = std::move(places_[pair]);
  for (const std::size_t i : places) {
    std::vector<Token>& tokens = pieces_[i].tokens;
    const std::int64_t count = pieces_[i].count;
    std::vector<Token> next;
    next.reserve(tokens.size());
    for (std::size_t at = 0; at < tokens.size(); ++at) {
      const bool hit = at + 1 < tokens.size() && tokens[at] == left && tokens[at + 1] == right;
      next.push_back(hit ? joined : tokens[at]);
      if (hit) ++at;
    }
    if (next.size() == tokens.size()) continue;
    for (std::size_t at = 1; at < tokens.size(); ++at) change(tokens[at - 1], tokens[at], -count, i);
    for (std::size_t at = 1; at < next.size(); ++at) change(next[at - 1], next[at], count, i);
    tokens = std::move(next);
  }
  counts_.erase(pair);
  places_.erase(pair);
  for (const std::uint64_t other : changed)
    if (const auto it = counts_.find(other); it != counts_.end() && it->second > 0)
      queue_.push({it->second, other});
}

Bpe Trainer::train(std::size_t num_merges) {
  Bpe bpe;
  while (bpe.merges.size() < num_merges && !queue_.empty()) {
    const Candidate best = queue_.top();
    queue_.pop();
    const auto it = counts_.find(best.pair);
    if (it == counts_.end() || it->second != best.count) continue;
    if (best.count < 2) break;
    const Token joined = bpe.end_of_text();
    bpe.merges.emplace_back(static_cast<Token>(best.pair >> 32), static_cast<Token>(best.pair & 0xffffffffU));
    join(best.pair, joined);
  }
  return bpe;
}

Bpe train_bpe(const std::vector<Document>& documents, std::int64_t vocab_size) {
  SHOAL_CHECK(vocab_size >= 257, InvalidInput, "a vocabulary of ", vocab_size,
              " tokens is too small: the 256 bytes and the end of a text are 257");
  return Trainer(documents).train(static_cast<std::size_t>(vocab_size - 257));
}

namespace {

// Encodes pieces, each distinct one once.
class Encoder {
 public:
  explicit Encoder(const Bpe& bpe) {
    for (std::size_t i = 0; i < bpe.merges.size(); ++i)
      ranks_.emplace(key_of(bpe.merges[i].first, bpe.merges[i].second), static_cast<Token>(256 + i));
  }

  void append(std::string_view text, std::vector<Token>& tokens) {
    for (const std::string_view piece : pieces_of(text)) {
      const auto [it, is_new] = known_.try_emplace(std::string(piece));
      if (is_new) it->second = joined(piece);
      tokens.insert(tokens.end(), it->second.begin(), it->second.end());
    }
  }

 private:
  // The earliest merge first, wherever it applies, until none does.
  std::vector<Token> joined(std::string_view piece) const {
    std::vector<Token> tokens = bytes_as_tokens(piece);
    while (tokens.size() > 1) {
      Token first = std::numeric_limits<Token>::max();
      for (std::size_t at = 1; at < tokens.size(); ++at)
        if (const auto it = ranks_.find(key_of(tokens[at - 1], tokens[at])); it != ranks_.end())
          first = std::min(first, it->second);
      if (first == std::numeric_limits<Token>::max()) break;
      std::size_t kept = 0;
      for (std::size_t at = 0; at < tokens.size(); ++at, ++kept) {
        const auto it =
            at + 1 < tokens.size() ? ranks_.find(key_of(tokens[at], tokens[at + 1])) : ranks_.end();
        const bool hit = it != ranks_.end() && it->second == first;
        tokens[kept] = hit ? first : tokens[at];
        if (hit) ++at;
      }
      tokens.resize(kept);
    }
    return tokens;
  }

  std::unordered_map<std::uint64_t, Token> ranks_;  // pair → the token it makes: smaller is earlier
  std::unordered_map<std::string, std::vector<Token>> known_;
};

}  // namespace

std::vector<Token> encode(const Bpe& bpe, std::string_view text) {
  std::vector<Token> tokens;
  Encoder(bpe).append(text, tokens);
  return tokens;
}

std::vector<Token> encode_all(const Bpe& bpe, const std::vector<Document>& documents) {
  Encoder encoder(bpe);
  std::vector<Token> tokens = {bpe.end_of_text()};
  for (const Document& document : documents) {
    encoder.append(document.text, tokens);
    tokens.push_back(bpe.end_of_text());
  }
  return tokens;
}

std::string decode(const Bpe& bpe, const std::vector<Token>& tokens) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const auto& [left, right] : bpe.merges) texts.push_back(texts.at(left) + texts.at(right));
  texts.emplace_back();
  std::string text;
  for (const Token token : tokens) {
    SHOAL_CHECK(token < texts.size(), InvalidInput, "token ", token, " is not one of the vocabulary's ",
                texts.size());
    text += texts[token];
  }
  return text;
}

}  // namespace shoal::data
