# SPDX-License-Identifier: Apache-2.0
"""DeepFM of recipes/deepfm.toml, with 8 factors an id, in plain PyTorch: one process, sparse gradients,
data in memory.

.venv/bin/python bench/deepfm_torch.py [batch [seconds [threads]]]

Ids are drawn by Zipf's law in 26 fields, as shoal's clicks are; the number printed is samples a second.
"""

import itertools
import sys
import time

import torch
from torch import nn

FIELDS, NUMBERS, FACTORS, HIDDEN = 26, 13, 8, (64, 32)


class DeepFm(nn.Module):
    """A row of the embedding is an id's weight and its factors."""

    def __init__(self, ids):
        super().__init__()
        self.rows = nn.Embedding(ids, 1 + FACTORS, sparse=True)
        nn.init.normal_(self.rows.weight, 0, 0.01)
        widths = (FIELDS * FACTORS + NUMBERS, *HIDDEN)
        layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.deep = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, numbers, ids):
        rows = self.rows(ids)
        factors = rows[:, :, 1:]
        pairs = (factors.sum(1).square().sum(1) - factors.square().sum((1, 2))) * 0.5
        deep = self.deep(torch.cat([factors.flatten(1), numbers], 1)).squeeze(1)
        return rows[:, :, 0].sum(1) + pairs + deep


def fields():
    """Ids of each field: 10 to 200,000, growing by a constant factor."""
    return [round(10 * 20000 ** (field / (FIELDS - 1))) for field in range(FIELDS)]


def drawn(samples):
    columns, first = [], 0
    for count in fields():
        weights = 1 / torch.arange(1, count + 1, dtype=torch.double) ** 1.1
        columns.append(torch.multinomial(weights, samples, replacement=True) + first)
        first += count
    return torch.randn(samples, NUMBERS), torch.stack(columns, 1), torch.randint(2, (samples,)).float()


def main():
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10
    torch.set_num_threads(int(sys.argv[3]) if len(sys.argv) > 3 else 2)
    torch.manual_seed(1)
    numbers, ids, labels = drawn(200 * batch)
    model = DeepFm(sum(fields()))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    steps, begin = 0, None
    while begin is None or time.monotonic() - begin < seconds:
        if steps == 20 and begin is None:
            begin, steps = time.monotonic(), 0
        part = slice(batch * (steps % 200), batch * (steps % 200 + 1))
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers[part], ids[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"{batch * steps / (time.monotonic() - begin):,.0f} samples/s, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
