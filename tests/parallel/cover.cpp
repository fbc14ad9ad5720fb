// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/cover.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/base/sanitized.h"

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
  for (std::string line; std::getline(before, line);) {
    const auto colon = line.rfind(": ");
    SHOAL_CHECK(colon != std::string::npos, InvalidInput, "matrix: ", path,
                " has a line that is no cell: ", line);
    cells_[line.substr(0, colon)] = std::stod(line.substr(colon + 2));
  }
  before_ = cells_.size();
  file_.open(path, std::ios::app);
  SHOAL_CHECK(file_.good(), InvalidInput, "matrix: cannot write ", path);
}

void Finished::add(const std::string& cell, double error) {
  cells_[cell] = error;
  file_ << cell << ": " << error << std::endl;
}

void Finished::print() const {
  double largest = 0;
  for (const auto& [cell, error] : cells_) largest = std::max(largest, error);
  std::printf("seen: %zu cells, largest error %.1e", cells_.size(), largest);
  if (before_ > 0) std::printf(", %zu of them by a run that was stopped", before_);
  std::printf("\n");
}

std::vector<Cell> cover(const std::vector<Cell>& all) {
  std::map<std::string, std::size_t> numbers;  // of what cells bring
  std::vector<std::vector<std::size_t>> brings;
  for (const Cell& cell : all) {
    auto& of_cell = brings.emplace_back();
    for (const auto& what : kIsSanitized ? cell.settings : pairs_of(cell))
      of_cell.push_back(numbers.try_emplace(what, numbers.size()).first->second);
  }
  std::vector<bool> is_missing(numbers.size(), true);
  std::vector<Cell> chosen;
  for (std::size_t missing = numbers.size(); missing > 0;) {
    const auto worth = [&](const auto& found) {
      const auto& cell = all[static_cast<std::size_t>(&found - brings.data())];
      return std::pair(std::ranges::count_if(found, [&](std::size_t what) { return is_missing[what]; }),
                       -cell.strategy.ranks());
    };
    const auto best = std::ranges::max_element(brings, {}, worth);
    chosen.push_back(all[static_cast<std::size_t>(best - brings.begin())]);
    for (const std::size_t what : *best)
      if (is_missing[what]) is_missing[what] = false, --missing;
  }
  return chosen;
}

}  // namespace shoal::matrix
