// SPDX-License-Identifier: Apache-2.0
// A recipe's TOML, and overrides of it: a line each after a line "--".
#include "shoal/cli/recipe.h"

#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  const std::string_view all = fuzz::text_of(data, size);
  const std::size_t end = all.find("\n--\n");
  std::vector<std::string> overrides;
  for (std::size_t at = end; at != std::string_view::npos;) {
    const std::size_t begin = at == end ? end + 4 : at + 1;
    at = all.find('\n', begin);
    overrides.emplace_back(all.substr(begin, at - begin));
  }
  fuzz::refused_or_done([&] {
    const auto settings = cli::settings_of(cli::recipe_in(all.substr(0, end), "recipe.toml", overrides));
    try {
      if (cli::settings_of(cli::recipe_from(settings, "again")) != settings)
        fuzz::give_up("reads as another");
    } catch (const Error& error) {
      fuzz::give_up("was written and is refused: ", error.what());
    }
  });
  return 0;
}
