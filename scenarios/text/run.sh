#!/bin/sh
# From text to a model: tokens -> training that is killed -> resumed on other ranks -> evaluated -> exported -> generating.
# Usage: scenarios/text/run.sh [BUILD_FOLDER]. Results lie in BUILD_FOLDER/text. TEXT: a file in place of the King James
# Bible of the Debian package bible-kjv; STEPS: how many; PYTHON: one with transformers, which then reads the export too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/recipe.sh"
begin_recipe text "${1:-build}"
STEPS=${STEPS:-420}
every=$((STEPS / 12))

cp "$here/config.json" "$here/ds_config.json" "$here/tokenizer.json" "$out"
cd "$out"

say "Text to tokens, a twentieth of them for evaluation"
show convert tokens text.txt train.bin --tokenizer tokenizer.json --eval eval.bin --eval-share 0.05

train() {
  show train -m config.json -c ds_config.json --data train.bin --steps "$STEPS" --save run \
    --save-every "$every" --keep 2 "$@"
}

say "Training on two ranks, killed by force after a third of the way"
train -n 2 --stage 2 --micro-batch 8 >killed.txt 2>&1 &
waited=0
last_saved() { ls run 2>/dev/null | sed -n 's/^global_step//p' | sort -n | tail -1; }
while [ "$(last_saved || true)0" -lt "$((4 * every))0" ]; do
  sleep 0.2
  waited=$((waited + 1))
  kill -0 $! 2>/dev/null && [ $waited -lt 3000 ] || { cat killed.txt; exit 5; }
done
pkill -KILL -P $! 2>/dev/null || true # the program, which the shell of train() waits for
kill -KILL $! 2>/dev/null || true
wait $! 2>/dev/null || true
grep -v '^saved' killed.txt
echo "killed; there are: $(ls run | tr '\n' ' ')"
flock -w 60 run/.lock true # its ranks notice and end, and with them their lock on the folder

say "It goes on from the last checkpoint, on one rank"
train -n 1 --micro-batch 16 --resume run --eval-data eval.bin --eval-every $((4 * every))

say "The weights as one file with Hugging Face's names"
show convert checkpoint run model.safetensors

say "What it writes"
show generate -m config.json --init-from model.safetensors --tokenizer tokenizer.json \
  --prompt 'And it came to pass' --tokens 60 --temperature 0.7 --top-k 40 --seed 3

if [ -n "${PYTHON:-}" ]; then
  say "Hugging Face's own loader gives the same probabilities"
  "$twinspeed" generate -m config.json --init-from model.safetensors --tokenizer tokenizer.json \
    --prompt 'And it came to pass' --tokens 40 --temperature 0 --json --quiet >greedy.json
  "$PYTHON" "$here/../../bench/peer/huggingface_export.py" "$out"
fi
say "Done in $(($(date +%s) - began)) s; all of it is in the folder text"
