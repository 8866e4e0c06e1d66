"""Writes tests/golden/network_inputs.json: twenty steps of the network of tests/network_files.h that reads two pictures
and has three weighted losses over two labels (TWO_PICTURES), in PyTorch's float64 and float32. Run with PyTorch 2.15:

    python3 tests/golden/network_inputs.py

Records and weights are a function of the position alone (`words` below, word_of() in tests/network_files.h), so that
running it again changes no number."""
import json
import os

import torch
from torch.nn import functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS, SAMPLES, LR, MOMENTUM = 20, 16, 0.01, 0.9
FINE, COARSE = 10, 4
LEFT, RIGHT = (3, 32), (1, 16)  # channels and side
# parameters in the order of the network's modules: name, shape, and the width of the range of initial values
PARAMS = [("l.weight", (6, 5, 5, 3), 0.4), ("l.bias", (6,), 0.2), ("r.weight", (6, 7, 7, 1), 0.5), ("r.bias", (6,), 0.2),
          ("coarse_scores.weight", (COARSE, 150), 0.3), ("coarse_scores.bias", (COARSE,), 0.2), ("h.weight", (24, 150), 0.3),
          ("h.bias", (24,), 0.2), ("early_scores.weight", (FINE, 24), 0.6), ("early_scores.bias", (FINE,), 0.2),
          ("h2.weight", (16, 24), 0.6), ("h2.bias", (16,), 0.2), ("fine_scores.weight", (FINE, 16), 0.8),
          ("fine_scores.bias", (FINE,), 0.2)]
WEIGHTS = {"coarse": 0.3, "early": 0.5, "fine": 1.0}


def words(count, stream):
    """24-bit numbers by position and stream."""
    x = torch.arange(count, dtype=torch.int64) + stream * 0x9E3779B9 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (x ^ x >> 16) >> 8


def records(dtype):
    left, right = LEFT[0] * LEFT[1] ** 2, RIGHT[0] * RIGHT[1] ** 2
    pixels = torch.stack([words(left + right, 1000 + i) % 256 for i in range(SAMPLES)])
    values = (pixels.to(torch.float32) / 127.5 - 1).to(dtype)
    return (values[:, :left].reshape(SAMPLES, LEFT[0], LEFT[1], LEFT[1]),
            values[:, left:].reshape(SAMPLES, RIGHT[0], RIGHT[1], RIGHT[1]))


def losses_of(p, left, right, fine, coarse):
    def convolution(x, name, stride):
        return torch.tanh(F.conv2d(x, p[name + ".weight"].permute(0, 3, 1, 2), p[name + ".bias"], stride=stride))

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    x = F.avg_pool2d(convolution(left, "l", 3) + convolution(right, "r", 1), 2)
    x = x.permute(0, 2, 3, 1).reshape(SAMPLES, -1)  # channels are last here
    g = F.gelu(linear(x, "h"))
    onehot = F.one_hot(fine, FINE).to(left.dtype)
    return {"coarse": F.cross_entropy(linear(x, "coarse_scores"), coarse),
            "early": F.binary_cross_entropy_with_logits(linear(g, "early_scores"), onehot),
            "fine": F.cross_entropy(linear(torch.tanh(linear(g, "h2")), "fine_scores"), fine)}


def train(dtype):
    left, right = records(dtype)
    samples = torch.arange(SAMPLES)
    p = {}
    for i, (name, shape, width) in enumerate(PARAMS):
        count = 1
        for side in shape:
            count *= side
        values = ((words(count, i).to(torch.float64) / 2**24 - 0.5) * width).to(torch.float32)
        p[name] = values.reshape(shape).to(dtype).requires_grad_()
    optimizer = torch.optim.SGD(p.values(), lr=LR, momentum=MOMENTUM)
    curves = {name: [] for name in WEIGHTS}
    for _ in range(STEPS):
        optimizer.zero_grad()
        parts = {name: WEIGHTS[name] * loss
                 for name, loss in losses_of(p, left, right, samples % FINE, samples % COARSE).items()}
        sum(parts.values()).backward()
        optimizer.step()
        for name, loss in parts.items():
            curves[name].append(float(loss.detach()))
    return curves


def main():
    torch.set_num_threads(1)
    result = {"source": f"tests/golden/network_inputs.py with PyTorch {torch.__version__}: {STEPS} steps of SGD, each loss"
                        " times its weight",
              "widths": [width for _, _, width in PARAMS], "float64": train(torch.float64),
              "float32": train(torch.float32)}
    with open(os.path.join(HERE, "network_inputs.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
