# SPDX-License-Identifier: Apache-2.0
# A GAN: two models that train against each other, each with a trainer of its own, on a ring of eight spots.
#
#   python examples/gan.py [STEPS]      ends with samples at 8 of 8 spots; goes on from its checkpoints
#   shoal run -n 2 python examples/gan.py
import sys

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import shoal

CHECKPOINTS = "outputs/gan"
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
EVERY = max(STEPS // 6, 1)  # steps a checkpoint
BATCH, NOISE = 256, 8

angles = torch.arange(8) * torch.pi / 4
spots = torch.stack([angles.cos(), angles.sin()], dim=1)


def perceptron(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
    )


def judged(scores, as_real):
    return binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(as_real)))


# What each loss reads of the other model is a constant to it: no gradient goes there, and it is followed.
def loss_of_generator(generator, batch):
    return judged(discriminator(generator(batch["noise"])), True)


def loss_of_discriminator(discriminator, batch):
    fake = generator(batch["noise"]).detach()
    return judged(discriminator(batch["real"]), True) + judged(discriminator(fake), False)


torch.manual_seed(0)
generator, discriminator = perceptron(NOISE, 2), perceptron(2, 1)
parallelism = shoal.Parallelism(shard=-1)


def trainer_of(model, loss):
    return shoal.Trainer(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        loss,
        parallelism=parallelism,
    )


train_generator = trainer_of(generator, loss_of_generator)
train_discriminator = trainer_of(discriminator, loss_of_discriminator)
trainers = {"discriminator": train_discriminator, "generator": train_generator}


def save(step):
    for name, trainer in trainers.items():
        trainer.save(f"{CHECKPOINTS}/{name}", step)


# Each is saved by itself. Where the run ended between the two, the one that was saved goes back.
done = [trainer.load(f"{CHECKPOINTS}/{name}") for name, trainer in trainers.items()]
begin = min(step or 0 for step in done)
for (name, trainer), step in zip(trainers.items(), done, strict=True):
    if (step or 0) > begin:
        trainer.load(f"{CHECKPOINTS}/{name}", step=begin)
if None in done:  # so that there is always something to go back to
    save(0)
    for trainer in trainers.values():
        trainer.wait_for_saves()

mine = shoal.samples_of(BATCH, parallelism)  # of each batch
for step in range(begin, STEPS):
    torch.manual_seed(step)  # all ranks draw the same batch
    real = spots[torch.randint(8, (BATCH,))] + 0.05 * torch.randn(BATCH, 2)
    batch = {"real": real[mine], "noise": torch.randn(BATCH, NOISE)[mine]}
    loss_d = train_discriminator.step(batch).loss
    loss_g = train_generator.step({"noise": batch["noise"]}).loss
    if (step + 1) % EVERY == 0:
        if shoal.rank() == 0:
            print(f"step {step + 1}: discriminator {loss_d:.3f}, generator {loss_g:.3f}", flush=True)
        save(step + 1)

train_generator.materialize()  # where ranks keep parameters in parts
if shoal.rank() == 0:
    torch.manual_seed(1)
    generator.eval()
    with torch.no_grad():
        nearest = torch.cdist(generator(torch.randn(1000, NOISE)), spots).min(dim=1)
    hit = nearest.indices[nearest.values < 0.2].unique().numel()
    print(f"samples at {hit} of 8 spots")
for trainer in trainers.values():
    trainer.wait_for_saves()
