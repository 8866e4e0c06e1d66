"""Checkpoints and training through twinspeed.h: read_checkpoint() and Engine."""
import ctypes as c
import os
from array import array

from ._library import (Job, _CheckpointFacts, _Error, _plain, _Record, _require, _Tensor, lib)

_int, _pointer = c.c_int, c.c_void_p
_floats, _ints = c.POINTER(c.c_float), c.POINTER(c.c_int32)


class _Batch(c.Structure):
    _fields_ = [("tokens", _ints), ("targets", _ints)]


class _Step(c.Structure):
    _fields_ = ([("step", c.c_int64), ("samples", c.c_int64)] +
                [(name, c.c_double) for name in ("loss", "learning_rate", "gradient_norm", "auxiliary_loss",
                                                 "loss_scale")] + [("skipped", _int)] +
                [(name, c.c_double) for name in ("seconds", "tokens_per_s", "mfu", "data_s")] + [("is_timed", _int)] +
                [(name, c.c_double) for name in ("forward_s", "backward_s", "reduction_s", "optimizer_s")] +
                [("memory_bytes", c.c_double * 4)])


class _EngineOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("communicator", _pointer), ("data", c.c_char_p), ("eval_data", c.c_char_p),
                ("init_from", c.c_char_p), ("evaluation", _int), ("ignore_memory", _int), ("eval_batches", c.c_int64),
                ("device_limit", c.c_int64), ("log", _pointer), ("user", _pointer)]


class _Parameter(c.Structure):
    _fields_ = [("name", c.c_char * 256), ("rows", c.c_int64), ("columns", c.c_int64), ("elements", c.c_uint64),
                ("frozen", _int)]


for _name, _result, _arguments in (
        ("ranks_start", _int, [c.POINTER(_int), c.POINTER(_int), c.POINTER(_Error)]), ("ranks_stop", None, []),
        ("engine_options_init", None, [c.POINTER(_EngineOptions)]),
        ("engine_open", _int, [_pointer, c.POINTER(_EngineOptions), c.POINTER(_pointer), c.POINTER(_Error)]),
        ("engine_close", None, [_pointer]), ("engine_rank", _int, [_pointer]),
        ("engine_steps", c.c_int64, [_pointer]),
        ("train_batch", _int, [_pointer, c.POINTER(_Batch), c.POINTER(_Step), c.POINTER(_Error)]),
        ("eval_batch", _int, [_pointer, c.POINTER(_Batch), c.POINTER(c.c_double), c.POINTER(_Error)]),
        ("forward", _int, [_pointer, c.POINTER(_Batch), c.POINTER(c.c_double), c.POINTER(_Error)]),
        ("backward", _int, [_pointer, c.POINTER(_Error)]),
        ("is_gradient_accumulation_boundary", _int, [_pointer]),
        ("step_micro_batch", _int, [_pointer, c.POINTER(_Step), c.POINTER(_Error)]),
        ("learning_rate", c.c_double, [_pointer]), ("set_learning_rate", None, [_pointer, c.c_double]),
        ("parameter_describe", _int, [_pointer, _int, c.POINTER(_Parameter)]),
        ("state_name", c.c_char_p, [_pointer, _int]),
        ("get_full", _int, [_pointer, c.c_char_p, c.c_char_p, _floats, c.POINTER(_Error)]),
        ("set_full", _int, [_pointer, c.c_char_p, c.c_char_p, _int, _floats, c.POINTER(_Error)]),
        ("save", _int, [_pointer, c.c_char_p, c.c_char_p, c.c_int64, c.c_char_p, c.POINTER(_Error)]),
        ("load", _int, [_pointer, c.c_char_p, c.c_char_p, c.POINTER(c.c_char_p), c.POINTER(_Error)])):
    _function = getattr(lib, "twinspeed_" + _name)
    _function.restype, _function.argtypes = _result, _arguments


def _view(values, kind):
    return (kind * len(values)).from_buffer(values)


def _path(value):
    return None if value is None else os.fsencode(value)


