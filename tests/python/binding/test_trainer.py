# SPDX-License-Identifier: Apache-2.0
# Above 400 lines: one test for each call of the trainer.
import collections
import copy
import dataclasses
import gc
import re
import time
import weakref

import families
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import shoal


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def squared_error(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def pair(rows=6):
    return torch.randn(rows, 8).double(), torch.randn(rows, 4).double()


def test_parameter_groups_keep_their_options(compare):
    def optimizer(parameters):
        first, *rest = parameters
        return torch.optim.AdamW(
            [{"params": [first], "lr": 0.1, "betas": (0.5, 0.6)}, {"params": rest[:2]}], lr=0.01
        )

    comparison = compare(net(), squared_error, optimizer)
    last = comparison.captured[2].bias.detach().clone()
    comparison.run(pair())
    assert torch.equal(comparison.captured[2].bias, last), "a parameter in no group was updated"


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
    ],
    ids=["StepLR", "OneCycleLR, which moves betas too"],
)
@pytest.mark.filterwarnings("error")
def test_schedulers_are_followed(compare, scheduler):
    comparison = compare(net(), squared_error)
    plain, captured = scheduler(comparison.optimizer), scheduler(comparison.trainer.optimizer)
    batch = pair()
    for _ in range(5):
        wanted, got = comparison.step(batch)
        assert got == pytest.approx(wanted, rel=1e-12)
        plain.step(), captured.step()
    comparison.check()


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    scale: float = 1.0


Named = collections.namedtuple("Named", "x y")


@pytest.mark.parametrize(
    "make, loss",
    [
        (
            lambda x, y: {"x": x, "more": {"y": [y]}},
            lambda m, b: (m(b["x"]) - b["more"]["y"][0]).square().mean(),
        ),
        (lambda x, y: Sample(x, y, 2.0), lambda m, b: (m(b.x) - b.y).square().mean() * b.scale),
        (lambda x, y: Named(x, y), lambda m, b: (m(b.x) - b.y).square().mean()),
        (lambda x, y: [x, (y, None, "mean")], lambda m, b: getattr((m(b[0]) - b[1][0]).square(), b[1][2])()),
    ],
    ids=["dictionary", "dataclass", "named tuple", "list"],
)
def test_batches_of_any_structure(compare, make, loss):
    compare(net(), loss).run(make(*pair()), updates=2)


def test_the_model_is_called_with_the_batch_when_there_is_no_loss_fn():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 4).double()

        def forward(self, x, y):
            return {"loss": (self.fc(x) - y).square().mean()}

    model, (x, y) = Model(), pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wanted = model(x, y)["loss"].item()
    assert shoal.Trainer(model, optimizer).step({"x": x, "y": y}).loss == pytest.approx(wanted)
    assert shoal.Trainer(model, optimizer).step((x, y)).loss == pytest.approx(wanted)


def test_outputs_come_in_the_models_own_structure_and_without_caches():
    model, batch = families.gpt2()
    plain = copy.deepcopy(model.train())
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert trainer.step(batch).outputs is None
    with torch.no_grad():
        wanted = copy.deepcopy(model)(**batch)
    outputs = trainer.step(batch, outputs=True).outputs
    assert type(outputs) is type(wanted) and outputs.past_key_values is None
    torch.testing.assert_close(outputs.logits, wanted.logits)
    torch.testing.assert_close(outputs.loss, wanted.loss)
    assert type(plain(**batch)) is type(outputs)


def test_numbers_that_a_loss_returns_are_those_of_the_batch():
    def loss_of(model, batch):
        return {"loss": model(batch).square().mean(), "n": len(batch), "name": f"of {len(batch)}"}

    model = nn.Linear(8, 4).double()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_of)
    for size in (10, 10, 7, 10, 7):
        for run in (trainer.evaluate, trainer.step):
            outputs = run(torch.randn(size, 8).double(), outputs=True).outputs
            assert (outputs["n"], outputs["name"]) == (size, f"of {size}")


def test_evaluation_changes_nothing_and_has_no_dropout():
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 4)).double()
    model[2].eval()  # frozen on purpose: it has to stay so
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), squared_error)
    batch = pair()
    trainer.step(batch)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluation = trainer.evaluate(batch, outputs=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model] == [True, True, False, True]
    plain = copy.deepcopy(model).eval()
    assert evaluation.loss == pytest.approx(squared_error(plain, batch).item())
    assert float(evaluation) == evaluation.loss


def test_dropout_is_that_of_seed_and_step():
    def losses(seed):
        model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), squared_error, seed=seed)
        return [trainer.step((torch.ones(2, 8).double(), torch.ones(2, 4).double())).loss for _ in range(3)]

    assert losses(0) == losses(0) and losses(0) != losses(1) and len(set(losses(0))) == 3


