// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "shoal/base/error.h"
#include "shoal/base/temporary_folder_test.h"
#include "shoal/data/bpe.h"
#include "shoal/data/corpus.h"
#include "shoal/data/hash.h"
#include "shoal/data/raw_tokens.h"
#include "shoal/data/token_file.h"
#include "shoal/data/trigram.h"

using namespace shoal;
using namespace shoal::data;
namespace fs = std::filesystem;

static std::string repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

static std::string noise(std::size_t size, std::uint64_t seed) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += static_cast<char>(mix(seed + i) & 0xff);
  return text;
}

static CorpusSearch search_in(const fs::path& root) {
  return {.python_roots = {root / "lib"},
          .licences = root / "licences",
          .copyrights = root / "doc",
          .max_copyright_bytes = 8,
          .min_bytes = 1};
}

static std::vector<std::string> names_of(const std::vector<Document>& documents, const fs::path& root) {
  std::vector<std::string> names;
  for (const Document& document : documents) names.push_back(fs::relative(document.name, root).string());
  return names;
}

TEST_CASE("the corpus is the newest python's sources, then licences, each text once, in order of paths") {
  const TemporaryFolder folder;
  folder.add("lib/python3.9/os.py", "old");
  folder.add("lib/python3.11/os.py", "import sys");
  folder.add("lib/python3.11/json/decoder.py", "def decode");
  folder.add("lib/python3.11/json/copy.py", "def decode");
  folder.add("lib/python3.11/test/test_os.py", "a test");
  folder.add("lib/python3.11/encodings/cp437.py", "0x00 -> NULL");
  folder.add("lib/python3.11/html/entities.py", "&AElig;");
  folder.add("lib/python3.11/site-packages/x.py", "not the library's");
  folder.add("lib/python3.11/notes.txt", "not python");
  folder.add("licences/GPL-3", "GNU");
  folder.add("doc/b/copyright", "second");
  folder.add("doc/a/copyright", "first, and more than eight bytes");
  folder.add("doc/a/changelog", "no licence");
  CHECK(names_of(find_corpus(search_in(folder.path())), folder.path()) ==
        std::vector<std::string>{"lib/python3.11/json/copy.py", "lib/python3.11/os.py", "licences/GPL-3",
                                 "doc/a/copyright"});
}

TEST_CASE("too little text names the places and the key that mends it") {
  const TemporaryFolder folder;
  CorpusSearch search = search_in(folder.path());
  search.min_bytes = 1 << 20;
  const std::string root = folder.path().string();
  const std::string expected = "too little text on this machine: 0B of 1.0MiB found in " + root +
                               "/lib/python3.*, " + root + "/licences, " + root +
                               "/doc/*/copyright; set dataset.path to a text file or a "
                               "folder of your own";
  CHECK_THROWS_WITH_AS(find_corpus(search), expected.c_str(), Error);
}

TEST_CASE("a corpus of one's own is a file or a folder, sorted, without hidden and empty files") {
  const TemporaryFolder folder;
  const fs::path one = folder.add("b.txt", "two");
  folder.add("a/x.txt", "one");
  folder.add(".git/x", "hidden");
  folder.add("empty", "");
  CHECK(names_of(read_corpus(folder.path()), folder.path()) == std::vector<std::string>{"a/x.txt", "b.txt"});
  CHECK(read_corpus(one)[0].text == "two");
}

TEST_CASE("a corpus that is not there or empty is an error with its path") {
  const TemporaryFolder folder;
  const std::string missing = (folder.path() / "none").string();
  CHECK_THROWS_WITH_AS(read_corpus(missing), ("dataset.path: there is no " + missing).c_str(), Error);
  const std::string empty = folder.add("empty", "").string();
  CHECK_THROWS_WITH_AS(read_corpus(empty),
                       ("dataset.path: " + empty + " holds no text (1 files, all empty)").c_str(), Error);
}

static std::vector<Document> documents_of(int count) {
  std::vector<Document> documents;
  for (int i = 0; i < count; ++i) documents.push_back({"d" + std::to_string(i), repeated("x", 10 + i)});
  return documents;
}

TEST_CASE("the split keeps every document once, holds out up to the bytes asked for, and repeats itself") {
  const Split first = split(documents_of(50), 200, 7);
  CHECK(first.train.size() + first.held_out.size() == 50);
  CHECK(bytes_of(first.held_out) <= 200);
  CHECK(bytes_of(first.held_out) > 180);
  CHECK(split(documents_of(50), 200, 7).held_out == first.held_out);
  CHECK(split(documents_of(50), 200, 8).held_out != first.held_out);
}

