"""Loads an export with Hugging Face's transformers, and compares its probabilities with those of `twinspeed generate`.

    python3 bench/peer/huggingface_export.py FOLDER

FOLDER has config.json, tokenizer.json, model.safetensors and greedy.json (`generate --temperature 0 --json`)."""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

folder = sys.argv[1]
model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
missing = {kind: names for kind, names in info.items() if names}
tokenizer = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")
made = json.load(open(folder + "/greedy.json"))
ids = made["prompt"] + made["tokens"]
with torch.no_grad():
    scores = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
first = len(made["prompt"]) - 1
worst = likeliest = 0
for i, (token, log_probability) in enumerate(zip(made["tokens"], made["log_probabilities"])):
    worst = max(worst, abs(float(scores[first + i, token]) - log_probability))
    likeliest += int(scores[first + i].argmax()) == token
print("loading: %s" % (missing or "every tensor found, none left over"))
print("log probabilities of %d tokens differ by %.1e at most; %d are the likeliest" % (len(made["tokens"]), worst, likeliest))
print(tokenizer.decode(ids))
sys.exit(bool(missing) or worst > 1e-3)
