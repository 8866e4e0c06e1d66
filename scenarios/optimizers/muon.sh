#!/bin/sh
# Is Muon's evaluation loss below AdamW's after equal steps? The demonstration's GPT-2 and text; each optimizer with five
# learning rates on seed 1, then its best rate with two more seeds. The last tenth of the text is evaluated.
# Usage: scenarios/optimizers/muon.sh PROGRAM FOLDER. STEPS (default 300) and RANKS (default 1) may be set.
# FOLDER/losses.csv has a line for each run: optimizer,rate,seed,evaluation loss. Runs that it has are not repeated.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
twinspeed=$1
out=$2
STEPS=${STEPS:-300}
RANKS=${RANKS:-1}
csv=$out/losses.csv
mkdir -p "$out"
touch "$csv"

command -v bible >/dev/null 2>&1 || { echo "muon.sh: the program bible is missing: ./install.sh" >&2; exit 4; }
[ -f "$out/kjv.txt" ] || bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$out/kjv.txt"
size=$(wc -c <"$out/kjv.txt")
cut=$((size / 10 * 9))
head -c "$cut" "$out/kjv.txt" >"$out/train.txt"
tail -c +"$((cut + 1))" "$out/kjv.txt" >"$out/eval.txt"

# Writes a configuration that differs from the demonstration's in the optimizer, its rate and the length of the schedule.
# Muon's schedule multiplies the rates of its two groups, matrices first; Adam's part has AdamW's middle rate.
configure() {
  if [ "$1" = Muon ]; then
    params="\"muon_lr\": $2, \"adam_lr\": 2e-3, \"betas\": [0.9, 0.95], \"weight_decay\": 0.1"
    peak="[$2, 2e-3]"
  else
    params="\"lr\": $2, \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1"
    peak=$2
  fi
  cat <<END
{"train_batch_size": 16,
 "optimizer": {"type": "$1", "params": {$params}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": $peak,
   "warmup_num_steps": $((STEPS / 10)), "total_num_steps": $STEPS, "warmup_type": "linear"}},
 "gradient_clipping": 1.0,
 "twinspeed": {"sequence_length": 128, "seed": $3}}
END
}

run() {
  grep -q "^$1,$2,$3," "$csv" && return
  configure "$1" "$2" "$3" >"$out/ds_config.json"
  "$twinspeed" train -m "$here/../demo/config.json" -c "$out/ds_config.json" --data "$out/train.txt" -n "$RANKS" \
    --steps "$STEPS" --eval-data "$out/eval.txt" --eval-steps 8 --result "$out/result.json" --force >"$out/train.log" 2>&1
  loss=$(sed -n 's/.*"loss":[[:space:]]*\([0-9.]*\).*/\1/p' "$out/result.json" | tail -n 1)
  printf '%s,%s,%s,%s\n' "$1" "$2" "$3" "$loss" | tee -a "$csv"
}

for rate in 1e-3 2e-3 4e-3 8e-3 1.6e-2; do run AdamW "$rate" 1; done
for rate in 5e-3 1e-2 2e-2 4e-2 8e-2; do run Muon "$rate" 1; done
for name in AdamW Muon; do
  best=$(grep "^$name,.*,1," "$csv" | sort -t , -k 4 -g | head -n 1 | cut -d , -f 2)
  for seed in 2 3; do run "$name" "$best" "$seed"; done
  grep "^$name,$best," "$csv" |
    awk -F , '{ s += $4; n++ } END { printf "%s at %s: mean evaluation loss %.4f of %d seeds\n", $1, $2, s / n, n }'
done
