// SPDX-License-Identifier: Apache-2.0
// How a program of one's own becomes a rank that trains with the others of its job:
//
//   int main() {
//     World world;                                             // shoal run -n 2 ./program; torchrun, mpirun, srun
//     const Parallelism parallelism = world.parallelism({.shard = -1});    // ZeRO-3 over all ranks
//     Trainer trainer(model, loss, AdamW{.lr = 1e-3}, {.parallelism = parallelism});
//     trainer.step(part_of(batch, parallelism));               // of a batch that all ranks have
//
// Started by itself the same program trains on one device.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shoal/comm/communicator.h"
#include "shoal/compile/plan.h"
#include "shoal/elastic/join.h"
#include "shoal/elastic/place.h"
#include "shoal/ps/tables.h"
#include "shoal/train/batch.h"
#include "shoal/train/parallelism.h"

namespace shoal {

// What the ranks of a job are for: they multiply to how many there are. One may be -1: what the others leave.
struct Degrees {
  std::optional<int> replicate =
      {};            // ranks that keep copies; none: what the others leave, 1 if one of them is -1
  int shard = 1;     // ranks that keep parts: ZeRO's stages, 3 unless the plan says another
  int tensor = 1;    // ranks that share the work on a sample
  int pipeline = 1;  // ranks that have stages of the model
};

struct WorldOptions {  // of one rank
  int device =
      -1;  // CUDA's number of the GPU that this rank's model is on: tensors go by NCCL. -1: main memory
  // For all ranks to be there. Waits after that have the job's limit: SHOAL_LIMIT, or 300 s.
  std::chrono::nanoseconds limit = std::chrono::seconds{60};
};

// This process among the ranks of its job. Made once in a process, by all ranks at once; outlives its trainers.
class World {
 public:
  // Throws Timeout naming the ranks that do not come within the limit, InvalidInput where the environment
  // contradicts itself, Infeasible for a device without NCCL in this LibTorch.
  explicit World(const WorldOptions& options = {});

  int rank() const { return place_.rank; }       // from 0
  int size() const { return place_.size; }       // 1: started by itself
  bool is_first() const { return rank() == 0; }  // who prints and writes for all
  // Of all ranks: shared memory within a host, Gloo between hosts. Its buffers are in main memory.
  comm::Communicator& communicator() { return *communicator_; }
  // What they talk over: "shared memory", "Gloo", "NCCL; for what is no tensor Gloo". "": one rank.
  const std::string& medium() const { return medium_; }
  // null: a process that joined none.
  elastic::Job* job() const { return job_.get(); }
  const elastic::Place& place() const { return place_; }
  // For TableOptions, of this rank: where rows are, on the servers of the job (shoal run --servers); null where it has
  // none. It borrows this. Throws Timeout where they do not come, PeerLost where one has gone.
  std::unique_ptr<ps::Tables> tables();

  // For TrainerOptions; it borrows this. `plan` says what degrees do not (compile::plan_from_text reads one);
  // a mesh of its own stands in place of the degrees. Throws InvalidInput where the degrees do not multiply to
  // the number of ranks, and says which would.
  Parallelism parallelism(const Degrees& degrees = {}, const compile::Plan& plan = {});

 private:
  elastic::Place place_;
  int num_servers_ = 0;
  std::chrono::nanoseconds limit_ = std::chrono::seconds{300};  // of a wait, after all have met
  std::unique_ptr<elastic::Job> job_;
  std::unique_ptr<comm::Communicator> communicator_, tensors_;
  std::string medium_;
};

// The mesh of these degrees; as World::parallelism.
sharding::Mesh mesh_of(int ranks, const Degrees& degrees, const compile::Plan& plan = {});

// This rank's samples of a batch that all ranks have: views of its tensors, cut in the dim where the plan has their
// samples (0 unless it says another); those of Plan::whole_inputs, and those without that dim, as they are. Parts differ by
// one sample at most; a rank may have none.
Batch part_of(const Batch& batch, const Parallelism& parallelism);

}  // namespace shoal
