"""What is run on a GPU, stage by stage. `run` is a runner.Run with the methods of Trainings."""
import concurrent.futures
import csv
import glob
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile

from jobs import SHARED, TINY
from program import BUILD
from runner import Failed, Run, Skipped

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Trainings(Run):
    @property
    def with_device(self):
        """emulated: a dry run whose device is the emulated one (tests/emulator)."""
        return self.emulated or not self.dry

    def on_device(self, ranks):
        """Flags that place a command on the device."""
        return ["--cluster", self.cluster(ranks)] if self.with_device else []

    def use_emulated(self):
        """The emulated device's module in the place of the real one."""
        folder = self.path("emulated")
        os.makedirs(folder, exist_ok=True)
        for name, module in (("twinspeed_cuda.so", "emulated/twinspeed_cuda.so"), ("twinspeed_real.so", "twinspeed_real.so"),
                             ("twinspeed_sim.so", "twinspeed_sim.so")):
            path = os.path.join(folder, name)
            if os.path.lexists(path):
                os.remove(path)
            if os.path.exists(os.path.join(BUILD, module)):
                os.symlink(os.path.realpath(os.path.join(BUILD, module)), path)
        if not os.path.exists(os.path.join(folder, "twinspeed_cuda.so")):
            raise Failed("no emulated device: build the target twinspeed_cuda_emulated")
        # The emulated device has no cuDNN: own kernels are what is meant.
        self.settings.update({"TWINSPEED_MODULES": folder, "TWINSPEED_CUDA_OWN_ATTENTION": "1"})

    def tiny(self, name):
        path = self.path(name + ".model.json")
        with self.lock:
            if not os.path.exists(path):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(TINY[name], file)
        return path

    def text(self, name="short"):
        """`prose`: this repository's own; `short`: 60 kB of it."""
        with self.lock:
            return self.text_alone(name)

    def text_alone(self, name):
        path = self.path(name + ".txt")
        if not os.path.exists(path):
            prose = ""
            for file in sorted(glob.glob(SOURCE + "/docs/*.md")) + sorted(glob.glob(SOURCE + "/*/*.h")):
                with open(file, encoding="utf-8") as one:
                    prose += one.read()
            prose = "".join(c for c in prose if c == "\n" or " " <= c <= "~")
            with open(path, "w", encoding="ascii") as file:
                file.write(prose if name == "prose" else prose[:60000])
        return path

    def cluster(self, ranks=1):
        """The catalog's entry for this device: alone, or a node of eight."""
        if self.emulated:
            return "h200" if ranks == 1 else "dgx-h200"
        with open(self.path("device.json"), encoding="utf-8") as file:
            name = json.load(file)["name"]
        known = [cluster for cluster in ("b200", "h200", "h100", "a100") if cluster in name.lower()]
        if not known:
            raise Failed("%s is not in the catalog" % name)
        return known[0] if ranks == 1 else "dgx-" + known[0]

    def train(self, name, flags, ranks=1, env=None, data=None):
        """The result of a training, from its file. ranks: 0 for the host."""
        result = self.path(name + ".json")
        command = [BUILD + "/twinspeed", "train", "--force", "--quiet", "--data", data or self.text(), "--csv",
                   self.path(name + ".csv"), "--result", result]
        if ranks:
            command += self.on_device(ranks)
        self.command(command + flags, env=env)
        with open(result, encoding="utf-8") as file:
            found = json.load(file)
        for rank in found["memory"]:  # what trains all the same, but not as it was meant to
            gpu = rank.get("gpu", {})
            for key, asked in (("not_recorded", "TWINSPEED_CUDA_EAGER"), ("slower", "TWINSPEED_CUDA_OWN_ATTENTION")):
                if gpu.get(key) and asked not in {**self.settings, **(env or {})}:
                    raise Failed("%s: %s" % (key, gpu[key]))
        return found

    def compare(self, name, first, second, limit):
        apart = max(abs(a - b) / abs(a) if math.isfinite(b) else math.inf for a, b in zip(first, second))
        self.add_line("comparisons.jsonl", {"comparison": name, "steps": len(second), "largest_relative_difference": apart,
                                            "limit": limit})
        self.say("%s: largest relative difference %.3g, limit %g" % (name, apart, limit))
        if not (len(first) == len(second) > 0 and apart <= limit):
            raise Failed("%s: %.3g, and %g is the limit" % (name, apart, limit))


# ---- the verdict ----

