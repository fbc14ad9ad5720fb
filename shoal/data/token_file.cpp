// SPDX-License-Identifier: Apache-2.0
// The file: eight-byte words (magic, key, checksum of the rest, three lengths), then merges and tokens as
// 32-bit words, in the byte order of this machine.
#include "shoal/data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "shoal/base/crc32c.h"
#include "shoal/data/hash.h"
#include "shoal/observe/file.h"

namespace shoal::data {

static constexpr std::uint64_t kMagic = 0x32'4e4b'544c'4148ULL;
using Header = std::array<std::uint64_t, 6>;  // magic, key, checksum, merges, train, held out

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
      kMagic, key, crc32c(body), merges.size(), corpus.train.size(), corpus.held_out.size()};
  std::string bytes(reinterpret_cast<const char*>(header.data()), sizeof(header));
  observe::write_file(path, bytes + body);
}

std::optional<MappedCorpus> map_tokens(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  MappedCorpus corpus = {.file = MappedFile(path), .key = 0, .bpe = {}, .train = {}, .held_out = {}};
  const std::span<const std::byte> bytes = corpus.file.bytes();
  Header header = {};
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  const auto body = bytes.subspan(sizeof(header));
  if (header[0] != kMagic || header[2] != crc32c(body)) return std::nullopt;
  // The header's size is a multiple of a token's, and a mapping begins with a page: tokens are aligned.
  std::span<const Token> rest(reinterpret_cast<const Token*>(body.data()), body.size() / sizeof(Token));
  const auto take = [&](std::uint64_t count) {
    const auto tokens = rest.first(std::min<std::uint64_t>(count, rest.size()));
    rest = rest.subspan(tokens.size());
    return tokens;
  };
  corpus.key = header[1];
  const auto merges = take(header[3]);
  for (std::size_t i = 0; i + 1 < merges.size(); i += 2)
    corpus.bpe.merges.emplace_back(merges[i], merges[i + 1]);
  corpus.train = take(header[4]);
  corpus.held_out = take(header[5]);
  if (corpus.train.size() != header[4] || corpus.held_out.size() != header[5] || !rest.empty())
    return std::nullopt;
  return corpus;
}

}  // namespace shoal::data