class Checkpoint(_Record):
    """A saved checkpoint, with steps, skipped, samples, ranks, zero_stage, train_batch, sequence_length, path,
    architecture, dtype, client_state, and tensors: a list of records with name, state, dtype, rows and columns."""

    def __init__(self, folder, tag=None):
        handle, error, facts, tensor = _pointer(), _Error(), _CheckpointFacts(), _Tensor()
        _require(lib.twinspeed_checkpoint_open(_path(folder), _path(tag), c.byref(handle), c.byref(error)), error)
        lib.twinspeed_checkpoint_describe(handle, c.byref(facts))
        values = _plain(facts)
        values["client_state"] = lib.twinspeed_checkpoint_client_state(handle).decode()
        values["tensors"] = []
        while lib.twinspeed_checkpoint_tensor(handle, len(values["tensors"]), c.byref(tensor)):
            values["tensors"].append(_Record(_plain(tensor)))
        super().__init__(values)
        self._handle = handle

    def read(self, name, state=None):
        """Returns a whole tensor as array('f'), rows one after another. state None: the weights, in the widest type
        that was saved."""
        wanted = [state] if state else ["master weights", "parameters"]
        for one in wanted:
            for index, tensor in enumerate(self.tensors):
                if tensor.name == name and tensor.state == one:
                    values, error = array("f", bytes(4 * tensor.elements)), _Error()
                    _require(lib.twinspeed_checkpoint_read(self._open(), index, 0, len(values),
                                                           _view(values, c.c_float), c.byref(error)), error)
                    return values
        raise KeyError("%s has no %s of %s" % (self.path, " or ".join(wanted), name))

    def _open(self):
        if not self._handle:
            raise ValueError("the checkpoint is closed")
        return self._handle

    def close(self):
        if self._handle:
            lib.twinspeed_checkpoint_close(self._handle)
            self._handle = _pointer()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()


def read_checkpoint(folder, tag=None):
    """Opens a checkpoint of a folder of checkpoints, the latest or the one with this tag."""
    return Checkpoint(folder, tag)


class Step(_Record):
    """The report of a step, with step, loss, gradient_norm, learning_rate, seconds, tokens_per_s and others."""


