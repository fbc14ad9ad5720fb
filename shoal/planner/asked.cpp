// SPDX-License-Identifier: Apache-2.0
#include "shoal/planner/asked.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <future>
#include <list>
#include <mutex>

namespace shoal::planner {

Found asked(const ir::Graph& graph, const sharding::Mesh& mesh, const Question& question,
            const std::function<Found()>& search) {
  constexpr std::size_t kKept = 16;
  struct Asked {
    ir::Graph graph;
    sharding::Mesh mesh;
    Question question;
    std::shared_future<Found> answer;
  };
  static std::mutex mutex;
  static std::list<Asked> all;  // the latest first
  std::promise<Found> answer;
  std::shared_future<Found> answered;
  {
    const std::lock_guard lock(mutex);
    const auto known = std::ranges::find_if(all, [&](const Asked& asked) {
      return asked.question == question && asked.mesh == mesh && asked.graph == graph;
    });
    if (known != all.end()) {
      all.splice(all.begin(), all, known);
      answered = known->answer;
    } else {
      all.push_front({graph, mesh, question, answer.get_future().share()});
      if (all.size() > kKept) all.pop_back();
    }
  }
  if (answered.valid()) return answered.get();
  try {
    Found found = search();
    answer.set_value(found);
    return found;
  } catch (...) {
    answer.set_exception(std::current_exception());
    const std::lock_guard lock(mutex);
    std::erase_if(all, [&](const Asked& asked) {
      return asked.question == question && asked.mesh == mesh && asked.graph == graph;
    });
    throw;
  }
}

}  // namespace shoal::planner
