// SPDX-License-Identifier: Apache-2.0
#include "shoal/python/wrappers.h"

#include "shoal/base/error.h"

namespace shoal::python {

static bool is_loaded(const char* module) {
  return py::dict(py::module_::import("sys").attr("modules")).contains(module);
}

static bool is_a(py::handle object, const char* module, const char* type) {
  if (!is_loaded(module)) return false;
  const py::object loaded = py::module_::import(module);
  return py::hasattr(loaded, type) && py::isinstance(object, loaded.attr(type));
}

py::object unwrapped(py::object model, bool has_parallelism) {
  SHOAL_CHECK(!is_a(model, "torch.distributed.fsdp", "FullyShardedDataParallel"), InvalidInput,
              "trainer: the model is wrapped in FullyShardedDataParallel; give the model itself, and "
              "parallelism=shoal.Parallelism(shard=-1), which keeps parameters in parts too");
  if (is_a(model, "torch.nn.parallel", "DistributedDataParallel")) {
    const int ranks = py::cast<int>(model.attr("process_group").attr("size")());
    SHOAL_CHECK(has_parallelism || ranks == 1, InvalidInput,
                "trainer: the model is wrapped in DistributedDataParallel of ", ranks,
                " ranks, whose gradients a Trainer does not average; give model.module and "
                "parallelism=shoal.Parallelism(), under shoal run or torchrun");
    // Which parameters were used it notes at each backward, in memory of its own.
    const bool notes = py::cast<bool>(model.attr("find_unused_parameters"));
    if (notes) model.attr("reducer").attr("_remove_autograd_hooks")();
    return model.attr("module");
  }
  if (is_a(model, "torch.nn.parallel", "DataParallel")) {
    const auto devices = py::len(model.attr("device_ids"));
    SHOAL_CHECK(
        devices <= 1, InvalidInput, "trainer: the model is wrapped in DataParallel of ", devices,
        " devices; give model.module, and parallelism=shoal.Parallelism() with a rank for each device");
    return model.attr("module");
  }
  return model;
}

Uncompiled::Uncompiled() {
  if (!is_loaded("torch._dynamo")) return;
  stance_ = py::module_::import("torch.compiler").attr("set_stance")("force_eager");
}

Uncompiled::~Uncompiled() {
  if (!stance_) return;
  try {
    stance_.attr("__exit__")(py::none(), py::none(), py::none());
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("shoal.Trainer");
  }
}

}  // namespace shoal::python
