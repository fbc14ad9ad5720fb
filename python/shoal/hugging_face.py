# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, with forward and backward through the captured graph.

    trainer = shoal.hugging_face.Trainer(model=model, args=TrainingArguments(...), train_dataset=...)
    trainer.train()

All else is Hugging Face's: optimizer, scheduler, clipping, accumulation, evaluation, checkpoints, callbacks.
Under torchrun shoal_options={"parallelism": shoal.Parallelism()} says how ranks share the work.
`Captured` makes the same of a subclass of theirs: class Mine(Captured, TheirTrainer).
"""

import torch
import transformers

import shoal


class Captured:
    """In front of transformers.Trainer: training_step() is shoal.Trainer.backward(). `shoal_options`: of the
    shoal.Trainer, such as seed or graph_bytes. Raises shoal.InvalidInput for several GPUs a process, several
    processes without a parallelism or with average_tokens_across_devices=False, and fp16."""

    def __init__(self, *args, shoal_options=None, **kwargs):
        super().__init__(*args, **kwargs)
        self._shoal = None
        self._shoal_options = shoal_options or {}
        self._shoal_of = None
        processes = self.accelerator.num_processes
        if self.args.n_gpu > 1:
            raise shoal.InvalidInput(
                f"hugging_face: a process has {self.args.n_gpu} GPUs. Remedy: a process for each, by torchrun"
            )
        if processes > 1 and self._shoal_options.get("parallelism") is None:
            raise shoal.InvalidInput(
                f"hugging_face: {processes} processes, and nothing says how they share the work. Remedy: "
                "shoal_options=dict(parallelism=shoal.Parallelism())"
            )
        if processes > 1 and not self.args.average_tokens_across_devices:
            raise shoal.InvalidInput(
                "hugging_face: average_tokens_across_devices=False divides each process's loss by its own "
                "count, and the loss here is of all of them. Remedy: True, which is the default"
            )
        if self.accelerator.scaler is not None:
            raise shoal.InvalidInput("hugging_face: fp16=True scales the loss. Remedy: bf16=True, or neither")

    def training_step(self, model, inputs, num_items_in_batch=None):
        """As theirs: adds gradients, and returns the loss, a tensor without dims. Raises what
        shoal.Trainer.backward() does."""
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        if self._shoal_of is not model:
            self._shoal_of = model
            self._shoal = shoal.Trainer(model, loss_fn=self._shoal_loss, **self._shoal_options)
        divisor = torch.tensor(float(self._summands(num_items_in_batch)))
        loss = self._shoal.backward((self._prepare_inputs(inputs), num_items_in_batch, divisor)).loss
        return torch.tensor(loss, device=self.args.device)

    def _shoal_loss(self, model, batch):
        inputs, num_items_in_batch, divisor = batch
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, dict(inputs), num_items_in_batch=num_items_in_batch)
        return loss / divisor

    def _summands(self, num_items_in_batch):
        """What a batch's loss is divided by: 1 where the model has divided by the items of all of them."""
        is_scaled = self.loss_is_scaled_for_ga
        if is_scaled is None:
            counts = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            is_scaled = counts or self.compute_loss_func is not None
        mine = 1 if is_scaled else self.current_gradient_accumulation_steps
        # Theirs is times the number of processes, as DistributedDataParallel averages.
        is_of_all = num_items_in_batch is not None and (
            self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        )
        processes = self.accelerator.num_processes if is_of_all else 1
        return mine * processes * self.accelerator.gradient_accumulation_steps


class Trainer(Captured, transformers.Trainer):
    """transformers.Trainer through the captured graph."""


class Seq2SeqTrainer(Captured, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer through the captured graph."""