TEST_CASE("of a single document the end is held out") {
  const Split halves = split({{"book", "0123456789"}}, 4, 1);
  CHECK(halves.train[0].text == "012345");
  CHECK(halves.held_out[0].text == "6789");
}

TEST_CASE("holding out more than half, or less than any document, is refused") {
  CHECK_THROWS_WITH_AS(split({{"a", "xxxx"}}, 3, 1),
                       "dataset.held_out_bytes is 3, which is not between 1 and half of the text's 4 bytes",
                       Error);
  CHECK_THROWS_WITH_AS(
      split(documents_of(5), 3, 1),
      "dataset.held_out_bytes is 3, less than any document of the text has: nothing could be held out",
      Error);
}

TEST_CASE("pieces are words with a space before, digits by threes, breaks with indentation") {
  const auto pieces = pieces_of("def f(x):\n    return  x1234 \n\n");
  const std::vector<std::string_view> expected = {"def", " f", "(",   "x", "):", "\n    ", "return",
                                                  " ",   " x", "123", "4", " ",  "\n\n"};
  CHECK(pieces == expected);
}

TEST_CASE("the most frequent pair is merged first") {
  const Bpe bpe = train_bpe({{"", "abab ab cb cb"}}, 259);
  const std::vector<std::pair<Token, Token>> expected = {{'a', 'b'}, {' ', 'c'}};
  CHECK(bpe.merges == expected);
  CHECK(encode(bpe, "abcb") == std::vector<Token>{256, 'c', 'b'});
}

TEST_CASE("training stops when no pair occurs twice, and says so by its size") {
  CHECK(train_bpe({{"", "abc"}}, 1000).vocab_size() == 257);
  CHECK_THROWS_WITH_AS(train_bpe({}, 256),
                       "a vocabulary of 256 tokens is too small: the 256 bytes and the end of a text are 257",
                       Error);
}

// The definition, without an index: count all pairs, join the best, start again.
static Bpe train_slowly(const std::string& text, std::size_t num_merges) {
  std::vector<std::vector<Token>> pieces;
  for (const std::string_view piece : pieces_of(text)) {
    pieces.emplace_back();
    for (const char c : piece) pieces.back().push_back(static_cast<unsigned char>(c));
  }
  Bpe bpe;
  while (bpe.merges.size() < num_merges) {
    std::map<std::pair<Token, Token>, int> counts;
    for (const auto& piece : pieces)
      for (std::size_t i = 1; i < piece.size(); ++i) ++counts[{piece[i - 1], piece[i]}];
    std::pair<Token, Token> best;
    int most = 1;
    for (const auto& [pair, count] : counts)
      if (count > most) std::tie(best, most) = std::pair(pair, count);
    if (most < 2) break;
    for (auto& piece : pieces)
      for (std::size_t i = 1; i < piece.size(); ++i)
        if (std::pair(piece[i - 1], piece[i]) == best) {
          piece[i - 1] = bpe.end_of_text();
          piece.erase(piece.begin() + static_cast<std::ptrdiff_t>(i));
        }
    bpe.merges.push_back(best);
  }
  return bpe;
}

TEST_CASE("the indexed training makes the merges of the definition") {
  std::string text;
  for (std::uint64_t i = 0; i < 4000; ++i) text += "aaab \nc"[mix(i) % 7];
  CHECK(train_bpe({{"", text}}, 257 + 60) == train_slowly(text, 60));
}

TEST_CASE("any bytes encode and decode to themselves") {
  const Bpe bpe = train_bpe({{"", repeated("the quick brown fox\n\tjumps  over 1234 dogs ", 20)}}, 280);
  CHECK(bpe.vocab_size() == 280);
  for (const std::string& text : {std::string(), std::string("the quick\nbrown"), std::string("a\0b", 3),
                                  std::string("\xff\xfe caf\xc3\xa9"), std::string("\xe2\x96\x81 x"),
                                  std::string("  \n \t \r\n"), noise(10000, 3)})
    CHECK(decode(bpe, encode(bpe, text)) == text);
  CHECK(encode(bpe, "the quick brown").size() < 10);
}

