#!/usr/bin/env python3
"""Twinspeed against PyTorch on one GPU, or on the host, in one run: PyTorch's steps are timed before and after each run of
Twinspeed's, in a process that has compiled them and then waits, so that both meet the same clocks and temperatures. What
is equal in both programs and what is not: bench/peer/pytorch_step.py.

On the host: --cluster '' --device cpu --threads 2 --seq 256 --models gpt2:4 --steps 5 --rounds 3, once with --compile none
and once with --compile whole, for --dtype bf16 and fp32. Processors without AMX, or without bfloat16, are had by
ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 or AVX512_CORE in the environment, which both programs heed.

Writes one JSON file, anew after each model, and prints a table. Status 0: every model ran in both; 1: some did not."""
import argparse
import array
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS_MAGIC = {2: (20240520, 1), 4: (20240801, 7)}  # llm.c's token files: magic and version by bytes of a token


class Late(Exception):
    pass


class Lacking(Exception):
    """Memory."""


def write_tokens(path, vocabulary, count):
    size = 2 if vocabulary <= 65536 else 4
    draw = random.Random(1)
    with open(path, "wb") as file:
        header = array.array("i", [*TOKENS_MAGIC[size], count] + [0] * 253)
        header.tofile(file)
        array.array("H" if size == 2 else "I", [draw.randrange(vocabulary) for _ in range(count)]).tofile(file)


class Peer:
    """PyTorch, waiting for numbers of steps."""

    def __init__(self, args, model, batch, deadline):
        command = [sys.executable, os.path.join(HERE, "pytorch_step.py"), "--serve", "--model", model, "--batch", str(batch),
                   "--seq", str(args.seq), "--vocab-multiple", str(args.vocab_multiple), "--device", args.device,
                   "--compile", "layer" if model in args.by_layer else args.compile, "--parameters", args.parameters,
                   "--dtype", args.dtype, "--threads", str(args.threads)]
        self.deadline = deadline
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        try:
            self.ready = self.answer()
        except BaseException:
            self.end()
            raise

    def answer(self):
        left = self.deadline - time.monotonic()
        timer = threading.Timer(max(left, 0.1), self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            if time.monotonic() >= self.deadline:
                raise Late("PyTorch")
            self.log.seek(0)
            raise RuntimeError("PyTorch ended: " + self.log.read()[-800:])
        answer = json.loads(line)
        if "error" in answer:
            raise Lacking("PyTorch: " + answer["error"])
        return answer

    def time(self, steps):
        self.process.stdin.write("%d\n" % steps)
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        try:
            self.process.stdin.close()
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.log.close()


def train(args, model, batch, tokens, deadline):
    result = os.path.join(args.scratch, "result.json")
    command = [args.twinspeed, "train", "--force", "--quiet", "-m", model, "--dtype", args.dtype, "--micro-batch", str(batch), "--seq",
               str(args.seq), "--vocab-multiple", str(args.vocab_multiple), "--steps", str(args.steps + 3), "--data", tokens,
               "--result", result, "--set", "optimizer.type=AdamW", "--set", "optimizer.params.lr=0.0001", "--set",
               "optimizer.params.weight_decay=0.01", "--set", "gradient_clipping=1.0"]
    if args.cluster:
        command += ["--cluster", args.cluster]
    if args.threads:
        command += ["--threads", str(args.threads)]
    left = deadline - time.monotonic()
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=max(left, 0.1), check=False)
    except subprocess.TimeoutExpired as late:
        raise Late("Twinspeed") from late
    if run.returncode != 0:
        said = (run.stderr or run.stdout)[-800:]
        raise (Lacking if "memory" in said else RuntimeError)("Twinspeed: " + said)
    if args.results:
        shutil.copy(result, os.path.join(args.results, "peer-%s.json" % os.path.basename(model).removesuffix(".json")))
    with open(result, encoding="utf-8") as file:
        found = json.load(file)
    for rank in found["memory"]:
        for key in ("not_recorded", "slower"):
            if rank.get("gpu", {}).get(key):
                raise RuntimeError("Twinspeed: %s: %s" % (key, rank["gpu"][key]))
    return found


