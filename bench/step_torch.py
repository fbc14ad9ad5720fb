# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of bench/step: the same models, eager, told over a pipe when to take steps.

First line in: the shape as JSON. Then a line with a number of steps each; out goes the seconds they took.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Conv1D(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(0, 0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = Conv1D(width, 3 * width), Conv1D(width, width)
        self.c_fc, self.mlp_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape["width"]
        self.wte = nn.Embedding(shape["vocabulary"], width)
        self.wpe = nn.Embedding(shape["sequence"], width)
        self.h = nn.ModuleList(Block(width, shape["heads"]) for _ in range(shape["layers"]))
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, 0, 0.02)
        nn.init.normal_(self.wpe.weight, 0, 0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1)))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return y.relu_()


class Resnet(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = channels = shape["width"]
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        blocks = []
        for layer, count in enumerate(shape["layers"]):
            for block in range(count):
                blocks.append(BasicBlock(channels, width << layer, 2 if block == 0 and layer > 0 else 1))
                channels = width << layer
        self.layers = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, shape["classes"])

    def forward(self, x):
        y = F.max_pool2d(self.bn1(self.conv1(x)).relu_(), 3, 2, 1)
        return self.fc(F.adaptive_avg_pool2d(self.layers(y), 1).flatten(1))


def main():
    shape = json.loads(sys.stdin.readline())
    torch.set_num_threads(shape["threads"])
    if shape["model"] == "gpt2":
        model = Gpt2(shape)
        size = (shape["batch"], shape["sequence"])
        x, y = (torch.randint(shape["vocabulary"], size) for _ in range(2))
    else:
        model = Resnet(shape)
        x = torch.randn(shape["batch"], 3, shape["image"], shape["image"])
        y = torch.randint(shape["classes"], (shape["batch"],))
    if shape["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            loss.item()
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()
