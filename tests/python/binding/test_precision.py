# SPDX-License-Identifier: Apache-2.0
"""Mixed precision from Python: `Parallelism(precision="bfloat16")` or "float16", of one rank and several."""

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


def under_autocast(model, batch, dtype):
    """With the loss scaled for float16 as `GradScaler` does it."""
    scale = 65536.0 if dtype == torch.float16 else 1.0
    while True:
        model.zero_grad()
        with torch.autocast("cpu", dtype):
            (loss_of(model, batch) * scale).backward()
        gradients = gradients_of(model)
        if all(gradient.isfinite().all() for gradient in gradients.values()):
            return {name: gradient / scale for name, gradient in gradients.items()}
        scale /= 2
        assert scale >= 1, "gradients that are not finite whatever the scale"


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


def ratio_of_errors(name, seed, precision="bfloat16"):
    """In the median of the tensors, against float64: ours over those of PyTorch's autocast."""
    model, batch = drawn(name, seed)
    exact = eager(copy.deepcopy(model).double(), converted(batch, torch.double))
    batch = converted(batch, torch.float)
    ours = captured(copy.deepcopy(model), batch, precision)
    plain = captured(copy.deepcopy(model), batch, "float32")
    theirs = under_autocast(copy.deepcopy(model), batch, getattr(torch, precision))
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


@pytest.mark.parametrize("name", ["qwen3_5", "recurrent_gemma", "xlnet"])
def test_what_backward_writes_into_is_no_hindrance_to_a_scaled_loss(name):
    assert statistics.median(ratio_of_errors(name, seed, "float16") for seed in range(5)) <= 1.25


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "resnet"])
def test_gradients_are_as_close_to_float64_as_those_of_autocast(name, precision):
    assert statistics.median(ratio_of_errors(name, seed, precision) for seed in range(6)) <= 1.05


@pytest.mark.parametrize("name, op", [("mixtral", "scatter.src"), ("t5", "where.self")])
def test_what_adds_a_constant_of_zeros_is_refused_as_nobody_says_that_it_stays_so(name, op):
    model, batch = getattr(families, name)()
    with pytest.raises(shoal.InvalidInput, match=f"float16 scales the loss, and aten::{op} in backward"):
        captured(model, batch, "float16")


def skips_of(trainer, batch, heavy, steps=12):
    """Which of the steps are skipped: those numbered in `heavy`, whose embeddings are scaled out of range."""
    skipped = []
    for step in range(steps):
        factor = torch.tensor(1e9 if step in heavy else 1.0)
        result = trainer.step({**batch, "factor": factor})
        skipped += [step] if result.skipped else []
    return skipped


def weighted_loss(model, batch):
    return model(**{name: item for name, item in batch.items() if name != "factor"}).loss * batch["factor"]


def test_an_update_that_overflows_is_skipped_and_a_saved_run_goes_on_to_the_bit(tmp_path):
    def prepared():
        torch.manual_seed(1)
        model, batch = families.gpt2()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        parallelism = shoal.Parallelism(precision="float16 scale=4096 grows_after=3")
        return (
            model,
            batch,
            optimizer,
            shoal.Trainer(model, optimizer, weighted_loss, parallelism=parallelism),
        )

    model, batch, optimizer, trainer = prepared()
    before = copy.deepcopy(model.state_dict())
    assert skips_of(trainer, batch, {0}, 1) == [0]  # the first of all
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    result = trainer.step({**batch, "factor": torch.tensor(1.0)})
    assert (result.skipped, result.step, result.loss_scale) == (False, 1, 2048)
    assert {state["step"].item() for state in optimizer.state.values()} == {1}

    trainer.save(tmp_path)
    state = copy.deepcopy(trainer.state_dict())
    assert state["loss_scale"] == {"scale": 2048, "updates": 1}
    assert skips_of(trainer, batch, {3, 4, 9}) == [3, 4, 9]
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainer.wait_for_saves()

    for resume in (lambda again: again.load(tmp_path), lambda again: again.load_state_dict(state)):
        model, batch, _, again = prepared()
        resume(again)
        assert skips_of(again, batch, {3, 4, 9}) == [3, 4, 9]
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_parameters_state_and_what_the_model_gives_back_stay_float32():
    model, batch = families.gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    trainer = shoal.Trainer(model, optimizer, loss_of, parallelism=shoal.Parallelism(precision="bfloat16"))
    losses = [trainer.step(batch).loss for _ in range(5)]
    assert losses[-1] < losses[0]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    trainer.materialize()
    assert {t.dtype for t in model.state_dict().values() if t.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_ranks_change_no_more_than_roundings(precision):
    losses = precision_on_ranks.trained(*precision_on_ranks.prepared(), precision)
    assert losses[-1] < 0.9 * losses[0]
    done = run_ranks(2, "precision_on_ranks.py", precision, json.dumps(losses))
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("as one device") == 2
    done = run_ranks(2, "precision_on_ranks.py", precision, json.dumps(losses), "mixed")
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("as one device") == 2


def test_a_hook_that_adds_a_tensor_is_refused_in_float16_also_while_that_is_zero():
    net, offset = torch.nn.Linear(4, 3), torch.zeros(3, 4)  # it may be filled later
    net.weight.register_hook(lambda gradient: gradient + offset)
    parallelism = shoal.Parallelism(precision="float16")
    trainer = shoal.Trainer(net, loss_fn=lambda net, x: net(x).square().mean(), parallelism=parallelism)
    with pytest.raises(
        shoal.InvalidInput, match=r"float16 scales the loss, and aten::add\.Tensor in backward"
    ):
        trainer.backward(torch.randn(5, 4))


def test_a_model_in_float64_is_what_it_was():
    model, batch = families.gpt2()
    model.double()
    expected = eager(copy.deepcopy(model), batch)
    for key, gradient in captured(model, batch).items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "words, error",
    [
        ("bf17", "'bf17' is none of bfloat16, float16 and float32"),
        ("bfloat16 full=mm", "'full=mm' is none of lower=OP, full=OP, as in full=aten::bmm"),
        ("float16 scale=1000", "the scale is 1000; it is a power of two"),
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