def facts(args, model, batch):
    run = subprocess.run([sys.executable, os.path.join(HERE, "pytorch_step.py"), "--count", "--model", model, "--batch",
                          str(batch), "--seq", str(args.seq), "--vocab-multiple", "1"],
                         capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def compare(args, model, batch, tokens, deadline):
    known = facts(args, model, batch)
    peer = Peer(args, model, batch, deadline)
    try:
        theirs, ours = [peer.time(args.steps)], []
        for _ in range(args.rounds):
            ours.append(train(args, model, batch, tokens, deadline))
            theirs.append(peer.time(args.steps))
    finally:
        peer.end()
    parameters = ours[-1]["configuration"]["parameters"]
    if parameters != peer.ready["parameters"]:  # both with the padding of the vocabulary
        raise RuntimeError("%d parameters here, %d there" % (parameters, peer.ready["parameters"]))
    size, flops = batch * args.seq, known["flops_per_step"]
    step = statistics.median(run["median_step_s"] for run in ours)
    their_step = statistics.median(run["step_s"] for run in theirs)
    return {"model": model, "micro_batch": batch, "sequence": args.seq, "dtype": args.dtype, "parameters": parameters,
            "model_flops_per_step": flops,
            "twinspeed": {"step_s": step, "steps_s": [run["step_s"] for run in ours], "tokens_per_s": size / step,
                          "model_flops_per_s": flops / step, "of_peak": flops / step / args.peak,
                          "memory": ours[-1]["memory"], "provenance": ours[-1]["provenance"]},
            "pytorch": {"step_s": their_step, "tokens_per_s": size / their_step, "model_flops_per_s": flops / their_step,
                        "of_peak": flops / their_step / args.peak, "runs": theirs, "warm_up_s": peer.ready["warm_up_s"]},
            "ratio": their_step / step}


def one_model(args, item, report):
    model, _, sizes = item.partition(":")
    vocabulary = {"llama-3.2-1b": 128256}.get(model, 50257)
    if os.path.exists(model):
        with open(model, encoding="utf-8") as file:
            vocabulary = json.load(file)["vocab_size"]
    left = args.until - time.monotonic()
    deadline = time.monotonic() + min(left, max(args.seconds_a_model, 1))
    batches = [int(size) for size in sizes.split(",")]
    for batch in batches:  # the first that fits in both
        tokens = os.path.join(args.scratch, "tokens-%d-%d.bin" % (vocabulary, batch * args.seq))
        if not os.path.exists(tokens):
            write_tokens(tokens, vocabulary, 2 * batch * args.seq + 1)
        try:
            report["models"].append(compare(args, model, batch, tokens, deadline))
            return
        except Lacking as reason:
            report["failures"].append({"model": model, "micro_batch": batch, "reason": str(reason)})
        except Late as reason:
            report["failures"].append({"model": model, "micro_batch": batch, "reason": "no time left: %s" % reason})
            return
        except (RuntimeError, OSError, ValueError, KeyError, subprocess.CalledProcessError) as reason:
            report["failures"].append({"model": model, "micro_batch": batch, "reason": str(reason)[-1000:]})
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--twinspeed", required=True, help="the program")
    parser.add_argument("--models", nargs="+", metavar="MODEL:BATCH,...", default=[
        "gpt2-xl:8,4", "gpt2:64,32", "llama-3.2-1b:8,4", "gpt2-large:16,8", "gpt2-medium:32,16"])
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--vocab-multiple", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=1, help="runs of Twinspeed, with PyTorch's between; medians count")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--threads", type=int, default=0, help="of both, on the host (default: all)")
    parser.add_argument("--cluster", default="h200", help="Twinspeed's cluster; empty: the host")
    parser.add_argument("--device", default="cuda", help="PyTorch's device")
    parser.add_argument("--compile", default="whole")
    parser.add_argument("--by-layer", nargs="*", default=[], metavar="MODEL:...",
                        help="these are compiled layer by layer: quicker to compile")
    parser.add_argument("--results", help="folder for the summaries of Twinspeed's runs")
    parser.add_argument("--parameters", default="master")
    parser.add_argument("--peak", type=float, default=989e12, help="dense FLOP/s of the device in this type")
    parser.add_argument("--seconds", type=float, default=240, help="no model is begun after so long")
    parser.add_argument("--seconds-a-model", type=float, default=110)
    parser.add_argument("--out", required=True, help="JSON")
    args = parser.parse_args()
    args.by_layer = [item.partition(":")[0] for item in args.by_layer]
    args.until = time.monotonic() + args.seconds
    report = {"schema": "twinspeed-peer-1", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "peak_flops": args.peak,
              "models": [], "failures": []}
    with tempfile.TemporaryDirectory() as args.scratch:
        for item in args.models:
            if time.monotonic() >= args.until:
                report["failures"].append({"model": item.partition(":")[0], "reason": "no time left"})
            else:
                one_model(args, item, report)
            with open(args.out, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1)
    for m in report["models"]:
        print("%-14s micro batch %3d: %9.0f tokens/s, PyTorch %9.0f, ratio %.3f; %5.1f TFLOP/s, %4.1f %% of peak" % (
            m["model"], m["micro_batch"], m["twinspeed"]["tokens_per_s"], m["pytorch"]["tokens_per_s"], m["ratio"],
            m["twinspeed"]["model_flops_per_s"] * 1e-12, 100 * m["twinspeed"]["of_peak"]))
    for f in report["failures"]:
        print("%s: %s" % (f["model"], f["reason"]))
    done = {m["model"] for m in report["models"]}
    return 0 if len(done) == len(args.models) else 1


if __name__ == "__main__":
    sys.exit(main())
