// SPDX-License-Identifier: Apache-2.0
// Reads text in an order that depends on the paths and on nothing else.
#include "shoal/data/corpus.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/data/hash.h"

namespace shoal::data {

namespace fs = std::filesystem;

static std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  SHOAL_CHECK(file, InvalidInput, "cannot read ", path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

static bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Every regular file below `root` that `wanted` takes, sorted. What cannot be opened is passed over.
template <class Wanted>
static std::vector<fs::path> files_below(const fs::path& root, Wanted wanted) {
  std::vector<fs::path> found;
  std::error_code ignored;
  auto it = fs::recursive_directory_iterator(root, fs::directory_options::skip_permission_denied, ignored);
  for (; it != fs::recursive_directory_iterator(); it.increment(ignored)) {
    if (!wanted(it->path())) {
      if (it->is_directory(ignored)) it.disable_recursion_pending();
      continue;
    }
    if (it->is_regular_file(ignored)) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The minor version of a folder named python3.N.
static std::optional<int> python_minor(const fs::path& folder) {
  const std::string name = folder.filename().string();
  const std::string prefix = "python3.";
  if (!name.starts_with(prefix) || name.size() == prefix.size() || name.size() > prefix.size() + 3)
    return std::nullopt;
  for (const char c : name.substr(prefix.size()))
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
  return std::stoi(name.substr(prefix.size()));
}

static std::optional<fs::path> standard_library(const std::vector<fs::path>& roots) {
  for (const fs::path& root : roots) {
    std::optional<std::pair<int, fs::path>> newest;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored))
      if (const auto minor = python_minor(entry.path()); minor && fs::exists(entry.path() / "os.py", ignored))
        if (!newest || *minor > newest->first) newest = {*minor, entry.path()};
    if (newest) return newest->second;
  }
  return std::nullopt;
}

static bool is_library_source(const fs::path& path) {
  // The last three are tables of code points: neither language nor code.
  static const std::set<std::string> skipped = {"__pycache__",   "dist-packages", "idle_test",
                                                "site-packages", "test",          "tests",
                                                "encodings",     "entities.py",   "stringprep.py"};
  if (skipped.contains(path.filename().string())) return false;
  return !path.has_extension() || path.extension() == ".py" || fs::is_directory(path);
}

std::vector<Document> find_corpus(const CorpusSearch& search) {
  std::vector<Document> documents;
  std::set<std::uint64_t> seen;
  const auto add = [&](const fs::path& path) -> std::int64_t {
    std::string text = read_file(path);
    if (text.empty() || !seen.insert(hash_bytes(text)).second) return 0;
    documents.push_back({path.string(), std::move(text)});
    return static_cast<std::int64_t>(documents.back().text.size());
  };

  if (const auto library = standard_library(search.python_roots))
    for (const fs::path& path : files_below(*library, is_library_source))
      if (path.extension() == ".py") add(path);
  for (const fs::path& path : files_below(search.licences, [](const fs::path&) { return true; })) add(path);
  std::int64_t copyright_bytes = 0;
  const auto is_copyright = [](const fs::path& path) {
    std::error_code ignored;
    return path.filename() == "copyright" || fs::is_directory(path, ignored);
  };
  for (const fs::path& path : files_below(search.copyrights, is_copyright))
    if (copyright_bytes < search.max_copyright_bytes) copyright_bytes += add(path);

  if (bytes_of(documents) < search.min_bytes) {
    std::string places;
    for (const fs::path& root : search.python_roots) places += (root / "python3.*").string() + ", ";
    fail(ErrorKind::InvalidInput, "too little text on this machine: ", human_bytes(bytes_of(documents)),
         " of ", human_bytes(search.min_bytes), " found in ", places, search.licences.string(), ", ",
         (search.copyrights / "*/copyright").string(),
         "; set dataset.path to a text file or a folder of your own");
  }
  return documents;
}

std::vector<Document> read_corpus(const fs::path& path) {
  std::error_code ignored;
  SHOAL_CHECK(fs::exists(path, ignored), InvalidInput, "dataset.path: there is no ", path.string());
  std::vector<fs::path> files = {path};
  if (fs::is_directory(path, ignored))
    files = files_below(path, [](const fs::path& at) { return !is_hidden(at); });
  std::vector<Document> documents;
  for (const fs::path& file : files)
    if (std::string text = read_file(file); !text.empty())
      documents.push_back({file.string(), std::move(text)});
  SHOAL_CHECK(!documents.empty(), InvalidInput, "dataset.path: ", path.string(), " holds no text (",
              files.size(), " files, all empty)");
  return documents;
}

std::int64_t bytes_of(const std::vector<Document>& documents) {
  std::int64_t total = 0;
  for (const Document& document : documents) total += static_cast<std::int64_t>(document.text.size());
  return total;
}

Split split(std::vector<Document> documents, std::int64_t held_out_bytes, std::uint64_t seed) {
  const std::int64_t total = bytes_of(documents);
  SHOAL_CHECK(held_out_bytes > 0 && held_out_bytes <= total / 2, InvalidInput, "dataset.held_out_bytes is ",
              held_out_bytes, ", which is not between 1 and half of the text's ", total, " bytes");
  Split result;
  if (documents.size() == 1) {
    const Document& whole = documents[0];
    const auto cut = static_cast<std::size_t>(total - held_out_bytes);
    result.held_out = {{whole.name + " (end)", whole.text.substr(cut)}};
    result.train = {{whole.name, whole.text.substr(0, cut)}};
    return result;
  }
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (std::size_t i = 0; i < documents.size(); ++i)
    order.emplace_back(mix(hash_bytes(documents[i].name) ^ mix(seed)), i);
  std::sort(order.begin(), order.end());
  std::vector<bool> is_held_out(documents.size());
  std::int64_t held = 0;
  for (const auto& [draw, i] : order) {
    const auto bytes = static_cast<std::int64_t>(documents[i].text.size());
    if (held + bytes > held_out_bytes) continue;
    is_held_out[i] = true;
    held += bytes;
  }
  SHOAL_CHECK(held > 0, InvalidInput, "dataset.held_out_bytes is ", held_out_bytes,
              ", less than any document of the text has: nothing could be held out");
  for (std::size_t i = 0; i < documents.size(); ++i)
    (is_held_out[i] ? result.held_out : result.train).push_back(std::move(documents[i]));
  return result;
}

}  // namespace shoal::data
