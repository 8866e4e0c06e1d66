#!/bin/sh
# Is Muon's evaluation loss below AdamW's after equal steps? The demonstration's GPT-2 and text; each optimizer with five
# learning rates and three seeds. The last tenth of the text is evaluated.
# Usage: scenarios/optimizers/muon.sh PROGRAM FOLDER. STEPS (default 100), RANKS (default 1) and MODEL (a config.json) may
# be set.
# FOLDER/losses.csv has a line for each run: optimizer,rate,seed,evaluation loss. Runs that it has are not repeated.
# FOLDER/muon.svg has the mean losses over the rates, if there is a gnuplot.
set -eu
STEPS=${STEPS:-100}
RANKS=${RANKS:-1}
. "$(dirname "$0")/real_text.sh"

# Writes a configuration that differs from the demonstration's in the optimizer, its rate and the length of the schedule.
# Muon's schedule multiplies the rates of its two groups, matrices first; Adam's part has the demonstration's rate.
configure() {
  if [ "$1" = Muon ]; then
    params="\"muon_lr\": $2, \"adam_lr\": 2e-3, \"betas\": [0.9, 0.95], \"weight_decay\": 0.1"
    peak="[$2, 2e-3]"
  else
    params="\"lr\": $2, \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1"
    peak=$2
  fi
  cat <<JSON
{"train_batch_size": 16,
 "optimizer": {"type": "$1", "params": {$params}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": $peak,
   "warmup_num_steps": $((STEPS / 10)), "total_num_steps": $STEPS, "warmup_type": "linear"}},
 "gradient_clipping": 1.0,
 "twinspeed": {"sequence_length": 128, "seed": $3}}
JSON
}

# Prints rate, mean, smallest and largest evaluation loss of each rate of an optimizer.
means() {
  awk -F , -v name="$1" '$1 == name { s[$2] += $4; n[$2]++
      if (!($2 in low) || $4 < low[$2]) low[$2] = $4
      if ($4 > high[$2]) high[$2] = $4 }
    END { for (r in s) print r, s[r] / n[r], low[r], high[r] }' "$csv" | sort -g
}

for seed in 1 2 3; do
  for rate in 2.5e-4 5e-4 1e-3 2e-3 4e-3; do run AdamW "$rate" "$seed"; done
  for rate in 1e-2 2e-2 4e-2 8e-2 1.6e-1; do run Muon "$rate" "$seed"; done
done
for name in AdamW Muon; do
  means "$name" >"$out/$name.dat"
  sort -k 2 -g "$out/$name.dat" | head -n 1 |
    awk -v name="$name" '{ printf "%s: lowest mean evaluation loss %.4f, at rate %s\n", name, $2, $1 }'
done
if command -v gnuplot >/dev/null 2>&1; then
  gnuplot -e "plots='$here/../plots'; folder='$out'; format='svg'; width=720; height=420" \
    -e "title_text='GPT-2 of the demonstration, $STEPS steps, mean and range of three seeds'" \
    "$here/../plots/rates.gp" >"$out/muon.svg"
fi
