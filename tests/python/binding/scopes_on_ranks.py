# SPDX-License-Identifier: Apache-2.0
"""One rank of test_parallel.py's job: the published examples of EPL, each with as many lines of annotation as
there, against eager PyTorch.

    BERT in two stages                          2 lines: with epl.replicate(1), twice
    ResNet with its last layer split            2 lines: with epl.replicate(n); with epl.split(n)
    T5, encoder and decoder a stage each        2 lines
"""

import copy
import math
import re

import torch
from torch import nn

import shoal

STEPS = 3
WORDS, WIDTH = 61, 16


def layer(kind=nn.TransformerEncoderLayer):
    return kind(WIDTH, 2, 4 * WIDTH, dropout=0, batch_first=True)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        with shoal.replicate(1):
            self.words = nn.Embedding(WORDS, WIDTH)
            self.lower = nn.Sequential(layer(), layer())
        with shoal.replicate(1):
            self.upper = nn.Sequential(layer(), layer())
            self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, batch):
        logits = self.head(self.upper(self.lower(self.words(batch["ids"]))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.convolution(x)))


class ResNet(nn.Module):
    def __init__(self, devices):
        super().__init__()
        with shoal.replicate(devices):
            self.stem = nn.Conv2d(3, 8, 3)
            self.blocks = nn.Sequential(Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        with shoal.split(devices):
            self.classes = nn.Linear(8, WORDS)

    def forward(self, batch):
        return nn.functional.cross_entropy(
            self.classes(self.blocks(self.stem(batch["image"]))), batch["class"]
        )


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.Sequential(layer(), layer())
        self.decoder = nn.ModuleList(layer(nn.TransformerDecoderLayer) for _ in range(2))

    def forward(self, batch):
        with shoal.replicate(1):
            memory = self.encoder(self.words(batch["ids"]))
        with shoal.replicate(1):
            y = self.words(batch["labels"].roll(1, 1))
            for each in self.decoder:
                y = each(y, memory)
            logits = nn.functional.linear(y, self.words.weight)  # tied: both stages have it
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def text_of(step):
    torch.manual_seed(step)
    ids = torch.randint(WORDS, (8, 6))
    return {"ids": ids, "labels": ids.roll(1, 1)}


def images_of(step):
    torch.manual_seed(step)
    return {"image": torch.randn(8, 3, 9, 9).double(), "class": torch.randint(WORDS, (8,))}


def train(make, batch_of, parallelism):
    torch.manual_seed(1)
    ours = make().double()
    whole = copy.deepcopy(ours)
    eager = torch.optim.AdamW(whole.parameters(), lr=0.01, eps=1e-3)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.01, eps=1e-3)
    trainer = shoal.Trainer(
        ours, optimizer, lambda model, batch: model(batch), clip_norm=0.5, parallelism=parallelism
    )
    for step in range(STEPS):
        batch = batch_of(step)
        eager.zero_grad()
        loss = whole(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        eager.step()
        rows = shoal.samples_of(8, parallelism)
        result = trainer.step({name: tensor[rows] for name, tensor in batch.items()})
        assert math.isclose(result.loss, loss.item(), rel_tol=1e-9), (step, result.loss, loss.item())
    plan, report = trainer.plan(), trainer.report()
    trainer.materialize()
    for (name, mine), theirs in zip(ours.named_parameters(), whole.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-11), name
    return plan, report


def begin_of(make):
    """Where the second stage begins, as a plan is told that says something else."""
    model = make()
    parallelism = shoal.Parallelism(pipeline=2, plan="stage words")
    trainer = shoal.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model, batch: model(batch),
        parallelism=parallelism,
    )
    try:
        trainer.step(text_of(0))
    except shoal.InvalidInput as error:
        return re.search("own scopes begin it at '([^']*)'", str(error)).group(1)
    return None


ranks = shoal.world_size()
stages = shoal.Parallelism(pipeline=2)
for model in (Bert, T5):
    train(model, text_of, stages)
    begin = begin_of(model)
    if shoal.rank() == 0:
        print(f"{model.__name__} in two stages, the second from {begin} on: equal")
plan, report = train(lambda: ResNet(ranks), images_of, shoal.Parallelism(tensor=ranks))
said = [line for line in plan.splitlines() if line.startswith("parameter") and "tensor=S" in line]
if shoal.rank() == 0:
    share = re.search(r"split along tensor +([\d.]+) % of the flops", report).group(1)
    batch = re.search(r"blocks +\[8, 8, 7, 7\] +(\S+)", report).group(1)  # samples
    print("ResNet, split", said, "and", share, "% of the work, outside", batch, ": equal")