def device(run):
    if run.dry:
        raise Skipped("a dry run")
    keys = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.mem", "compute_cap", "power.limit")
    values = run.command(["nvidia-smi", "--query-gpu=" + ",".join(keys), "--format=csv,noheader,nounits"]).strip().split(", ")
    found = dict(zip(("name", "driver", "memory_mib", "sm_mhz", "memory_mhz", "compute_capability", "power_limit_w"), values))
    with open(run.path("device.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)


def module(run):
    """Errors, capabilities, cuDNN's answers; and that cuDNN loads at all."""
    if run.dry:
        raise Skipped("a dry run")
    run.command([BUILD + "/tests/test_cuda"])


def sizes(run):
    return ["--dtype", "fp32", "--seq", "32"] if run.dry else ["--dtype", "bf16", "--vocab-multiple", "128", "--seq", "1024"]


def model_of(run, name):
    """The model's name, or the file of one that is not built in; dry, a tiny one of its kind."""
    if run.dry:
        kinds = (("experts", "mixtral"), ("qwen", "qwen3"), ("llama", "llama"))
        return run.tiny(([tiny for word, tiny in kinds if word in name] + ["gpt"])[0])
    return run.tiny(name) if name in TINY else name


def starts(run, name, env):
    """Three steps of GPT-2 124M this way; all ways within 1 % of each other."""
    flags = ["-m", model_of(run, "gpt2"), "--micro-batch", 4, "--steps", 3] + sizes(run)
    losses = run.train("start-" + name, flags, env=env)["losses"]
    first = run.path("start-own-eager.json")
    if name != "own-eager" and os.path.exists(first):
        with open(first, encoding="utf-8") as file:
            run.compare("own attention, eager, against " + name, json.load(file)["losses"], losses, 1e-2)


def python(run):
    """One with PyTorch, and on a GPU one that sees it."""
    path = os.environ.get("PYTHON", sys.executable)
    seen = "import torch, sys; sys.exit(0 if %s or torch.cuda.is_available() else 1)" % run.dry
    if subprocess.run([path, "-c", seen], capture_output=True, timeout=90, check=False).returncode != 0:
        raise Skipped("no Python with PyTorch: set PYTHON")
    return path


def losses(run, model, batch):
    """Five steps from the same weights in PyTorch and here."""
    name, steps = model_of(run, model), 5
    tokens = int(sizes(run)[-1])
    with open(run.text(), encoding="ascii") as file:
        period = file.read(tokens)
    text = run.path("periodic.txt")  # every window is the same, whatever the order of samples
    with open(text, "w", encoding="ascii") as file:
        file.write(period * (2 * batch + 2))
    dtype = "fp32" if run.dry else "bf16"
    theirs = run.command([python(run), SOURCE + "/bench/peer/pytorch_step.py", "--model", name, "--batch", batch, "--seq", tokens,
                          "--vocab-multiple", 1 if run.dry else 128, "--dtype", dtype, "--device", "cpu" if run.dry else "cuda",
                          "--compile", "none", "--losses", text, "--steps", steps])
    theirs = json.loads([line for line in theirs.splitlines() if line.startswith("{")][-1])["losses"]
    ours = run.train("losses-" + model, ["-m", name, "--micro-batch", batch, "--steps", steps, "--set", "optimizer.type=AdamW",
                                         "--set", "optimizer.params.lr=0.0001", "--set", "optimizer.params.weight_decay=0.01",
                                         "--set", "gradient_clipping=1.0"] + sizes(run), data=text)["losses"]
    run.compare("%s, PyTorch against Twinspeed from the same weights" % model, theirs, ours, 1e-4 if run.dry else 1e-2)


PRODUCTS = ("linear", "linear_grad_input", "linear_grad_weight")


def seconds_by_kind(path):
    """Of all operations of a trace, of each kind, longest first, and of the products of layers, which may be in 8 bits."""
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    kinds, layers = {}, 0
    for event in trace["traceEvents"] if isinstance(trace, dict) else trace:
        if event.get("ph") == "X":
            kind = event["name"].split(" ")[-1]
            kinds[kind] = kinds.get(kind, 0) + event["dur"] * 1e-6
            layers += event["dur"] * 1e-6 if kind in PRODUCTS and "lm_head" not in event["name"] else 0
    return sum(kinds.values()), dict(sorted(kinds.items(), key=lambda item: -item[1])), layers


def flags_of(run, result):
    c = result["configuration"]
    flags = ["--seq", c["sequence_length"], "--micro-batch", c["micro_batch"], "--accumulation", c["accumulation_steps"],
             "--dtype", c["dtype"]]
    return flags + (["-n", 1] if run.dry else ["--vocab-multiple", 128]) + run.on_device(1)


def predicted(run, result, with_memory=True, more=()):
    """A line of steps.json: a training's result beside its estimate, by the profile that was calibrated, if one was.
    more: flags that the result's configuration does not tell."""
    flags = flags_of(run, result) + list(more)
    profile = ["--profile", run.path("profile.json")] if os.path.exists(run.path("profile.json")) else []
    e = json.loads(run.command([BUILD + "/twinspeed", "estimate", "-m", result["configuration"]["model"], "--json"] + flags + profile))
    gpu = result["memory"][0].get("gpu", {}) if with_memory else {}
    line = {"model": os.path.basename(result["configuration"]["model"]), "flags": " ".join(map(str, flags)),
            "measured_step_s": result["median_step_s"], "predicted_step_s": find(e, "step_s"), "model_flops": find(e, "model_flops"),
            "arena_bytes": result["memory"][0]["device"]["allocated_bytes"], "predicted_arena_bytes": find(e, "arena_bytes"),
            "calibrated": bool(profile)}
    for key in ("used_bytes", "context_bytes", "workspace_bytes", "inputs_bytes", "libraries_bytes"):
        line[key] = gpu.get(key, 0)
    line["predicted_used_bytes"] = line["predicted_arena_bytes"] + find(e, "device_overhead_bytes", 0)
    return line


def find(tree, key, without=None):
    """The first value of that name, outermost first."""
    level = [tree]
    while level:
        for node in level:
            if isinstance(node, dict) and key in node:
                return node[key]
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)
                 if isinstance(child, (dict, list))]
    if without is None:
        raise KeyError(key)
    return without


