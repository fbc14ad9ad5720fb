# SPDX-License-Identifier: Apache-2.0
# A training loop with what such loops have: a sharded loader, a schedule, accumulation, logged gradients,
# evaluation with generate() in between, and a checkpoint from which the next run goes on.
#
#   python examples/loop.py              prints a loss of about 2.8, and 2.5 when it is called again
#   shoal run -n 2 python examples/loop.py
import torch
from torch.utils.data import DataLoader, DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel

import shoal

CHECKPOINTS = "outputs/loop"
text = torch.tensor(list(open("README.md", "rb").read()))
rows = [text[begin : begin + 64] for begin in range(0, len(text) - 64, 8)]

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=256, n_positions=64, n_layer=2, n_embd=64, n_head=4, eos_token_id=0)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
trainer = shoal.Trainer(
    model,
    optimizer,
    accumulate=2,  # micro-batches of a batch
    clip_norm=1.0,
    keeps_gradients=True,
    parallelism=shoal.Parallelism(shard=-1),
)
sampler = DistributedSampler(rows, num_replicas=shoal.world_size(), rank=shoal.rank(), drop_last=True)
loader = DataLoader(rows, batch_size=16 // shoal.world_size(), sampler=sampler, drop_last=True)

epoch = 0
note = trainer.load(CHECKPOINTS)
if note is not None:
    schedule.load_state_dict(note["schedule"])
    epoch = note["epoch"]

sampler.set_epoch(epoch)
for batch in loader:
    result = trainer.step({"input_ids": batch, "labels": batch})
    schedule.step()
    if result.step % 20 == 0 and shoal.rank() == 0:
        largest = max(parameter.grad.abs().max().item() for parameter in model.parameters())
        print(
            f"step {result.step}: loss {result.loss:.2f}, norm {result.grad_norm:.2f}, largest {largest:.3f}"
        )

evaluated = trainer.evaluate({"input_ids": batch, "labels": batch}).loss
# On every rank; then any of them may read, save or run the model in evaluation mode. What changes parameters
# or buffers, a forward in training mode too, all of them do alike.
trainer.materialize()
if shoal.rank() == 0:
    model.eval()
    words = model.generate(text[None, :16], max_new_tokens=16, do_sample=False, pad_token_id=0)[0]
    model.train()
    print(f"evaluated {evaluated:.2f}, writes {bytes(words.tolist())!r}")
trainer.save(CHECKPOINTS, {"schedule": schedule.state_dict(), "epoch": epoch + 1})
trainer.wait_for_saves()
