# SPDX-License-Identifier: Apache-2.0
"""Loops of other libraries, with and without Shoal: what they have trained is the same."""

import copy
import sys

import pytest
import torch
from conftest import same
from test_parallel import run
from torch import nn

import shoal

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")
lightning = pytest.importorskip("pytorch_lightning")

import shoal.accelerate  # noqa: E402
import shoal.hugging_face  # noqa: E402
import shoal.lightning  # noqa: E402

VOCABULARY = 50


def gpt2():
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    config.resid_pdrop = config.attn_pdrop = config.embd_pdrop = 0
    return transformers.GPT2LMHeadModel(config)


class Averages(nn.Module):
    """Knows nothing of the other batches that are accumulated: each counts alike."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids, labels):
        logits = self.table(input_ids)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def sentences(count):
    """With other numbers of targets that count: an average of averages would be another loss."""
    torch.manual_seed(2)
    rows = []
    for number in range(count):
        ids = torch.randint(3, VOCABULARY, (12,))
        labels = ids.clone()
        labels[12 - number % 9 :] = -100
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def trained_by_hugging_face(kind, folder, model=gpt2, **options):
    logs = []

    class Note(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            notes.append((logs.get("loss"), logs.get("grad_norm"), logs.get("learning_rate")))

    notes = logs
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        num_train_epochs=2,
        learning_rate=1e-2,
        warmup_steps=2,
        weight_decay=0.1,
        max_grad_norm=0.5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=3,
        disable_tqdm=True,
        **options,
    )
    # 11 batches an epoch: the last update of each accumulates three
    trainer = kind(model=model(), args=arguments, train_dataset=sentences(22), callbacks=[Note()])
    trainer.train()
    metrics = trainer.evaluate(sentences(6))
    return trainer, [note for note in notes if note[0] is not None], metrics["eval_loss"]


@pytest.mark.parametrize(
    "options",
    [{}, {"label_smoothing_factor": 0.1, "optim": "adafactor"}, {"model": Averages}],
    ids=["GPT-2", "smoothed, Adafactor", "averages"],
)
def test_hugging_faces_trainer(tmp_path, options):
    theirs, wanted, wanted_loss = trained_by_hugging_face(transformers.Trainer, tmp_path, **options)
    ours, got, loss = trained_by_hugging_face(shoal.hugging_face.Trainer, tmp_path, **options)
    assert ours.state.global_step == theirs.state.global_step == 6
    for mine, other in zip(got, wanted, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    assert loss == pytest.approx(wanted_loss, rel=1e-4)
    same(dict(ours.model.named_parameters()), dict(theirs.model.named_parameters()), 1e-4, "parameter")
    assert ours._shoal is not None


def test_hugging_faces_trainer_refuses_what_scales_the_loss(tmp_path, monkeypatch):
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    monkeypatch.setattr(accelerate.Accelerator, "num_processes", 2)
    with pytest.raises(shoal.InvalidInput, match=r"2 processes, .* Remedy: .*parallelism="):
        shoal.hugging_face.Trainer(model=gpt2(), args=arguments, train_dataset=sentences(2))


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def pairs(count):
    torch.manual_seed(2)
    return [(torch.randn(4, 6).double(), torch.randint(3, (4,))) for _ in range(count)]


def trained_by_accelerate(captured):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(pairs(8), batch_size=None)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    backward = shoal.accelerate.Backward(accelerator, model, loss_of) if captured else None
    losses = []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                if captured:
                    losses.append(backward(batch))
                else:
                    loss = loss_of(model, batch)
                    accelerator.backward(loss)
                    losses.append(loss.item())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return model, losses


def test_accelerates_loop():
    theirs, wanted = trained_by_accelerate(captured=False)
    ours, losses = trained_by_accelerate(captured=True)
    assert losses == pytest.approx(wanted, rel=1e-9)
    same(ours.state_dict(), theirs.state_dict(), 1e-9, "value")


def test_accelerates_loop_of_a_hugging_face_model():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(gpt2())
    plain = copy.deepcopy(model)
    batch = {name: rows[None] for name, rows in sentences(1)[0].items()}
    plain(**batch).loss.div(2).backward()
    loss = shoal.accelerate.Backward(accelerator, model)(batch)
    assert loss == pytest.approx(plain(**batch).loss.item(), rel=1e-5)
    same(
        {name: parameter.grad for name, parameter in model.named_parameters()},
        {name: parameter.grad for name, parameter in plain.named_parameters()},
        1e-5,
        "gradient",
    )


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, batch_idx):
        loss = loss_of(self.net, batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"twice": 2 * loss})
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", loss_of(self.net, batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


class Kept(lightning.Callback):
    def __init__(self):
        self.metrics = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.metrics.append({name: value.item() for name, value in trainer.callback_metrics.items()})


def trained_by_lightning(folder, **options):
    kept = Kept()
    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=3,
        gradient_clip_val=1.0,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[kept],
        **options,
    )
    module = Lit()
    loader = torch.utils.data.DataLoader(pairs(8), batch_size=None)
    trainer.fit(module, loader, loader)
    return module, kept.metrics


def test_lightnings_trainer(tmp_path):
    theirs, wanted = trained_by_lightning(tmp_path)
    ours, got = trained_by_lightning(tmp_path, strategy=shoal.lightning.Strategy())
    assert "train_loss" in wanted[-1] and "val_loss" in wanted[-1]
    for mine, other in zip(got, wanted, strict=True):
        assert mine == pytest.approx(other, rel=1e-6)  # metrics are kept in float32
    same(ours.state_dict(), theirs.state_dict(), 1e-9, "value")


@pytest.mark.parametrize("library", ["accelerate", "hugging_face", "lightning"])
def test_on_ranks(tmp_path, library):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(*torchrun, "adapters_on_ranks.py", tmp_path, library)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert done.stdout.count("data parallel: equal") == done.stdout.count("ZeRO-3: equal") == 1, done.stdout
