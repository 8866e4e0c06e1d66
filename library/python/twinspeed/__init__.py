"""Twinspeed from Python: what the training of a network needs and how long it takes, and the training itself.

    import twinspeed
    answer = twinspeed.estimate("llama-3-8b", cluster="dgx-h100", stage=3)
    print(answer.verdict, answer.device_need / 2**30, answer.step_s)

`model` is a name, the path of a Hugging Face config.json, a dictionary with its contents, or an object with to_dict()
such as a Transformers configuration. `config` is a ds_config.json: a path or a dictionary. What is wrong raises
twinspeed.Error with the message and hint of the program. read_checkpoint() reads what a training saved; Engine trains
by calls (docs/library.md). The module needs the standard library alone.
"""
from ._library import (Answer, Candidate, Check, DoesNotFit, Error, Job, Monitor, Simulation, check, estimate,
                       library_version, simulate, tune)
from ._engine import Checkpoint, Engine, Step, read_checkpoint, stop_ranks
from ._deepspeed import (estimate_zero2_model_states_mem_needs, estimate_zero2_model_states_mem_needs_all_cold,
                         estimate_zero2_model_states_mem_needs_all_live, estimate_zero3_model_states_mem_needs,
                         estimate_zero3_model_states_mem_needs_all_cold,
                         estimate_zero3_model_states_mem_needs_all_live)

__version__ = library_version()
__all__ = [name for name in dir() if not name.startswith("_")]