def test_checkpointing_draws_the_same_dropout_again():
    class Model(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.first, self.second = nn.Linear(8, 32).double(), nn.Linear(32, 4).double()
            self.reentrant = reentrant

        def part(self, x):
            return nn.functional.dropout(self.first(x).tanh(), 0.5)

        def forward(self, x):
            if self.reentrant is None:
                return self.second(self.part(x))
            return self.second(
                checkpoint(self.part, x.requires_grad_(self.reentrant), use_reentrant=self.reentrant)
            )

    batch = pair()
    results = []
    for reentrant in (None, False, True):
        torch.manual_seed(5)
        model = Model(reentrant)
        trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), squared_error)
        results.append([trainer.step(batch).loss for _ in range(3)] + [trainer.gradients()["first.weight"]])
        another = pair(7)
        state = torch.get_rng_state()
        trainer.step(another)
        assert torch.equal(torch.get_rng_state(), state), "capture moved PyTorch's generator"
    for result in results[1:]:
        assert result[:3] == results[0][:3]
        torch.testing.assert_close(result[3], results[0][3])


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


@torch.library.custom_op("shoal_tests::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() / 2)


half.register_fake(torch.empty_like)
half.register_autograd(lambda ctx, gradient: gradient / 2)


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, b: (Cube.apply(m(b[0])) - b[1]).square().mean(),
        lambda m, b: (half(m(b[0])) - b[1]).square().mean(),
        lambda m, b: torch.func.functional_call(m, dict(m.named_parameters()), (b[0],)).square().mean(),
        lambda m, b: m(b[0])[b[1] > 0].square().mean() + m(b[0])[:, b[1][0] > -9].mean(),
        lambda m, b: torch.vmap(torch.func.grad(lambda row: m(row).sin().sum()))(b[0]).square().mean(),
        lambda m, b: torch.einsum("bi,bi->", m(b[0]), b[1]) + torch.fft.rfft(m(b[0])).abs().sum(),
    ],
    ids=[
        "autograd function",
        "custom operator",
        "functional call",
        "masks of the batch",
        "vmap of a gradient",
        "einsum and a Fourier transform",
    ],
)
def test_what_people_write_in_models(compare, loss):
    compare(net(), loss).run(pair(), updates=3)


def test_hooks(compare):
    comparison = compare(net(), squared_error)
    for model in (comparison.plain, comparison.captured):
        model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        model[0].weight.register_hook(lambda gradient: gradient * 0.5)
        model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 3,))
    comparison.run(pair(), updates=3)


def test_autocast_regions():
    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return squared_error(model, batch)

    batch = [tensor.float() for tensor in pair()]
    plain, captured = net().float(), net().float()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    trainer = shoal.Trainer(captured, torch.optim.SGD(captured.parameters(), lr=0.1), loss)
    for _ in range(3):
        optimizer.zero_grad()
        wanted = loss(plain, batch)
        wanted.backward()
        optimizer.step()
        assert trainer.step(batch).loss == pytest.approx(wanted.item(), rel=1e-6)
    torch.testing.assert_close(captured.state_dict(), plain.state_dict())
    assert "bf16" in str(trainer.graph(batch))


def test_autocast_around_the_step_is_another_graph():
    model = net().float()
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), squared_error)
    batch = [tensor.float() for tensor in pair()]
    exact = trainer.step(batch).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert trainer.step(batch).loss != exact
    assert trainer.step(batch).loss == exact


def test_a_buffer_that_forward_replaces_is_kept(compare):
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            h = self.fc(x)
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            return h - self.mean

    comparison = compare(Running(), squared_error)
    buffer = comparison.captured.mean
    comparison.run(pair())
    assert comparison.captured.mean is buffer and buffer.abs().sum() > 0


def test_the_model_can_be_saved_and_changed_between_steps(tmp_path):
    model, batch = families.gpt2()
    trainer = shoal.Trainer(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for _ in range(3):
        trainer.step(batch)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert trainer.evaluate(batch).loss == pytest.approx(again(**batch).loss.item(), rel=1e-5)
    model.load_state_dict(families.gpt2()[0].state_dict())
    assert trainer.evaluate(batch).loss == pytest.approx(
        families.gpt2()[0].eval()(**batch).loss.item(), rel=1e-5
    )
    model.double()
    assert trainer.evaluate(batch).outputs is None
    with torch.no_grad():
        assert trainer.evaluate(batch).loss == pytest.approx(
            copy.deepcopy(model).eval()(**batch).loss.item(), rel=1e-12
        )


def test_training_goes_on_from_a_state_dict():
    batches = [pair() for _ in range(6)]

    def trainer():
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4)).double()
        return shoal.Trainer(model, torch.optim.AdamW(model.parameters(), lr=0.01), squared_error)

    whole = trainer()
    for batch in batches[:3]:
        whole.step(batch)
    state = copy.deepcopy(whole.state_dict())
    resumed = trainer()
    resumed.load_state_dict(state)
    assert [whole.step(batch).loss for batch in batches[3:]] == [
        resumed.step(batch).loss for batch in batches[3:]
    ]


