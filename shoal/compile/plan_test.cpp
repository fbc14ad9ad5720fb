// SPDX-License-Identifier: Apache-2.0
#include "shoal/compile/plan.h"

#include <doctest/doctest.h>

#include <string>

#include "shoal/base/error_test.h"

using namespace shoal;
using namespace shoal::compile;

TEST_CASE("a plan is read, printed, and says where it is wrong") {
  const std::string text =
      "parameter h.*.mlp.c_fc.weight shard=S(1, outer=3, unit=64) tensor=S(1)\noutput h.*.mlp tensor=R\n";
  const Plan plan = plan_from_text("# a comment\n\n" + text);
  CHECK(to_text(plan) == text);
  CHECK(plan_from_text(to_text(plan)) == plan);
  const auto wrong = [](const std::string& line) {
    return error_of([&] { plan_from_text(line, "my.plan"); });
  };
  CHECK(wrong("paramter a tensor=R")
            .find("my.plan:1: 'paramter' is no line of a plan; did you mean 'parameter'?") !=
        std::string::npos);
  CHECK(wrong("parameter a tensor").find("'tensor' is not AXIS=PLACEMENT") != std::string::npos);
  CHECK(wrong("parameter a tensor=S(x)").find("my.plan:1") != std::string::npos);
  CHECK(wrong("parameter a tensor=R tensor=S(0)").find("axis 'tensor' is there twice") != std::string::npos);
  CHECK(wrong("parameter a").find("no placement") != std::string::npos);
  CHECK(wrong("pipeline pipeline stages=3")
            .find("'stages=3' is none of schedule=NAME, stages_per_rank=NUMBER") != std::string::npos);
  CHECK(wrong("pipeline pipeline stages_per_rank=-1") ==
        "my.plan:1: stages_per_rank=-1; it is at least 1, or 0: as many as the schedule has");
  CHECK(wrong("planner kept=much") == "my.plan:1: 'much' is no number of bytes, as 25MiB is");
  CHECK(wrong("planner budget=-1") ==
        "my.plan:1: planner: the budget is -1 s; it is 0 at least, which is as many as it takes");
  CHECK(wrong("planner link=0") ==
        "my.plan:1: planner: a rate is 0; flops, memory and link are above 0, in operations and bytes a "
        "second");
  CHECK(wrong("planner batch=true").find("'batch=true' is none of tensor_batch=true|false") !=
        std::string::npos);
}

TEST_CASE("a plan for another model or mesh is refused, and contradictory lines are") {
  const auto mesh = sharding::mesh_from_text("replicate=2 tensor=2");
  const Plan plan = plan_from_text("parameter h.*.w tensor=S(0)\nparameter h.0.* tensor=S(1)\n");
  CHECK(error_of([&] { check_fits(plan, mesh, {"fc.weight"}); }).find("no parameter h.*.w, h.0.*") !=
        std::string::npos);
  CHECK(error_of([&] {
          check_fits(plan, sharding::mesh_from_text("shard=2"), {"h.0.w"});
        }).find("axis 'tensor'") != std::string::npos);
  CHECK(error_of([&] { parameter_layout(plan, mesh, "h.0.w"); }).find("leave one of them out") !=
        std::string::npos);
  CHECK(to_text(parameter_layout(plan, mesh, "h.1.w")) == "[R, S(0)]");
}

