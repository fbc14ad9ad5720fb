// SPDX-License-Identifier: Apache-2.0
// shoal.collectives: what ranks say to each other, for a script's own tensors, and through autograd.
#include "shoal/collectives/collectives.h"

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/capture/dispatch.h"
#include "shoal/comm/inproc/inproc.h"
#include "shoal/python/bindings.h"
#include "shoal/python/world.h"

namespace shoal::python {

namespace {

// Ranks of the job that call together. Backward calls them too, so they last as long as the process.
class Group {
 public:
  Group(std::optional<std::vector<int>> ranks, double seconds) {
    const elastic::Place place = this_place();
    ranks_ = ranks.value_or(std::vector<int>());
    if (!ranks)
      for (int rank = 0; rank < place.size; ++rank) ranks_.push_back(rank);
    check(place, seconds);
    limit_ = Degrees{.limit = seconds}.wait();
    if (place.size == 1) {
      own_ = std::move(comm::inproc(1).front());
      return;
    }
    world_ = the_world(limit_);
    comm::Communicator& world = py::cast<World&>(world_).communicator();
    if (!ranks) {
      communicator_ = &world;
      return;
    }
    const py::gil_scoped_release unlocked;
    own_ = world.subgroup(ranks_);
  }

  const std::vector<int>& ranks() const { return ranks_; }
  collectives::Ranks in_call() const { return {communicator_ != nullptr ? *communicator_ : *own_, limit_}; }

 private:
  void check(const elastic::Place& place, double seconds) const {
    const auto text = [&] {
      std::string listed;
      for (const int rank : ranks_) listed += concat(listed.empty() ? "" : ", ", rank);
      return listed;
    };
    SHOAL_CHECK(seconds > 0 && seconds < 1e9, InvalidInput, "collectives: the limit is ", seconds,
                " s; it is how many seconds a rank waits for others, more than 0");
    SHOAL_CHECK(std::set<int>(ranks_.begin(), ranks_.end()).size() == ranks_.size() && !ranks_.empty(),
                InvalidInput, "collectives: the group of ranks [", text(), "] names one twice, or none");
    bool is_member = false;
    for (const int rank : ranks_) {
      SHOAL_CHECK(rank >= 0 && rank < place.size, InvalidInput, "collectives: the group of ranks [", text(),
                  "] has a rank ", rank, ", and this job those from 0 to ", place.size - 1);
      is_member |= rank == place.rank;
    }
    SHOAL_CHECK(is_member, InvalidInput, "collectives: rank ", place.rank, " makes the group of ranks [",
                text(), "], which it is not in. Remedy: only its members make a group");
  }

