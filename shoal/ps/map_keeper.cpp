// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/map_keeper.h"

#include <algorithm>

namespace shoal::ps {

static constexpr std::string_view kKey = "ps/map";

ShardMap MapKeeper::find() const {
  const auto text = store_->find(kKey);
  return text ? map_from_text(*text) : ShardMap();
}

void MapKeeper::join(int server, const std::vector<Endpoint>& loops) const {
  ShardMap map = find();
  const auto lacks = [&](const Endpoint& loop) { return map.loop_at(loop) == ShardMap::kNone; };
  while (map.number > 0 && std::ranges::any_of(loops, lacks))
    map = replace(map, with_server(map, server, loops));
}

ShardMap MapKeeper::put(const std::string& seen, const ShardMap& next) const {
  return map_from_text(store_->compare_and_set(kKey, seen, to_text(next)));
}

}  // namespace shoal::ps