TEST_CASE("every move's settings are in a plan, and read back they are the same") {
  const Plan plan = {
      .mesh = {{"dp", 2}, {"fsdp", -1}, {"tp", 2}},
      .batch_axes = {"dp", "fsdp"},
      .whole_inputs = {"table"},
      .batch_dims = {{"mask", 1}},
      .zero_axis = "fsdp",
      .zero_stage = 2,
      .gathers_again = false,
      .lines = {{PlanLine::Kind::Parameter, "w", {{"tp", sharding::Shard{.dim = 1}}}}},
      .splits = {"h.*.mlp"},
      .planner = {.tensor_batch = true,
                  .kept = 300 << 20,
                  .budget = 2.5,
                  .rates = {.link = 2.5e10, .latency = 0}},
      .schedule = "looped_bfs",
      .stages_per_rank = 3,
      .microbatches = 8,
      .reduces_each = false,
      .tables = {{.parameters = "emb.*.weight", .clicks = "targets"}, {.parameters = "rows"}},
      .precision = {.compute = DType::BFloat16, .lower = {"aten::exp"}, .full = {"aten::bmm"}},
      .recompute = {.mode = rewrite::RecomputeMode::Full, .modules = {"h.*", "head"}, .collectives = true},
      .offload = {.optimizer_state = true, .activations = true, .least = 1 << 20},
      .bucket_bytes = 3 << 20,
      .gather_bytes = 1000,
      .prefetch_bytes = 2 << 20,
      .overlap_bytes = 1 << 20};
  CHECK(to_text(plan) ==
        "mesh dp=2 fsdp=-1 tp=2\nbatch dp fsdp\ninput mask dim=1\ninput table whole\n"
        "zero fsdp stage=2 gathers=once\nparameter w tp=S(1)\nsplit h.*.mlp\n"
        "planner tensor_batch=true kept=300MiB budget=2.5 link=2.5e+10 latency=0\n"
        "pipeline pipeline schedule=looped_bfs stages_per_rank=3 microbatches=8\naccumulate reduce=once\n"
        "table emb.*.weight clicks=targets\ntable rows\nprecision bfloat16 lower=aten::exp full=aten::bmm\n"
        "recompute full h.* head collectives=again\noffload optimizer_state activations least=1MiB\n"
        "gather_ahead 1000\n"
        "buckets 3MiB\nprefetch 2MiB\noverlap 1MiB\n");
  CHECK(plan_from_text(to_text(plan)) == plan);
  CHECK(to_text(Plan{}).empty());
  const auto wrong = [](const std::string& line) {
    return error_of([&] { plan_from_text(line, "my.plan"); });
  };
  CHECK(wrong("offload state").find("'state' is none of parameters, optimizer_state, gradients,") !=
        std::string::npos);
  CHECK(wrong("offload least=1MiB").find("and not what goes") != std::string::npos);
  CHECK(wrong("zero shard stage=4").find("ZeRO stage 4") != std::string::npos);
  CHECK(wrong("zero shard stages=1").find("'stages=1' is none of stage=") != std::string::npos);
  CHECK(wrong("buckets 25MB").find("'25MB' is no number of bytes") != std::string::npos);
  CHECK(wrong("mesh dp").find("'dp' is not NAME=SIZE") != std::string::npos);
  CHECK(wrong("mesh dp=0").find("a size is at least 1") != std::string::npos);
  CHECK(wrong("mesh a=1\nmesh b=1").find("my.plan:2: a second line 'mesh'") != std::string::npos);
  CHECK(wrong("accumulate reduce=often").find("neither reduce=once nor reduce=each") != std::string::npos);
  CHECK(wrong("precision half").find("'half' is none of bfloat16, float16 and float32") != std::string::npos);
  CHECK(wrong("precision bfloat16 full=bmm").find("'full=bmm' is none of lower=OP") != std::string::npos);
  CHECK(wrong("precision bfloat16 scale=2").find("of float16, whose loss is scaled") != std::string::npos);
  CHECK(wrong("precision float16 scale=3").find("the scale is 3; it is a power of two") != std::string::npos);
  CHECK(wrong("precision float16 scale=many").find("'many' is not a number") != std::string::npos);
  CHECK(wrong("precision float16 grows_after=0").find("it is 1 at least") != std::string::npos);
  for (const std::string& line :
       std::vector<std::string>{"precision float16 scale=4611686018427387904 grows_after=7\n",
                                "precision float16 lower=aten::exp scale=0.5\n", "precision float16\n"})
    CHECK(to_text(plan_from_text(line)) == line);
  CHECK(wrong("precision bfloat16 full=aten::mm lower=aten::mm").find("leave one of them out") !=
        std::string::npos);
  CHECK(to_text(plan_from_text("precision float32")).empty());
  CHECK(wrong("recompute ful").find("'ful' is none of none, full, selective and auto") != std::string::npos);
  CHECK(wrong("recompute full again=h").find("'again=h' is no module, bytes=NUMBER or") != std::string::npos);
  CHECK(wrong("recompute auto").find("my.plan:1: recompute: auto is to fit in so many") != std::string::npos);
  CHECK(wrong("recompute selective bytes=1").find("bytes are for auto alone") != std::string::npos);
  CHECK(wrong("recompute none h.0").find("modules are for full and selective") != std::string::npos);
  CHECK(wrong("recompute auto bytes=1 collectives=again").find("collectives are for") != std::string::npos);
  CHECK(to_text(plan_from_text("recompute auto bytes=1234567890")) == "recompute auto bytes=1234567890\n");
  CHECK(wrong("buckets 99999999999999GiB").find("is more than any memory") != std::string::npos);
  CHECK(wrong("input x dim=1 2").find("'2' is one word too many") != std::string::npos);
}