def steps_so_far(run):
    if not os.path.exists(run.path("steps.json")):
        return []
    with open(run.path("steps.json"), encoding="utf-8") as file:
        return json.load(file)["runs"]


def add_step(run, line):
    """To steps.json, the schema that tests/test_measured_steps.c reads; in the place of an earlier one of that name."""
    runs = [r for r in steps_so_far(run) if r["name"] != line["name"]] + [line]
    document = {"schema": "twinspeed-measured-steps-1", "date": run.date, "dry_run": run.dry, "profile": "profile.json", "runs": runs}
    with open(run.path("steps.json"), "w", encoding="utf-8") as file:
        json.dump(document, file, indent=0)


def step(run, name, model, batch, accumulation=1, more=()):
    """Fourteen steps, the last traced on the device; its line is among the results at once."""
    trace = run.path("step-%s.trace" % name)
    flags = ["-m", model_of(run, model), "--micro-batch", 2 if run.dry else batch, "--steps", 6 if run.dry else 14, "--trace", trace]
    result = run.train("step-" + name, flags + sizes(run) + ["--accumulation", accumulation] + list(more), data=run.text("prose"))
    line = dict(predicted(run, result, more=more), name="step-" + name, more=list(more))
    line["kernels_s"], line["kinds_s"], line["layer_products_s"] = seconds_by_kind(trace)
    os.remove(trace)
    if model in TINY and not run.dry:
        line["config"] = TINY[model]  # tests/test_measured_steps.c predicts the step again
    add_step(run, line)
    flops = line["model_flops"] / line["measured_step_s"]
    run.note("%s: %.2f ms a step, %.1f TFLOP/s of the model, %.1f %% of 989; %s" % (
        name, line["measured_step_s"] * 1e3, flops * 1e-12, flops / 9.89e12,
        ", ".join("%s %.2f ms" % (kind, seconds * 1e3) for kind, seconds in list(line["kinds_s"].items())[:6])))


def eight_bits(run, name, without):
    """A step with products in 8 bits against the one without: how many times as fast it is, and how many times it could be if
    products of layers took half the time and casts none."""
    lines = {line["name"]: line for line in steps_so_far(run)}
    if "step-" + name not in lines or "step-" + without not in lines:
        raise Skipped("one of the two steps was not measured")
    plain = lines["step-" + without]
    bound = plain["kernels_s"] / (plain["kernels_s"] - plain["layer_products_s"] / 2)
    ratio = plain["measured_step_s"] / lines["step-" + name]["measured_step_s"]
    run.note("%s: %.3f times as fast as without 8 bits; its products allow %.3f: %.0f %% of it" % (
        name, ratio, bound, 100 * ratio / bound))


def versus(run, item, seconds, compiled="whole"):
    """The ratio to PyTorch; its compiler's cache is kept from run to run. compiled: as pytorch_step.py has it."""
    path, cache, model = python(run), run.path("compiled"), item.partition(":")[0]
    unpack_cache(run, cache)
    folder = run.path("peer")
    os.makedirs(folder, exist_ok=True)
    tuned = "-tuned" if compiled == "layer-tuned" else ""
    if model in TINY:
        item = run.tiny(model) + ":" + item.partition(":")[2]
    if run.dry:
        item = model_of(run, model) + ":2"
    flags = ["--compile", compiled]
    if run.dry:
        flags = ["--device", "cpu", "--compile", "none", "--seq", 32, "--vocab-multiple", 1, "--steps", 3, "--dtype", "fp32"]
    result = "%s/peer-%s.json" % (folder, os.path.basename(item.partition(":")[0]).removesuffix(".json"))
    if os.path.exists(result):
        os.remove(result)  # of an earlier run
    try:
        text = run.command([path, SOURCE + "/bench/peer/compare.py", "--twinspeed", BUILD + "/twinspeed", "--cluster",
                            "" if run.dry else run.cluster(), "--seconds", seconds * run.slower, "--seconds-a-model",
                            seconds * run.slower, "--results", folder, "--out", run.path("ratio-%s%s.json" % (model, tuned))] +
                           flags + ["--models", item], env={"TORCHINDUCTOR_CACHE_DIR": cache})
        run.note(text)
    finally:
        pack_cache(run, cache)
        join_ratios(run)
    if os.path.exists(result):
        with open(result, encoding="utf-8") as file:  # the other program's memory is in what the driver says
            line = dict(predicted(run, json.load(file), False), name=os.path.basename(result)[:-5])
        if model in TINY and not run.dry:
            line["config"] = TINY[model]
        add_step(run, line)


