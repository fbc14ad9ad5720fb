// SPDX-License-Identifier: Apache-2.0
#include "shoal/train/padding.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "shoal/base/error_test.h"

namespace padding_test {

using namespace shoal;

TEST_CASE("items are filled up to the next multiple, and the others stay") {
  const auto tokens = at::arange(12, at::kLong).reshape({2, 6});
  const auto weights = at::ones({2, 6, 3});
  const auto lengths = at::tensor({6, 4}, at::kLong);
  const Batch batch{{"tokens", tokens}, {"weights", weights}, {"lengths", lengths}, {"scale", 2.5}};
  const Batch made = padded(batch, {.multiple = 4, .values = {{"tokens", -100}, {"weights", 0.1}}});
  CHECK(made["tokens"].tensor().sizes() == at::IntArrayRef{2, 8});
  CHECK(made["tokens"].tensor().slice(1, 0, 6).equal(tokens));
  CHECK(made["tokens"].tensor().slice(1, 6).eq(-100).all().item<bool>());
  CHECK(made["weights"].tensor().sizes() == at::IntArrayRef{2, 8, 3});
  CHECK(made["weights"].tensor().slice(1, 6).eq(0.1F).all().item<bool>());
  CHECK(made["lengths"].tensor().is_same(lengths));
  CHECK(made["scale"].number() == 2.5);
  const Batch again = padded(made, {.multiple = 4, .values = {{"tokens", -100}}});
  CHECK(again["tokens"].tensor().is_same(made["tokens"].tensor()));
}

TEST_CASE("what cannot be padded is refused by name") {
  const Batch batch{{"tokens", at::zeros({2, 6}, at::kLong)}, {"mask", at::ones({2}, at::kBool)}};
  const auto refusal = [&](const Padding& padding) { return error_of([&] { padded(batch, padding); }); };
  CHECK(refusal({.multiple = 0}).find("the multiple is 0") != std::string::npos);
  CHECK(refusal({.values = {{"labels", 0}}}).find("no tensor labels") != std::string::npos);
  CHECK(refusal({.values = {{"mask", 0}}}).find("item mask has 1 dims, and dim 1") != std::string::npos);
  CHECK(refusal({.values = {{"tokens", 0.5}}}).find("cannot hold 0.5") != std::string::npos);
}

}  // namespace padding_test
