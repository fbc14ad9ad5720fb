# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, with forward and backward through the captured graph.

    trainer = shoal.hugging_face.Trainer(model=model, args=TrainingArguments(...), train_dataset=...)
    trainer.train()

All else is Hugging Face's: optimizer, scheduler, clipping, accumulation, evaluation, checkpoints, callbacks.
`Captured` makes the same of a subclass of theirs: class Mine(Captured, TheirTrainer).
"""

import torch
import transformers

import shoal


class Captured:
    """In front of transformers.Trainer: training_step() is shoal.Trainer.backward(). `shoal_options`: of the
    shoal.Trainer, such as seed or graph_bytes."""

    def __init__(self, *args, shoal_options=None, **kwargs):
        super().__init__(*args, **kwargs)
        self._shoal = None
        self._shoal_options = shoal_options or {}
        if self.accelerator.num_processes > 1 or self.args.n_gpu > 1:
            raise shoal.InvalidInput(
                f"hugging_face: {self.accelerator.num_processes} processes with {self.args.n_gpu} GPUs each; "
                "this Trainer is of one process on one device. Remedy: a loop with shoal.Trainer(..., "
                "parallelism=shoal.Parallelism())"
            )
        if self.accelerator.scaler is not None:
            raise shoal.InvalidInput("hugging_face: fp16=True scales the loss. Remedy: bf16=True, or neither")

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        if self._shoal is None or self._shoal.model is not model:
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
        return mine * self.accelerator.gradient_accumulation_steps


class Trainer(Captured, transformers.Trainer):
    """transformers.Trainer through the captured graph."""


class Seq2SeqTrainer(Captured, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer through the captured graph."""
