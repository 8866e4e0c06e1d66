"""Seconds of one step of PyTorch's AdamW on the CPU, for bench-adamw: the fastest of its variants, each at its best.

    pytorch_adamw.py ELEMENTS THREADS
"""
import sys
import time

import torch

elements, threads = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)


def seconds(**variant):
    weights = torch.nn.Parameter(torch.rand(elements))
    weights.grad = torch.rand(elements)
    optimizer = torch.optim.AdamW([weights], lr=1e-3, **variant)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        optimizer.step()
        best = min(best, time.perf_counter() - start)
    return best


print(min(seconds(fused=True), seconds(foreach=True)))
