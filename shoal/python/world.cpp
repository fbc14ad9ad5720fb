// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/world.h"

#include <unistd.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "shoal/base/error.h"
#include "shoal/planner/milp.h"
#include "shoal/python/bindings.h"

namespace shoal::python {

sharding::Mesh Degrees::mesh(int ranks) const { return mesh_of(ranks, *this, plan); }

std::chrono::nanoseconds Degrees::wait() const {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(limit * 1e9));
}

Parallelism Degrees::with(const sharding::Mesh& mesh, comm::Communicator* world) const {
  return {.mesh = mesh,
          .world = world,
          .plan = plan,
          .plan_name = plan_name,
          .offload_folder = offload_folder,
          .limit = wait()};
}

elastic::Place this_place() { return elastic::place_of(elastic::environment_of(environ)); }

py::object the_world(std::chrono::nanoseconds limit) {
  const py::module_ module = py::module_::import("shoal._shoal");
  if (!py::hasattr(module, "_world")) {
    std::unique_ptr<World> world;
    {
      const py::gil_scoped_release unlocked;
      world = std::make_unique<World>(WorldOptions{.limit = limit});
    }
    module.attr("_world") = py::cast(std::move(world));
    // The extension is never unloaded; the job's threads are not to outlive the interpreter.
    py::module_::import("atexit").attr("register")(
        py::cpp_function([module] { py::delattr(module, "_world"); }));
  }
  return module.attr("_world");
}

// What a script says beside the plan; nothing: as the plan says, or its default.
struct Said {
  std::optional<std::vector<std::string>> replicated_inputs;
  std::optional<bool> gathers_again;
  std::optional<std::int64_t> bucket_bytes;
  std::optional<std::map<std::string, int>> batch_dims;
  std::optional<std::vector<std::string>> batch_axes;
  std::optional<std::string> zero_axis;
  std::optional<bool> reduces_each;
  std::optional<std::string> precision;
  std::optional<std::string> recompute;
  std::optional<std::string> offload;
  std::optional<std::string> offload_folder;
  std::optional<std::string> schedule;
  std::optional<int> stages_per_rank;
  std::optional<int> microbatches;
  std::optional<std::vector<std::string>> stages;
};

static std::optional<std::string> path_in(const py::object& folder) {
  if (folder.is_none()) return std::nullopt;
  return py::cast<std::string>(py::str(folder));
}

static Degrees degrees_of(std::optional<int> replicate, int shard, int tensor, int pipeline,
                          std::optional<int> zero_stage, const py::object& plan, Said said, double limit,
                          const py::object& mesh) {
  SHOAL_CHECK(std::isfinite(limit) && limit > 0 && limit < 1e9, InvalidInput, "parallelism: the limit is ",
              limit, " s; it is how many seconds a rank waits for others, more than 0");
  Degrees degrees{{replicate, shard, tensor, pipeline}, {}};
  degrees.limit = limit;
  std::string text;
  if (py::hasattr(plan, "__fspath__")) {
    degrees.plan_name = py::str(plan);
    text = py::str(py::module_::import("pathlib").attr("Path")(plan).attr("read_text")());
  } else {
    text = py::cast<std::string>(plan);
  }
  degrees.plan = compile::plan_from_text(text, degrees.plan_name);
  const auto set = [](auto& setting, auto& value) {
    if (value) setting = std::move(*value);
  };
  set(degrees.plan.zero_stage, zero_stage);
  set(degrees.plan.whole_inputs, said.replicated_inputs);
  set(degrees.plan.gathers_again, said.gathers_again);
  set(degrees.plan.bucket_bytes, said.bucket_bytes);
  set(degrees.plan.batch_dims, said.batch_dims);
  set(degrees.plan.batch_axes, said.batch_axes);
  set(degrees.plan.zero_axis, said.zero_axis);
  if (said.schedule) degrees.plan.actions.reset();
  set(degrees.plan.schedule, said.schedule);
  set(degrees.plan.stages_per_rank, said.stages_per_rank);
  set(degrees.plan.microbatches, said.microbatches);
  set(degrees.plan.stages, said.stages);
  SHOAL_CHECK(degrees.plan.microbatches >= 0, InvalidInput, "parallelism: microbatches is ",
              degrees.plan.microbatches, "; it is at least 1, or 0: a stage each");
  SHOAL_CHECK(degrees.plan.stages_per_rank >= 0, InvalidInput, "parallelism: stages_per_rank is ",
              degrees.plan.stages_per_rank, "; it is at least 1, or 0: as many as the schedule has");
  if (said.reduces_each) degrees.plan.reduces_each = said.reduces_each;
  if (said.precision) degrees.plan.precision = compile::precision_from_text(*said.precision);
  if (said.offload) degrees.plan.offload = compile::offload_from_text(*said.offload);
  set(degrees.offload_folder, said.offload_folder);
  if (said.recompute) degrees.plan.recompute = compile::recompute_from_text(*said.recompute);
  if (!mesh.is_none()) {
    degrees.plan.mesh.clear();
    for (const auto& [name, size] : py::cast<py::dict>(mesh))
      degrees.plan.mesh.push_back({py::cast<std::string>(name), py::cast<int>(size)});
  }
  SHOAL_CHECK(degrees.plan.mesh.empty() || (!replicate && shard == 1 && tensor == 1 && pipeline == 1),
              InvalidInput, "parallelism: a mesh is given, '", to_text(sharding::Mesh{degrees.plan.mesh}),
              "', and degrees too (replicate, shard, tensor, pipeline); leave one of them out");
  return degrees;
}

