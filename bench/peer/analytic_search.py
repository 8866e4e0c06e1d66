#!/usr/bin/env python3
"""How many configurations a second llm-analysis (PyPI) answers: the peer of bench-search. GPT-3 175B on 64 A100, training
steps of 1536 sequences, tensor and pipeline ranks, micro batch, recomputation and ZeRO stage as lists; what it refuses
(its assertions) is not counted. Once as it is shipped, and once with its logging of level INFO and below turned off.
"""
import io
import contextlib
import itertools
import logging
import sys
import time

from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
from llm_analysis.config import ModelConfig, ParallelismConfig, get_dtype_config_by_name, get_gpu_config_by_name
from llm_analysis.logger import logger

SECONDS = 5  # of CPU, for each of the two


def points():
    for tp, pp, micro, recompute, zero in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8), (0, 1, 2),
                                                            (0, 1, 2, 3)):
        yield tp, pp, 64 // (tp * pp), micro, ActivationRecomputation(recompute), DSZeRO(zero)


def search():
    model = ModelConfig("gpt3-175b", num_layers=96, n_head=96, hidden_dim=12288, vocab_size=50257, max_seq_len=2048)
    gpu = get_gpu_config_by_name("a100-sxm-80gb")
    dtype = get_dtype_config_by_name("w16a16e16")
    answered = refused = 0
    start = time.process_time()
    for tp, pp, dp, micro, recompute, zero in itertools.cycle(points()):
        if time.process_time() - start > SECONDS:
            break
        analysis = LLMAnalysis(model, gpu, dtype, ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp),
                               flops_efficiency=0.5, hbm_memory_efficiency=0.9)
        try:
            analysis.training(batch_size_per_gpu=micro, global_batch_size=1536, seq_len=2048,
                              activation_recomputation=recompute, ds_zero=zero, total_num_tokens=1e9)
            answered += 1
        except (AssertionError, ValueError):
            refused += 1
    return answered / (time.process_time() - start), refused


def main():
    noise = io.StringIO()
    with contextlib.redirect_stderr(noise), contextlib.redirect_stdout(noise):
        for handler in logger.handlers:
            if hasattr(handler, "setStream"):
                handler.setStream(noise)
        shipped, _ = search()
        logger.setLevel(logging.ERROR)
        quiet, refused = search()
    print(f"{shipped:.0f} of llm-analysis a second as shipped")
    print(f"{quiet:.0f} configurations/s of llm-analysis, without its log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
