// SPDX-License-Identifier: Apache-2.0
#include "shoal/rewrite/layout_picture.h"

#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>

using namespace shoal;
using namespace shoal::rewrite;
using sharding::Layout;
using sharding::Mesh;
using sharding::Partial;
using sharding::Range;
using sharding::Replicate;
using sharding::Shape;
using sharding::Shard;

static const Mesh kMesh = {.axes = {{"shard", 2}, {"tensor", 2}}};

// Colours of the parts that say whose they are.
static std::set<std::string> colours_in(const std::string& picture) {
  static const std::regex kPart("fill='(#[0-9a-f]+)'[^<]*><title>");
  std::set<std::string> colours;
  for (std::sregex_iterator at(picture.begin(), picture.end(), kPart), end; at != end; ++at)
    colours.insert((*at)[1]);
  return colours;
}

static std::string picture(const Layout& layout, const Shape& shape = {8, 12}) {
  return Painter(kMesh).picture(layout, shape, drawn_dims(shape, {layout}));
}

TEST_CASE("ranks that have the same are one part") {
  CHECK(parts_of(kMesh, {{Replicate{}, Shard{.dim = 1}}}, {8, 12}) ==
        std::vector<Part>{{.ranks = {0, 2}, .box = {{{{0, 8}}, {{0, 6}}}}},
                          {.ranks = {1, 3}, .box = {{{{0, 8}}, {{6, 12}}}}}});
  CHECK(parts_of(kMesh, {{Replicate{}, Replicate{}}}, {8}) ==
        std::vector<Part>{{.ranks = {0, 1, 2, 3}, .box = {{{{0, 8}}}}}});
  CHECK(parts_of(kMesh, {{Replicate{}, Shard{.dim = 0, .outer = 3}}}, {12})[1].box.dims[0] ==
        std::vector<Range>{{2, 4}, {6, 8}, {10, 12}});
}

TEST_CASE("a layout that does not fit is drawn whole") {
  CHECK(parts_of(kMesh, {{Replicate{}, Shard{.dim = 2}}}, {8, 12}).empty());
  CHECK(parts_of(kMesh, {{Replicate{}, Shard{.dim = 0, .outer = 3}}}, {10}).empty());
}

TEST_CASE("dims that are cut are drawn, else the first two, or a sheet of three") {
  const Layout whole = {{Replicate{}, Replicate{}}};
  CHECK(drawn_dims({}, {whole}).empty());
  CHECK(drawn_dims({5}, {whole}) == std::vector<std::size_t>{0});
  CHECK(drawn_dims({5, 6}, {whole}) == std::vector<std::size_t>{0, 1});
  CHECK(drawn_dims({5, 6, 7}, {whole}) == std::vector<std::size_t>{1, 2});
  CHECK(drawn_dims({5, 6, 7}, {{{Shard{.dim = 0}, Replicate{}}}}) == std::vector<std::size_t>{0, 2});
  CHECK(drawn_dims({5, 6, 7, 8}, {whole}) == std::vector<std::size_t>{0, 1});
  CHECK(drawn_dims({5, 6, 7, 8}, {{{Shard{.dim = 3}, Shard{.dim = 1}}}}) == std::vector<std::size_t>{1, 3});
}

TEST_CASE("each rank of the inner axis has a hue, each of an outer one a tint, and what all have is grey") {
  const auto tensor = colours_in(picture({{Replicate{}, Shard{.dim = 0}}}));
  const auto both = colours_in(picture({{Shard{.dim = 1}, Shard{.dim = 0}}}));
  const auto shard = colours_in(picture({{Shard{.dim = 1}, Replicate{}}}));
  const auto whole = colours_in(picture({{Replicate{}, Replicate{}}}));
  CHECK(tensor.size() == 2);
  CHECK(both.size() == 4);
  CHECK(shard.size() == 2);
  CHECK(whole.size() == 1);
  for (const std::string& colour : tensor) CHECK(both.contains(colour));  // those of the first tint
  for (const std::string& colour : shard) CHECK(!both.contains(colour));
}

TEST_CASE("parts are in proportion, and none is drawn where a rank has nothing") {
  const std::string text = picture({{Replicate{}, Shard{.dim = 0}}}, {3, 6});
  CHECK(text.find("height='14.67' fill='#3e73b0'") != std::string::npos);  // two of three rows, of 22 pixels
  CHECK(text.find("height='7.333' fill='#ec822c'") != std::string::npos);
  CHECK(colours_in(picture({{Replicate{}, Shard{.dim = 0}}}, {1, 6})).size() == 1);
}

TEST_CASE("a part says whose it is, and summands that they are") {
  const std::string cut = picture({{Shard{.dim = 0}, Shard{.dim = 0}}}, {64, 64});
  CHECK(cut.find("<title>rank 2</title>") != std::string::npos);
  CHECK(cut.find("summands") == std::string::npos);
  const std::string sum = picture({{Shard{.dim = 0}, Partial{}}}, {64, 64});
  CHECK(sum.find("url(#summands-1)") != std::string::npos);
  CHECK(sum.find("fill-opacity='0.38'") != std::string::npos);  // what is of shard 1
  CHECK(sum.find(">sum</text>") != std::string::npos);
  CHECK(picture({{Partial{}, Shard{.dim = 0}}}, {64, 64}).find("url(#summands-0)") != std::string::npos);
  CHECK(Painter(kMesh).patterns().find("id='summands-1'") != std::string::npos);
}

TEST_CASE("of a stack whose sheets lie on other ranks the first is drawn") {
  const Mesh mesh = {.axes = {{"replicate", 2}, {"shard", 2}, {"tensor", 2}}};
  const Layout layout = {{Shard{.dim = 2}, Shard{.dim = 1}, Shard{.dim = 0}}};
  const std::string text = Painter(mesh).picture(layout, {4, 4, 4}, {0, 1});
  CHECK(text.find("<title>rank 3</title>") != std::string::npos);
  CHECK(text.find("<title>rank 4</title>") == std::string::npos);  // of the second half of dim 2
}

TEST_CASE("of many ranks and many blocks a few stand for all") {
  const Mesh many = {.axes = {{"shard", 128}, {"tensor", 8}}};
  const Layout layout = {{Shard{.dim = 0}, Shard{.dim = 0, .outer = 512}}};
  const std::string text = Painter(many).picture(layout, {512 * 1024, 16}, {0, 1});
  std::size_t rectangles = 0;
  for (std::size_t at = 0; (at = text.find("<rect", at)) != std::string::npos; ++at) ++rectangles;
  CHECK(rectangles == 8 * 8 + 1);  // parts, and the outline
  CHECK(text.find("rank 1") == std::string::npos);
  CHECK(Painter(many).ranks().find("class='rank'") == std::string::npos);
}

TEST_CASE("an axis that cuts nothing is not painted") {
  const Mesh mesh = {.axes = {{"pipeline", 2}, {"tensor", 2}}};
  CHECK(Painter(mesh, "pipeline").patterns().find("summands-0") == std::string::npos);
  CHECK(Painter(mesh).patterns().find("summands-0") != std::string::npos);
  CHECK(Painter({.axes = {{"tensor", 1}}}).ranks().empty());
}
