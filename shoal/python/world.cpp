// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/world.h"

#include <unistd.h>

#include <cmath>
#include <utility>

#include "shoal/base/error.h"
#include "shoal/comm/shm/shm.h"
#include "shoal/comm_c10d/gloo.h"
#include "shoal/python/bindings.h"
#include "shoal/rewrite/plan.h"

namespace shoal::python {

sharding::Mesh Degrees::mesh(int ranks) const {
  return mesh_of(ranks, replicate.value_or(shard == -1 || tensor == -1 ? 1 : -1), shard, tensor);
}

std::chrono::nanoseconds Degrees::wait() const {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(limit * 1e9));
}

Parallelism Degrees::with(const sharding::Mesh& mesh, comm::Communicator& world) const {
  return {.mesh = mesh,
          .world = &world,
          .zero_stage = zero_stage,
          .plan = rewrite::plan_from_text(plan, plan_name),
          .plan_name = plan_name,
          .replicated_inputs = replicated_inputs,
          .batch_dims = batch_dims,
          .gathers_again = gathers_again,
          .bucket_bytes = bucket_bytes,
          .limit = wait()};
}

World::World(std::chrono::nanoseconds limit) : job_(elastic::join(elastic::environment_of(environ), limit)) {
  const auto& place = job_->place();
  communicator_ = job_->recorded(
      job_->is_one_host() ? comm::shm_communicator(job_->store(), place.rank, place.size, {.limit = limit})
                          : comm_c10d::make_gloo(job_->store(), {.name = "all",
                                                                 .rank = place.rank,
                                                                 .size = place.size,
                                                                 .interface = job_->interface(),
                                                                 .limit = limit}));
}

elastic::Place this_place() { return elastic::place_of(elastic::environment_of(environ)); }

py::object the_world(std::chrono::nanoseconds limit) {
  const py::module_ module = py::module_::import("shoal._shoal");
  if (!py::hasattr(module, "_world")) {
    std::unique_ptr<World> world;
    {
      const py::gil_scoped_release unlocked;
      world = std::make_unique<World>(limit);
    }
    module.attr("_world") = py::cast(std::move(world));
    // The extension is never unloaded; the job's threads are not to outlive the interpreter.
    py::module_::import("atexit").attr("register")(
        py::cpp_function([module] { py::delattr(module, "_world"); }));
  }
  return module.attr("_world");
}

static Degrees degrees_of(std::optional<int> replicate, int shard, int tensor, int zero_stage,
                          const py::object& plan, std::vector<std::string> replicated_inputs,
                          bool gathers_again, std::int64_t bucket_bytes, double limit,
                          std::map<std::string, int> batch_dims) {
  SHOAL_CHECK(std::isfinite(limit) && limit > 0 && limit < 1e9, InvalidInput, "parallelism: the limit is ",
              limit, " s; it is how many seconds a rank waits for others, more than 0");
  Degrees degrees{.replicate = replicate,
                  .shard = shard,
                  .tensor = tensor,
                  .zero_stage = zero_stage,
                  .plan = {},
                  .replicated_inputs = std::move(replicated_inputs),
                  .batch_dims = std::move(batch_dims),
                  .gathers_again = gathers_again,
                  .bucket_bytes = bucket_bytes,
                  .limit = limit};
  if (py::hasattr(plan, "__fspath__")) {
    degrees.plan_name = py::str(plan);
    degrees.plan = py::str(py::module_::import("pathlib").attr("Path")(plan).attr("read_text")());
  } else {
    degrees.plan = py::cast<std::string>(plan);
  }
  rewrite::plan_from_text(degrees.plan, degrees.plan_name);
  return degrees;
}

static std::string text_of(const Degrees& degrees) {
  return concat(
      "Parallelism(replicate=", degrees.replicate ? std::to_string(*degrees.replicate) : std::string("None"),
      ", shard=", degrees.shard, ", tensor=", degrees.tensor, ", zero_stage=", degrees.zero_stage,
      degrees.plan.empty() ? "" : ", plan=…", ")");
}

static py::slice samples_for(std::int64_t size, const std::optional<Degrees>& parallelism) {
  const auto place = this_place();
  const auto mesh = parallelism.value_or(Degrees{}).mesh(place.size);
  const auto [begin, end] = samples_of(mesh, place.rank, size);
  return {begin, end, std::nullopt};
}

void bind_world(py::module_& module) {
  py::class_<World>(module, "_World");
  py::class_<Degrees>(module, "Parallelism",
                      "How the ranks of a job train one model together: their degrees multiply to how many "
                      "there are. One degree may be -1: what the others leave; replicate is, by default.")
      .def(py::init(&degrees_of), py::kw_only(), py::arg("replicate") = py::none(), py::arg("shard") = 1,
           py::arg("tensor") = 1, py::arg("zero_stage") = -1, py::arg("plan") = "",
           py::arg("replicated_inputs") = std::vector<std::string>(), py::arg("gathers_again") = true,
           py::arg("bucket_bytes") = Degrees{}.bucket_bytes, py::arg("limit") = Degrees{}.limit,
           py::arg("batch_dims") = std::map<std::string, int>())
      .def_readonly("replicate", &Degrees::replicate, "Ranks that keep copies; None: what the others leave.")
      .def_readonly("shard", &Degrees::shard,
                    "Ranks that keep parts of parameters, gradients and optimizer state.")
      .def_readonly("tensor", &Degrees::tensor, "Ranks that share the work on a sample, as the plan says.")
      .def_readonly("zero_stage", &Degrees::zero_stage,
                    "What the ranks of shard keep in parts: 0 nothing, 1 the optimizer's state, 2 gradients "
                    "too, 3 parameters too; -1: 3 where shard is above 1.")
      .def("__repr__", text_of);
  module.def(
      "rank", [] { return this_place().rank; }, "This process among those of the job; 0 outside of one.");
  module.def("world_size", [] { return this_place().size; }, "How many ranks the job has; 1 outside of one.");
  module.def("samples_of", samples_for, py::arg("size"), py::arg("parallelism") = py::none(),
             "The slice of a batch of this size, all ranks together, that this rank is to be given.");
}

}  // namespace shoal::python
