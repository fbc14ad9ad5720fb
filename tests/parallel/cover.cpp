// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/cover.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::matrix {

std::vector<std::string> pairs_of(const Cell& cell) {
  std::vector<std::string> pairs;
  for (std::size_t i = 0; i < cell.settings.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) pairs.push_back(concat(cell.settings[j], ", ", cell.settings[i]));
  return pairs;
}

Finished::Finished(const std::string& path) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) cells_.insert(line.substr(0, line.rfind(": ")));
  file_.open(path, std::ios::app);
  SHOAL_CHECK(file_.good(), InvalidInput, "matrix: cannot write ", path);
}

void Finished::add(const std::string& cell, double error) { file_ << cell << ": " << error << std::endl; }

bool is_sanitized() {
#ifdef __SANITIZE_ADDRESS__
  return true;
#else
  return false;
#endif
}

std::vector<Cell> cover(const std::vector<Cell>& all) {
  const auto brings = [](const Cell& cell) { return is_sanitized() ? cell.settings : pairs_of(cell); };
  std::set<std::string> missing;
  for (const Cell& cell : all)
    for (const auto& what : brings(cell)) missing.insert(what);
  std::vector<Cell> chosen;
  while (!missing.empty()) {
    const auto worth = [&](const Cell& cell) {
      const auto found = brings(cell);
      return std::pair(std::ranges::count_if(found, [&](const auto& what) { return missing.contains(what); }),
                       -cell.strategy.ranks());
    };
    chosen.push_back(*std::ranges::max_element(all, {}, worth));
    for (const auto& what : brings(chosen.back())) missing.erase(what);
  }
  return chosen;
}

}  // namespace shoal::matrix
