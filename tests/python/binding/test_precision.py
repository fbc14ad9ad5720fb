# SPDX-License-Identifier: Apache-2.0
"""Mixed precision from Python: `Parallelism(precision="bfloat16")`, of one rank and of several."""

import copy
import json
import statistics

import families
import precision_on_ranks
import pytest
import torch
from test_parallel import run_ranks

import shoal


def loss_of(model, batch):
    return model(**batch).loss


def converted(batch, dtype):
    return {name: item.to(dtype) if item.is_floating_point() else item for name, item in batch.items()}


def gradients_of(model):
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def eager(model, batch):
    loss_of(model, batch).backward()
    return gradients_of(model)


def captured(model, batch, precision="bfloat16"):
    parallelism = shoal.Parallelism(precision=precision)
    shoal.Trainer(model, loss_fn=loss_of, parallelism=parallelism).backward(batch)
    return gradients_of(model)


def drawn(name, seed):
    """Weights that keep activations of size one, and images enough for the batch norm of a small ResNet."""
    model, batch = getattr(families, name)()
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    if name == "resnet":
        batch = {"pixel_values": torch.randn(16, 3, 32, 32), "labels": torch.randint(0, 5, (16,))}
    return model, batch


def ratio_of_errors(name, seed):
    """In the median of the tensors, against float64: ours over those of PyTorch's autocast."""
    model, batch = drawn(name, seed)
    exact = eager(copy.deepcopy(model).double(), converted(batch, torch.double))
    batch = converted(batch, torch.float)
    ours = captured(copy.deepcopy(model), batch)
    plain = captured(copy.deepcopy(model), batch, "float32")
    with torch.autocast("cpu", torch.bfloat16):
        theirs = eager(copy.deepcopy(model), batch)
    scale = max(gradient.norm() for gradient in exact.values())
    # Some are zero but for rounding, as that of the bias of keys.
    keys = [key for key, gradient in exact.items() if gradient.norm() > 1e-6 * scale]

    def errors(gradients):
        return [(gradients[key] - exact[key]).norm().item() for key in keys]

    assert statistics.median(errors(ours)) > 20 * statistics.median(errors(plain))  # no float32 in disguise
    return statistics.median(a / b for a, b in zip(errors(ours), errors(theirs), strict=True))


@pytest.mark.parametrize(
    "name", ["albert", "bart", "convnext", "gemma3", "mamba", "mixtral", "swin", "t5", "wav2vec2", "whisper"]
)
def test_other_families_too_by_one_draw(name):
    assert ratio_of_errors(name, 0) <= 1.25


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "resnet"])
def test_gradients_are_as_close_to_float64_as_those_of_autocast(name):
    assert statistics.median(ratio_of_errors(name, seed) for seed in range(6)) <= 1.05


def test_parameters_state_and_what_the_model_gives_back_stay_float32():
    model, batch = families.gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = shoal.Trainer(model, optimizer, loss_of, parallelism=shoal.Parallelism(precision="bfloat16"))
    losses = [trainer.step(batch).loss for _ in range(5)]
    assert losses[-1] < losses[0]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    trainer.materialize()
    assert {t.dtype for t in model.state_dict().values() if t.is_floating_point()} == {torch.float32}


def test_ranks_change_no_more_than_roundings():
    losses = precision_on_ranks.trained(
        *precision_on_ranks.prepared(), shoal.Parallelism(precision="bfloat16")
    )
    assert losses[-1] < 0.9 * losses[0]
    done = run_ranks(2, "precision_on_ranks.py", json.dumps(losses))
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("as one device") == 2


def test_a_model_in_float64_is_what_it_was():
    model, batch = families.gpt2()
    model.double()
    expected = eager(copy.deepcopy(model), batch)
    for key, gradient in captured(model, batch).items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "words, error",
    [
        ("float16", "float16 needs its loss scaled.*Remedy: bfloat16"),
        ("bf17", "'bf17' is neither bfloat16 nor float32"),
        ("bfloat16 full=mm", "'full=mm' is neither lower=OP nor full=OP, as in full=aten::bmm"),
        ("bfloat16 full=aten::mm lower=aten::mm", "aten::mm is to be lower, and full"),
    ],
)
def test_words_that_say_nothing_are_refused(words, error):
    with pytest.raises(shoal.InvalidInput, match=error):
        shoal.Parallelism(precision=words)


def test_an_op_that_the_step_does_not_have_is_refused_with_the_nearest():
    model, batch = families.gpt2()
    with pytest.raises(shoal.InvalidInput, match="the step has no op 'aten::mmm'; did you mean 'aten::mm'"):
        captured(model, batch, "bfloat16 full=aten::mmm")


def test_what_runs_by_itself_has_no_precision():
    model, _ = families.gpt2()
    parallelism = shoal.Parallelism(precision="bfloat16")
    with pytest.raises(shoal.InvalidInput, match='on_refusal="eager" runs the model itself, which knows'):
        shoal.Trainer(model, loss_fn=loss_of, parallelism=parallelism, on_refusal="eager")
