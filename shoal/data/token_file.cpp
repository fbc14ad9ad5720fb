// SPDX-License-Identifier: Apache-2.0
// The file: eight-byte words (magic, key, hash of the rest, three lengths), then merges and tokens as 32-bit
// words, in the byte order of this machine.
#include "shoal/data/token_file.h"

#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "shoal/data/hash.h"
#include "shoal/observe/file.h"

namespace shoal::data {

static constexpr std::uint64_t kMagic = 0x31'4e4b'544c'4148ULL;
using Header = std::array<std::uint64_t, 6>;  // magic, key, hash, merges, train, held out

std::uint64_t key_of(const Split& split, std::int64_t vocab_size) {
  std::uint64_t key = hash_bytes(std::to_string(vocab_size));
  for (const std::vector<Document>* documents : {&split.train, &split.held_out}) {
    key = mix(key);
    for (const Document& document : *documents) key = mix(hash_bytes(document.text, key));
  }
  return key;
}

TokenizedCorpus tokenize(const Split& split, std::int64_t vocab_size) {
  TokenizedCorpus corpus = {.bpe = train_bpe(split.train, vocab_size), .train = {}, .held_out = {}};
  corpus.train = encode_all(corpus.bpe, split.train);
  corpus.held_out = encode_all(corpus.bpe, split.held_out);
  return corpus;
}

static void append(std::string& bytes, const std::vector<Token>& tokens) {
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
}

void write_tokens(const std::filesystem::path& path, const TokenizedCorpus& corpus, std::uint64_t key) {
  std::vector<Token> merges;
  for (const auto& [left, right] : corpus.bpe.merges) merges.insert(merges.end(), {left, right});
  std::string body;
  for (const auto* tokens : {&std::as_const(merges), &corpus.train, &corpus.held_out}) append(body, *tokens);
  const Header header = {
      kMagic, key, hash_bytes(body), merges.size(), corpus.train.size(), corpus.held_out.size()};
  std::string bytes(reinterpret_cast<const char*>(header.data()), sizeof(header));
  observe::write_file(path, bytes + body);
}

std::optional<TokenizedCorpus> read_tokens(const std::filesystem::path& path, std::uint64_t key) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Header header = {};
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  std::string_view body = std::string_view(bytes).substr(sizeof(header));
  if (header[0] != kMagic || header[1] != key || header[2] != hash_bytes(body)) return std::nullopt;
  const auto take = [&](std::uint64_t count) {
    std::vector<Token> tokens(count);
    std::memcpy(tokens.data(), body.data(), count * sizeof(Token));
    body.remove_prefix(count * sizeof(Token));
    return tokens;
  };
  TokenizedCorpus corpus;
  const std::vector<Token> merges = take(header[3]);
  for (std::size_t i = 0; i + 1 < merges.size(); i += 2)
    corpus.bpe.merges.emplace_back(merges[i], merges[i + 1]);
  corpus.train = take(header[4]);
  corpus.held_out = take(header[5]);
  return corpus;
}

}  // namespace shoal::data