def join_ratios(run):
    """versus.json: what every model's comparison says."""
    joined = None
    for path in sorted(glob.glob(run.path("ratio-*.json"))):
        with open(path, encoding="utf-8") as file:
            one = json.load(file)
        if joined:
            joined["models"] += one["models"]
            joined["failures"] += one["failures"]
        joined = joined or one
    if joined:
        with open(run.path("versus.json"), "w", encoding="utf-8") as file:
            json.dump(joined, file, indent=1)


def unpack_cache(run, cache):
    if run.cache and os.path.exists(run.cache) and not os.path.isdir(cache):
        with tarfile.open(run.cache) as archive:
            archive.extractall(cache, filter="data")


def pack_cache(run, cache):
    """Where it is small enough to come back: 15 MiB."""
    path = run.path("cache.tar.gz")
    if os.path.isdir(cache):
        with tarfile.open(path, "w:gz") as archive:
            archive.add(cache, ".")
        if os.path.getsize(path) > 15 << 20:
            os.remove(path)


# ---- the evidence ----

def kernels(run, groups, cases, env=None):
    """Groups of kernels, each in a process of its own; those of a group whose process did not come to its end, or met an
    error of CUDA, once more, each alone: a bad access spoils what follows in its process."""
    backend = {"TWINSPEED_TEST_BACKEND": "cuda" if run.with_device else "host-staged"}
    if not run.dry:
        backend["TWINSPEED_TEST_DEVICE"] = "1"
    backend.update(env or {})
    limit, log, bad = run.limit, run.log, []

    def failures(names, case):
        """And whether others may only have followed from them."""
        run.enter(limit, log)
        chosen = {"TWINSPEED_TEST_KERNEL": ",".join(names)} if names else {}
        try:
            text = run.command([BUILD + "/tests/test_kernels"], env=dict(backend, CK_RUN_CASE=case, **chosen), check=False)
        except TimeoutError:
            text = ""
        found = [line for line in text.splitlines() if ":F:" in line or ":E:" in line]
        if "%: Checks:" not in text:
            return found + ["%s of %s: no end" % (case, ",".join(names) or "all")], True
        return found, any("CUDA" in line for line in found)

    def one(item):
        names, case = item
        found, spoiled = failures(names, case)
        alone = [line for name in names for line in failures([name], case)[0]] if spoiled and len(names) > 1 else []
        bad.extend(alone or found)

    with concurrent.futures.ThreadPoolExecutor(len(groups) * len(cases)) as pool:
        list(pool.map(one, [(group, case) for group in groups for case in cases]))
    if bad:
        for line in sorted(bad):
            run.note(line)
        raise Failed("%d" % len(bad))


def kernel_names(run):
    text = run.command([BUILD + "/tests/test_kernels"], env={"TWINSPEED_TEST_KERNEL": "list"})
    names = [line for line in text.splitlines() if " " not in line]  # the last line counts the suite's assertions
    return [n for n in names if "linear" in n or "gelu" in n][:4] + ["norm"] if run.dry else names


def all_kernels(run):
    names = kernel_names(run)
    kernels(run, [names[i::3] for i in range(3)], ("modes", "repeats"),
            {"TWINSPEED_CUDA_OWN_ATTENTION": "1", "TWINSPEED_CUDA_DETERMINISTIC": "1"})


def fused_attention(run):
    """By cuDNN, with bits that repeat, and in the way that training takes."""
    names = [["attention", "attention_grad"]]
    kernels(run, names, ("modes", "repeats"), {"TWINSPEED_CUDA_DETERMINISTIC": "1"})
    kernels(run, names, ("modes",))


def products(run):
    """Those of the library that training would choose."""
    kernels(run, [["linear", "linear_grad_input", "linear_grad_weight"]], ("modes",))


def identities(run):
    kernels(run, [[]], ("identities", "single"))


def parity(run, model, dtype, limit):
    flags = ["-m", run.tiny(model), "--dtype", dtype, "--micro-batch", 4, "--steps", 20]
    host = run.train("%s-%s-host" % (model, dtype), flags, ranks=0)["losses"]
    run.compare("%s %s, host against GPU" % (model, dtype), host, run.train("%s-%s-gpu" % (model, dtype), flags)["losses"], limit)


