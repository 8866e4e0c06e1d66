"""Records steps of a small GPT of PyTorch on one thread of the processor with torch.profiler, in three configurations
alternately: the least disturbed step of each, and its trace. tests/golden/kineto_cpu.json.gz is the trace of micro batch 4 and
sequence 256, without the members that are not read; tests/test_recordings.c has the three times.

    python3 bench/peer/record_kineto.py FOLDER
"""
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

HIDDEN, LAYERS, HEADS, VOCABULARY, ROUNDS = 256, 2, 4, 2048, 14
CONFIGURATIONS = ((4, 256), (2, 256), (4, 512))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention, self.projection = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (part.view(batch, tokens, HEADS, HIDDEN // HEADS).transpose(1, 2)
                   for part in self.attention(self.ln_1(x)).split(HIDDEN, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(1024, HIDDEN)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def main(folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

    def step(batch, tokens):
        ids, targets = (torch.randint(0, VOCABULARY, (batch, tokens)) for _ in range(2))
        optimizer.zero_grad()
        F.cross_entropy(model(ids).view(-1, VOCABULARY), targets.view(-1)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    best = {}
    for configuration in CONFIGURATIONS:
        step(*configuration)
    for number in range(ROUNDS):
        for batch, tokens in CONFIGURATIONS:
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
                begin = time.perf_counter()
                with record_function("ProfilerStep#%d" % number):
                    step(batch, tokens)
                seconds = time.perf_counter() - begin
            name = "%dx%d" % (batch, tokens)
            if seconds < best.get(name, 1e9):
                best[name] = seconds
                recorded.export_chrome_trace("%s/%s.json" % (folder, name))
    print(json.dumps(best))


main(sys.argv[1])
