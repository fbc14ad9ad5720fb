# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer, with training_step() and backward through the captured graph.

    lightning.Trainer(strategy=shoal.lightning.Strategy(), ...).fit(module, loader)
    lightning.Trainer(strategy=shoal.lightning.RanksStrategy(), devices=2, ...)  # each of them a rank

All else is Lightning's: optimizers, schedulers, clipping, accumulation, validation, checkpoints, callbacks.
What training_step() gives to self.log() is logged at each step, as a tensor of the graph.
"""

try:
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ImportError:
    from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

import torch

import shoal


class Captured:
    """In front of one of Lightning's strategies. `options`: of shoal.Trainer, which the first step makes."""

    def __init__(self, *args, options=None, **kwargs):
        super().__init__(*args, **kwargs)
        self._options = dict(options or {})
        self._shoal = None
        self._gradients = None

    def training_step(self, batch, batch_idx=0, *rest):
        """The loss and the gradients; these are added when Lightning calls backward(), after zero_grad().
        Raises shoal.InvalidInput for a module with automatic_optimization=False, and what
        shoal.Trainer.backward() does."""
        module = self.lightning_module
        if not module.automatic_optimization:
            raise shoal.InvalidInput(
                f"lightning: {type(module).__name__} has automatic_optimization=False. Remedy: in its "
                "training_step, shoal.Trainer(...).backward(batch) for each loss and manual_backward()"
            )
        if self._shoal is None or self._shoal.model is not module:
            self._shoal = shoal.Trainer(module, loss_fn=self._loss, **self._options)
        before = [parameter.grad for parameter in module.parameters()]
        module.zero_grad(set_to_none=True)
        try:
            # A number that another graph would be made for, unless nothing reads it.
            result = self._shoal.backward((batch, torch.tensor(batch_idx)), outputs=True)
            self._gradients = [parameter.grad for parameter in module.parameters()]
        finally:
            for parameter, gradient in zip(module.parameters(), before, strict=True):
                parameter.grad = gradient
        for name, (value, options) in result.outputs["logged"].items():
            module.log(name, value, **options)
        return {**result.outputs["extra"], "loss": torch.tensor(result.loss, device=self.root_device)}

    def backward(self, closure_loss, optimizer, *args, **kwargs):
        """Adds the gradients of training_step(), divided by the batches that are accumulated."""
        self.pre_backward(closure_loss)
        summands = self.lightning_module.trainer.accumulate_grad_batches
        for parameter, gradient in zip(self.lightning_module.parameters(), self._gradients, strict=True):
            if gradient is None:
                continue
            gradient.div_(summands)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._gradients = None
        self.post_backward(closure_loss)
        return closure_loss

    def _loss(self, module, batch):
        items, batch_idx = batch
        logged = {}

        def log(name, value, **options):
            logged[name] = (value.detach() if isinstance(value, torch.Tensor) else value, options)

        def log_dict(values, **options):
            for name, value in values.items():
                log(name, value, **options)

        own = {name: module.__dict__.pop(name, None) for name in ("log", "log_dict")}
        module.__dict__.update(log=log, log_dict=log_dict)
        try:
            with self.precision_plugin.train_step_context():
                output = module.training_step(items, batch_idx)
        finally:
            for name, function in own.items():
                del module.__dict__[name]
                if function is not None:
                    module.__dict__[name] = function
        if isinstance(output, dict):
            return {**output, "logged": logged, "extra": {k: v for k, v in output.items() if k != "loss"}}
        return {"loss": output, "logged": logged, "extra": {}}


class Strategy(Captured, SingleDeviceStrategy):
    """One process on one device. Raises shoal.InvalidInput in a job of several."""

    def __init__(self, device="cpu", **kwargs):
        if shoal.world_size() > 1:
            raise shoal.InvalidInput(
                f"lightning: {shoal.world_size()} processes; this strategy is of one. Remedy: "
                "strategy=shoal.lightning.RanksStrategy(), devices= as many as a host has"
            )
        super().__init__(device=device, **kwargs)


class RanksStrategy(Captured, DDPStrategy):
    """Lightning's processes and samplers, with gradients of the batches of all ranks as one. What is logged
    is of all ranks too. `parallelism`: how they share the work; None: copies of the model."""

    def __init__(self, parallelism=None, **kwargs):
        super().__init__(**kwargs)
        self._options["parallelism"] = parallelism or shoal.Parallelism()

    def _setup_model(self, model):
        return model  # without DistributedDataParallel
