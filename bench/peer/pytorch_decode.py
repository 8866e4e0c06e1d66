#!/usr/bin/env python3
"""Decoding with PyTorch and Transformers, the shape, type and lengths of bench/decode.c: Llama 3.2 1B with random weights
in bfloat16, 128 tokens after a prompt of 128, over a cache of keys and values, greedy, on as many threads as given.

Usage: pytorch_decode.py THREADS ROUNDS [eager|compiled]...
Prints a line for each round and way: milliseconds of a token by the clock, and of the processor's time. Eager grows its
cache; compiled has a static one of 256 tokens and the default mode of torch.compile, compiled before the first round."""
import sys
import time

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

PROMPT, TOKENS = 128, 128


def build():
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
                         rope_theta=500000.0, tie_word_embeddings=True)
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    return model, config


def decode(step, config, compiled):
    """Returns seconds a token by the clock and of the processor."""
    tokens = torch.randint(0, config.vocab_size, (1, PROMPT))
    cache = StaticCache(config=config, max_cache_len=PROMPT + TOKENS) if compiled else DynamicCache(config=config)
    with torch.inference_mode():
        position = torch.arange(PROMPT)
        logits = step(input_ids=tokens, past_key_values=cache, cache_position=position, use_cache=True,
                      logits_to_keep=1).logits
        token = logits[:, -1:].argmax(-1)
        clock, processor = time.perf_counter(), time.process_time()
        for i in range(TOKENS - 1):
            logits = step(input_ids=token, past_key_values=cache, cache_position=torch.tensor([PROMPT + i]),
                          use_cache=True, logits_to_keep=1).logits
            token = logits[:, -1:].argmax(-1)
        count = TOKENS - 1
        return (time.perf_counter() - clock) / count, (time.process_time() - processor) / count


def main():
    threads, rounds = int(sys.argv[1]), int(sys.argv[2])
    ways = sys.argv[3:] or ["eager", "compiled"]
    torch.set_num_threads(threads)
    model, config = build()
    steps = {"eager": model}
    if "compiled" in ways:
        steps["compiled"] = torch.compile(model)
        decode(steps["compiled"], config, True)
    for number in range(rounds):
        for way in ways:
            clock, processor = decode(steps[way], config, way == "compiled")
            print(f"round {number + 1}: {way} {1e3 * clock:.2f} ms a token, {1e3 * processor:.2f} ms of the processor",
                  flush=True)


if __name__ == "__main__":
    main()