TEST_CASE("a plan has the actions of its schedule's file") {
  const std::string text =
      "pipeline pipeline schedule=my.csv\nactions 0F0,0B0,0F1,0B1\nactions 1F0,1B0,1F1,1I1,1W1\n";
  Plan plan = plan_from_text(text);
  CHECK(to_text(plan) == text);
  CHECK(plan.actions->rank_of_stage == std::vector{0, 1});
  CHECK(splits_backward(plan));
  const sharding::Mesh mesh{{{"pipeline", 2}}};
  CHECK(microbatches_of(plan, mesh) == 2);
  CHECK(timeline_of(plan, 2, 1).note == "schedule my.csv: of its 2 micro-batches the first 1");
  plan.microbatches = 1;
  CHECK(microbatches_of(plan, mesh) == 1);
  const auto wrong = [](const std::string& lines) {
    return error_of([&] { plan_from_text("pipeline pipeline schedule=my.csv\n" + lines, "my.plan"); });
  };
  CHECK(
      wrong("actions 0F0,0X0") ==
      "schedule my.csv: row 1, rank 0, cell 2 \"0X0\" is not STAGE, F, B, I or W, and MICROBATCH, as in 0F3; "
      "sends "
      "and receives follow from the order");
  CHECK(wrong("actions 0F0,0F1,0B1,0B0") ==
        "schedule my.csv: rank 0, action 3 '0B1': comes before micro-batch 0 of that stage, and a step adds "
        "them up "
        "in their order");
  CHECK(wrong("pipeline pipeline schedule=zbv\nactions 0F0,0B0") ==
        "my.plan: lines 'actions' are of a schedule that has a file, and 'zbv' is one by name. Remedy: "
        "'pipeline "
        "pipeline schedule=NAME.csv', or no such lines");
  plan.schedule = "other.csv";
  plan.actions.reset();
  CHECK(error_of([&] { num_stages_of(plan, mesh); }) ==
        "schedule other.csv: the file has not been read (compile::read_schedule)");
}

TEST_CASE("a mesh of any names is made of the ranks there are, or those that would fit are listed") {
  CHECK(to_text(mesh_of({{"dp", -1}, {"tp", 2}}, 6)) == "dp=3 tp=2");
  CHECK(error_of([] { mesh_of({{"dp", 4}, {"tp", 2}}, 6); })
            .find("degrees dp 4 x tp 2 are 8 ranks, and there are 6; these would fit: 1 x 6, 2 x 3, 3 x 2, "
                  "6 x 1") != std::string::npos);
}