def test_the_optimizer_of_pytorch_goes_on_where_the_trainer_stopped(compare):
    comparison = compare(net(), squared_error)
    batch = pair()
    for _ in range(3):
        comparison.step(batch)
    optimizer = torch.optim.AdamW(comparison.captured.parameters(), lr=1e-3)
    optimizer.load_state_dict(comparison.trainer.optimizer.state_dict())
    comparison.optimizer.zero_grad()
    for model, steps in ((comparison.plain, comparison.optimizer), (comparison.captured, optimizer)):
        squared_error(model, batch).backward()
        steps.step()
    torch.testing.assert_close(comparison.captured.state_dict(), comparison.plain.state_dict())


def test_gradients_are_clipped(compare):
    comparison = compare(net(), squared_error, clip_norm=0.1)
    batch = pair()
    comparison.optimizer.zero_grad()
    squared_error(comparison.plain, batch).backward()
    norm = nn.utils.clip_grad_norm_(comparison.plain.parameters(), 0.1)
    comparison.optimizer.step()
    assert comparison.trainer.step(batch).grad_norm == pytest.approx(norm.item())
    torch.testing.assert_close(
        comparison.captured.state_dict(), comparison.plain.state_dict(), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_with_a_ragged_last_batch(compare, workers):
    x, y = pair(20)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=8, num_workers=workers
    )
    comparison = compare(net(), squared_error)
    for _ in range(2):
        for batch in loader:
            wanted, got = comparison.step(batch)
            assert got == pytest.approx(wanted, rel=1e-12)
    comparison.check()


def test_a_compiled_model_is_taken_as_what_was_compiled():
    model = net()
    compiled = torch.compile(model)
    trainer = shoal.Trainer(compiled, torch.optim.SGD(compiled.parameters(), lr=0.1), squared_error)
    assert trainer.model is model and trainer.step(pair()).loss > 0


def test_capture_leaves_gradients_and_grad_mode_alone():
    model = net()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    trainer = shoal.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), squared_error)
    trainer.step(pair())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight)) and model[0].bias.grad is None
    assert torch.is_grad_enabled() and (model(pair()[0]) + 1).requires_grad


def test_a_teacher_outside_the_model_gets_the_gradients_that_it_has_in_eager(compare):
    teacher = net()

    def loss(model, batch):
        return nn.functional.mse_loss(model(batch[0]), teacher(batch[0]))

    compare(net(), loss).run(pair())
    student, batch = net(), pair()
    teacher.zero_grad()
    trainer = shoal.Trainer(student, torch.optim.SGD(student.parameters(), lr=0.0), loss)
    trainer.step(batch), trainer.step(batch)
    got = [parameter.grad.clone() for parameter in teacher.parameters()]
    teacher.zero_grad()
    loss(student, batch).backward()
    for gradient, parameter in zip(got, teacher.parameters(), strict=True):
        torch.testing.assert_close(gradient, 2 * parameter.grad)  # nobody set it to zero in between


def test_a_captured_function_prints_its_graph():
    forward = shoal.capture(lambda a, b: a @ b + 1, torch.ones(2, 3), b=torch.ones(3, 4))
    assert forward.ops == ["aten::mm", "aten::add.Scalar"] and len(forward) == 2
    assert "mm" in str(forward) and "[2, 4]" in str(forward).replace("x", ", ")
    model = net()
    both = shoal.capture(lambda batch: squared_error(model, batch), pair())
    assert "aten::mse_loss_backward" in both.ops and 'parameter "0.weight"' in str(both).replace(
        "param ", "parameter "
    )
    assert "0" in both.modules


def test_a_trainer_and_its_model_are_freed():
    model = net()
    trainer = shoal.Trainer(model, torch.optim.AdamW(model.parameters()), squared_error)
    trainer.step(pair(), outputs=True)
    alive = weakref.ref(model)
    del trainer, model
    gc.collect()
    assert alive() is None


def test_a_capture_that_takes_long_says_how_far_it_is(capsys):
    def slow(model, x):
        for _ in range(3):
            x = model(x)
            end = time.perf_counter() + 0.9
            while time.perf_counter() < end:
                pass
        return x.mean()

    shoal.Trainer(nn.Linear(4, 4), loss_fn=slow).evaluate(torch.randn(2, 4))
    said = capsys.readouterr().err
    told = re.findall(r"^shoal: capturing the model: (\d+) operators so far, (\d+) s\.", said, re.MULTILINE)
    assert len(told) == 2  # a model is run twice
    assert all(int(operators) >= 3 and int(seconds) >= 2 for operators, seconds in told)
