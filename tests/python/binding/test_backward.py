# SPDX-License-Identifier: Apache-2.0
"""Gradients without an update: what trainer.backward() leaves is what loss.backward() leaves, so that whoever
makes use of it (an optimizer, clipping, a closure, two losses) goes on as with PyTorch."""

import copy

import pytest
import torch
from conftest import same
from test_parallel import run_ranks
from torch import nn
from torch.nn.utils import clip_grad_norm_

import shoal


def net():
    layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    return layers.double()


def squared_error(model, batch):
    x, y = batch
    return (model(x) - y).square().mean()


def pair(rows=6):
    return torch.randn(rows, 8).double(), torch.randn(rows, 4).double()


class Both:
    """A model trained by PyTorch alone, and a copy whose gradients come from a Trainer."""

    def __init__(self, model, loss_of=squared_error, **options):
        torch.manual_seed(0)
        self.plain = model
        self.captured = copy.deepcopy(model)
        self.loss_of = loss_of
        self.trainer = shoal.Trainer(self.captured, loss_fn=loss_of, **options)

    def backward(self, batch):
        loss = self.loss_of(self.plain, batch)
        loss.backward()
        got = self.trainer.backward(batch)
        assert got.loss == pytest.approx(loss.item(), rel=1e-12)

    def check(self, rtol=1e-10):
        for values in (gradients, lambda m: dict(m.named_parameters()), lambda m: dict(m.named_buffers())):
            same(values(self.captured), values(self.plain), rtol, "value")


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_gradients_add_up_over_calls_and_buffers_follow():
    both = Both(net())
    for rows in (6, 4, 6):
        both.backward(pair(rows))
    both.check()
    assert both.captured[1].num_batches_tracked == 3


def test_any_optimizer_clipping_and_scheduler():
    both = Both(net())
    optimizers = [torch.optim.RMSprop(m.parameters(), lr=0.01) for m in (both.plain, both.captured)]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2) for optimizer in optimizers]
    for _ in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        both.backward(pair())
        for model in (both.plain, both.captured):
            clip_grad_norm_(model.parameters(), 0.1)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
    both.check()


def test_a_closure_that_is_called_several_times_a_step():
    both = Both(nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4)).double())
    batch = pair()
    ours, theirs = (
        torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=5) for m in (both.captured, both.plain)
    )

    def captured():
        ours.zero_grad()
        return both.trainer.backward(batch)

    def plain():
        theirs.zero_grad()
        loss = squared_error(both.plain, batch)
        loss.backward()
        return loss

    for _ in range(3):
        assert ours.step(captured).loss == pytest.approx(theirs.step(plain).item(), rel=1e-9)
    same(dict(both.captured.named_parameters()), dict(both.plain.named_parameters()), 1e-8, "parameter")


def test_two_losses_of_one_model_and_two_optimizers():
    both = Both(
        nn.ModuleDict({"g": nn.Linear(3, 8), "d": nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))}).double()
    )
    score = nn.functional.binary_cross_entropy_with_logits

    def of_discriminator(m, batch):
        real, noise = batch
        true, false = m["d"](real), m["d"](m["g"](noise).detach())
        return score(true, torch.ones_like(true)) + score(false, torch.zeros_like(false))

    def of_generator(m, noise):
        false = m["d"](m["g"](noise))
        return score(false, torch.ones_like(false))

    trainers = [shoal.Trainer(both.captured, loss_fn=loss) for loss in (of_discriminator, of_generator)]
    optimizers = [
        (torch.optim.Adam(m["d"].parameters(), lr=1e-2), torch.optim.Adam(m["g"].parameters(), lr=1e-2))
        for m in (both.plain, both.captured)
    ]
    for _ in range(4):
        noise, real = torch.randn(6, 3).double(), pair()[0]
        for model, (d, g), backwards in (
            (
                both.plain,
                optimizers[0],
                [
                    lambda batch, loss=loss: loss(both.plain, batch).backward()
                    for loss in (of_discriminator, of_generator)
                ],
            ),
            (both.captured, optimizers[1], [trainer.backward for trainer in trainers]),
        ):
            model.zero_grad()
            backwards[0]((real, noise))
            assert all(p.grad is None for p in model["g"].parameters())
            d.step()
            backwards[1](noise)  # adds to the discriminator's gradients too
            g.step()
    both.check()


def test_a_reference_to_a_gradient_stays_good():
    both = Both(net())
    both.backward(pair())
    held = both.captured[0].weight.grad
    both.backward(pair())
    assert both.captured[0].weight.grad is held
    for model in (both.plain, both.captured):
        model.zero_grad(set_to_none=False)
    assert not held.any()
    both.backward(pair())
    assert both.captured[0].weight.grad is held
    both.check()
    kept = held.clone()
    both.captured.zero_grad()
    both.trainer.backward(pair())
    assert both.captured[0].weight.grad is not held and torch.equal(held, kept)


