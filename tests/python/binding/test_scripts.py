# SPDX-License-Identifier: Apache-2.0
# Above 400 lines: one script after the other; each stands alone.
"""Scripts as people have them, after PyTorch's examples, small and on made-up data. Each is run twice, with
the same lines: gradients come from eager PyTorch, and from a Trainer. Losses and models have to be equal."""

import random

import pytest
import torch
import torch.nn.functional as F
from conftest import same
from shoal._shoal import _EagerRandom
from torch import nn, optim
from torch.distributions import Categorical
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR

import shoal

STEPS = 20


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are tiny: threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


SEED_OF_BACKWARD = (mix(0 ^ mix(2**64 - 1)) + 2**63) % 2**64 - 2**63  # of seed 0, signed


class Eager:
    """What a script asks of PyTorch: forward and backward, and a step of an optimizer."""

    @staticmethod
    def backward_of(model, loss_of):
        calls = 0

        def backward(batch):
            nonlocal calls
            calls += 1
            with _EagerRandom(SEED_OF_BACKWARD, calls):
                result = loss_of(model, batch)
                loss, outputs = result if isinstance(result, tuple) else (result, None)
                loss.backward()
            return loss.item(), outputs

        return backward

    @staticmethod
    def step_of(model, optimizer, loss_of):
        steps = 0

        def step(batch):
            nonlocal steps
            steps += 1
            optimizer.zero_grad()
            with _EagerRandom(0, steps):
                loss = loss_of(model, batch)
                loss.backward()
            optimizer.step()
            return loss.item()

        return step


class Captured:
    @staticmethod
    def backward_of(model, loss_of):
        trainer = shoal.Trainer(model, loss_fn=loss_of, seed=0)

        def backward(batch):
            result = trainer.backward(batch, outputs=True)
            return result.loss, result.outputs[1] if isinstance(result.outputs, tuple) else None

        return backward

    @staticmethod
    def step_of(model, optimizer, loss_of):
        trainer = shoal.Trainer(model, optimizer, loss_of, seed=0)
        return lambda batch: trainer.step(batch).loss


def check(script, rtol=1e-9):
    results = []
    for way in (Eager, Captured):
        torch.manual_seed(0)
        random.seed(0)
        results.append(script(way))
    (losses, *models), (got_losses, *got_models) = results
    assert got_losses == pytest.approx(losses, rel=rtol) and len(set(losses)) > STEPS // 2
    for got, wanted in zip(got_models, models, strict=True):
        same(got.state_dict(), wanted.state_dict(), rtol, "parameter or buffer")


# --- Variational autoencoder.


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 20)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def elbo(model, x, beta):
    recon_x, mu, logvar = model(x)
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    return bce + beta * -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def vae(way, loss_of=lambda model, x: elbo(model, x, 1.0), anneal=lambda model, beta: None):
    model = VAE().double()
    step = way.step_of(model, optim.Adam(model.parameters(), lr=1e-3), loss_of)
    losses = []
    for i in range(STEPS):
        anneal(model, min(1.0, i / 10))
        losses.append(step(torch.rand(8, 20).double()))
    return losses, model


def test_variational_autoencoder():
    check(vae)


# --- Word language model.


class RNNModel(nn.Module):
    def __init__(self, ntoken=12, nhid=10, nlayers=2):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, nhid)
        self.rnn = nn.LSTM(nhid, nhid, nlayers, dropout=0.2)
        self.decoder = nn.Linear(nhid, ntoken)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output))
        return F.log_softmax(decoded.view(-1, decoded.size(-1)), dim=1), hidden


def repackage_hidden(h):
    """Detaches hidden states from their history."""
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def word_language_model(way):
    model, bptt, lr = RNNModel().double(), 5, 2.0
    data = torch.randint(12, (STEPS * bptt, 4))

    def loss_of(model, batch):
        source, targets, hidden = batch
        output, hidden = model(source, hidden)
        return F.nll_loss(output, targets), hidden

    backward = way.backward_of(model, loss_of)
    hidden = tuple(torch.zeros(2, 4, 10).double() for _ in range(2))
    losses = []
    for i in range(0, len(data) - 1, bptt):
        length = min(bptt, len(data) - 1 - i)  # the last one is shorter
        hidden = repackage_hidden(hidden)
        model.zero_grad()
        batch = data[i : i + length], data[i + 1 : i + 1 + length].reshape(-1), hidden
        loss, hidden = backward(batch)
        clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        losses.append(loss)
    return losses, model


def test_word_language_model_that_carries_its_state_and_updates_by_hand():
    check(word_language_model)


