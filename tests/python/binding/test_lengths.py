# SPDX-License-Identifier: Apache-2.0
"""Batches of many lengths, as padding collators make them."""

import random
import sys
import warnings

import pytest
import torch
from torch import nn

import shoal


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, ids, labels):
        hidden = self.layer(self.embed(ids), src_key_padding_mask=ids == 0)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def trainer_of(model, **options):
    return shoal.Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-2), **options)


def calls_of(act):
    """How often the model's forward ran; what it could count by itself is taken back after a recording."""
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and frame.f_code is Tagger.forward.__code__

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    return calls


def batches(lengths):
    generator = torch.Generator().manual_seed(0)
    for length in lengths:
        ids = torch.randint(1, 50, (4, length), generator=generator)
        ids[:2, length // 2 :] = 0
        yield {"ids": ids, "labels": torch.randint(0, 5, (4, length), generator=generator)}


def test_forty_lengths_are_as_pytorch_trains_them_and_each_is_captured_once():
    torch.manual_seed(0)
    model = Tagger().double()
    plain = Tagger().double()
    plain.load_state_dict(model.state_dict())
    adam = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    trainer = trainer_of(model, spot_checks=0)
    draw = random.Random(0)
    lengths = list(range(4, 44)) + [draw.randint(4, 43) for _ in range(80)]
    ran = 0
    for batch in batches(lengths):
        adam.zero_grad()
        loss = plain(**batch)
        loss.backward()
        adam.step()
        losses = []
        ran += calls_of(lambda batch=batch, losses=losses: losses.append(trainer.step(batch).loss))
        assert losses[0] == pytest.approx(loss.item(), rel=1e-8)
    # Twice for the first, once for each of 39 others, and spot checks at the 2nd, 4th and 8th.
    assert ran == 2 + 39 + 3


def test_a_change_of_what_nobody_watches_is_seen_at_another_length_too():
    """The checks of all lengths are one: what a new length does is compared with what others did."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(x).square().mean() * sys.getswitchinterval()

    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.5)
        model = Hidden()
        trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), spot_checks=0)
        for rows in (3, 4, 5, 6):
            trainer.step(torch.randn(rows, 4))
        sys.setswitchinterval(0.25)
        wanted = model(x := torch.randn(7, 4)).item()
        assert trainer.step(x).loss == pytest.approx(wanted)  # captured as it is now
        with pytest.raises(shoal.InvalidInput, match=r"other=0\.5 then, other=0\.25 now"):
            for rows in (3, 4, 5, 6):
                trainer.step(torch.randn(rows, 4))
    finally:
        sys.setswitchinterval(before)


def test_graphs_are_kept_by_memory():
    torch.manual_seed(0)
    few = trainer_of(Tagger(), graph_bytes=0)
    many = trainer_of(Tagger())
    calls = {}
    for name, trainer in (("few", few), ("many", many)):
        for batch in batches([5, 6, 7]):
            trainer.step(batch)
        calls[name] = calls_of(
            lambda trainer=trainer: [trainer.step(batch) for batch in batches([5, 6, 7, 5, 6, 7])]
        )
    assert calls["few"] == 6  # each anew
    assert calls["many"] <= 3  # spot checks
    with pytest.raises(shoal.InvalidInput, match=r"graph_bytes is -1"):
        trainer_of(Tagger(), graph_bytes=-1)


def test_lengths_that_never_come_again_are_told_of_once():
    torch.manual_seed(0)
    trainer = trainer_of(Tagger(), graph_bytes=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches([4 + step % 7 for step in range(600)]):
            trainer.step(batch)
    said = [str(each.message) for each in caught if "batches had sizes" in str(each.message)]
    assert len(said) == 1
    assert "in the last 128 runs 128 batches" in said[0]
    assert "graphs have gone for want of room" in said[0] and "shoal.PaddingCollator" in said[0]


def test_a_padding_collator_makes_sizes_few_and_leaves_the_loss_alone():
    draw = random.Random(0)
    data = [
        {"ids": torch.randint(1, 50, (length,)), "labels": torch.randint(0, 5, (length,)), "weight": 1.0}
        for length in (draw.randint(3, 20) for _ in range(64))
    ]
    collate = shoal.PaddingCollator({"ids": 0, "labels": -100}, multiple=8)
    loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate)
    sizes = set()
    for number, batch in enumerate(loader):
        samples = data[4 * number : 4 * number + 4]
        longest = max(len(sample["ids"]) for sample in samples)
        assert batch["ids"].shape == batch["labels"].shape == (4, -(-longest // 8) * 8)
        assert batch["weight"].shape == (4,)
        for row, sample in enumerate(samples):
            length = len(sample["ids"])
            assert torch.equal(batch["ids"][row, :length], sample["ids"])
            assert (batch["labels"][row, length:] == -100).all() and (batch["ids"][row, length:] == 0).all()
        sizes.add(batch["ids"].shape[1])
    assert sizes <= {8, 16, 24}


@pytest.mark.parametrize(
    "arguments, samples, error",
    [
        (({"ids": 0}, 0), [], "the multiple is 0"),
        (({},), [], "no item is to be padded"),
        (
            ({"ids": 0},),
            [{"labels": torch.zeros(3)}],
            r"'ids' is to be padded, and a sample has \['labels'\]",
        ),
        (({"ids": 0},), [torch.zeros(3)], "'ids' is to be padded, and a sample is a Tensor"),
        (({"ids": 0},), [{"ids": torch.tensor(1)}], "'ids' of a sample has 0 dims, and dim 0"),
    ],
)
def test_what_cannot_be_padded_is_refused(arguments, samples, error):
    with pytest.raises(shoal.InvalidInput, match=error):
        shoal.PaddingCollator(*arguments)(samples)
