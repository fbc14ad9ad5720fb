# SPDX-License-Identifier: Apache-2.0
"""One rank of test_parallel.py's job: trains models on all ranks, and alone, and holds them against each
other. Rank 0 prints a line for each that was equal."""

import copy
import io
from types import SimpleNamespace

import torch
import transformers as hf
from built import ROOT
from conftest import moments, same
from families import SMALL, VOCABULARY

import shoal

ROWS = 6  # four ranks have two, two, one and one


def gpt2():
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    assert config.resid_pdrop > 0 and config.attn_pdrop > 0 and config.embd_pdrop > 0
    return hf.GPT2LMHeadModel(config)


def llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2))


class Writing(torch.nn.Module):
    """Writes to its parameters while it runs: to trained ones, and to a target that follows one."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, 8, max_norm=1.0)
        self.target = torch.nn.Embedding(VOCABULARY, 8).requires_grad_(False)
        self.head = torch.nn.Linear(8, VOCABULARY)

    def forward(self, ids, attention_mask):
        with torch.no_grad():
            self.head.weight.clamp_(-0.2, 0.2)
            self.target.weight.mul_(0.9).add_(self.words.weight, alpha=0.1)
        states = (self.words(ids) - self.target(ids)) * attention_mask[..., None]
        return SimpleNamespace(logits=self.head(states))


def batch_of(step):
    """Of all ranks together; rows have different numbers of targets that count."""
    torch.manual_seed(100 + step)
    ids = torch.randint(3, VOCABULARY, (ROWS, 12))
    batch = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
    for row in range(ROWS):
        batch["attention_mask"][row, 12 - row :] = 0
        batch["labels"][row, 12 - row :] = -100
    return batch


def part_of(batch, parallelism):
    rows = shoal.samples_of(ROWS, parallelism)
    return {name: tensor[rows] for name, tensor in batch.items()}


def loss_of(model, batch):
    """As Hugging Face's, which computes it in float32 whatever the model's type is: too coarse for 1e-9."""
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def trainer_of(model, parallelism=None):
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    return shoal.Trainer(model, optimizer, loss_of, clip_norm=0.5, seed=3, parallelism=parallelism)


def number(value):
    return {"": torch.tensor(value, dtype=torch.float64)}


def check_equal(make, parallelism, steps=3, rtol=1e-9):
    torch.manual_seed(1)
    model = make().double().train()
    alone = trainer_of(copy.deepcopy(model))
    together = trainer_of(model, parallelism)
    for step in range(steps):
        batch = batch_of(step)
        wanted, got = alone.step(batch), together.step(part_of(batch, parallelism))
        same(number(got.loss), number(wanted.loss), rtol, f"loss of step {step}")
        same(number(got.grad_norm), number(wanted.grad_norm), rtol, "norm")
        same(together.gradients(), alone.gradients(), rtol, f"gradient of step {step}")
        ours, theirs = together.state_dict(), alone.state_dict()
        assert ours["steps"] == theirs["steps"] == step + 1
        same(ours["model"], theirs["model"], rtol, f"parameter after step {step}")
        for kind in ("exp_avg", "exp_avg_sq"):
            same(moments(together.optimizer, kind), moments(alone.optimizer, kind), rtol, kind)
    wanted, got = alone.evaluate(batch_of(0)), together.evaluate(part_of(batch_of(0), parallelism))
    same(number(got.loss), number(wanted.loss), rtol, "loss in evaluation")
    return alone, together


def check_goes_on(make, parallelism):
    """From a state of one device, and the other way round."""
    alone, together = check_equal(make, parallelism, steps=1)
    for update in range(2):
        batch = batch_of(10 + update)
        alone.step(batch)
        together.load_state_dict(alone.state_dict())
        same(together.state_dict()["model"], alone.state_dict()["model"], 0, "loaded parameter")
        batch = batch_of(20 + update)
        wanted, got = alone.step(batch), together.step(part_of(batch, parallelism))
        same(number(got.loss), number(wanted.loss), 1e-9, "loss after loading")
        alone.load_state_dict(together.state_dict())
    together.materialize()
    same(dict(together.model.named_parameters()), dict(alone.model.named_parameters()), 0, "parameter")


def check_accumulates(make, parallelism):
    """Three micro-batches a step, whose counts of targets differ."""
    torch.manual_seed(1)
    model = make().double().train()
    alone = trainer_of(copy.deepcopy(model))
    together = trainer_of(model, parallelism)
    for step in range(2):
        batches = [batch_of(3 * step + i) for i in range(3)]
        wanted = alone.step_over(batches)
        got = together.step_over([part_of(batch, parallelism) for batch in batches])
        same(number(got.loss), number(wanted.loss), 1e-9, "loss of micro-batches")
        same(number(got.grad_norm), number(wanted.grad_norm), 1e-9, "norm of micro-batches")
        same(together.gradients(), alone.gradients(), 1e-9, "gradient of micro-batches")
        same(together.state_dict()["model"], alone.state_dict()["model"], 1e-9, "parameter")


def check_errors(make):
    parallelism = shoal.Parallelism(shard=-1)
    model = make().double()
    trainer = trainer_of(model, parallelism)
    weight = next(model.parameters())
    uses = (
        lambda: model(**batch_of(0)),
        lambda: weight + 1,
        lambda: weight.data.zero_(),
        lambda: torch.save(model.state_dict(), io.BytesIO()),
        lambda: copy.deepcopy(model),
        lambda: weight.untyped_storage().data_ptr(),
        lambda: trainer_of(model),
    )
    for use in uses:
        assert "materialize() " in message(use)
    trainer.materialize()
    with torch.no_grad():
        before = model(**batch_of(0)).loss.item()
    assert before == before
    rank, size = shoal.rank(), shoal.world_size()
    assert f"are {3 * size} ranks, and there are {size}" in message(
        lambda: trainer_of(make(), shoal.Parallelism(replicate=3, shard=size))
    )
    wrong = batch_of(0)
    if rank == 1:
        wrong["labels"] = wrong["labels"][:, :5]
    assert "rank 1 has 'batch item labels" in message(lambda: trainer.step(wrong))


def message(act):
    try:
        act()
    except (shoal.InvalidInput, RuntimeError) as error:
        return str(error)
    raise AssertionError("nothing was thrown")


def main():
    size = shoal.world_size()
    strategies = {
        "data parallel": shoal.Parallelism(),
        "ZeRO-3": shoal.Parallelism(shard=-1),
        "ZeRO-2 in pairs": shoal.Parallelism(shard=2, zero_stage=2),
    }
    plan = ROOT / "recipes" / "plans" / "gpt2_tensor.plan"
    for make in (gpt2, llama, Writing):
        for name, parallelism in strategies.items():
            check_equal(make, parallelism)
            if shoal.rank() == 0:
                print(f"{make.__name__}, {name}, {size} ranks: equal", flush=True)
    if size == 2:
        check_equal(gpt2, shoal.Parallelism(tensor=2, plan=plan))
    for parallelism in strategies.values():
        check_accumulates(llama, parallelism)
    named = {
        "mesh": {"copies": size // 2, "parts": 2},
        "batch_axes": ["copies", "parts"],
        "zero_axis": "parts",
    }
    check_equal(gpt2, shoal.Parallelism(**named, zero_stage=3))
    check_accumulates(gpt2, shoal.Parallelism(**named, zero_stage=1, reduces_each=True))
    check_goes_on(gpt2, shoal.Parallelism(shard=-1))
    check_goes_on(llama, shoal.Parallelism())
    check_errors(llama)
    if shoal.rank() == 0:
        print("all is well", flush=True)


main()