def repeats(run):
    """The same bits twice, and from recorded steps as from operations that are started one by one."""
    flags = ["-m", run.tiny("llama"), "--dtype", "bf16", "--micro-batch", 4, "--accumulation", 2, "--steps", 10]
    same = {"TWINSPEED_CUDA_DETERMINISTIC": "1"}
    first = run.train("again-1", flags, env=same)["losses"]
    run.compare("the same seed twice", first, run.train("again-2", flags, env=same)["losses"], 0)
    eager = run.train("again-eager", flags, env=dict(same, TWINSPEED_CUDA_EAGER="1"))["losses"]
    run.compare("recorded steps against eager ones", eager, first, 0)
    own = run.train("again-own", flags, env=dict(same, TWINSPEED_CUDA_OWN_ATTENTION="1"))["losses"]
    run.compare("own attention against cuDNN's", own, first, 1e-2)


def learn(run):
    """bfloat16 on the GPU stays with float32 on the host while a text is learned."""
    flags = ["-m", run.tiny("gpt" if run.emulated else "learner"), "--micro-batch", 2 if run.emulated else 8, "--steps",
             12 if run.dry else 200]
    for item in ("optimizer.params.lr=0.0005", "gradient_clipping=1.0", "scheduler.type=WarmupLR",
                 "scheduler.params.warmup_max_lr=0.0005", "scheduler.params.warmup_num_steps=40"):
        flags += ["--set", item]
    gpu = run.train("learn-gpu", ["--dtype", "bf16"] + flags, data=run.text("prose"))["losses"]
    host = run.train("learn-host", ["--dtype", "fp32", "--threads", os.cpu_count()] + flags, ranks=0, data=run.text("prose"))["losses"]
    run.compare("a text learned, bf16 against float32 on the host", host, gpu, 1e-2)


def calibrate(run, seconds):
    if run.emulated:
        raise Skipped("the emulated device has no times")
    flags = ["--quick"] if run.dry else ["--device", "cuda"]
    run.command([BUILD + "/twinspeed", "calibrate", "-n", 1, "--seconds", seconds, "--force", "-o", run.path("profile.json")] + flags)


