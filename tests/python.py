"""The Python module against DeepSpeed's golden vectors and the program's answers: python.py GOLDEN PROGRAM."""
import contextlib
import io
import json
import os
import subprocess
import sys
import time

started = time.monotonic()
import twinspeed

golden, program = json.load(open(sys.argv[1])), sys.argv[2]
folder = os.path.dirname(twinspeed.__file__)


def printed(function, *arguments, **named):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function(*arguments, **named)
    return out.getvalue()


class Tensor:
    def __init__(self, numel):
        self.size = numel

    def numel(self):
        return self.size


class Module:
    """Has what the estimators ask of a torch.nn.Module: its own parameters and its children."""

    def __init__(self, own, *children):
        self.own, self.children = own, children

    def modules(self):
        yield self
        for child in self.children:
            yield from child.modules()

    def parameters(self, recurse=True):
        for module in self.modules() if recurse else [self]:
            yield from module.own


def raised(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except twinspeed.Error as error:
        return error
    raise AssertionError("no error")


# Numbers and tables of DeepSpeed 0.19.6, cold; a model's own, live; those of its manual.
shared = Tensor(20_000_000)
for row in golden["zero2"]:
    got = twinspeed.estimate_zero2_model_states_mem_needs(row["total_params"], row["num_gpus_per_node"],
                                                          row["num_nodes"], row["cpu_offload"], row["factor"])
    assert got == (row["cpu_mem"], row["gpu_mem"]), row
for row in golden["zero3"]:
    got = twinspeed.estimate_zero3_model_states_mem_needs(
        row["total_params"], row["largest_layer_params"], row["num_gpus_per_node"], row["num_nodes"],
        row["cpu_offload"], row["cpu_offload_params"], row["zero_init"], row["factor"])
    assert got == (row["cpu_mem"], row["gpu_mem"], row["largest_layer_memory"]), row
for row in golden["zero2_print"] + golden["zero3_print"]:
    machine, total, largest = (row["num_gpus_per_node"], row["num_nodes"]), row["total_params"], row.get(
        "largest_layer_params")
    wanted = row["stdout"].replace("OffloadDeviceEnum.cpu", "cpu ")  # as Python 3.10 and older print it
    if largest is None:
        model = Module([Tensor(total - 5), Tensor(5)])
        assert printed(twinspeed.estimate_zero2_model_states_mem_needs_all_cold, total, *machine) == wanted
        assert printed(twinspeed.estimate_zero2_model_states_mem_needs_all_live, model, *machine) == wanted
    else:
        rest = [Module([Tensor(min(largest, total - largest - at))]) for at in range(0, total - largest, max(largest, 1))
                ] if total // max(largest, 1) < 1000 else None
        assert printed(twinspeed.estimate_zero3_model_states_mem_needs_all_cold, total, largest, *machine) == wanted
        if rest is not None:
            model = Module([], Module([Tensor(largest)]), *rest)
            assert printed(twinspeed.estimate_zero3_model_states_mem_needs_all_live, model, *machine) == wanted
tied = Module([], Module([shared]), Module([shared]))
assert "20M total params, 20M largest" in printed(twinspeed.estimate_zero3_model_states_mem_needs_all_live, tied)
manual = printed(twinspeed.estimate_zero2_model_states_mem_needs_all_cold, 2851e6, 8, 1, compat="deepspeed-0.3")
assert "  127.45GB |  15.93GB | offload_optimizer=none" in manual, manual

# Answers are the program's, from a name, a dictionary and what has to_dict().
said = json.loads(subprocess.run([program, "estimate", "-m", "llama-3-8b", "--cluster", "dgx-h100", "--stage", "3",
                                  "--json", "--quiet"], check=True, capture_output=True).stdout)
answer = twinspeed.estimate("llama-3-8b", cluster="dgx-h100", stage=3)
assert time.monotonic() - started < 30
assert answer.fits and answer.verdict == "fits"
assert abs(answer.step_s - said["time"]["step_s"]) < 1e-12, (answer.step_s, said["time"])
assert answer.memory["device"] == said["memory"]["device"]["categories"]
model = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4,
         "n_positions": 128, "vocab_size": 512}


class Configuration:
    def to_dict(self):
        return model


