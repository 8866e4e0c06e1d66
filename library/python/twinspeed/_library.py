"""Declares the structures and functions of twinspeed.h for ctypes, in the order of the header."""
import ctypes as c
import json
import os
import tempfile
from contextlib import contextmanager

_TIERS, _CATEGORIES, _PHASES = 4, 16, 8
_STATUS = ("OK", "NO", "USAGE", "INVALID", "UNSUPPORTED", "IO", "MEMORY", "ENVIRONMENT", "RANK", "INTERNAL")
_VERDICTS = ("does not fit", "tight", "fits")


class Error(Exception):
    """A failure. status: a word such as "INVALID"; message: the problem and its position; hint: the remedy."""

    def __init__(self, status, message, hint):
        super().__init__(message + ("\nhint: " + hint if hint else ""))
        self.status, self.message, self.hint = status, message, hint


class DoesNotFit(Error):
    """The answer is no: for example, the job does not fit."""


class _Error(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 2048), ("hint", c.c_char * 4096)]


class _Options(c.Structure):
    _fields_ = ([("size", c.c_size_t)] + [(name, c.c_char_p) for name in (
        "model", "config", "cluster", "profile", "runtime", "dtype", "recompute", "schedule")] +
                [("set", c.POINTER(c.c_char_p)), ("set_count", c.c_size_t)] + [(name, c.c_int64) for name in (
                    "ranks", "sequence_length", "micro_batch", "accumulation", "pipeline_ranks", "tensor_ranks",
                    "sequence_ranks", "expert_ranks", "stage", "seed")])


class _Facts(c.Structure):
    _fields_ = ([(name, c.c_int) for name in ("ranks", "stages", "replicas", "tensor_ranks", "sequence_ranks",
                                              "expert_ranks", "zero_stage")] +
                [(name, c.c_int64) for name in ("micro_batch", "accumulation", "sequence_length")] +
                [(name, c.c_double) for name in ("parameters", "trained_parameters")] +
                [("model", c.c_char * 128), ("runtime", c.c_char * 64), ("dtype", c.c_char * 16),
                 ("cluster", c.c_char * 128)])


class _Estimate(c.Structure):
    _fields_ = ([("verdict", c.c_int)] +
                [(name, c.c_double) for name in ("device_need", "device_have", "node_need", "node_have", "disk_need",
                                                 "disk_have")] + [("bytes", (c.c_double * _CATEGORIES) * _TIERS)] +
                [(name, c.c_double) for name in ("step_s", "tokens_per_s", "model_flops", "mfu", "communication_s",
                                                 "bubble_s", "host_s", "copies_s", "disk_s", "loading_s")] +
                [("phase_s", c.c_double * _PHASES), ("bottleneck", c.c_char * 256)])


class _Check(c.Structure):
    _fields_ = [("ranks", c.c_int), ("ranks_verified", c.c_int), ("operations", c.c_double)]


class _Simulation(c.Structure):
    _fields_ = [(name, c.c_double) for name in ("step_s", "tokens_per_s", "mfu", "exposed_s", "bubble", "events")]


class _TuneOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("global_batch", c.c_int64), ("axes", c.c_int), ("workers", c.c_int),
                ("best", c.c_int), ("budget_s", c.c_double)]


class _Candidate(c.Structure):
    _fields_ = ([("name", c.c_char * 256)] + [(name, c.c_int) for name in (
        "zero_stage", "ranks", "pipeline_ranks", "tensor_ranks", "sequence_ranks", "expert_ranks")] +
                [("micro_batch", c.c_int64), ("accumulation", c.c_int64), ("recompute", c.c_char * 16)] +
                [(name, c.c_double) for name in ("step_s", "tokens_per_s", "device_need", "device_have")])


class _CheckpointFacts(c.Structure):
    _fields_ = ([(name, c.c_int64) for name in ("steps", "skipped", "samples", "ranks", "train_batch",
                                                "sequence_length")] +
                [("zero_stage", c.c_int), ("tensors", c.c_int), ("path", c.c_char * 4096),
                 ("architecture", c.c_char * 64), ("dtype", c.c_char * 16)])


class _Tensor(c.Structure):
    _fields_ = [("name", c.c_char * 256), ("state", c.c_char * 64), ("dtype", c.c_char * 16), ("rows", c.c_int64),
                ("columns", c.c_int64), ("elements", c.c_uint64)]


