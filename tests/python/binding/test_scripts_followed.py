# SPDX-License-Identifier: Apache-2.0
"""Scripts whose loss depends on more than its batch: attributes and closures that change, and modules beside
the model."""

import torch
import torch.nn.functional as F
from test_scripts import (
    STEPS,
    RNNModel,
    check,
    elbo,
    gan,
    one_thread,  # noqa: F401
    repackage_hidden,
    vae,
)
from torch import optim


def test_variational_autoencoder_with_a_beta_that_is_annealed():
    def anneal(model, beta):
        model.beta = beta

    check(lambda way: vae(way, lambda model, x: elbo(model, x, model.beta), anneal))


def test_variational_autoencoder_with_a_beta_that_the_loss_closes_over():
    def script(way):
        beta = 0.0

        def loss_of(model, x):
            return elbo(model, x, beta)

        def anneal(model, value):
            nonlocal beta
            beta = value

        return vae(way, loss_of, anneal)

    check(script)


def test_word_language_model_whose_state_is_an_attribute():
    def script(way):
        model = RNNModel().double()
        model.hidden = tuple(torch.zeros(2, 4, 10).double() for _ in range(2))

        def loss_of(model, batch):
            source, targets = batch
            output, hidden = model(source, model.hidden)
            model.hidden = repackage_hidden(hidden)
            return F.nll_loss(output, targets)

        step = way.step_of(model, optim.SGD(model.parameters(), lr=1.0), loss_of)
        losses = []
        for _ in range(STEPS):
            tokens = torch.randint(12, (6, 4))
            losses.append(step((tokens[:-1], tokens[1:].reshape(-1))))
        return losses, model

    check(script)


def test_adversarial_network_whose_generator_loss_closes_over_the_discriminator():
    check(lambda way: gan(way, in_one_model=False))
