// SPDX-License-Identifier: Apache-2.0
#include "shoal/simulate/pipeline.h"

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "shoal/base/error.h"

namespace shoal::simulate {

using schedule::Action;
using schedule::Kind;

static std::int64_t nanoseconds_of(Kind kind, const ActionTimes& times) {
  switch (kind) {
    case Kind::Forward: return times.forward;
    case Kind::Backward: return times.input_gradient + times.weight_gradient;
    case Kind::InputGradient: return times.input_gradient;
    case Kind::WeightGradient: return times.weight_gradient;
  }
  return 0;
}

namespace {

class Builder {
 public:
  Builder(const schedule::Timeline& timeline, const ActionTimes& times) : timeline_(timeline), times_(times) {
    for (int rank = 0; rank < timeline.num_ranks(); ++rank) tasks_.streams.push_back({rank, "compute"});
  }

  Tasks build() {
    for (int rank = 0; rank < timeline_.num_ranks(); ++rank)
      for (const Action& action : timeline_.actions[static_cast<std::size_t>(rank)]) add(rank, action);
    for (const auto& [task, action] : passes_)
      for (const Action& need : needs(action, timeline_.num_stages()))
        tasks_.tasks[static_cast<std::size_t>(task)].after.push_back(given_by(need, action.stage));
    return std::move(tasks_);
  }

 private:
  int rank_of(int stage) const { return timeline_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  int add_task(Task task) {
    tasks_.tasks.push_back(std::move(task));
    return static_cast<int>(tasks_.tasks.size()) - 1;
  }
  int stream_to(int from, int to) {
    const auto [stream, is_new] = sends_.try_emplace({from, to}, static_cast<int>(tasks_.streams.size()));
    if (is_new) tasks_.streams.push_back({from, concat("send to ", to)});
    return stream->second;
  }

  void add(int rank, const Action& action) {
    const std::string name = to_text(action);
    const int task = add_task({rank, name, nanoseconds_of(action.kind, times_)});
    passes_.emplace_back(task, action);
    const Kind gives = action.kind == Kind::Backward ? Kind::InputGradient : action.kind;
    given_[{gives, action.stage, action.microbatch}] = task;
    const int reader = gives == Kind::Forward ? action.stage + 1 : action.stage - 1;
    if (gives == Kind::WeightGradient || reader < 0 || reader >= timeline_.num_stages()) return;
    const int to = rank_of(reader);
    if (to == rank || times_.transfer == 0) return;
    sent_[{gives, action.stage, action.microbatch}] =
        add_task({stream_to(rank, to), name, times_.transfer, {task}});
  }

  // The task after which a stage has what it needs.
  int given_by(const Action& need, int stage) const {
    const Key key(need.kind, need.stage, need.microbatch);
    const auto sent = sent_.find(key);
    return need.stage != stage && sent != sent_.end() ? sent->second : given_.at(key);
  }

  using Key = std::tuple<Kind, int, int>;
  const schedule::Timeline& timeline_;
  const ActionTimes& times_;
  Tasks tasks_;
  std::map<std::pair<int, int>, int> sends_;    // streams
  std::vector<std::pair<int, Action>> passes_;  // tasks
  std::map<Key, int> given_, sent_;             // likewise, by what they give
};

}  // namespace

Tasks tasks_of(const schedule::Timeline& timeline, const ActionTimes& times) {
  schedule::verify(timeline);
  return Builder(timeline, times).build();
}

}  // namespace shoal::simulate
