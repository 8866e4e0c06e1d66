#!/bin/sh
# Do optimizers that communicate signs reach the evaluation loss of those that they are made from? The demonstration's
# GPT-2 and text; AdamW against OneBitAdam and ZeroOneAdam, Lamb against OneBitLamb; each that compresses also without
# error feedback. Three seeds. The last tenth of the text is evaluated.
# Usage: scenarios/optimizers/compressed.sh PROGRAM FOLDER. STEPS (default 600), RANKS (default 4), FREEZE (default 120),
# ADAM_RATE, LAMB_RATE, MODEL (a config.json) and LENGTH (of sequences) may be set.
# FOLDER/losses.csv has a line for each run: optimizer,feedback,seed,evaluation loss. Runs that it has are not repeated.
set -eu
STEPS=${STEPS:-600}
RANKS=${RANKS:-4}
FREEZE=${FREEZE:-120}
ADAM_RATE=${ADAM_RATE:-1e-3}
LAMB_RATE=${LAMB_RATE:-1e-2}
LENGTH=${LENGTH:-128}
. "$(dirname "$0")/real_text.sh"

configure() {
  rate=$ADAM_RATE
  arguments=
  case $1 in
  Lamb) rate=$LAMB_RATE ;;
  OneBitLamb) rate=$LAMB_RATE arguments=", \"freeze_step\": $FREEZE" ;;
  OneBitAdam) arguments=", \"freeze_step\": $FREEZE" ;;
  ZeroOneAdam) arguments=", \"var_freeze_step\": $FREEZE, \"local_step_scaler\": 100, \"local_step_clipper\": 4" ;;
  esac
  cat <<JSON
{"train_batch_size": 16,
 "optimizer": {"type": "$1", "params": {"lr": $rate, "betas": [0.9, 0.95], "weight_decay": 0.1$arguments}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": $rate,
   "warmup_num_steps": $((STEPS / 20)), "total_num_steps": $STEPS, "warmup_type": "linear"}},
 "gradient_clipping": 1.0,
 "twinspeed": {"sequence_length": $LENGTH, "seed": $3, "error_feedback": $2}}
JSON
}

for seed in 1 2 3; do
  for name in AdamW OneBitAdam ZeroOneAdam Lamb OneBitLamb; do run "$name" true "$seed"; done
  for name in OneBitAdam ZeroOneAdam OneBitLamb; do run "$name" false "$seed"; done
done

# Prints mean evaluation losses and their quotients with the parent's, with and without error feedback.
awk -F , '{ key = $1 "," $2; s[key] += $4; n[key]++; parent[$1] = "AdamW" }
  END { parent["Lamb"] = parent["OneBitLamb"] = "Lamb"
    for (key in s) { split(key, k, ","); up = s[parent[k[1]] ",true"] / n[parent[k[1]] ",true"]; mean = s[key] / n[key]
      printf "%-12s error feedback %-5s  mean evaluation loss %.4f of %d seeds, %+.2f %% against %s\n",
        k[1], k[2], mean, n[key], 100 * (mean / up - 1), parent[k[1]] } }' "$csv" | sort