  std::vector<int> ranks_;
  std::chrono::nanoseconds limit_{};
  py::object world_ = py::none();
  comm::Communicator* communicator_ = nullptr;  // of world_
  std::unique_ptr<comm::Communicator> own_;
};

}  // namespace

static comm::ReduceOp reduction_named(const std::string& name) {
  for (const auto op :
       {comm::ReduceOp::Sum, comm::ReduceOp::Average, comm::ReduceOp::Min, comm::ReduceOp::Max})
    if (name == comm::name_of(op)) return op;
  fail(ErrorKind::InvalidInput, "collectives: there is no reduction '", name,
       "'; there are sum, average, min, max");
}

static void keep(const py::object& group) {
  const py::object module = py::module_::import("shoal._shoal").attr("_collectives");
  if (!py::hasattr(module, "_groups")) {
    module.attr("_groups") = py::list();
    // After the world's own line, so that it goes first: subgroups end before what they were made of.
    py::module_::import("atexit").attr("register")(py::cpp_function([module] {
      if (py::hasattr(module, "_all_ranks")) py::delattr(module, "_all_ranks");
      module.attr("_groups").attr("clear")();
    }));
  }
  module.attr("_groups").attr("append")(group);
}

// The group of all ranks where none is given. Kept, with those that are made, until the interpreter ends.
static const Group& group_or_all(const py::object& given) {
  if (!given.is_none()) return py::cast<const Group&>(given);
  const py::object module = py::module_::import("shoal._shoal").attr("_collectives");
  if (!py::hasattr(module, "_all_ranks")) {
    module.attr("_all_ranks") = module.attr("Group")(py::none(), Degrees{}.limit);
    keep(module.attr("_all_ranks"));
  }
  return py::cast<const Group&>(module.attr("_all_ranks"));
}

// A captured step would make the call at none of its runs.
static void check_outside_of_capture(const char* name) {
  SHOAL_CHECK(!capture::is_intercepted(), InvalidInput, "capture: the model calls shoal.collectives.", name,
              " while it is recorded, and a captured step has the collectives that its Parallelism makes. "
              "Remedy: Trainer(…, parallelism=…), or call it between steps");
}

// Without the interpreter's lock, so that other threads go on.
template <class Act>
static at::Tensor called(const char* name, const py::object& group, const Act& act) {
  check_outside_of_capture(name);
  const collectives::Ranks ranks = group_or_all(group).in_call();
  const py::gil_scoped_release unlocked;
  return act(ranks);
}

using Ranks = collectives::Ranks;
using at::Tensor;

// A rank of the group, by whatever name, stands beside the tensor.
static void def_with_rank(py::module_& module, const char* name,
                          Tensor (*function)(const Tensor&, Ranks, int)) {
  module.def(name, [name, function](const Tensor& tensor, int rank, const py::object& group) {
    return called(name, group, [&](Ranks ranks) { return function(tensor, ranks, rank); });
  });
}

static void def_with_reduction(py::module_& module, const char* name,
                               Tensor (*function)(const Tensor&, Ranks, comm::ReduceOp)) {
  module.def(name, [name, function](const Tensor& tensor, const std::string& op, const py::object& group) {
    return called(name, group, [&](Ranks ranks) { return function(tensor, ranks, reduction_named(op)); });
  });
}

// Arguments by place alone: python/shoal/collectives.py has their names and defaults.
void bind_collectives(py::module_& module) {
  py::class_<Group>(module, "Group")
      .def(py::init<std::optional<std::vector<int>>, double>())
      .def_property_readonly("ranks", &Group::ranks, "Of the job, in the group's order.")
      .def_property_readonly(
          "rank", [](const Group& group) { return group.in_call().communicator.rank(); },
          "This process among them: its place in ranks.")
      .def("__len__", [](const Group& group) { return group.ranks().size(); });
  module.def("keep", keep);
  def_with_rank(module, "broadcast", collectives::broadcast);
  def_with_rank(module, "gather", collectives::gather);
  def_with_rank(module, "receive", collectives::receive);
  def_with_rank(module, "scatter", collectives::scatter);
  def_with_rank(module, "send", collectives::send);
  def_with_reduction(module, "all_reduce", collectives::all_reduce);
  def_with_reduction(module, "reduce_scatter", collectives::reduce_scatter);
  module.def("all_gather", [](const Tensor& tensor, const py::object& group) {
    return called("all_gather", group, [&](Ranks ranks) { return collectives::all_gather(tensor, ranks); });
  });
  module.def("reduce", [](const Tensor& tensor, int root, const std::string& op, const py::object& group) {
    return called("reduce", group,
                  [&](Ranks ranks) { return collectives::reduce(tensor, ranks, root, reduction_named(op)); });
  });
  using Counts = std::vector<std::int64_t>;
  module.def("all_to_all",
             [](const Tensor& tensor, const Counts& in, const Counts& out, const py::object& group) {
               return called("all_to_all", group,
                             [&](Ranks ranks) { return collectives::all_to_all(tensor, ranks, in, out); });
             });
  module.def("barrier", [](const py::object& group) {
    check_outside_of_capture("barrier");
    const Ranks ranks = group_or_all(group).in_call();
    const py::gil_scoped_release unlocked;
    ranks.communicator.barrier()->wait(ranks.limit);
  });
}

}  // namespace shoal::python