class Engine:
    """Trains a job of this process, or of all processes that mpirun started; the arguments are those of Job, and data,
    eval_data, init_from. Needs the engine's module, which a wheel does not have: an installation's, or that of
    TWINSPEED_MODULES. A batch is a sequence of samples x (sequence_length + 1) tokens, one after another."""

    def __init__(self, model, config=None, data=None, eval_data=None, init_from=None, **given):
        rank, ranks, error = _int(), _int(), _Error()
        self._handle = _pointer()
        _require(lib.twinspeed_ranks_start(c.byref(rank), c.byref(ranks), c.byref(error)), error)
        given.setdefault("ranks", ranks.value)
        self._job = Job(model, config, **given)
        facts = self._job.describe()
        self.micro_batch_samples = facts["micro_batch"] * facts["replicas"]
        self.samples = self.micro_batch_samples * facts["accumulation"]
        self.sequence_length = facts["sequence_length"]
        options = _EngineOptions()
        lib.twinspeed_engine_options_init(c.byref(options))
        options.data, options.eval_data, options.init_from = _path(data), _path(eval_data), _path(init_from)
        _require(lib.twinspeed_engine_open(self._job._open(), c.byref(options), c.byref(self._handle), c.byref(error)),
                 error)
        self.parameters, self._elements = [], {}
        described = _Parameter()
        while lib.twinspeed_parameter_describe(self._handle, len(self.parameters), c.byref(described)):
            self.parameters.append(_Record(_plain(described)))
            self._elements[self.parameters[-1].name] = described.elements

    def _open(self):
        if not self._handle:
            raise ValueError("the engine is closed")
        return self._handle

    def close(self):
        if self._handle:
            lib.twinspeed_engine_close(self._handle)
            self._handle = _pointer()
        self._job.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    @property
    def rank(self):
        return lib.twinspeed_engine_rank(self._open())

    @property
    def steps(self):
        return lib.twinspeed_engine_steps(self._open())

    @property
    def learning_rate(self):
        return lib.twinspeed_learning_rate(self._open())

    @learning_rate.setter
    def learning_rate(self, value):
        """None brings back the schedule."""
        lib.twinspeed_set_learning_rate(self._open(), -1.0 if value is None else float(value))

    def _batch(self, tokens, targets, samples):
        if tokens is None:
            return None
        batch, kept = _Batch(), []
        for name, values, columns in (("tokens", tokens, self.sequence_length + 1),
                                      ("targets", targets, self.sequence_length)):
            if values is None:
                continue
            copy = array("i", values)
            if len(copy) != samples * columns:
                raise ValueError("%d %s, and %d samples of %d are needed" % (len(copy), name, samples, columns))
            kept.append(copy)
            setattr(batch, name, c.cast(_view(copy, c.c_int32), _ints))
        batch.kept = kept  # the arrays live as long as the batch
        return c.byref(batch)

    def train_batch(self, tokens=None, targets=None):
        """Runs one step and returns its report; without tokens on the next batch of `data`."""
        step, error = _Step(), _Error()
        _require(lib.twinspeed_train_batch(self._open(), self._batch(tokens, targets, self.samples), c.byref(step),
                                           c.byref(error)), error)
        return Step(_plain(step))

    def eval_batch(self, tokens=None, targets=None):
        """Returns the mean loss of a batch, or of `eval_data`."""
        loss, error = c.c_double(), _Error()
        _require(lib.twinspeed_eval_batch(self._open(), self._batch(tokens, targets, self.samples), c.byref(loss),
                                          c.byref(error)), error)
        return loss.value

    def forward(self, tokens=None, targets=None):
        """Runs the forward pass of a micro-batch and returns its mean loss over all replicas."""
        loss, error = c.c_double(), _Error()
        _require(lib.twinspeed_forward(self._open(), self._batch(tokens, targets, self.micro_batch_samples),
                                       c.byref(loss), c.byref(error)), error)
        return loss.value

    def backward(self):
        error = _Error()
        _require(lib.twinspeed_backward(self._open(), c.byref(error)), error)

    def is_gradient_accumulation_boundary(self):
        return bool(lib.twinspeed_is_gradient_accumulation_boundary(self._open()))

    def step(self):
        """Ends a micro-batch; after the last one it runs the optimizer and returns the step's report, else None."""
        step, error = _Step(), _Error()
        _require(lib.twinspeed_step_micro_batch(self._open(), c.byref(step), c.byref(error)), error)
        return Step(_plain(step)) if step.step else None

    def states(self):
        """Returns the names of the states of parameters: "parameter", "gradient", "first moments" ..."""
        names = []
        while (name := lib.twinspeed_state_name(self._open(), len(names))) is not None:
            names.append(name.decode())
        return names

    def get_full(self, name, state="parameter"):
        """Gathers a whole parameter, gradient or optimizer state as array('f') on every rank."""
        values, error = array("f", bytes(4 * self._elements.get(name, 1))), _Error()
        _require(lib.twinspeed_get_full(self._open(), name.encode(), state.encode(), _view(values, c.c_float),
                                        c.byref(error)), error)
        return values

    def set_full(self, name, values, state="parameter", rank=0):
        """Replaces it on all ranks by the values of `rank`."""
        copy, error = array("f", values), _Error()
        if name in self._elements and len(copy) != self._elements[name]:
            raise ValueError("%d values, and %s has %d elements" % (len(copy), name, self._elements[name]))
        _require(lib.twinspeed_set_full(self._open(), name.encode(), state.encode(), rank, _view(copy, c.c_float),
                                        c.byref(error)), error)

    def save(self, folder, client_state=None, keep=0):
        """Saves a checkpoint and returns its tag."""
        tag, error = c.create_string_buffer(256), _Error()
        text = None if client_state is None else client_state.encode()
        _require(lib.twinspeed_save(self._open(), _path(folder), text, keep, tag, c.byref(error)), error)
        return tag.value.decode()

    def load(self, folder, tag=None):
        """Replaces the whole state by a checkpoint's and returns its client state."""
        text, error = c.c_char_p(), _Error()
        _require(lib.twinspeed_load(self._open(), _path(folder), _path(tag), c.byref(text), c.byref(error)), error)
        return text.value.decode()


def stop_ranks():
    """Ends MPI in programs that mpirun started, after all engines are closed."""
    lib.twinspeed_ranks_stop()


__all__ = ["Checkpoint", "Engine", "Step", "read_checkpoint", "stop_ranks"]
