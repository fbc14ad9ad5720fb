# SPDX-License-Identifier: Apache-2.0
# A small Hugging Face GPT-2 on the ranks of a job; each keeps its part of the parameters. Alone it works too.
#
#   shoal run -n 2 python examples/parallel.py        prints a loss of about 3.2; it begins at 5.6
#   python -m shoal.verify examples/parallel.py -n 2 --shard=2
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import shoal

ROWS = 16  # of all ranks together
text = torch.tensor(list(open("README.md", "rb").read()))


def make_trainer(parallelism):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_layer=2, n_embd=64, n_head=4))
    return shoal.Trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-3), parallelism=parallelism)


def batch(step):
    torch.manual_seed(step)
    rows = torch.stack([text[i : i + 64] for i in torch.randint(len(text) - 64, (ROWS,))])
    return {"input_ids": rows, "labels": rows}


if __name__ == "__main__":
    parallelism = shoal.Parallelism(shard=-1)
    trainer = make_trainer(parallelism)
    mine = shoal.samples_of(ROWS, parallelism)
    for step in range(100):
        result = trainer.step({name: tensor[mine] for name, tensor in batch(step).items()})
    trainer.materialize()  # on every rank; then one of them saves
    if shoal.rank() == 0:
        print(f"loss {result.loss:.2f}")
        trainer.model.save_pretrained("outputs/gpt2-bytes")
