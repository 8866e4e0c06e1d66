#!/bin/sh
# BERT-large as DeepSpeed's flops profiler printed it (docs/_tutorials/flops-profiler.md: batch 80, 128 tokens) beside
# `twinspeed profile`, counted as that release counts: products of linear layers and elements of a softmax, attention's
# products not at all, the vocabulary at 1159 masked tokens. Pooler and next sentence are not parts of our model.
#
#   scenarios/deepspeed/bert-profile.sh [PROGRAM]      (default: build/twinspeed)  prints a Markdown table
#
# Status 1: a figure is another one.
set -eu
program=${1:-build/twinspeed}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo '{"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 24, "hidden_size": 1024,
  "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}' \
  > "$out/bert.json"
"$program" profile -m "$out/bert.json" --vocab-multiple 8 --cluster dgx-a100 -n 1 --dtype fp16 --micro-batch 80 --seq 128 \
  --json > "$out/profile.json"

member() { # of a module (first argument: its name), the member
  tr -d '\n\t' < "$out/profile.json" | grep -o "\"name\":\"$1\"[^}]*" | head -n 1 | sed "s/.*\"$2\":\([0-9.e+]*\).*/\1/"
}

awk -v encoder="$(member bert.encoder macs)" -v head="$(member cls.predictions macs)" \
  -v transform="$(member cls.predictions.transform macs)" -v all="$(member "" parameters)" \
  -v layers="$(member bert.encoder parameters)" 'BEGIN {
    h = 1024; tokens = 80 * 128; softmax = 24 * 80 * 16 * 128 * 128; products = 2 * softmax * h / 16
    scores = (head - transform) * 1159 / tokens
    row("BertEncoder", "302.31 M, 3092.88 GMACs", layers, encoder - products + softmax)
    row("BertForPreTraining", "336.23 M, 3139.93 GMACs", all + h * h + h + 2 * h + 2,
        encoder - products + softmax + transform + scores + 80 * h * h + 80 * 2 * h)
    exit bad
  }
  function row(name, published, params, macs,   here) {
    if (!begun++) print "| module | published | here, so counted |\n|---|---|---|"
    here = sprintf("%.2f M, %.2f GMACs", params / 1e6, macs / 1e9)
    if (here != published) bad = 1
    print "| " name " | " published " | " here " |"
  }'