# --- Siamese network.


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)
        )
        self.fc = nn.Sequential(nn.Linear(32, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
        self.sigmoid = nn.Sigmoid()
        self.fc.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward_once(self, x):
        return self.features(x).view(x.size(0), -1)

    def forward(self, input1, input2):
        output = torch.cat((self.forward_once(input1), self.forward_once(input2)), 1)
        return self.sigmoid(self.fc(output))


def siamese(way):
    model, criterion = SiameseNetwork().double(), nn.BCELoss()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    backward = way.backward_of(model, lambda m, batch: criterion(m(batch[0], batch[1]).squeeze(), batch[2]))
    losses = []
    for _ in range(4):
        model.train()
        for _ in range(STEPS // 4):
            images_1, images_2 = torch.randn(2, 6, 1, 9, 9).double()
            optimizer.zero_grad()
            losses.append(backward((images_1, images_2, torch.rand(6).round().double()))[0])
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses.append(criterion(model(images_1, images_2).squeeze(), torch.ones(6).double()).item())
        scheduler.step()
    return losses, model


def test_siamese_network():
    check(siamese)


# --- REINFORCE.


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, 16), nn.Linear(16, 2)
        self.states, self.actions, self.rewards = [], [], []

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=1)


def drifts_away(state, action):
    """A cart that is pushed to either side: its next state, and whether it has left the track."""
    force = 1.0 if action == 1 else -1.0
    position, speed, angle, turning = state
    turning += 0.3 * angle - 0.2 * force + random.gauss(0, 0.1)
    state = (position + speed, 0.9 * speed + 0.1 * force, angle + turning, turning)
    return state, abs(state[0]) > 1.5 or abs(state[2]) > 1.5


def reinforce(way, validate_args=False):
    policy = Policy().double()
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)

    def loss_of(policy, batch):
        policy_loss = []
        for state, action, future in zip(*batch, strict=True):
            log_prob = Categorical(policy(state.unsqueeze(0)), validate_args=validate_args).log_prob(action)
            policy_loss.append(-log_prob * future)
        return torch.cat(policy_loss).sum()

    backward = way.backward_of(policy, loss_of)

    def select_action(state):
        with torch.no_grad():
            action = Categorical(policy(state.unsqueeze(0))).sample()
        policy.states.append(state)
        policy.actions.append(action)
        return action.item()

    losses = []
    for _ in range(STEPS):
        state = tuple(random.uniform(-0.05, 0.05) for _ in range(4))
        for _ in range(9):
            action = select_action(torch.tensor(state).double())
            state, done = drifts_away(state, action)
            policy.rewards.append(1.0)
            if done:
                break
        future, returns = 0.0, []
        for reward in policy.rewards[::-1]:
            future = reward + 0.99 * future
            returns.insert(0, future)
        returns = torch.tensor(returns).double()
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        optimizer.zero_grad()
        losses.append(backward((torch.stack(policy.states), torch.cat(policy.actions), returns))[0])
        optimizer.step()
        for kept in (policy.states, policy.actions, policy.rewards):
            del kept[:]
    return losses, policy


def test_reinforce_over_episodes_of_different_lengths():
    check(reinforce)


# --- Time sequence prediction.


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 9), nn.LSTMCell(9, 9), nn.Linear(9, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t, c_t, h_t2, c_t2 = (torch.zeros(input.size(0), 9, dtype=torch.double) for _ in range(4))
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


def time_sequence_prediction(way):
    data = torch.sin((torch.arange(15).double() + torch.randint(-60, 60, (8, 1))) / 2.0)
    input, target, test_input = data[3:, :-1], data[3:, 1:], data[:3, :-1]
    seq, criterion = Sequence().double(), nn.MSELoss()
    optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=4)
    backward = way.backward_of(seq, lambda seq, batch: criterion(seq(batch[0]), batch[1]))
    losses = []
    for _ in range(STEPS):

        def closure():
            optimizer.zero_grad()
            losses.append(backward((input, target))[0])
            return losses[-1]

        optimizer.step(closure)
        with torch.no_grad():
            losses.append(criterion(seq(test_input, future=5)[:, :-5], data[:3, 1:]).item())
    return losses, seq


def test_time_sequence_prediction():
    check(time_sequence_prediction, rtol=1e-6)  # a line search adds up what rounding there is


# --- Super resolution.


class SuperResolution(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 8, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(8, 6, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(6, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.conv2.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.conv3.weight)

    def forward(self, x):
        return self.pixel_shuffle(self.conv3(self.relu(self.conv2(self.relu(self.conv1(x))))))


def super_resolution(way):
    model, criterion = SuperResolution(3).double(), nn.MSELoss()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    step = way.step_of(model, optimizer, lambda model, batch: criterion(model(batch[0]), batch[1]))
    losses = []
    for _ in range(STEPS):
        target = torch.rand(2, 1, 12, 12).double()
        losses.append(step((F.avg_pool2d(target, 3), target)))
    return losses, model


def test_super_resolution():
    check(super_resolution)


# --- Generative adversarial network.


def weights_init(m):
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight, 0.0, 0.2)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(5, 6, 4, 1, 0, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(True),
        nn.ConvTranspose2d(6, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4, 6, 3, 1, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(6, 1, 4, 1, 0, bias=False),
        nn.Sigmoid(),
    )


def gan(way, in_one_model=True):
    nets = nn.ModuleDict({"G": generator(), "D": discriminator()}).double()
    nets.apply(weights_init)
    net_g, net_d, criterion = nets["G"], nets["D"], nn.BCELoss()
    optimizer_d = optim.Adam(net_d.parameters(), lr=0.002, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(net_g.parameters(), lr=0.002, betas=(0.5, 0.999))

    backward_d = way.backward_of(net_d, lambda net_d, batch: criterion(net_d(batch[0]).view(-1), batch[1]))
    if in_one_model:
        backward_g = way.backward_of(
            nets, lambda nets, batch: criterion(nets["D"](nets["G"](batch[0])).view(-1), batch[1])
        )
    else:
        backward_g = way.backward_of(
            net_g, lambda net_g, batch: criterion(net_d(net_g(batch[0])).view(-1), batch[1])
        )
    losses = []
    for _ in range(STEPS):
        real, noise = torch.rand(6, 1, 8, 8).double() * 2 - 1, torch.randn(6, 5, 1, 1).double()
        net_d.zero_grad()
        loss_real, _ = backward_d((real, torch.ones(6).double()))
        fake = net_g(noise)
        loss_fake, _ = backward_d((fake.detach(), torch.zeros(6).double()))
        optimizer_d.step()
        net_g.zero_grad()
        loss_g, _ = backward_g((noise, torch.ones(6).double()))  # the generator runs again
        optimizer_g.step()
        losses += [loss_real, loss_fake, loss_g]
    return losses, nets


def test_adversarial_network_with_a_trainer_of_each_loss():
    check(gan)
