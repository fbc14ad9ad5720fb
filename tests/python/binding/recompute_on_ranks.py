# SPDX-License-Identifier: Apache-2.0
"""Trains with and without recompute, alone or as a rank of test_recompute.py's job: not a bit differs."""

import copy

import torch
import transformers as hf
from torch import nn

import shoal


def gpt2():
    config = hf.GPT2Config(
        vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    assert config.resid_pdrop > 0 and config.attn_pdrop > 0
    return hf.GPT2LMHeadModel(config)


def convolutions():
    def block():
        return nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.GELU(), nn.Dropout(0.2))

    return nn.Sequential(*(block() for _ in range(3)), nn.Flatten(), nn.Linear(6 * 64, 5))


def batch_of(name, step):
    torch.manual_seed(100 + step)
    if name == "gpt2":
        ids = torch.randint(1, 61, (4, 12))
        return {"input_ids": ids, "labels": ids}
    return {"input": torch.randn(4, 6, 8, 8)}


def loss_of(model, batch):
    out = model(**batch)
    return out.loss if hasattr(out, "loss") else out.square().mean()


def trained(name, model, recompute, **degrees):
    parallelism = shoal.Parallelism(recompute=recompute, **degrees)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = shoal.Trainer(model, optimizer, loss_of, clip_norm=0.5, seed=3, parallelism=parallelism)
    for step in range(3):
        batch = batch_of(name, step)
        rows = shoal.samples_of(4, parallelism)
        trainer.step({key: tensor[rows] for key, tensor in batch.items()})
    trainer.materialize()
    return model.state_dict()


def compare(name, model, recompute, **degrees):
    plain = trained(name, copy.deepcopy(model), "none", **degrees)
    again = trained(name, copy.deepcopy(model), recompute, **degrees)
    for key, tensor in plain.items():
        assert torch.equal(tensor, again[key]), f"{name}, {recompute}, {degrees}: {key}"


def main():
    torch.manual_seed(1)
    models = {"gpt2": gpt2(), "convolutions": convolutions()}
    ways = [{}] if shoal.world_size() == 1 else [{}, {"shard": -1}, {"shard": -1, "gathers_again": False}]
    for name, model in models.items():
        model.train()
        for degrees in ways:
            compare(name, model, "full", **degrees)
            compare(name, model, "selective", **degrees)
    compare("gpt2", models["gpt2"], "full transformer.h.*.mlp", **ways[-1])
    print("all bits are equal")


if __name__ == "__main__":
    main()