class ZeroMemory(c.Structure):
    _fields_ = [("cpu_bytes", c.c_double), ("gpu_bytes", c.c_double), ("largest_layer_bytes", c.c_double)]


class ZeroRequest(c.Structure):
    _fields_ = ([("parameters", c.c_double), ("largest_layer_parameters", c.c_double)] +
                [(name, c.c_int) for name in ("gpus_per_node", "nodes", "cpu_offload", "cpu_offload_params",
                                              "zero_init")] + [("factor", c.c_double), ("deepspeed_03", c.c_int)])


def _load():
    """Loads the library from the folder of this file (a wheel), TWINSPEED_LIBRARY, or the system's library path."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtwinspeed.so.0")
    tried = [os.environ.get("TWINSPEED_LIBRARY"), here if os.path.exists(here) else None, "libtwinspeed.so.0"]
    reasons = []
    for path in filter(None, tried):
        try:
            return c.CDLL(path)
        except OSError as reason:
            reasons.append(str(reason))
    raise ImportError("libtwinspeed.so.0 was not found (TWINSPEED_LIBRARY names it): " + "; ".join(reasons))


lib = _load()
_int = c.c_int
for _name, _result, _arguments in (
        ("version", c.c_char_p, []), ("tier_name", c.c_char_p, [_int]), ("category_name", c.c_char_p, [_int]),
        ("phase_name", c.c_char_p, [_int]), ("options_init", None, [c.POINTER(_Options)]),
        ("open", _int, [c.POINTER(_Options), c.POINTER(c.c_void_p), c.POINTER(_Error)]),
        ("close", None, [c.c_void_p]), ("job_describe", None, [c.c_void_p, c.POINTER(_Facts)]),
        ("job_notes", c.c_char_p, [c.c_void_p]),
        ("estimate_job", _int, [c.c_void_p, c.POINTER(_Estimate), c.POINTER(_Error)]),
        ("check_job", _int, [c.c_void_p, _int, c.POINTER(_Check), c.POINTER(_Error)]),
        ("simulate_job", _int, [c.c_void_p, c.c_char_p, c.POINTER(_Simulation), c.POINTER(_Error)]),
        ("tune_options_init", None, [c.POINTER(_TuneOptions)]),
        ("tune", _int, [c.POINTER(_Options), c.POINTER(_TuneOptions), c.POINTER(c.POINTER(_Candidate)),
                        c.POINTER(_int), c.POINTER(_Error)]),
        ("checkpoint_open", _int, [c.c_char_p, c.c_char_p, c.POINTER(c.c_void_p), c.POINTER(_Error)]),
        ("checkpoint_close", None, [c.c_void_p]),
        ("checkpoint_describe", None, [c.c_void_p, c.POINTER(_CheckpointFacts)]),
        ("checkpoint_client_state", c.c_char_p, [c.c_void_p]),
        ("checkpoint_tensor", _int, [c.c_void_p, _int, c.POINTER(_Tensor)]),
        ("checkpoint_read", _int, [c.c_void_p, _int, c.c_uint64, c.c_uint64, c.POINTER(c.c_float), c.POINTER(_Error)]),
        ("monitor_open", _int, [c.c_char_p, c.c_int64, c.POINTER(c.c_void_p), c.POINTER(_Error)]),
        ("monitor_write", _int, [c.c_void_p, c.c_char_p, c.c_double, c.c_int64, c.POINTER(_Error)]),
        ("monitor_close", _int, [c.c_void_p, c.POINTER(_Error)]),
        ("free", None, [c.c_void_p]), ("zero2", ZeroMemory, [c.POINTER(ZeroRequest)]),
        ("zero3", ZeroMemory, [c.POINTER(ZeroRequest)]),
        ("zero_table", c.c_void_p, [_int, c.POINTER(ZeroRequest)])):
    _function = getattr(lib, "twinspeed_" + _name)
    _function.restype, _function.argtypes = _result, _arguments


def library_version():
    return lib.twinspeed_version().decode()


def _require(status, error):
    if status == 0:
        return
    word = _STATUS[error.status] if error.status < len(_STATUS) else "INTERNAL"
    kind = DoesNotFit if word == "NO" else Error
    raise kind(word, error.message.decode(errors="replace"), error.hint.decode(errors="replace"))


def _names(function):
    names = []
    while True:
        name = function(len(names))
        if name is None:
            return names
        names.append(name.decode())


_TIER_NAMES, _CATEGORY_NAMES, _PHASE_NAMES = (_names(lib.twinspeed_tier_name), _names(lib.twinspeed_category_name),
                                              _names(lib.twinspeed_phase_name))


class _Record:
    """An object with the items of a dictionary as attributes; printing it shows them."""

    def __init__(self, values):
        self.__dict__.update(values)

    def __repr__(self):
        return type(self).__name__ + "(" + ", ".join("%s=%r" % item for item in self.__dict__.items()) + ")"


class Answer(_Record):
    """An estimate, with verdict ("fits", "tight", "does not fit"), memory in bytes and times in seconds. memory is
    {tier: {category: bytes}} of the rank that needs the most; computing is {phase: seconds}."""

    @property
    def fits(self):
        return self.verdict != _VERDICTS[0]


class Check(_Record):
    """The result of a verification, with ranks, ranks_verified and operations."""


class Simulation(_Record):
    """The result of a simulation, with step_s, tokens_per_s, mfu, exposed_s, bubble and events."""


class Candidate(_Record):
    """A configuration that a search found."""


def _plain(structure):
    values = {}
    for name, _kind in structure._fields_:
        value = getattr(structure, name)
        if not isinstance(value, c.Array):
            values[name] = value.decode() if isinstance(value, bytes) else value
    return values


@contextmanager
def _as_file(value, what):
    """Returns a path unchanged; writes a dictionary or an object with to_dict() to a private file during the call."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if value is None or isinstance(value, (str, bytes, os.PathLike)):
        yield None if value is None else os.fsencode(value)
        return
    if not isinstance(value, dict):
        raise TypeError("%s must be a name, a path, a dictionary or have to_dict(), not %s" %
                        (what, type(value).__name__))
    handle, path = tempfile.mkstemp(prefix="twinspeed-", suffix="-%s.json" % what)
    try:
        with os.fdopen(handle, "w") as out:
            json.dump(value, out, default=str)
        yield os.fsencode(path)
    finally:
        os.unlink(path)


