# SPDX-License-Identifier: Apache-2.0
"""One rank of test_adapters.py's job: loops of other libraries on two ranks, with and without Shoal."""

import sys

import accelerate
import pytest
import pytorch_lightning as lightning
import shoal.accelerate
import shoal.hugging_face
import shoal.lightning
import torch
import transformers
from conftest import same
from test_adapters import Kept, Lit, loss_of, trained_by_hugging_face
from torch import nn

import shoal

FOLDER = sys.argv[1]
PARALLELISMS = {"data parallel": shoal.Parallelism(), "ZeRO-3": shoal.Parallelism(shard=2)}


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()


def loader():
    """13 batches of 4, so that ranks have 7 and the last update of an epoch accumulates one."""
    torch.manual_seed(2)
    pairs = [(torch.randn(6).double(), torch.randint(3, ()))[:] for _ in range(52)]
    return torch.utils.data.DataLoader(pairs, batch_size=4)


def everybodys(loss):
    """The mean of all ranks."""
    total = torch.tensor(float(loss), dtype=torch.float64)
    torch.distributed.all_reduce(total)
    return total.item() / 2


def tell(what):
    if shoal.rank() == 0:
        print(f"{what}: equal", flush=True)


def trained_by_accelerate(parallelism):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    captured = parallelism is not None
    if captured:
        backward = shoal.accelerate.Backward(accelerator, model, loss_of, parallelism=parallelism)
    losses, norms = [], []
    for _ in range(2):
        for batch in batches:
            with accelerator.accumulate(model):
                if captured:
                    losses.append(backward(batch))
                else:
                    loss = loss_of(model, batch)
                    accelerator.backward(loss)
                    losses.append(everybodys(loss))
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
                optimizer.step()
                optimizer.zero_grad()
    return accelerator.unwrap_model(model), losses, norms


def check_accelerate():
    theirs, wanted, wanted_norms = trained_by_accelerate(None)
    for name, parallelism in PARALLELISMS.items():
        ours, losses, norms = trained_by_accelerate(parallelism)
        assert losses == pytest.approx(wanted, rel=1e-9)
        assert norms == pytest.approx(wanted_norms, rel=1e-9)
        same(ours.state_dict(), theirs.state_dict(), 1e-9, "value")
        tell(f"accelerate, {name}")
    with pytest.raises(shoal.InvalidInput, match=r"2 processes, .* Remedy: .*parallelism="):
        shoal.accelerate.Backward(accelerate.Accelerator(cpu=True), net(), loss_of)


def check_hugging_face():
    theirs, wanted, wanted_loss = trained_by_hugging_face(transformers.Trainer, FOLDER)
    for name, parallelism in PARALLELISMS.items():

        def kind(parallelism=parallelism, **arguments):
            return shoal.hugging_face.Trainer(shoal_options={"parallelism": parallelism}, **arguments)

        ours, got, loss = trained_by_hugging_face(kind, FOLDER)
        for mine, other in zip(got, wanted, strict=True):
            assert mine == pytest.approx(other, rel=1e-4), (got, wanted)
        assert loss == pytest.approx(wanted_loss, rel=1e-4)
        same(dict(ours.model.named_parameters()), dict(theirs.model.named_parameters()), 1e-4, "parameter")
        tell(f"Hugging Face, {name}")
    with pytest.raises(shoal.InvalidInput, match=r"2 processes, .* Remedy: .*parallelism="):
        trained_by_hugging_face(shoal.hugging_face.Trainer, FOLDER)
    with pytest.raises(shoal.InvalidInput, match="average_tokens_across_devices=False"):
        trained_by_hugging_face(kind, FOLDER, average_tokens_across_devices=False)


class LitOfRanks(Lit):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, batch_idx):
        loss = loss_of(self.net, batch)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", loss_of(self.net, batch), sync_dist=True)


def trained_by_lightning(strategy):
    kept = Kept()
    trainer = lightning.Trainer(
        strategy=strategy,
        devices=2,
        max_epochs=2,
        accumulate_grad_batches=3,
        gradient_clip_val=0.5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=FOLDER,
        callbacks=[kept],
    )
    module = LitOfRanks()
    trainer.fit(module, loader(), loader())
    trainer.save_checkpoint(f"{FOLDER}/lightning.ckpt")
    return module, kept.metrics


def check_lightning():
    theirs, wanted = trained_by_lightning("ddp")
    assert "train_loss" in wanted[-1] and "val_loss" in wanted[-1]
    for name, parallelism in PARALLELISMS.items():
        ours, got = trained_by_lightning(shoal.lightning.RanksStrategy(parallelism))
        for mine, other in zip(got, wanted, strict=True):
            assert mine == pytest.approx(other, rel=1e-6)  # metrics are kept in float32
        same(ours.state_dict(), theirs.state_dict(), 1e-9, "value")
        saved = torch.load(f"{FOLDER}/lightning.ckpt")["state_dict"]
        same(saved, theirs.state_dict(), 1e-9, "saved value")
        tell(f"Lightning, {name}")
    with pytest.raises(shoal.InvalidInput, match=r"2 processes; .*RanksStrategy"):
        shoal.lightning.Strategy()


{"accelerate": check_accelerate, "hugging_face": check_hugging_face, "lightning": check_lightning}[
    sys.argv[2]
]()
