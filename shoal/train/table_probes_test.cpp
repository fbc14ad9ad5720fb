// SPDX-License-Identifier: Apache-2.0
// What could change behind the back of a table is followed or refused.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/nn.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/capture/deferred.h"
#include "shoal/train/trainer.h"
#include "shoal/train/two_tables_test.h"

namespace table_probes_test {

using namespace shoal;
using namespace shoal::two_tables;

static std::string error_after(const std::function<void(Clicks&, Trainer&)>& change,
                               bool steps_before = true) {
  auto model = model_of();
  Trainer trainer(model, loss_of, SGD{.lr = 0.1}, {.tables = kBoth});
  if (steps_before) trainer.step(batch_of(0, 0, 14));
  try {
    change(*model, trainer);
    trainer.step(batch_of(1, 0, 14));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("who reads or writes a table's parameter is told where its rows are") {
  const at::NoGradGuard no_grad;
  const std::vector<std::function<void(Clicks&, Trainer&)>> uses = {
      [](Clicks& model, Trainer&) { (void)model.items->weight.add(1); },
      [](Clicks& model, Trainer&) { model.items->weight.zero_(); },
      [](Clicks& model, Trainer&) { (void)model.items->weight[0][0].item<double>(); },
      [](Clicks& model, Trainer&) { model.items->weight.copy_(at::zeros({kIds, kWidth})); },
      [](Clicks& model, Trainer&) {
        std::ostringstream file;
        torch::serialize::OutputArchive archive;
        model.save(archive);
        archive.save_to(file);
      },
      [](Clicks& model, Trainer&) {
        model.forward(at::zeros({1, 4}, at::kLong), at::zeros({1}, at::kLong), at::zeros({1}, at::kLong));
      },
  };
  for (const auto& use : uses) {
    const std::string text = error_after(use);
    CHECK_MESSAGE(contains(text, "the rows of parameter items.weight are in a table"), text);
  }
}

TEST_CASE("values that a table does not see are refused, whatever way they come") {
  const at::NoGradGuard no_grad;
  const std::vector<std::function<void(Clicks&, Trainer&)>> gifts = {
      [](Clicks& model, Trainer&) { model.items->weight.set_data(at::zeros({kIds, kWidth}, at::kDouble)); },
      [](Clicks& model, Trainer& trainer) {
        trainer.materialize();
        model.items->weight[3] += 1;
      },
      [](Clicks& model, Trainer& trainer) {
        trainer.materialize();
        model.items->weight.set_data(at::zeros({kIds, kWidth}, at::kDouble));
      },
  };
  for (const auto& give : gifts) {
    const std::string text = error_after(give);
    CHECK_MESSAGE(contains(text, "parameter items.weight was given values while its rows are in a table"),
                  text);
  }
  CHECK(error_after([](Clicks&, Trainer& trainer) { trainer.materialize(); }) == "");
}

TEST_CASE("a model that begins to do something else with a table is seen") {
  const std::string text = error_after([](Clicks& model, Trainer& trainer) {
    model.extra = [](const Tensor& weight) { return weight.square().mean(); };
    for (std::int64_t number = 1; number < 9; ++number) trainer.step(batch_of(number, 0, 14));
  });
  CHECK_MESSAGE(contains(text, "does something else than when its step was captured"), text);
  CHECK(error_after([](Clicks& model, Trainer& trainer) {
          model.extra = [](const Tensor& weight) { return weight.square().mean(); };
          trainer.forget_graphs();
        }) == "");
}

TEST_CASE("a frozen table stays as it is, and thaws") {
  auto model = model_of();
  Trainer trainer(model, loss_of, SGD{.lr = 0.5}, {.tables = kBoth});
  const Tensor before = trainer.rows("items.weight");
  model->items->weight.set_requires_grad(false);
  trainer.step(batch_of(0, 0, 14));
  CHECK(trainer.rows("items.weight").equal(before));
  model->items->weight.set_requires_grad(true);
  trainer.step(batch_of(1, 0, 14));
  CHECK(!trainer.rows("items.weight").equal(before));
}

TEST_CASE("an evaluation makes no row and changes none") {
  auto model = model_of();
  auto tables = ps::tables_in_process();
  TableOptions options = kBoth;
  options.tables = tables.get();
  options.placements[0].initial = {.rule = ps::InitialRule::Uniform, .scale = 0.1f};
  Trainer trainer(model, loss_of, SGD{.lr = 0.5}, {.tables = options});
  CHECK(tables->digest(0).second == 0);
  const double before = trainer.evaluate(batch_of(0, 0, 14));
  CHECK(tables->digest(0).second == 0);
  CHECK(trainer.evaluate(batch_of(0, 0, 14)) == before);
  trainer.step(batch_of(0, 0, 14));
  CHECK(tables->digest(0).second > 0);
}

TEST_CASE("a step that fails has changed no row") {
  auto model = model_of();
  Trainer trainer(model, loss_of, SGD{.lr = 0.5}, {.tables = kBoth});
  trainer.step(batch_of(0, 0, 14));
  const Tensor items = trainer.rows("items.weight"), top = model->top->weight.detach().clone();
  Batch bad = batch_of(1, 0, 14);
  bad["clicked"].tensor()[3] = NAN;
  CHECK(contains(error_of([&] { trainer.step(bad); }), "the loss of step 2 is nan"));
  Batch outside = batch_of(1, 0, 14);
  outside["user"].tensor()[2] = kIds;
  CHECK(contains(error_of([&] { trainer.step(outside); }),
                 "ps: table \"users.weight\": there is no id 40; it has ids from 0 to 39"));
  CHECK(trainer.rows("items.weight").equal(items));
  CHECK(model->top->weight.equal(top));
  trainer.step(batch_of(1, 0, 14));
}

TEST_CASE("rows that are set are what a step reads") {
  const Optimizer optimizer = SGD{.lr = 0.5};
  auto model = model_of(), other = model_of();
  Trainer trainer(model, loss_of, optimizer, {.tables = kBoth}), wanted(other, loss_of, optimizer);
  const Tensor ids = at::arange(5), values = at::full({5, kWidth}, 0.25, at::kDouble);
  trainer.set_rows("items.weight", ids, values);
  {
    const at::NoGradGuard no_grad;
    other->items->weight.narrow(0, 0, 5).copy_(values);
  }
  const Batch batch = batch_of(3, 0, 14);
  CHECK(trainer.step(batch).loss == doctest::Approx(wanted.step(batch).loss).epsilon(1e-12));
}

TEST_CASE("what cannot be a table is refused before anything has changed") {
  const auto refusal = [](const TablePlacement& placement, const Optimizer& optimizer = SGD{.lr = 0.1}) {
    auto model = model_of();
    return error_of([&] { Trainer(model, loss_of, optimizer, {.tables = {.placements = {placement}}}); });
  };
  CHECK(refusal({.parameters = "item.weight"}) ==
        "tables: no parameter of the model is called \"item.weight\"");
  CHECK(refusal({.parameters = "top.bias"}) == "");  // it is one row
  CHECK(refusal({.parameters = "items.weight", .clicks = "clicked"}) ==
        "tables: clicks of items.weight are input \"clicked\", and its rows have no score that these count "
        "for. "
        "Remedy: scored, or no clicks");
  CHECK(contains(refusal({.parameters = "items.weight"}, AdamW{}),
                 "TablePlacement::optimizer says what updates a row"));
  CHECK(contains(refusal({.parameters = "items.weight"}, SGD{.lr = 0.1, .momentum = 0.9}), "momentum"));
  CHECK(refusal({.parameters = "items.weight", .optimizer = ps::RowOptimizer{}}, AdamW{}) == "");
  auto model = model_of();
  CHECK(
      contains(error_of([&] { Trainer(model, loss_of, SGD{.lr = 0.1}, {.clip_norm = 1, .tables = kBoth}); }),
               "clip_norm is 1, and the norm of all gradients would lack those of rows in tables"));
  Trainer trainer(model, loss_of, SGD{.lr = 0.1}, {.tables = kBoth});
  CHECK(contains(error_of([&] { trainer.backward(batch_of(0, 0, 14)); }),
                 "backward() has nothing to say of parameters whose rows are in tables, as items.weight is"));
}

TEST_CASE("learning rates and their schedule reach rows") {
  const LearningRateSchedule schedule = {.decay = LearningRateSchedule::Decay::Linear, .total_steps = 6};
  Rows rows[2];
  for (const bool in_tables : {false, true}) {
    auto model = model_of();
    TrainerOptions options = {.schedule = schedule};
    if (in_tables) options.tables = kBoth;
    Trainer trainer(model, loss_of, Adagrad{.lr = 0.2}, options);
    trainer.step(batch_of(0, 0, 14));
    trainer.set_learning_rate(0, 0.7);
    trainer.step(batch_of(1, 0, 14));
    trainer.step(batch_of(2, 0, 14));
    rows[in_tables] = rows_of(trainer, *model);
  }
  for (const auto& [name, tensor] : rows[0])
    CHECK((tensor - rows[1].at(name)).abs().max().item<double>() < 1e-12);
}

TEST_CASE("rows of a run before are an error, unless it is said what becomes of them") {
  auto tables = ps::tables_in_process();
  TableOptions options = kBoth;
  options.tables = tables.get();
  const auto begin = [&](TableOptions::Before before) {
    auto model = model_of();
    options.before = before;
    Trainer trainer(model, loss_of, SGD{.lr = 0.1}, {.tables = options});
    trainer.step(batch_of(0, 0, 14));
    return trainer.rows("items.weight");
  };
  const Tensor first = begin(TableOptions::Before::Refuse);
  CHECK(
      error_of([&] { begin(TableOptions::Before::Refuse); }) ==
      "tables: items.weight has 40 rows already, of a run before. Remedy: TableOptions::before says whether "
      "they are kept or cleared");
  CHECK(begin(TableOptions::Before::Clear).equal(first));
  CHECK(!begin(TableOptions::Before::Keep).equal(first));
}

// A table for each id that there may be.
TEST_CASE("a table without a bound takes no memory, and trains as one whose rows begin alike") {
  const ps::Initial initial = {.rule = ps::InitialRule::Normal, .scale = 0.1f};
  const std::int64_t far = (std::int64_t{1} << 61) + 12345;
  struct Sums : torch::nn::Module {
    explicit Sums(std::int64_t ids) : rows(register_module("rows", torch::nn::Embedding(ids, 16))) {
      torch::nn::init::normal_(rows->weight, 0, 0.1);
    }
    torch::nn::Embedding rows;
  };
  const auto loss = [](std::shared_ptr<Sums>& model, const Batch& batch) {
    return (model->rows(batch["ids"].tensor()).sum({1, 2}) - 1).square().mean();
  };
  auto endless = deferred_init([] { return std::make_shared<Sums>(std::int64_t{1} << 62); });
  Trainer trainer(endless, loss, SGD{.lr = 0.1}, {.tables = {.placements = {{.parameters = "rows.weight"}}}});
  auto known = std::make_shared<Sums>(20);
  Trainer wanted(known, loss, SGD{.lr = 0.1},
                 {.tables = {.placements = {{.parameters = "rows.weight", .initial = initial}}}});
  for (std::int64_t step = 0; step < 5; ++step) {
    const Tensor ids = (at::arange(12).reshape({4, 3}) * (step + 3)) % 20;
    CHECK(trainer.step({{"ids", ids}}).loss == wanted.step({{"ids", ids}}).loss);
  }
  trainer.step({{"ids", at::full({4, 3}, far)}});
  CHECK(trainer.rows("rows.weight", at::tensor({far})).size(1) == 16);
  CHECK(contains(error_of([&] { trainer.step({{"ids", at::full({4, 3}, std::int64_t{1} << 62)}}); }),
                 "there is no id 4611686018427387904"));
  CHECK(contains(error_of([&] { trainer.rows("rows.weight"); }), "has more rows than fit into a tensor"));
}

TEST_CASE("the module has its rows again when the trainer has gone") {
  auto model = model_of();
  Tensor rows;
  {
    Trainer trainer(model, loss_of, SGD{.lr = 0.1}, {.tables = kBoth});
    trainer.step(batch_of(0, 0, 14));
    rows = trainer.rows("items.weight");
  }
  CHECK(model->items->weight.equal(rows));
}

}  // namespace table_probes_test
