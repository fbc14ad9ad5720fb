# SPDX-License-Identifier: Apache-2.0
"""torch.nn's layers and losses: updates in float64 are those of plain PyTorch."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import shoal

ROWS, WIDTH, CLASSES = 6, 8, 5


def mean_of(output):
    return (output[0] if isinstance(output, tuple) else output).square().mean()


class Tokens(nn.Module):
    """An embedding with padding, a body over (rows, length, width), a linear head."""

    def __init__(self, body):
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH, padding_idx=0)
        self.body = body
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids):
        hidden = self.body(self.embedding(ids))
        return self.head(hidden[0] if isinstance(hidden, tuple) else hidden)


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        return self.attention(x, x, x, attn_mask=mask, is_causal=True)


class Translation(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(
            WIDTH,
            2,
            num_encoder_layers=1,
            num_decoder_layers=1,
            dim_feedforward=16,
            dropout=0.0,
            batch_first=True,
        )

    def forward(self, x):
        return self.transformer(x, x.flip(1))


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True), 2)


SEQUENCES = {
    "lstm": lambda: nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True),
    "bidirectional lstm": lambda: nn.Sequential(
        nn.LSTM(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True), First()
    ),
    "gru": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
    "rnn": lambda: nn.RNN(WIDTH, WIDTH, batch_first=True),
    "attention": Attention,
    "attention with key and value biases": lambda: Attention(add_bias_kv=True, add_zero_attn=True),
    "transformer encoder": encoder,
    "transformer": Translation,
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "bilinear": lambda: Twice(nn.Bilinear(WIDTH, WIDTH, WIDTH)),
}


class First(nn.Module):
    def forward(self, pair):
        return pair[0]


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x)


def test_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten(), ignore_index=0)


test_loss.__test__ = False


@pytest.mark.parametrize("layer", SEQUENCES)
def test_layers_over_sequences(compare, layer):
    batch = (torch.randint(0, 20, (ROWS, 7)), torch.randint(0, CLASSES, (ROWS, 7)))
    compare(Tokens(SEQUENCES[layer]()), test_loss).run(batch, updates=3)


IMAGES = {
    "batch norm": lambda: [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()],
    "group norm": lambda: [nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()],
    "instance norm": lambda: [
        nn.Conv2d(3, 8, 3),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    ],
    "pooling": lambda: [nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)],
    "transposed convolution": lambda: [nn.ConvTranspose2d(3, 8, 3, stride=2, output_padding=1), nn.ELU()],
    "grouped convolution": lambda: [nn.Conv2d(3, 6, 3, groups=3, dilation=2), nn.PReLU(6)],
    "upsampling": lambda: [nn.Conv2d(3, 8, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.GELU()],
    "pixel shuffle": lambda: [nn.Conv2d(3, 8, 3), nn.PixelShuffle(2), nn.LocalResponseNorm(2)],
    "padding": lambda: [nn.ReflectionPad2d(2), nn.Conv2d(3, 4, 3, padding_mode="circular", padding=1)],
    "unfold": lambda: [nn.Conv2d(3, 4, 3), nn.Unfold(3), nn.Tanh()],
    "weight norm": lambda: [nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))],
    "spectral norm": lambda: [nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))],
}


@pytest.mark.parametrize("layers", IMAGES)
def test_layers_over_images(compare, layers):
    compare(nn.Sequential(*IMAGES[layers]()), lambda model, x: mean_of(model(x))).run(
        torch.randn(ROWS, 3, 11, 11).double(), updates=3
    )


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


def test_packed_sequences(compare):
    batch = (torch.randn(3, 6, WIDTH).double(), torch.tensor([2, 6, 4]))
    compare(Packed(), lambda model, batch: mean_of(model(*batch))).run(batch, updates=3)


def test_embedding_bag(compare):
    bag = nn.EmbeddingBag(20, WIDTH, mode="mean", padding_idx=0)
    ids, offsets = torch.randint(0, 20, (12,)), torch.tensor([0, 3, 7])
    compare(bag, lambda model, batch: mean_of(model(*batch))).run((ids, offsets), updates=3)


def one_hot(classes):
    return nn.functional.one_hot(classes, CLASSES).double()


def signs():
    return torch.randint(0, 2, (ROWS,)).double() * 2 - 1


# name -> (loss, what it gets besides the output of a linear layer)
LOSSES = {
    "L1Loss": (nn.L1Loss(), lambda: [torch.randn(ROWS, CLASSES).double()]),
    "MSELoss": (nn.MSELoss(), lambda: [torch.randn(ROWS, CLASSES).double()]),
    "SmoothL1Loss": (nn.SmoothL1Loss(), lambda: [torch.randn(ROWS, CLASSES).double()]),
    "HuberLoss": (nn.HuberLoss(delta=0.5), lambda: [torch.randn(ROWS, CLASSES).double()]),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(ignore_index=2), lambda: [torch.randint(0, CLASSES, (ROWS,))]),
    "CrossEntropyLoss, smoothed": (
        nn.CrossEntropyLoss(weight=torch.rand(CLASSES).double(), label_smoothing=0.1),
        lambda: [torch.randint(0, CLASSES, (ROWS,))],
    ),
    "CrossEntropyLoss, probabilities": (
        nn.CrossEntropyLoss(),
        lambda: [torch.rand(ROWS, CLASSES).double().softmax(1)],
    ),
    "PoissonNLLLoss": (nn.PoissonNLLLoss(full=True), lambda: [torch.rand(ROWS, CLASSES).double() * 3]),
    "GaussianNLLLoss": (
        nn.GaussianNLLLoss(),
        lambda: [torch.randn(ROWS, CLASSES).double(), torch.rand(ROWS, CLASSES).double()],
    ),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), lambda: [torch.rand(ROWS, CLASSES).double()]),
    "MultiLabelMarginLoss": (
        nn.MultiLabelMarginLoss(),
        lambda: [torch.tensor([[3, 0, -1, 1, 4]] * ROWS)],
    ),
    "MultiLabelSoftMarginLoss": (
        nn.MultiLabelSoftMarginLoss(),
        lambda: [one_hot(torch.randint(0, CLASSES, (ROWS,)))],
    ),
    "MultiMarginLoss": (nn.MultiMarginLoss(), lambda: [torch.randint(0, CLASSES, (ROWS,))]),
    "SoftMarginLoss": (nn.SoftMarginLoss(), lambda: [signs().unsqueeze(1).expand(ROWS, CLASSES)]),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss(), lambda: [signs().unsqueeze(1).expand(ROWS, CLASSES)]),
    "CosineEmbeddingLoss": (
        nn.CosineEmbeddingLoss(margin=0.1),
        lambda: [torch.randn(ROWS, CLASSES).double(), signs()],
    ),
    "MarginRankingLoss": (
        nn.MarginRankingLoss(margin=0.1),
        lambda: [torch.randn(ROWS, CLASSES).double(), signs().unsqueeze(1)],
    ),
    "TripletMarginLoss": (
        nn.TripletMarginLoss(),
        lambda: [torch.randn(ROWS, CLASSES).double(), torch.randn(ROWS, CLASSES).double()],
    ),
    "TripletMarginWithDistanceLoss": (
        nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance()),
        lambda: [torch.randn(ROWS, CLASSES).double(), torch.randn(ROWS, CLASSES).double()],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(compare, name):
    loss, targets = LOSSES[name]
    loss.to(compare.device)  # its weights
    batch = [torch.randn(ROWS, WIDTH).double(), *targets()]
    compare(nn.Linear(WIDTH, CLASSES), lambda model, batch: loss(model(batch[0]), *batch[1:])).run(
        batch, updates=3
    )


@pytest.mark.parametrize("name, squash, loss", [
    ("NLLLoss", lambda x: x.log_softmax(1), nn.NLLLoss()),
    ("BCELoss", lambda x: x.sigmoid()[:, 0], nn.BCELoss()),
    ("KLDivLoss", lambda x: x.log_softmax(1), nn.KLDivLoss(reduction="batchmean")),
])  # fmt: skip
def test_losses_of_probabilities(compare, name, squash, loss):
    targets = {
        "NLLLoss": torch.randint(0, CLASSES, (ROWS,)),
        "BCELoss": torch.rand(ROWS).double(),
        "KLDivLoss": torch.rand(ROWS, CLASSES).double().softmax(1),
    }
    batch = (torch.randn(ROWS, WIDTH).double(), targets[name])
    compare(nn.Linear(WIDTH, CLASSES), lambda model, batch: loss(squash(model(batch[0])), batch[1])).run(
        batch, updates=3
    )


@pytest.mark.parametrize("lengths", ["tensor", "tuple"])
def test_ctc_loss(compare, lengths):
    def loss(model, batch):
        x, targets, target_lengths = batch
        logs = model(x).log_softmax(2)
        if lengths == "tuple":
            return nn.functional.ctc_loss(logs, targets, (10,) * 3, (4, 3, 4))
        return nn.functional.ctc_loss(logs, targets, torch.full((3,), 10), target_lengths)

    batch = (torch.randn(10, 3, WIDTH).double(), torch.randint(1, CLASSES, (3, 4)), torch.tensor([4, 3, 4]))
    compare(nn.Linear(WIDTH, CLASSES), loss).run(batch, updates=3)


def test_adaptive_softmax(compare):
    softmax = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, 20, cutoffs=[5, 10])
    batch = (torch.randn(ROWS, WIDTH).double(), torch.tensor([1, 4, 7, 12, 3, 19]))
    compare(softmax, lambda model, batch: model(*batch).loss).run(batch, updates=3)


@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adagrad(p, lr=0.1)],
    ids=["SGD", "Adagrad"],
)
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Embedding(20, WIDTH, padding_idx=0, sparse=True),
        lambda: nn.EmbeddingBag(20, WIDTH, mode="sum", sparse=True),
    ],
    ids=["padding", "bag"],
)
def test_a_sparse_gradient_is_a_dense_one_of_the_same_numbers(layer, optimizer):
    torch.manual_seed(0)
    plain = layer().double()
    captured = copy.deepcopy(plain)
    eager = optimizer(plain.parameters())
    trainer = shoal.Trainer(
        captured,
        optimizer(captured.parameters()),
        lambda model, ids: mean_of(model(ids)),
        keeps_gradients=True,
    )
    for ids in torch.randint(0, 20, (3, ROWS, 4)):
        eager.zero_grad()
        mean_of(plain(ids)).backward()
        eager.step()
        trainer.step(ids)
        assert plain.weight.grad.is_sparse and not captured.weight.grad.is_sparse
        torch.testing.assert_close(captured.weight.grad, plain.weight.grad.to_dense(), rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(captured.weight, plain.weight, rtol=1e-12, atol=1e-15)


def test_a_gradient_that_was_to_be_sparse_is_told_of_once():
    script = """
import sys, warnings
sys.path[:0] = sys.argv[1:]
import shoal, torch
model = torch.nn.Embedding(20, 4, sparse=True)
trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters()), lambda model, ids: model(ids).mean())
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for length in (3, 4):
        trainer.step(torch.arange(length))
print(*[str(each.message) for each in told], sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *sys.path], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("asks for a sparse gradient") == 1
    assert "of all 20 rows" in done.stdout