TEST_CASE("documents are divided by the end of text, which reads as nothing") {
  const Bpe bpe;
  CHECK(encode_all(bpe, {{"", "a"}, {"", "bc"}}) == std::vector<Token>{256, 'a', 256, 'b', 'c', 256});
  CHECK(decode(bpe, {256, 'a', 256}) == "a");
  CHECK_THROWS_WITH_AS(decode(bpe, {257}), "token 257 is not one of the vocabulary's 257", Error);
}

TEST_CASE("the trigram's probabilities sum to one, after contexts seen and unseen") {
  const Trigram trigram({{"", repeated("the cat sat on the mat. ", 10) + "a rare zebra"}});
  for (const std::string_view context : {"th", "zz", "t.", "ra"}) {
    double sum = 0;
    for (int c = 0; c < 256; ++c)
      sum += trigram.probability(static_cast<unsigned char>(c), static_cast<unsigned char>(context[1]),
                                 static_cast<unsigned char>(context[0]));
    CHECK(sum == doctest::Approx(1).epsilon(1e-9));
  }
  CHECK(trigram.probability('e', 'h', 't') > 0.85);
}

TEST_CASE("the trigram finds noise incompressible and repetition nearly free") {
  const Trigram of_noise({{"", noise(200000, 1)}});
  CHECK(of_noise.bits_per_byte({{"", noise(20000, 999'999)}}) == doctest::Approx(8).epsilon(0.05));
  const Trigram of_repetition({{"", repeated("abcd", 5000)}});
  CHECK(of_repetition.bits_per_byte({{"", repeated("abcd", 1000)}}) < 0.02);
  CHECK_THROWS_WITH_AS(of_noise.bits_per_byte({}), "bits per byte of a text without bytes", Error);
}

TEST_CASE("a tokenised corpus comes back from its file, with its key, and only whole") {
  const TemporaryFolder folder;
  const Split text = {.train = {{"a", repeated("one two three ", 30)}}, .held_out = {{"b", "two"}}};
  const TokenizedCorpus corpus = tokenize(text, 270);
  const fs::path path = folder.path() / "tokens.bin";
  CHECK(!map_tokens(path));
  write_tokens(path, corpus, 1);
  {
    const auto mapped = map_tokens(path);
    REQUIRE(mapped.has_value());
    CHECK(mapped->key == 1);
    CHECK(mapped->bpe == corpus.bpe);
    CHECK(std::ranges::equal(mapped->train, corpus.train));
    CHECK(std::ranges::equal(mapped->held_out, corpus.held_out));
  }
  const auto bytes = fs::file_size(path);
  for (const std::uintmax_t cut : {bytes - 1, bytes - 4, std::uintmax_t{3}, std::uintmax_t{0}}) {
    fs::resize_file(path, cut);
    CHECK(!map_tokens(path));
  }
}

TEST_CASE("a file of token ids alone is read in two widths, and one that does not fit is named") {
  const TemporaryFolder folder;
  const std::string ids("\x01\x00\x02\x00\xff\x00\x00\x00", 8);
  const fs::path path = folder.add("ids.bin", ids);
  std::vector<std::int64_t> read(3);
  const RawTokens narrow(path, 2, 256);
  REQUIRE(narrow.size() == 4);
  narrow.copy(1, 3, read.data());
  CHECK(read == std::vector<std::int64_t>{2, 255, 0});
  const RawTokens wide(path, 4, 200'000);
  REQUIRE(wide.size() == 2);
  wide.copy(0, 2, read.data());
  CHECK(read[0] == 131073);
  CHECK(narrow.key() != RawTokens(folder.add("others.bin", ids + ids), 2, 256).key());
  const std::string at = path.string();
  CHECK_THROWS_WITH_AS(
      RawTokens(path, 2, 255),
      (at + ": token 2 is 255, but the vocabulary has 255; a larger model.vocab_size, or another "
            "dataset.token_bytes than 2")
          .c_str(),
      Error);
  folder.add("ids.bin", ids + "x");
  CHECK_THROWS_WITH_AS(RawTokens(path, 2, 256), (at + ": has 9 bytes, no multiple of a token's 2").c_str(),
                       Error);
}

TEST_CASE("the key of a tokenised corpus follows the text, the split and the vocabulary") {
  const Split text = {.train = {{"a", "one"}}, .held_out = {{"b", "two"}}};
  const Split swapped = {.train = {{"b", "two"}}, .held_out = {{"a", "one"}}};
  CHECK(key_of(text, 300) == key_of(text, 300));
  CHECK(key_of(text, 300) != key_of(text, 301));
  CHECK(key_of(text, 300) != key_of(swapped, 300));
}