def test_tied_unused_and_frozen_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.second.bias.requires_grad_(False)

        def forward(self, x):
            return self.second(self.first(x).tanh())[:, :4]

    both = Both(Tied().double())
    for _ in range(2):
        both.backward(pair())
    both.check()
    assert both.captured.unused.weight.grad is None and both.captured.second.bias.grad is None


def test_parameters_may_be_frozen_and_replaced_gradients_given_between_calls():
    both = Both(net())
    both.backward(pair())
    for model in (both.plain, both.captured):
        model[0].weight.requires_grad_(False)
        model[3].weight.grad = torch.ones_like(model[3].weight)
    both.backward(pair())
    both.check()


def test_dropout_of_each_call_is_another_and_that_of_the_seed():
    def losses(seed):
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)).double()
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
        trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), squared_error, seed=seed)
        batch = torch.ones(2, 8).double(), torch.ones(2, 4).double()
        return [act(batch).loss for _ in range(3) for act in (trainer.step, trainer.backward)]

    assert losses(1) == losses(1) and losses(1) != losses(2) and len(set(losses(1))) == 6


def test_outputs_and_a_loss_that_is_not_finite():
    both = Both(net(), lambda m, batch: {"loss": squared_error(m, batch), "y": m[3].weight.sum() * batch[0]})
    x, y = pair()
    result = both.trainer.backward((x, y), outputs=True)
    torch.testing.assert_close(result.outputs["y"], (both.plain[3].weight.sum() * x).detach())
    assert float(result) == result.loss and repr(result) == f"BackwardResult(loss={result.loss})"
    y[0, 0] = float("inf")
    assert both.trainer.backward((x, y)).loss == float("inf")


def test_without_an_optimizer_step_says_what_to_do():
    both = Both(net())
    with pytest.raises(shoal.InvalidInput, match=r"no optimizer to step with. Remedy: .*backward\(batch\)"):
        both.trainer.step(pair())
    assert both.trainer.optimizer is None and both.trainer.evaluate(pair()).loss > 0
    with pytest.raises(shoal.InvalidInput, match=r"clip_norm is 0.5, and without an optimizer"):
        shoal.Trainer(net(), loss_fn=squared_error, clip_norm=0.5)
    with pytest.raises(shoal.InvalidInput, match=r"LBFGS, which Shoal does not have; .*trainer.backward\("):
        shoal.Trainer(both.plain, torch.optim.LBFGS(both.plain.parameters()), squared_error)


def test_training_goes_on_from_a_state_dict_without_an_optimizer():
    def trainer():
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3), nn.Linear(32, 4)).double()
        return shoal.Trainer(model, loss_fn=squared_error)

    whole, resumed, batch = trainer(), trainer(), pair()
    whole.backward(batch)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert whole.backward(batch).loss == resumed.backward(batch).loss
    with pytest.raises(shoal.InvalidInput, match="without an optimizer, and this one has one"):
        model = net()
        shoal.Trainer(model, torch.optim.SGD(model.parameters()), squared_error).load_state_dict(
            whole.state_dict()
        )


def test_what_autograd_would_do_otherwise_is_refused():
    both = Both(net())
    hook = both.captured[3].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(shoal.InvalidInput, match=r"parameter 3.bias has a hook .*after backward\(\)"):
        both.trainer.backward(pair())
    hook.remove()
    both.trainer.backward(pair())
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).double()
    model[1].weight.data = model[0].weight.data
    with pytest.raises(shoal.InvalidInput, match="0.weight and 1.weight share memory and are two tensors"):
        shoal.Trainer(model, loss_fn=lambda m, x: m(x).sum())


def test_a_step_keeps_its_gradients_when_asked_to():
    plain = net()
    model = copy.deepcopy(plain)
    trainer = shoal.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        squared_error,
        clip_norm=0.01,
        keeps_gradients=True,
    )
    for _ in range(2):
        batch = pair()
        plain.load_state_dict(model.state_dict())
        plain.zero_grad()
        squared_error(plain, batch).backward()
        trainer.step(batch)
        same(gradients(model), gradients(plain), 1e-10, "gradient")
    model[0].weight.requires_grad_(False)
    trainer.step(batch)
    assert model[0].weight.grad is None and model[0].bias.grad is not None


def test_gradients_on_ranks_are_those_of_one_device():
    done = run_ranks(2, "backward_on_ranks.py")
    assert done.returncode == 0, done.stderr[-5000:]
    assert [line for line in done.stdout.splitlines() if line.startswith("[0]")] == [
        f"[0] {strategy}: equal"
        for strategy in ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3", "tensor parallel")
    ]