static std::string repr_of(const Degrees& degrees) {
  std::string text = "Parallelism(";
  if (degrees.plan.mesh.empty())
    text += concat("replicate=", degrees.replicate ? std::to_string(*degrees.replicate) : std::string("None"),
                   ", shard=", degrees.shard, ", tensor=", degrees.tensor,
                   degrees.pipeline == 1 ? "" : concat(", pipeline=", degrees.pipeline));
  else
    text += concat("mesh='", to_text(sharding::Mesh{degrees.plan.mesh}), "'");
  text += concat(", zero_stage=", degrees.plan.zero_stage);
  return text + (degrees.plan.lines.empty() ? ")" : ", plan=…)");
}

static py::slice samples_for(std::int64_t size, const std::optional<Degrees>& parallelism) {
  const auto place = this_place();
  const Degrees degrees = parallelism.value_or(Degrees{});
  const auto [begin, end] = samples_of(degrees.mesh(place.size), place.rank, size, degrees.plan);
  return {begin, end, std::nullopt};
}

void bind_world(py::module_& module) {
  module.def("_set_highs_library", &planner::set_highs_library, py::arg("path"));
  py::class_<World>(module, "_World");
  py::class_<Degrees>(module, "Parallelism",
                      "How the ranks of a job train one model together: their degrees multiply to how many "
                      "there are. One degree may be -1: what the others leave; replicate is, by default.")
      .def(
          py::init([](std::optional<int> replicate, int shard, int tensor, int pipeline,
                      std::optional<int> zero_stage, const py::object& plan,
                      std::optional<std::vector<std::string>> replicated_inputs,
                      std::optional<bool> gathers_again, std::optional<std::int64_t> bucket_bytes,
                      double limit, std::optional<std::map<std::string, int>> batch_dims,
                      const py::object& mesh, std::optional<std::vector<std::string>> batch_axes,
                      std::optional<std::string> zero_axis, std::optional<bool> reduces_each,
                      std::optional<std::string> precision, std::optional<std::string> recompute,
                      std::optional<std::string> offload, const py::object& offload_folder,
                      std::optional<std::string> schedule, std::optional<int> microbatches,
                      std::optional<std::vector<std::string>> stages, std::optional<int> stages_per_rank) {
            return degrees_of(replicate, shard, tensor, pipeline, zero_stage, plan,
                              {.replicated_inputs = std::move(replicated_inputs),
                               .gathers_again = gathers_again,
                               .bucket_bytes = bucket_bytes,
                               .batch_dims = std::move(batch_dims),
                               .batch_axes = std::move(batch_axes),
                               .zero_axis = std::move(zero_axis),
                               .reduces_each = reduces_each,
                               .precision = std::move(precision),
                               .recompute = std::move(recompute),
                               .offload = std::move(offload),
                               .offload_folder = path_in(offload_folder),
                               .schedule = std::move(schedule),
                               .stages_per_rank = stages_per_rank,
                               .microbatches = microbatches,
                               .stages = std::move(stages)},
                              limit, mesh);
          }),
          py::kw_only(), py::arg("replicate") = py::none(), py::arg("shard") = 1, py::arg("tensor") = 1,
          py::arg("pipeline") = 1, py::arg("zero_stage") = py::none(), py::arg("plan") = "",
          py::arg("replicated_inputs") = py::none(), py::arg("gathers_again") = py::none(),
          py::arg("bucket_bytes") = py::none(), py::arg("limit") = Degrees{}.limit,
          py::arg("batch_dims") = py::none(), py::arg("mesh") = py::none(),
          py::arg("batch_axes") = py::none(), py::arg("zero_axis") = py::none(),
          py::arg("reduces_each") = py::none(), py::arg("precision") = py::none(),
          py::arg("recompute") = py::none(), py::arg("offload") = py::none(),
          py::arg("offload_folder") = py::none(), py::arg("schedule") = py::none(),
          py::arg("microbatches") = py::none(), py::arg("stages") = py::none(),
          py::arg("stages_per_rank") = py::none(),
          "What is not given is as the plan says. mesh: axes of any names, outer to inner, {\"dp\": 2, "
          "\"tp\": -1}, in place of replicate, shard and tensor; batch_axes then names those that cut the "
          "batch, zero_axis the one whose ranks keep parts. reduces_each: the gradients of each micro-batch "
          "are reduced, and not their sum alone. pipeline: ranks that have a stage of the model each, or "
          "two, cut where work is balanced, or where `stages` says that each but the first begins "
          "([\"h.6\"]); schedule is \"gpipe\", \"1f1b\", \"eager_1f1b\", \"zb_h1\" or \"zb_h2\", or, with "
          "two stages a rank, \"looped_bfs\", \"interleaved_1f1b\", \"zbv\" or \"dualpipev\", of which the "
          "first two may have others (stages_per_rank); or \"FILE.csv\", a row a rank, in PyTorch's letters; "
          "microbatches how many a step's batch is cut into, one a "
          "stage by default. precision: \"bfloat16\" or \"float16\" for products of matrices, the rest "
          "is float32; float16's loss is scaled (\"float16 scale=1024 grows_after=500\"); of one rank "
          "too; \"bfloat16 reduce=bfloat16\": gradients cross between ranks in half of the bytes. recompute: "
          "what backward makes again, as the plan's line says it: \"full\", "
          "\"selective\", \"full h.*.mlp\", \"auto bytes=96MiB\"; of one rank too. offload: what lies in a "
          "file in offload_folder, \"parameters optimizer_state gradients activations\" or some of them; of "
          "one rank too.")
      .def_readonly("replicate", &shoal::Degrees::replicate,
                    "Ranks that keep copies; None: what the others leave.")
      .def_readonly("shard", &shoal::Degrees::shard,
                    "Ranks that keep parts of parameters, gradients and optimizer state.")
      .def_readonly("tensor", &shoal::Degrees::tensor,
                    "Ranks that share the work on a sample, as the plan says.")
      .def_readonly("pipeline", &shoal::Degrees::pipeline,
                    "Ranks that have a stage of the model each, or several.")
      .def_property_readonly(
          "zero_stage", [](const Degrees& degrees) { return degrees.plan.zero_stage; },
          "What the ranks of shard keep in parts: 0 nothing, 1 the optimizer's state, 2 gradients "
          "too, 3 parameters too; -1: 3 where shard is above 1.")
      .def("__repr__", repr_of);
  module.def(
      "rank", [] { return this_place().rank; }, "This process among those of the job; 0 outside of one.");
  module.def("world_size", [] { return this_place().size; }, "How many ranks the job has; 1 outside of one.");
  module.def("samples_of", samples_for, py::arg("size"), py::arg("parallelism") = py::none(),
             "The slice of a batch of this size, all ranks together, that this rank is to be given.");
}

}  // namespace shoal::python