_WORDS = ("cluster", "profile", "runtime", "dtype", "recompute", "schedule")
_NUMBERS = ("ranks", "sequence_length", "micro_batch", "accumulation", "pipeline_ranks", "tensor_ranks",
            "sequence_ranks", "expert_ranks", "stage", "seed")


@contextmanager
def _options(model, config, given):
    options = _Options()
    lib.twinspeed_options_init(c.byref(options))
    settings = given.pop("set", None) or {}
    for name, value in given.items():
        if value is None:
            continue
        if name in _WORDS:
            setattr(options, name, os.fsencode(value))
        elif name in _NUMBERS:
            setattr(options, name, int(value))
        else:
            raise TypeError("unknown argument %r (known: set, %s)" % (name, ", ".join(_WORDS + _NUMBERS)))
    texts = [("%s=%s" % (key, value if isinstance(value, str) else json.dumps(value))).encode()
             for key, value in settings.items()]
    array = (c.c_char_p * max(1, len(texts)))(*texts)
    options.set, options.set_count = c.cast(array, c.POINTER(c.c_char_p)), len(texts)
    with _as_file(model, "model") as model_path, _as_file(config, "config") as config_path:
        options.model, options.config = model_path, config_path
        yield options


class Job:
    """A model, its configuration, a cluster and a number of ranks; a context manager that closes itself.

    Arguments beside model and config are those of the command line: cluster, profile, runtime, dtype, recompute,
    schedule, ranks, sequence_length, micro_batch, accumulation, pipeline_ranks, tensor_ranks, sequence_ranks,
    expert_ranks, stage, seed; set: a dictionary of configuration keys, such as {"zero_optimization.stage": 3}."""

    def __init__(self, model, config=None, **given):
        self._handle, error = c.c_void_p(), _Error()
        with _options(model, config, given) as options:
            _require(lib.twinspeed_open(c.byref(options), c.byref(self._handle), c.byref(error)), error)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    def close(self):
        if self._handle:
            lib.twinspeed_close(self._handle)
            self._handle = c.c_void_p()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def _open(self):
        if not self._handle:
            raise ValueError("the job is closed")
        return self._handle

    def describe(self):
        facts = _Facts()
        lib.twinspeed_job_describe(self._open(), c.byref(facts))
        return _plain(facts)

    def notes(self):
        text = lib.twinspeed_job_notes(self._open())
        if text is None:
            raise MemoryError("no memory for the notes")
        return text.decode().splitlines()

    def estimate(self):
        answer, error = _Estimate(), _Error()
        _require(lib.twinspeed_estimate_job(self._open(), c.byref(answer), c.byref(error)), error)
        values = _plain(answer)
        values["verdict"] = _VERDICTS[answer.verdict]
        values["memory"] = {tier: {name: answer.bytes[t][i] for i, name in enumerate(_CATEGORY_NAMES)
                                   if answer.bytes[t][i]} for t, tier in enumerate(_TIER_NAMES)
                            if any(answer.bytes[t])}
        values["computing"] = {name: answer.phase_s[i] for i, name in enumerate(_PHASE_NAMES)}
        return Answer(values)

    def check(self, max_ranks=0):
        answer, error = _Check(), _Error()
        _require(lib.twinspeed_check_job(self._open(), max_ranks, c.byref(answer), c.byref(error)), error)
        return Check(_plain(answer))

    def simulate(self, fidelity=None):
        answer, error = _Simulation(), _Error()
        _require(lib.twinspeed_simulate_job(self._open(), os.fsencode(fidelity) if fidelity else None,
                                            c.byref(answer), c.byref(error)), error)
        return Simulation(_plain(answer))