def sustained(run, seconds):
    """GPT-2 1.5B for a minute: are the clocks kept, and what power is drawn."""
    clocks = None
    if not run.dry:
        with open(run.path("log/clocks.txt"), "w", encoding="utf-8") as log:
            clocks = subprocess.Popen(["nvidia-smi", "--query-gpu=timestamp,clocks.sm,clocks.mem,temperature.gpu,power.draw,"
                                       "clocks_event_reasons.active", "--format=csv,noheader,nounits", "-lms", "500"], stdout=log)
    try:
        result = run.train("sustained", ["-m", model_of(run, "gpt2-xl"), "--micro-batch", 2 if run.dry else 16, "--steps",
                                         20 if run.dry else max(30, int(seconds / 0.45))] + sizes(run))
    finally:
        if clocks:
            clocks.terminate()
            clocks.wait()
    steps = result["step_s"]
    parts = [statistics.median(steps[i * len(steps) // 4:(i + 1) * len(steps) // 4] or steps) for i in range(4)]
    run.note("sustained: median steps of the four quarters %s ms" % ", ".join("%.2f" % (1e3 * p) for p in parts))
    if not run.dry:
        with open(run.path("log/clocks.txt"), encoding="utf-8") as log:
            rows = [row for row in csv.reader(log) if len(row) >= 5]
        busy = [(float(r[1]), float(r[4])) for r in rows if float(r[4]) > 250]
        if busy:
            run.note("clock %.0f MHz, power %.0f W (medians while busy)" % tuple(statistics.median(c) for c in zip(*busy)))


def experts(run):
    """Routing and moving tokens beside the products of experts: slots of their own, and one buffer for all."""
    flags = ["--backend", "host", "--tokens", 256, "--hidden", 64, "--inner", 128] if run.dry else ["--backend", "cuda", "--tokens", 8192]
    for dropless in (0, 1):
        text = run.command([BUILD + "/bench-experts"] + flags + ["--dropless", dropless],
                           env={"TWINSPEED_REAL_MODULE": BUILD + "/twinspeed_real.so"})
        lines = [line for line in text.splitlines() if line.startswith("routing and moving")]
        if not lines:
            raise Failed("no line of routing and moving")
        run.note("dropless %d: %s" % (dropless, lines[-1]))


def plain_experts(run):
    """The mixture of experts with its experts' products by plain kernels: losses as by tiles on tensor cores, and the ratio of the
    steps."""
    flags = ["-m", model_of(run, "experts-2b"), "--micro-batch", 2 if run.dry else 8, "--steps", 6] + sizes(run)
    if run.dry:
        flags += ["--dtype", "bf16"]  # float32 has the plain kernels alone
    tiles = run.train("experts-tiles", flags, data=run.text("prose"))
    plain = run.train("experts-plain", flags, data=run.text("prose"), env={"TWINSPEED_CUDA_PLAIN_EXPERTS": "1"})
    run.note("a mixture of experts: %.1f ms a step, with plain products %.1f" % (
        1e3 * tiles["median_step_s"], 1e3 * plain["median_step_s"]))
    run.compare("products of experts, plain against tiles on tensor cores", plain["losses"], tiles["losses"], 1e-2)


def masks(run):
    """Attention with windows or documents, and bidirectional, by cuDNN: the cases of the kernels; then Llama 3.2 1B with packed
    documents (one a sample, which the own kernels take longest for) against the own kernels: losses, and the ratio of the steps."""
    fused, own = {"TWINSPEED_CUDA_FUSED_MASKS": "1"}, {"TWINSPEED_CUDA_OWN_ATTENTION": "1"}
    kernels(run, [["attention", "attention_grad"]], ("modes",), fused)
    flags = ["-m", model_of(run, "llama-3.2-1b"), "--micro-batch", 2 if run.dry else 4, "--steps", 6, "--set",
             "twinspeed.document_end_token=0"] + sizes(run)
    ways = [run.train("masks-" + name, flags, data=run.text("prose"), env=env) for name, env in (("own", own), ("cudnn", fused))]
    run.note("packed documents: %.1f ms a step by own kernels, %.1f by cuDNN" % tuple(1e3 * way["median_step_s"] for way in ways))
    run.compare("attention with documents, cuDNN's against the own kernels", ways[0]["losses"], ways[1]["losses"], 1e-2)


def sustained_flops(profile):
    """FLOP/s of products among sums without a rest, as the device's calibration says in words; None if it does not."""
    found = re.search(r" and ([0-9.]+) ([GT])FLOP/s after ", profile.get("provenance", ""))
    return float(found[1]) * {"G": 1e9, "T": 1e12}[found[2]] if found else None


def predictions(run):
    """Time within 5 %, the arena equal, the driver's view of memory within 1 %, a recorded step at most 1 % longer than its
    kernels one after another."""
    if not os.path.exists(run.path("profile.json")) or not steps_so_far(run):
        raise Skipped("no profile, or no measured step")
    for line in steps_so_far(run):
        if line["calibrated"]:
            continue
        path = run.path(line["name"] + ".json")  # measured before there was a profile
        path = path if os.path.exists(path) else run.path("peer/%s.json" % line["name"])
        with open(path, encoding="utf-8") as file:
            add_step(run, dict(line, **predicted(run, json.load(file), line["used_bytes"] > 0, line.get("more", []))))
    bad = []
    with open(run.path("profile.json"), encoding="utf-8") as file:
        profile = json.load(file)
    sustained = sustained_flops(profile)
    for r in steps_so_far(run):
        error = r["predicted_step_s"] / r["measured_step_s"] - 1
        memory = r["predicted_used_bytes"] / r["used_bytes"] - 1 if r["used_bytes"] else 0
        over = r["measured_step_s"] / r["kernels_s"] - 1 if r.get("kernels_s") else 0
        share = "; %.2f of sustained products" % (r["model_flops"] / r["measured_step_s"] / sustained) if sustained else ""
        run.note("%-20s %8.2f ms, predicted %+6.1f %%; memory %+.2f %%; %+.2f %% over its kernels%s" % (
            r["name"], r["measured_step_s"] * 1e3, 100 * error, 100 * memory, 100 * over, share))
        if r["arena_bytes"] != r["predicted_arena_bytes"]:
            bad.append(r["name"] + ": arena")
        elif not run.dry and (abs(error) > 0.05 or abs(memory) > 0.01 or over > 0.01):
            bad.append(r["name"])
    if bad:
        raise Failed("beyond the limits: " + ", ".join(bad))


def resumed(run):
    """A training that goes on from a checkpoint ends as one that was not interrupted; and what it generates."""
    folder, same = run.path("saved"), {"TWINSPEED_CUDA_DETERMINISTIC": "1"}
    shutil.rmtree(folder, ignore_errors=True)
    flags = ["-m", run.tiny("llama"), "--dtype", "bf16", "--micro-batch", 4, "--steps"]
    whole = run.train("whole", flags + [8], env=same)["losses"]
    run.train("interrupted", flags + [4, "--save", folder], env=same)
    run.compare("resumed against uninterrupted", whole[4:], run.train("resumed", flags + [8, "--resume", folder], env=same)["losses"], 0)
    run.command([BUILD + "/twinspeed", "generate", "-m", run.tiny("llama"), "--resume", folder, "--prompt", "The ", "--tokens", 20] +
                run.on_device(1))


def saved(run):
    """What a training waits for its checkpoints: GPT-2 124M (1.9 GB each), every fourth step."""
    folder, every, steps = run.path("saves"), 4, 12
    shutil.rmtree(folder, ignore_errors=True)
    flags = ["-m", model_of(run, "gpt2"), "--micro-batch", 2 if run.dry else 16, "--steps", steps] + sizes(run)
    try:
        result = run.train("saved", flags + ["--save", folder, "--save-every", every, "--keep", 1])
        waited = result["saves"]["waited_s"] / (steps // every)
        size = sum(os.path.getsize(path) for path in glob.glob(folder + "/**", recursive=True) if os.path.isfile(path))
        run.note("a checkpoint of %.2f GB: training waits %.0f ms (%.1f GB/s), a step takes %.1f ms" % (
            1e-9 * size, 1e3 * waited, 1e-9 * size / max(waited, 1e-9), 1e3 * result["median_step_s"]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    plain = run.train("saved-without", flags)["losses"]
    run.compare("with checkpoints against without", plain, result["losses"], 1e-3)


def validated(run):
    """One plan, operation by operation; and a search whose best are trained on the device."""
    if run.emulated:
        raise Skipped("the emulated device has no times, and the suite calibrate tunes on it")
    model, profile = run.tiny("gpt" if run.dry else "padded"), [] if run.dry else ["--profile", run.path("profile.json")]
    shape = ["--dtype", sizes(run)[1], "--seq", sizes(run)[-1], "--data", run.text("prose")] + profile
    text = run.command([BUILD + "/twinspeed", "validate", "-m", model, "--micro-batch", 2 if run.dry else 16] + shape)
    run.note("\n".join(text.splitlines()[:36]))
    text = run.command([BUILD + "/twinspeed", "tune", "-m", model, "-b", 8 if run.dry else 64, "-n", 1, "--validate", 4, "--force", "-o",
                        run.path("tuned")] + shape + ([] if run.dry else ["--cluster", run.cluster()]))
    run.note("\n".join(text.splitlines()[:60]))


def ranked(run):
    """A search whose configurations of GPT-2 1.5B are trained: of any two whose measured steps differ by 5 % and more, the
    slower one is the one that is predicted so. In random order, since the predicted best are too near each other."""
    if run.emulated:
        raise Skipped("the emulated device has no times")
    command = [BUILD + "/twinspeed", "tune", "-m", run.tiny("gpt" if run.dry else "padded-xl"), "-n", 1, "--tuner", "random",
               "--validate", 3 if run.dry else 10, "--rounds", 1, "--no-simulation", "--budget", max(5, int(run.left()) - 20), "--data",
               run.text("prose"), "-b", 4 if run.dry else 16, "--force", "--quiet", "--json", "-o", run.path("ranked")] + sizes(run)[:2]
    command += ["--seq", sizes(run)[-1]]
    if not run.dry:
        command += ["--cluster", run.cluster()]
    if os.path.exists(run.path("profile.json")):
        command += ["--profile", run.path("profile.json")]
    trials = [t for t in json.loads(run.command(command))["trials"] if t.get("measured_step_s") and t.get("predicted_step_s")]
    trials.sort(key=lambda t: t["measured_step_s"])
    for t in trials:
        run.note("%-40s %8.2f ms, predicted %8.2f" % (t["name"], 1e3 * t["measured_step_s"], 1e3 * t["predicted_step_s"]))
    swapped = ["%s and %s" % (a["name"], b["name"]) for i, a in enumerate(trials) for b in trials[i + 1:]
               if b["measured_step_s"] >= 1.05 * a["measured_step_s"] and b["predicted_step_s"] <= a["predicted_step_s"]]
    if len(trials) < 2 or (swapped and not run.dry):
        raise Failed("%d trained; predicted in the other order: %s" % (len(trials), ", ".join(swapped) or "none"))


def counters(run):
    """Hardware counters of what the counted bytes of docs/cuda.md are to be held against."""
    if run.dry or not shutil.which("ncu", path=run.settings["PATH"]):
        raise Skipped("no ncu")
    text = run.command(["ncu", "--clock-control", "none", "--target-processes", "all", "--set", "basic", "--section", "SpeedOfLight",
                        "--section", "MemoryWorkloadAnalysis", "--kernel-name-base", "function", "--kernel-name",
                        "regex:norm_grad|cross_entropy|adamw|column|gemm|nvjet", "--launch-count", "24",
                        BUILD + "/twinspeed", "train", "--cluster", run.cluster(), "--force", "--quiet", "--data", run.text(), "-m", "gpt2",
                        "--micro-batch", "8", "--steps", "1"] + sizes(run), env={"TWINSPEED_CUDA_EAGER": "1",
                                                                              "TWINSPEED_CUDA_DETERMINISTIC": "1"})
    if "Duration" not in text:
        raise Failed("no counters")


# ---- offloading ----

OPTIMIZER = ["--stage", 2, "--set", "zero_optimization.offload_optimizer.device=cpu"]


def seconds_by_stream(path):
    """Busy seconds of each stream of a trace's rank."""
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    events, names, busy = trace["traceEvents"] if isinstance(trace, dict) else trace, {}, {}
    for event in events:
        if event.get("name") == "thread_name":
            names[event["tid"]] = event["args"]["name"]
    for event in events:
        if event.get("ph") == "X":
            stream = names.get(event["tid"], "?")
            busy[stream] = busy.get(stream, 0) + event["dur"] * 1e-6
    return busy


def offloaded_step(run):
    """GPT-2 1.5B with the optimizer on the host: losses as without, the step within 10 % of the prediction, and the rate of
    the copies both ways."""
    trace = run.path("offload-step.trace")
    flags = ["-m", model_of(run, "gpt2-xl"), "--micro-batch", 2 if run.dry else 8, "--steps", 6, "-n", 1] + sizes(run)
    text, same = run.text("prose"), {"TWINSPEED_CUDA_DETERMINISTIC": "1"}
    without = run.train("offload-without", flags, env=same, data=text)["losses"]
    result = run.train("offload-step", flags + OPTIMIZER + ["--trace", trace], env=same, data=text)
    run.compare("GPT-2 1.5B, the optimizer on the host against on the device", without, result["losses"], 1e-2)
    line = predicted(run, result, more=OPTIMIZER)
    parameters = json.loads(run.command([BUILD + "/twinspeed", "estimate", "-m", model_of(run, "gpt2-xl"), "--json"] +
                                        flags_of(run, result)))["parameters"]
    for stream, seconds in sorted(seconds_by_stream(trace).items()):
        rate = ", %.1f GB/s" % (2e-9 * parameters / seconds) if stream.startswith("copy") and not run.dry else ""
        run.note("stream %s: %.2f ms busy%s" % (stream, seconds * 1e3, rate))
    os.remove(trace)
    error = line["predicted_step_s"] / line["measured_step_s"] - 1
    run.note("the optimizer on the host: %.1f ms a step, predicted %+.1f %%" % (line["measured_step_s"] * 1e3, 100 * error))
    if line["arena_bytes"] != line["predicted_arena_bytes"] or (not run.dry and abs(error) > 0.1):
        raise Failed("the prediction: %+.1f %%" % (100 * error))


def offloaded_large(run):
    """A Llama of 3B whose parameters and optimizer are on the host, ten steps with 24 GiB of device memory."""
    flags = ["-m", run.tiny("llama" if run.dry else "llama-3b"), "--micro-batch", 1, "--steps", 10, "-n", 1, "--recompute", "full", "--stage", 3, "--set",
             "zero_optimization.offload_optimizer.device=cpu", "--set", "zero_optimization.offload_param.device=cpu", "--memory",
             "24GiB"] + sizes(run)
    result = run.train("offload-large", flags, data=run.text("prose"))
    run.note("a Llama of 3B on the host: %.2f s a step, %.1f GiB on the device" % (
        result["median_step_s"], result["memory"][0]["device"]["allocated_bytes"] / 2**30))
    if not all(math.isfinite(loss) for loss in result["losses"]) or result["losses"][-1] >= result["losses"][0]:
        raise Failed("losses %s" % result["losses"])


# ---- ranks ----

def axes(run, name, ranks, *flags):
    flags = ["-n", ranks, "--dtype", "fp32", "--steps", 6] + list(flags)
    host = run.train(name + "-host", flags, ranks=0)["losses"]
    run.compare(name + ", host against GPU", host, run.train(name + "-gpu", flags, ranks=2, env=SHARED)["losses"], 2e-4)


def zero(run, ranks):
    first = None
    for stage in range(4):
        losses = run.train("zero%d" % stage, ["-n", ranks, "--stage", stage, "-m", run.tiny("gpt"), "--dtype", "fp32", "--micro-batch", 2,
                                              "--steps", 8], ranks=2, env=SHARED)["losses"]
        first = first or losses
        run.compare("ZeRO-%d against ZeRO-0, %d ranks" % (stage, ranks), first, losses, 1e-4)


def calibrate_ranks(run):
    """That NCCL's tables are measured, not how fast."""
    flags = [] if run.dry else ["--device", "cuda"]
    run.command([BUILD + "/twinspeed", "calibrate", "--quick", "-n", "1,2", "--largest", 2000000, "--seconds", 2, "--force", "-o",
                 run.path("two-ranks.json")] + flags, env=SHARED)


def sanitizer(run):
    if run.dry or not shutil.which("compute-sanitizer", path=run.settings["PATH"]):
        raise Skipped("no compute-sanitizer")
    own = {"TWINSPEED_CUDA_OWN_ATTENTION": "1"}  # the tool takes cuDNN's large modules apart for minutes
    tool = ["compute-sanitizer", "--tool", "memcheck", "--target-processes", "all", "--print-limit", "20", "--error-exitcode", "9"]
    run.command(tool + [BUILD + "/tests/test_kernels"], env=dict(own, TWINSPEED_TEST_BACKEND="cuda", CK_RUN_CASE="single"))
    run.command(tool + [BUILD + "/twinspeed", "train", "--cluster", run.cluster(), "--force", "--quiet", "--data", run.text(), "-m",
                        run.tiny("llama"), "--dtype", "bf16", "--micro-batch", "2", "--steps", "1"], env=own)
