# SPDX-License-Identifier: Apache-2.0
"""One rank of test_parallel.py's job: models nobody wrote a plan for, tensor parallel by degrees alone."""

import copy
import re
import sys

import families
import torch

import shoal


def loss_of(model, batch):
    """In float64 to the end, and of every logit."""
    output = model(
        **{name: tensor for name, tensor in batch.items() if name != "labels"}, **decoder(model, batch)
    )
    logits = next(
        output[name] for name in ("logits", "logits_per_text", "last_hidden_state") if name in output
    )
    labels = batch.get("labels")
    if labels is not None and logits.shape[:-1] == labels.shape:
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return logits.square().mean()


def decoder(model, batch):
    if not model.config.is_encoder_decoder or "decoder_input_ids" in batch:
        return {}
    return {"decoder_input_ids": batch["labels"].clamp(min=0).roll(1, 1)}


def whole_rows(batch):
    """Samples for two ranks that share them."""
    return {name: torch.cat([tensor, tensor.flip(0)])[:4] for name, tensor in batch.items()}


def shares(trainer, axis):
    """Of the flops, and of the parameters' bytes, in percent, that the axis cuts; and the work of the
    busiest rank over the mean."""
    line = rf"split along {axis} +([\d.]+) % of the flops, ([\d.]+) % of the .* the busiest rank has ([\d.]+)"
    [found] = re.findall(line, trainer.report())
    return [float(share) for share in found]


def train(make, parallelism, bound=1e-9):
    torch.manual_seed(0)  # all ranks draw the same batch
    model, batch = make()
    batch = whole_rows(batch)
    eager = model.double()
    ours = copy.deepcopy(eager)
    options = {"lr": 0.05, "momentum": 0.9}
    theirs = torch.optim.SGD(eager.parameters(), **options)
    trainer = shoal.Trainer(
        ours, torch.optim.SGD(ours.parameters(), **options), loss_of, parallelism=parallelism
    )
    for _ in range(3):
        theirs.zero_grad()
        loss = loss_of(eager, batch)
        loss.backward()
        theirs.step()
        rows = shoal.samples_of(4, parallelism)
        result = trainer.step({name: tensor[rows] for name, tensor in batch.items()})
        assert abs(result.loss - loss.item()) < bound * max(1, abs(loss.item())), (result.loss, loss.item())
    trainer.materialize()
    for (name, one), other in zip(ours.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(
            one, other, rtol=bound, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
        )
    return trainer


def is_given_again(make, parallelism, plan):
    """The plan that was found, given as a file is, is the plan that is found."""
    again = shoal.Parallelism(tensor=parallelism.tensor, shard=parallelism.shard, plan=plan)
    assert train(make, again).plan() == plan


ranks = shoal.world_size()
has_two_axes = sys.argv[1:] == ["two axes"]
for family in families.JUDGED + ([] if has_two_axes else families.UNPREPARED):
    name = family.__name__
    if has_two_axes:
        parallelism = shoal.Parallelism(mesh={"outer": 2, "inner": ranks // 2})
    elif sys.argv[1:] == ["four"]:
        parallelism = shoal.Parallelism(tensor=ranks)
    else:
        parallelism = shoal.Parallelism(tensor=2, shard=ranks // 2)
    # Their norms are in float32 whatever the model is: a sum in another order may round to another number.
    bound = 1e-7 if has_two_axes and name in {"llama", "mixtral"} else 1e-9
    trainer = train(family, parallelism, bound)
    axes = [shares(trainer, axis) for axis in (["outer", "inner"] if has_two_axes else ["tensor"])]
    flops, held, busiest = min(axes)
    if name in {"gpt2", "llama"} and not has_two_axes:
        is_given_again(family, parallelism, trainer.plan())
    if shoal.rank() == 0:
        print(
            f"{name}: equal, {flops} % of the flops and {held} % of the bytes are split, busiest {busiest}",
            flush=True,
        )
