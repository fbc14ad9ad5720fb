# SPDX-License-Identifier: Apache-2.0
"""accelerate's loop, with forward and backward through the captured graph.

backward = shoal.accelerate.Backward(accelerator, model, loss_fn)
for batch in loader:
    with accelerator.accumulate(model):
        loss = backward(batch)  # for: loss = loss_fn(model, batch); accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

Under torchrun: Backward(..., parallelism=shoal.Parallelism()).
"""

import torch

import shoal


class Backward:
    """Called with a batch it adds gradients to those of the model, divided by the accelerator's number of
    accumulated batches, and returns the loss, undivided. `options`: of shoal.Trainer; with `parallelism` the
    loss and the gradients are those of the batches of all ranks as one. Raises shoal.InvalidInput for several
    processes without `parallelism`, for fp16, and what shoal.Trainer and its backward() do."""

    def __init__(self, accelerator, model, loss_fn=None, **options):
        if accelerator.num_processes > 1 and options.get("parallelism") is None:
            raise shoal.InvalidInput(
                f"accelerate: {accelerator.num_processes} processes, and nothing says how they share the "
                "work. Remedy: Backward(..., parallelism=shoal.Parallelism())"
            )
        if accelerator.scaler is not None:
            raise shoal.InvalidInput(
                'accelerate: "fp16" scales the loss. Remedy: mixed_precision="bf16" or "no"'
            )
        self.accelerator = accelerator
        self.trainer = shoal.Trainer(model, loss_fn=_divided(loss_fn), **options)

    def __call__(self, batch):
        summands = self.accelerator.gradient_accumulation_steps
        return self.trainer.backward((batch, torch.tensor(float(summands)))).loss * summands


def _divided(loss_fn):
    def divided(model, batch):
        items, summands = batch
        if loss_fn is not None:
            return loss_fn(model, items) / summands
        if isinstance(items, dict):
            loss = model(**items)
        else:
            loss = model(*items) if isinstance(items, tuple | list) else model(items)
        return (loss if isinstance(loss, torch.Tensor) else loss["loss"]) / summands

    return divided