config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
before = set(os.listdir(os.environ["TMPDIR"]))
first = twinspeed.estimate(model, config, cluster="dgx-a100")
assert twinspeed.estimate(Configuration(), config, cluster="dgx-a100").step_s == first.step_s
changed = twinspeed.estimate(model, config, cluster="dgx-a100", set={"zero_optimization.stage": 3})
assert changed.memory["device"] != first.memory["device"]
assert set(os.listdir(os.environ["TMPDIR"])) == before  # files of dictionaries are gone
with twinspeed.Job(model, config, cluster="dgx-a100") as job:
    assert job.describe()["zero_stage"] == 2 and job.describe()["ranks"] == 8
    assert any("assumed: " in note for note in job.notes())
    assert job.check().ranks_verified == 8
found = twinspeed.tune("gpt2", cluster="dgx-a100", global_batch=32, best=2)
assert len(found) == 2 and found[0].tokens_per_s >= found[1].tokens_per_s

# What is wrong raises the program's message and hint.
error = raised(twinspeed.estimate, "gpt2", {"zero_optimisation": {}})
assert error.status == "INVALID" and "zero_optimisation" in error.message and "zero_optimization" in error.hint
assert raised(twinspeed.estimate, "gpt2", cluster="dgx-a101").status == "INVALID"
for wrong in (lambda: twinspeed.estimate(3), lambda: twinspeed.estimate("gpt2", gpus=3)):
    try:
        wrong()
    except TypeError:
        continue
    raise AssertionError("no TypeError")
closed = twinspeed.Job("gpt2", cluster="dgx-a100")
closed.close()
try:
    closed.estimate()
    raise AssertionError("a closed job answers")
except ValueError:
    pass

# Custom metrics, with DeepSpeed's names of files.
monitors = {"csv_monitor": {"enabled": True, "output_path": os.environ["TMPDIR"], "job_name": "custom"}}
with twinspeed.Monitor(monitors) as monitor:
    monitor.write_events([("Train/Samples/my accuracy", 0.5, 8), ("Train/Samples/my accuracy", 0.75, 16)])
written = os.path.join(os.environ["TMPDIR"], "custom", "Train_Samples_my_accuracy.csv")
assert open(written, newline="").read() == "step,my accuracy\r\n8,0.5\r\n16,0.75\r\n"
os.unlink(written)
os.rmdir(os.path.dirname(written))
assert raised(twinspeed.Monitor, {}).status == "INVALID"

# All libraries but those of the system come from the wheel.
for line in open("/proc/self/maps"):
    path = line.split()[-1]
    name = os.path.basename(path)
    if name.startswith(("libtwinspeed", "libcjson", "libgsl", "libsimgrid")):
        assert path.startswith(folder), path
# Training: the engine's module is not in the wheel, and is looked for where TWINSPEED_MODULES says.
if os.path.exists(os.path.join(os.path.dirname(program), "twinspeed_real.so")):
    os.environ["TWINSPEED_MODULES"] = os.path.dirname(program)
    tokens = [(7 * i + i // 33) % 250 for i in range(4 * 33)]
    folder = os.path.join(os.environ["TMPDIR"], "run")
    small = {"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "train_batch_size": 4,
             "train_micro_batch_size_per_gpu": 2}
    with twinspeed.Engine("tiny-gpt2", small, sequence_length=32) as engine:
        before = engine.eval_batch(tokens)
        step = engine.train_batch(tokens)
        assert step.step == 1 and abs(step.loss - before) < 1e-5 and engine.learning_rate == 0.01
        for micro in range(2):
            part = tokens[micro * 66:micro * 66 + 66]
            assert engine.forward(part) < 6 and engine.is_gradient_accumulation_boundary() == (micro == 1)
            engine.backward()
            name = engine.parameters[0].name
            if micro == 1:
                assert len(engine.get_full(name, "gradient")) == 256 * 64
            assert (engine.step() is None) == (micro == 0)
        assert engine.save(folder, client_state="{}") == "global_step2" and engine.steps == 2
        weights = engine.get_full(name)
        with twinspeed.read_checkpoint(folder) as saved:
            assert saved.steps == 2 and saved.client_state == "{}" and saved.zero_stage == 0
            assert saved.read(name) == weights
            assert saved.read(name, "second moments") == engine.get_full(name, "exp_avg_sq")
        weights[0] = 3.5
        engine.set_full(name, weights)
        assert engine.get_full(name)[0] == 3.5
        assert engine.load(folder) == "{}" and engine.get_full(name)[0] != 3.5
        assert raised(engine.get_full, "nosuch").status == "USAGE"
        assert raised(twinspeed.read_checkpoint, folder + "-not").status == "IO"
print("python: works")
