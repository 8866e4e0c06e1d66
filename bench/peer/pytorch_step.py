#!/usr/bin/env python3
"""Training steps of the models that Twinspeed is benchmarked with, in PyTorch: the peer of bench/peer/compare.py.

Equal in both: architecture and number of parameters (tied embeddings where the model has them, learned or rotary
positions, LayerNorm with biases or RMSNorm, tanh GELU or SwiGLU, grouped queries), micro batch, sequence, padding of the
vocabulary, causal attention in bfloat16 without dropout, products in bfloat16 with float32 sums, float32 masters and
moments, AdamW with one learning rate and weight decay for all parameters, the norm of all gradients and clipping to it,
tokens drawn at random.

Different: gradients go to float32 and masters back to bfloat16 in passes of their own (--parameters master, the default:
weights, gradients and activations between layers are bfloat16 as Twinspeed's). With --parameters autocast, what many
training scripts do, weights and their gradients are float32, torch.autocast makes bfloat16 copies in every forward pass,
and what runs between layers is float32: more to move. The loss is taken from logits in float32, and the padding of the
vocabulary takes part in it; Twinspeed leaves it out. Steps are not waited for one by one here, while Twinspeed reads the
loss of each. torch.compile runs in its default mode, or with --compile layer-tuned in the mode that times its own
kernels for products as well as the library's (max-autotune-no-cudagraphs), which takes minutes to compile.

Prints one JSON object a line.
"""
import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

GPT2 = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}
LLAMA_1B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000, "tie_word_embeddings": True,
    "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
                     "original_max_position_embeddings": 8192}}


def load_config(name):
    if name in GPT2:
        layers, width, heads = GPT2[name]
        return {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_layer": layers, "n_embd": width,
                "n_head": heads}
    if name == "llama-3.2-1b":
        return LLAMA_1B
    with open(name, encoding="utf-8") as file:
        return json.load(file)


def padded(vocabulary, multiple):
    return (vocabulary + multiple - 1) // multiple * multiple


class Gpt2Layer(nn.Module):
    def __init__(self, width, heads, inner, epsilon):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width, epsilon)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width, epsilon)
        self.c_fc = nn.Linear(width, inner)
        self.mlp_proj = nn.Linear(inner, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    def in_order(self):
        for module in (self.ln_1, self.c_attn, self.attn_proj, self.ln_2, self.c_fc, self.mlp_proj):
            yield module.weight, 0.02 if isinstance(module, nn.Linear) else None
            yield module.bias, 0.0


class Gpt2(nn.Module):
    def __init__(self, config, multiple):
        super().__init__()
        width, layers, heads = config["n_embd"], config["n_layer"], config["n_head"]
        inner, epsilon = config.get("n_inner") or 4 * width, config.get("layer_norm_epsilon", 1e-5)
        self.vocabulary = config["vocab_size"]
        self.residual_std = 0.02 / math.sqrt(2 * layers)
        self.wte = nn.Embedding(padded(self.vocabulary, multiple), width)
        self.wpe = nn.Embedding(config["n_positions"], width)
        self.layers = nn.ModuleList(Gpt2Layer(width, heads, inner, epsilon) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, epsilon)
        # model flops of a token and forward pass: the vocabulary as it is, attention causal (squares 2: whole squares)
        linear = layers * (4 * width * width + 2 * width * inner) + width * self.vocabulary
        self.flops = lambda tokens, squares=1.0: 2.0 * linear + squares * layers * 2.0 * tokens * width

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))

    def in_order(self):
        """Parameters as Twinspeed numbers them, with the deviation of their initial values (None: ones)."""
        yield self.wte.weight, 0.02
        yield self.wpe.weight, 0.02
        for layer in self.layers:
            for parameter, std in layer.in_order():
                projection = parameter is layer.attn_proj.weight or parameter is layer.mlp_proj.weight
                yield parameter, self.residual_std if projection else std
        yield self.ln_f.weight, None
        yield self.ln_f.bias, 0.0


def rotary_frequencies(config, head):
    theta = config.get("rope_theta", 10000.0)
    frequencies = 1.0 / theta ** (torch.arange(0, head, 2, dtype=torch.float64) / head)
    scaling = config.get("rope_scaling")
    if not scaling:
        return frequencies
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    part = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (part + (1 - part) / factor)


