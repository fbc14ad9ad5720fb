// SPDX-License-Identifier: Apache-2.0
// Who is no worker and asks servers of their tables.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "shoal/base/error_test.h"
#include "shoal/base/file_system.h"
#include "shoal/base/temporary_folder_test.h"
#include "shoal/base/text.h"
#include "shoal/ps/client.h"
#include "shoal/ps/save.h"
#include "shoal/ps/servers_test.h"

using namespace shoal;
using namespace shoal::ps;
using test::Servers;

static Definition definition() {
  Definition ids = test::summed();
  ids.parts = {{.width = 3}};
  ids.scored = true;
  return ids;
}

TEST_CASE(
    "who looks is told what there is of tables, whoever made them, and values alone are saved for serving") {
  const TemporaryFolder folder;
  Servers servers({1, 1});
  Client client(servers.key, servers.endpoints), looks(servers.key, servers.endpoints);
  CHECK(looks.describe() == std::vector<std::vector<TableState>>(2));
  const auto table = client.create(definition());
  Definition other = definition();
  other.name = "others";
  client.create(other);
  const std::vector<std::uint64_t> keys = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<float> gradients(3 * keys.size(), 0.25f), shows = {0, 0, 0, 9, 9, 9, 9};
  std::vector<float> rows(gradients.size());
  client.push(table, {.keys = keys, .gradients = gradients, .shows = shows});
  client.pull(table, keys, rows);
  client.pull(table, keys, rows);
  client.shrink(table, 4);
  TableState sum;
  for (const auto& of_part : looks.describe()) {
    REQUIRE(of_part.size() == 2);
    CHECK(of_part[0].definition == to_text(definition()));
    CHECK(of_part[0].day == 4);
    CHECK(of_part[0].bytes > 0);
    CHECK(of_part[1] == TableState{.definition = to_text(other), .bytes = of_part[1].bytes});
    sum.rows += of_part[0].rows;
    sum.pulled += of_part[0].pulled;
    sum.pushed += of_part[0].pushed;
  }
  CHECK(std::tuple(sum.rows, sum.pulled, sum.pushed) == std::tuple(7, 14, 7));
  CHECK(client.export_to(table, folder.path() / "ids", 0.4f).rows == 4);
  Table served(definition());
  DiskFileSystem files;
  load(served, files, files_of(files, folder.path() / "ids"));
  CHECK(served.contains(4));
  CHECK_FALSE(served.contains(3));
}

TEST_CASE("rows that workers keep do not expire behind their backs") {
  Servers servers({1});
  Client client(servers.key, servers.endpoints), other(servers.key, servers.endpoints);
  const auto table = client.create(definition()), same = other.create(definition());
  const std::vector<std::uint64_t> keys = {1, 2};
  const std::vector<float> gradients(6, 1);
  std::vector<std::uint64_t> others;
  CHECK(other.shrink(same, 1).rows == 0);
  client.push(std::vector<Tables::PushTo>{{table, {.keys = keys, .gradients = gradients}, &others}});
  CHECK(contains(error_of([&] { other.shrink(same, 2); }), "workers keep rows of it (ps.prefetch"));
  CHECK(client.shrink(table, 2).rows == 2);
  Servers apart({1});  // who trains rows by himself adds what became of them to a row that has to be there
  Client geo(apart.key, apart.endpoints), looks(apart.key, apart.endpoints);
  const auto trained = geo.create(definition()), seen = looks.create(definition());
  geo.push(trained, {.keys = keys, .gradients = gradients, .of = PushOf::Differences});
  CHECK(contains(error_of([&] { looks.shrink(seen, 2); }), "workers keep rows of it"));
}
