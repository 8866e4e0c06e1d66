"""Asks DeepSpeed whether it accepts the configurations that searches export: deepspeed_configs.py FOLDER.

Run by hand, with DeepSpeed and PyTorch installed, on the folder that the suite `winners` fills if TWS_WINNERS names it:
FOLDER/deepspeed-NUMBER.json, and in FOLDER/deepspeed-NUMBER.ranks the number of ranks. Each file is loaded by
DeepSpeedConfig as DeepSpeed's engine does it, with the number of replicas that the file's pipeline stages, tensor and
sequence ranks leave. Prints the files that are refused, and a count.
"""
import glob
import json
import logging
import os
import sys

import deepspeed
import deepspeed.comm as dist
from deepspeed.runtime.config import DeepSpeedConfig

logging.disable(logging.WARNING)


class Parallel:
    """Has what DeepSpeedConfig asks of a model-parallel unit."""

    def __init__(self, replicas):
        self.replicas = replicas

    def get_data_parallel_world_size(self):
        return self.replicas


def refusal(path):
    ranks = int(open(path[: -len(".json")] + ".ranks").read())
    config = json.load(open(path))
    shared = config.get("sequence_parallel_size", 1)
    shared *= config.get("pipeline", {}).get("stages", 1)
    shared *= config.get("tensor_parallel", {}).get("autotp_size", 1)
    if ranks % shared:
        return "%d ranks are no multiple of %d" % (ranks, shared)
    dist.get_rank = lambda *_: 0
    dist.get_world_size = lambda *_: ranks
    try:
        read = DeepSpeedConfig(path, mpu=Parallel(ranks // shared))
    except Exception as error:  # whatever the classes raise is a refusal
        return "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:300])
    stage = config.get("zero_optimization", {}).get("stage", 0)
    if read.zero_optimization_stage != stage:
        return "stage %s is read as %s" % (stage, read.zero_optimization_stage)
    return None


paths = sorted(glob.glob(os.path.join(sys.argv[1], "deepspeed-*.json")))
refused = [(path, why) for path in paths for why in [refusal(path)] if why]
for path, why in refused:
    print("%s: %s" % (os.path.basename(path), why))
print("DeepSpeed %s: %d files, %d refused" % (deepspeed.__version__, len(paths), len(refused)))
sys.exit(bool(refused))