def estimate(model, config=None, **given):
    """Returns memory and time of a training step as an Answer. See Job for the arguments."""
    with Job(model, config, **given) as job:
        return job.estimate()


def check(model, config=None, max_ranks=0, **given):
    """Verifies the plans of the ranks and returns a Check; raises Error if they are faulty."""
    with Job(model, config, **given) as job:
        return job.check(max_ranks)


def simulate(model, config=None, fidelity=None, **given):
    """Executes the plans in the simulator and returns a Simulation."""
    with Job(model, config, **given) as job:
        return job.simulate(fidelity)


def tune(model, config=None, global_batch=0, axes=None, best=10, workers=0, budget_s=0, **given):
    """Returns the configurations that train fastest as a list of Candidates, best first; empty if nothing fits."""
    how, error, count = _TuneOptions(), _Error(), c.c_int()
    found = c.POINTER(_Candidate)()
    lib.twinspeed_tune_options_init(c.byref(how))
    how.global_batch, how.best, how.workers, how.budget_s = global_batch, best, workers, budget_s
    how.axes = -1 if axes is None else int(bool(axes))
    with _options(model, config, given) as options:
        _require(lib.twinspeed_tune(c.byref(options), c.byref(how), c.byref(found), c.byref(count), c.byref(error)),
                 error)
    try:
        return [Candidate(_plain(found[i])) for i in range(count.value)]
    finally:
        lib.twinspeed_free(c.cast(found, c.c_void_p))


class Monitor:
    """The monitors that a configuration enables (tensorboard, csv_monitor, wandb, comet), as DeepSpeed's MonitorMaster.

    config: a path or a dictionary; samples: those of an earlier run that this one continues. One process of a job
    opens it; it is a context manager that closes itself."""

    def __init__(self, config, samples=0):
        self._handle, error = c.c_void_p(), _Error()
        with _as_file(config, "config") as path:
            _require(lib.twinspeed_monitor_open(path, samples, c.byref(self._handle), c.byref(error)), error)

    def write_events(self, events):
        """Writes a list of (tag, value, samples), such as [("Train/Samples/accuracy", 0.9, 1024)]."""
        if not self._handle:
            raise ValueError("the monitor is closed")
        for tag, value, samples in events:
            error = _Error()
            _require(lib.twinspeed_monitor_write(self._handle, tag.encode(), float(value), int(samples),
                                                 c.byref(error)), error)

    def close(self):
        handle, self._handle, error = self._handle, c.c_void_p(), _Error()
        _require(lib.twinspeed_monitor_close(handle, c.byref(error)), error)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()
