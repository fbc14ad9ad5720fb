// SPDX-License-Identifier: Apache-2.0
#include "shoal/ps/map_keeper.h"

namespace shoal::ps {

static constexpr std::string_view kKey = "ps/map";

ShardMap MapKeeper::find() const {
  const auto text = store_->find(kKey);
  return text ? map_from_text(*text) : ShardMap();
}

bool MapKeeper::join(int server, const std::vector<Endpoint>& loops) const {
  ShardMap map = find();
  while (map.number > 0) {
    ShardMap next = with_server(map, server, loops);
    next.number = map.number;
    if (next == map) break;
    ++next.number;
    map = replace(map, next);
  }
  return !map.is_leaving(server) || map.has(server);
}

ShardMap MapKeeper::put(const std::string& seen, const ShardMap& next) const {
  return map_from_text(store_->compare_and_set(kKey, seen, to_text(next)));
}

}  // namespace shoal::ps
