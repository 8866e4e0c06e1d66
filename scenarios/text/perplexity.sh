#!/bin/sh
# The perplexity of the model of run.sh with weights of each type, of a text that it was not trained on.
# Usage, after run.sh with the same folder: scenarios/text/perplexity.sh [BUILD_FOLDER]. TEXTS: how many (500).
set -eu
build=$(cd "${1:-build}" && pwd)
twinspeed=$build/twinspeed
[ -x "$twinspeed" ] || twinspeed=twinspeed # a folder without a build: the program on PATH
[ -f "$build/text/model.safetensors" ] || { echo "run scenarios/text/run.sh ${1:-build} first" >&2; exit 2; }
cd "$build/text"

# JSON texts of 40 to 125 bytes, which are at most as many tokens, so that the model's 128 positions hold them. The last
# twentieth of the tokens is for evaluation; a part in 21 of the bytes is within it.
size=$(wc -c <text.txt)
tail -c $((size / 21)) text.txt | tr '\n\r\t' '   ' | fold -s -w 125 | grep '.\{40\}' | head -n "${TEXTS:-500}" |
  sed 's/[\\"]/\\&/g; s/.*/"&"/' >texts.jsonl

score() {
  printf '%-16s ' "$1"
  shift
  "$twinspeed" generate -m config.json --init-from model.safetensors --tokenizer tokenizer.json --score \
    --prompts texts.jsonl --batch 60 --quiet "$@"
}
score float32 --dtype fp32
score bfloat16 --dtype bf16
for type in int8 int8-asymmetric int4 int4-asymmetric nf4; do
  score $type --dtype fp32 --weights $type
done
