// SPDX-License-Identifier: Apache-2.0
// Text to learn from: found on the machine, or a file or folder that the user names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shoal::data {

struct Document {
  std::string name;  // its path
  std::string text;  // its bytes; no encoding is assumed
  friend bool operator==(const Document&, const Document&) = default;
};

struct CorpusSearch {
  // Folders that hold a Python standard library as python3.*; the first that does is taken, and there the
  // newest.
  std::vector<std::filesystem::path> python_roots = {"/usr/lib", "/usr/local/lib", "/opt/python/lib"};
  std::filesystem::path licences = "/usr/share/common-licenses";
  std::filesystem::path copyrights = "/usr/share/doc";  // <package>/copyright
  std::int64_t max_copyright_bytes = 2 << 20;           // they repeat one another
  std::int64_t min_bytes = 2 << 20;                     // less in all is an error
};

// The Python standard library's sources, without tests and tables of code points, then licence texts, each
// sorted by path, equal ones once. Throws InvalidInput that names the places looked at when there is too little.
std::vector<Document> find_corpus(const CorpusSearch& search);

// One file, or every regular file below a folder, sorted by path, hidden ones left out. Throws InvalidInput
// when there is nothing to read or all of it is empty.
std::vector<Document> read_corpus(const std::filesystem::path& path);

std::int64_t bytes_of(const std::vector<Document>& documents);

struct Split {
  std::vector<Document> train;
  std::vector<Document> held_out;
};

// Holds out whole documents, drawn by `seed` and their names until `held_out_bytes` are reached; a document
// that would go beyond is passed over. A corpus of one document is cut: its end is held out. Throws
// InvalidInput when less than half of the text would be left for training.
Split split(std::vector<Document> documents, std::int64_t held_out_bytes, std::uint64_t seed);

}  // namespace shoal::data