class LlamaLayer(nn.Module):
    def __init__(self, config, head):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.heads, self.head = config["num_attention_heads"], head
        self.groups = config.get("num_key_value_heads") or self.heads
        self.input_norm = nn.RMSNorm(width, config.get("rms_norm_eps", 1e-6))
        self.qkv = nn.Linear(width, (self.heads + 2 * self.groups) * head, bias=False)
        self.q_norm = self.k_norm = None
        if config["model_type"] == "qwen3":
            self.q_norm = nn.RMSNorm(head, config.get("rms_norm_eps", 1e-6))
            self.k_norm = nn.RMSNorm(head, config.get("rms_norm_eps", 1e-6))
        self.out = nn.Linear(self.heads * head, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, config.get("rms_norm_eps", 1e-6))
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def turned(self, x, cosine, sine):
        first, second = x.chunk(2, -1)
        return (x * cosine + torch.cat((-second, first), -1) * sine).to(x.dtype)

    def forward(self, x, cosine, sine):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.input_norm(x)).view(batch, tokens, -1, self.head).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.groups, self.groups), 1)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.turned(q, cosine, sine), self.turned(k, cosine, sine)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.groups != self.heads)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def in_order(self):
        yield self.input_norm.weight, None
        yield self.qkv.weight, 0.02
        if self.q_norm is not None:
            yield self.q_norm.weight, None
            yield self.k_norm.weight, None
        yield self.out.weight, 0.02
        yield self.mlp_norm.weight, None
        yield self.gate_up.weight, 0.02
        yield self.down.weight, 0.02


class Llama(nn.Module):
    def __init__(self, config, multiple):
        super().__init__()
        width, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
        heads = config["num_attention_heads"]
        head = config.get("head_dim") or width // heads
        groups = config.get("num_key_value_heads") or heads
        self.vocabulary = config["vocab_size"]
        self.embed = nn.Embedding(padded(self.vocabulary, multiple), width)
        self.layers = nn.ModuleList(LlamaLayer(config, head) for _ in range(layers))
        self.norm = nn.RMSNorm(width, config.get("rms_norm_eps", 1e-6))
        self.head = None
        if not config.get("tie_word_embeddings"):
            self.head = nn.Linear(width, padded(self.vocabulary, multiple), bias=False)
        self.register_buffer("frequencies", rotary_frequencies(config, head).repeat(2).float(), persistent=False)
        linear = layers * (width * (heads + 2 * groups) * head + heads * head * width + 3 * width * inner)
        linear += width * self.vocabulary
        self.flops = lambda tokens, squares=1.0: 2.0 * linear + squares * layers * 2.0 * tokens * heads * head

    def forward(self, ids, targets):
        angle = torch.outer(torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32), self.frequencies)
        cosine, sine = angle.cos(), angle.sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = F.linear(self.norm(x), self.embed.weight if self.head is None else self.head.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))

    def in_order(self):
        yield self.embed.weight, 0.02
        for layer in self.layers:
            yield from layer.in_order()
        yield self.norm.weight, None
        if self.head is not None:
            yield self.head.weight, 0.02


