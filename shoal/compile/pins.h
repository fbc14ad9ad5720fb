// SPDX-License-Identifier: Apache-2.0
// A plan's word on what is kept between steps, before anything is placed: the batch, and of each parameter
// the value, the gradient and the optimizer's state. ZeRO's stages, 4 ranks of `shard`, w f32[8, 4]:
//
//   stage     kept    used   gradient   updated
//   0         R       R      R          R
//   1         R       R      P(sum)     S(0)
//   2         R       R      S(0)       S(0)
//   3         S(0)    R      S(0)       S(0)
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shoal/compile/optimizer.h"
#include "shoal/compile/plan.h"
#include "shoal/compile/update.h"
#include "shoal/ir/graph.h"
#include "shoal/rewrite/place.h"
#include "shoal/rewrite/stages.h"
#include "shoal/sharding/layout.h"
#include "shoal/sharding/mesh.h"

namespace shoal::compile {

// Whether the axis cuts the batch.
bool is_batch_axis(const Plan& plan, std::string_view axis);
int batch_dim_of(const Plan& plan, const std::string& input);
// Whether a name of whole_inputs stands for this input: its item, or one below it.
bool is_named(const std::string& whole, const std::string& input);
// Whether an input of so many dims is cut; one that stands beside the batch is not.
bool is_cut(const Plan& plan, const std::string& input, std::size_t num_dims);
sharding::Layout layout_of_batch(const Plan& plan, const sharding::Mesh& mesh, int dim = 0);
// Which samples of a batch of `size` a rank is given.
sharding::Range samples_of(const Plan& plan, const sharding::Mesh& mesh, int rank, std::int64_t size);

// The stage that holds on this mesh. Throws InvalidInput where there is nothing to keep parts over.
int zero_stage_of(const Plan& plan, const sharding::Mesh& mesh);

// Whether each micro-batch's gradients are reduced, and not their sum alone.
bool reduces_each(const Plan& plan, const sharding::Mesh& mesh);

// Whether its optimizer looks at whole tensors: then each rank has its gradient, and updates all of it.
bool is_updated_whole(std::span<const OptimizerPart> optimizers, const std::string& parameter);

Uncut uncut_by(std::span<const OptimizerPart> optimizers, const std::string& parameter,
               const sharding::Shape& shape);

// Throws InvalidInput naming `plan_name` where its lines do not fit the shape, or cut what its optimizer wants
// uncut. `owner`: the rank along the pipeline's axis that has it (rewrite/stages.h: place_of), if there are stages
// by now; the others have none of it.
rewrite::ParameterPins pins_of(const Plan& plan, const sharding::Mesh& mesh, const std::string& parameter,
                               const sharding::Shape& shape, Uncut uncut, std::string_view plan_name = "plan",
                               std::optional<int> owner = {});

// Of a graph's parameters, batch and modules.
rewrite::Pins pins_of(const Plan& plan, const sharding::Mesh& mesh, const ir::Graph& graph,
                      std::span<const OptimizerPart> optimizers, std::string_view plan_name = "plan",
                      const rewrite::Stages* stages = nullptr);

}  // namespace shoal::compile
