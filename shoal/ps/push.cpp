// SPDX-License-Identifier: Apache-2.0
// What a push has to be before anything of it is sent or applied.
#include <cmath>

#include "shoal/base/error.h"
#include "shoal/base/text.h"
#include "shoal/ps/table.h"

namespace shoal::ps {

void check(const Push& push, const Definition& table, std::size_t width) {
  const std::size_t count = push.keys.size();
  const std::string where = concat("ps: table ", in_quotes(table.name), ": ");
  const auto fits = [&](std::size_t size, std::size_t wanted, const char* what) {
    SHOAL_CHECK(size == wanted, InvalidInput, where, "a push of ", count, " keys has ", size, " ", what,
                ", wanted ", wanted);
  };
  SHOAL_CHECK(count == 0 || push.gradients.is_wide() == is_wide(table.dtype), InvalidInput, where,
              "a push has gradients in ", push.gradients.is_wide() ? "f64" : "f32", ", and its rows are ",
              name_of(table.dtype));
  fits(push.gradients.size(), count * width, "numbers of gradients");
  if (!push.shows.empty()) fits(push.shows.size(), count, "shows");
  if (!push.clicks.empty()) fits(push.clicks.size(), count, "clicks");
  SHOAL_CHECK(std::isfinite(push.rate) && push.rate >= 0, InvalidInput, where, "a push's rate is ", push.rate,
              ", wanted a number not below 0");
  const auto good = [](float number) { return std::isfinite(number) && number >= 0; };
  with_number(push.gradients.is_wide(), [&](auto number) {
    const auto gradients = push.gradients.of<decltype(number)>();
    if (all_finite(gradients)) return;
    for (std::size_t i = 0; i < count; ++i)
      SHOAL_CHECK(all_finite(gradients.subspan(i * width, width)), InvalidInput, where,
                  "the gradient of key ", push.keys[i],
                  " is not finite; nothing was pushed. Is the learning rate too high?");
  });
  for (std::size_t i = 0; i < count; ++i)
    SHOAL_CHECK((push.shows.empty() || good(push.shows[i])) && (push.clicks.empty() || good(push.clicks[i])),
                InvalidInput, where, "shows or clicks of key ", push.keys[i],
                " are not numbers from 0 on; nothing was pushed");
}

}  // namespace shoal::ps