def build(config, multiple):
    return (Gpt2 if config["model_type"] == "gpt2" else Llama)(config, multiple)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device(args.device)
        config = load_config(args.model)
        torch.manual_seed(1)
        with self.device:
            self.model = build(config, args.vocab_multiple)
            for parameter, std in self.model.in_order():
                nn.init.ones_(parameter) if std is None else nn.init.normal_(parameter, 0.0, std)
        if args.losses:
            twinspeed_weights(self.model, args.seed)
        self.half = args.dtype == "bf16"
        self.masters = None
        parameters = list(self.model.parameters())
        if self.half and args.parameters == "master":
            self.masters = [p.detach().clone() for p in parameters]
            for parameter in parameters:  # not the model: frequencies stay float32
                parameter.data = parameter.data.to(torch.bfloat16)
        self.parameters = parameters
        self.optimizer = torch.optim.AdamW(self.masters or parameters, lr=args.lr, betas=(0.9, 0.999), eps=1e-8,
                                           weight_decay=args.weight_decay, fused=self.device.type == "cuda")
        self.forward = self.model
        if args.compile == "whole":
            self.forward = torch.compile(self.model)
        elif args.compile in ("layer", "layer-tuned"):
            mode = "max-autotune-no-cudagraphs" if args.compile == "layer-tuned" else None
            for layer in self.model.layers:
                layer.compile(mode=mode)
            self.model.loss = torch.compile(self.model.loss, mode=mode)
        generator = torch.Generator(device=self.device).manual_seed(2)
        shape = (4, args.batch, args.seq + 1)
        self.tokens = torch.randint(self.model.vocabulary, shape, device=self.device, generator=generator)
        self.done = 0

    def batch(self):
        tokens = self.tokens[self.done % len(self.tokens)]
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def backward(self, ids, targets, scale):
        mixed = self.half and self.masters is None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            loss = self.forward(ids, targets)
        (loss * scale if scale != 1 else loss).backward()
        return loss.detach()

    def update(self):
        if self.args.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.args.clip)
        if self.masters is not None:
            for master, parameter in zip(self.masters, self.parameters):
                if master.grad is None:
                    master.grad = torch.empty_like(master)
            torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.parameters])
        self.optimizer.step()
        if self.masters is not None:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        loss = None
        for _ in range(self.args.accumulation):
            loss = self.backward(*self.batch(), 1.0 / self.args.accumulation)
            self.done += 1
        self.update()
        return loss

    def seconds(self, steps):
        """Of each of `steps` steps, none of which is waited for before the last."""
        if self.device.type != "cuda":
            times = []
            for _ in range(steps):
                start = time.perf_counter()
                self.step()
                times.append(time.perf_counter() - start)
            return times
        moments = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        torch.cuda.synchronize()
        moments[0].record()
        for moment in moments[1:]:
            self.step()
            moment.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in zip(moments, moments[1:])]

    def report(self, steps):
        times = self.seconds(steps)
        median = statistics.median(times)
        tokens = self.args.batch * self.args.seq * self.args.accumulation
        flops = 3.0 * tokens * self.model.flops(self.args.seq)
        out = {"program": "PyTorch " + torch.__version__, "model": self.args.model, "batch": self.args.batch,
               "sequence": self.args.seq, "accumulation": self.args.accumulation, "dtype": self.args.dtype,
               "parameters_kept": self.args.parameters if self.half else "float32", "compile": self.args.compile,
               "steps": steps, "step_s": median, "step_low_s": min(times), "step_high_s": max(times),
               "tokens_per_s": tokens / median, "model_flops_per_s": flops / median}
        if self.device.type == "cuda":
            out["device"] = torch.cuda.get_device_name()
            out["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return out


def count(model):
    return sum(p.numel() for p in model.parameters())


# ---- Twinspeed's initial weights, to compare losses: Philox 4x32-10 and Box-Muller (real/init.h, base/random.h) ----

def philox(seed, stream, blocks, device):
    """Four tensors of 32-bit words, one for each block."""
    mask = 0xffffffff
    index = torch.arange(blocks, dtype=torch.int64, device=device)
    c = [index & mask, index >> 32, torch.full_like(index, stream), torch.zeros_like(index)]
    key = [seed & mask, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57  # of 64 bits, whatever the sign
        c = [((b >> 32) & mask) ^ c[1] ^ key[0], b & mask, ((a >> 32) & mask) ^ c[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return c


def twinspeed_weights(model, seed):
    for index, (parameter, std) in enumerate(model.in_order()):
        if not std:
            nn.init.constant_(parameter, 1.0 if std is None else 0.0)
            continue
        blocks = (parameter.numel() + 3) // 4
        unit = [((word >> 8).float() + 0.5) * 2.0 ** -24 for word in philox(seed, index, blocks, parameter.device)]
        values = torch.empty((blocks, 4), device=parameter.device)
        for i in (0, 2):
            radius = torch.sqrt(-2 * torch.log(unit[i]))
            angle = 6.2831853 * unit[i + 1]
            values[:, i], values[:, i + 1] = radius * torch.cos(angle), radius * torch.sin(angle)
        with torch.no_grad():
            parameter.copy_((values.reshape(-1)[: parameter.numel()] * std).view_as(parameter))


def losses(args):
    """Of the first steps on a text in which every window of `seq` bytes is the same (one period or more of it), so that
    the order of samples does not matter."""
    trainer = Trainer(args)
    with open(args.losses, "rb") as file:
        text = file.read(args.seq + 1)
    trainer.tokens = torch.tensor(list(text), device=trainer.device).repeat(1, args.batch, 1)
    values = [trainer.step().item() for _ in range(args.steps)]
    return {"model": args.model, "parameters": count(trainer.model), "losses": values,
            "flops_per_step": 3.0 * args.batch * args.seq * trainer.model.flops(args.seq)}


def serve(args):
    """Ready, then `steps` timed steps for each line on standard input."""
    trainer = Trainer(args)
    start = time.perf_counter()
    trainer.seconds(args.warm_up)
    print(json.dumps({"ready": True, "parameters": count(trainer.model), "warm_up_s": time.perf_counter() - start}),
          flush=True)
    for line in sys.stdin:
        print(json.dumps(trainer.report(int(line))), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama-3.2-1b or a config.json")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--vocab-multiple", type=int, default=128)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--parameters", choices=("master", "autocast"), default="master")
    parser.add_argument("--compile", choices=("whole", "layer", "layer-tuned", "none"), default="whole")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=0, help="of the host (default: PyTorch's choice)")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--count", action="store_true", help="print the number of parameters and the flops of a step")
    parser.add_argument("--losses", metavar="TEXT", help="losses from Twinspeed's initial weights on a periodic text")
    parser.add_argument("--serve", action="store_true", help="warm up, then time steps when asked")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.count:
        with torch.device("meta"):
            model = build(load_config(args.model), args.vocab_multiple)
        tokens = args.batch * args.seq * args.accumulation
        print(json.dumps({"model": args.model, "parameters": count(model),
                          "flops_per_step": 3.0 * tokens * model.flops(args.seq),
                          "flops_per_step_whole_squares": 3.0 * tokens * model.flops(args.seq, 2.0)}))
        return 0
    try:
        if args.losses:
            print(json.dumps(losses(args)))
        elif args.serve:
            serve(args)
        else:
            trainer = Trainer(args)
            trainer.seconds(args.warm_up)
            print(json.dumps(trainer.report(args.steps)))
    except torch.OutOfMemoryError:
        print(json.dumps({"error": "out of memory"}), flush=True)
        return 7
    return 0


if __name__ == "__main__":
    sys.exit(main())
