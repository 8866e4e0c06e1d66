#!/bin/sh
# Do virtual ranks train as real ones do? For 2, 4 and 8 ranks and each division of them: losses of `emulate` beside
# those of `train` on as many MPI processes, every digit of every step; the virtual step beside that of `simulate`;
# arenas beside the ledger.
#
#   scenarios/emulated/run.sh [PROGRAM] [STEPS]      (default: build/twinspeed, 5)  prints a table
#
# Status 1: something differs. Some minutes on two cores. The suite `emulate` holds a tenth of them.
set -eu
program=${1:-build/twinspeed}
steps=${2:-5}
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cat > "$out/model.json" << 'MODEL'
{"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 32, "vocab_size": 256}
MODEL
bad=0

value() { # of a number in a JSON file
  sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\\([^,]*\\),*\$/\\1/p" "$2" | head -n 1
}

compare() {
  common="-m $out/model.json --threads 1 --quiet $*"
  # shellcheck disable=SC2086
  {
    "$program" emulate $common --data "$here/../faults/text.txt" --steps "$steps" --csv "$out/virtual.csv" --force --json > "$out/virtual.json"
    "$program" train $common --data "$here/../faults/text.txt" --steps "$steps" --csv "$out/real.csv" --force > /dev/null
    "$program" simulate $common --json > "$out/simulated.json"
  }
  cut -d, -f1,2 "$out/virtual.csv" > "$out/virtual"
  cut -d, -f1,2 "$out/real.csv" > "$out/real"
  said=equal
  cmp -s "$out/virtual" "$out/real" || said="LOSSES DIFFER"
  [ "$(wc -l < "$out/virtual")" -eq $((steps + 1)) ] || said="STEPS ARE MISSING"
  [ "$(value median_step_s "$out/virtual.json")" = "$(value step_s "$out/simulated.json")" ] || said="$said, TIMES DIFFER"
  [ "$(value allocated_bytes "$out/virtual.json")" = "$(value predicted_bytes "$out/virtual.json")" ] || said="$said, BYTES DIFFER"
  [ "$said" = equal ] || bad=1
  printf '%-75s  %s  %s\n' "$*" "$(tail -n 1 "$out/virtual" | cut -d, -f2)" "$said"
}

for ranks in 2 4 8; do
  for stage in 0 1 2 3; do compare -n $ranks --stage $stage; done
  compare -n $ranks --stage 2 --dtype bf16
  compare -n $ranks --stage 3 --dtype fp16
  for stage in 1 2 3; do compare -n $ranks --sp 2 --stage $stage; done
  for stage in 0 1 2 3; do compare -n $ranks --tp 2 --stage $stage; done
  compare -n $ranks --tp 2 --stage 1 --sequence-parallel
  for schedule in 1f1b zb-h1 gpipe; do
    compare -n $ranks --pp 2 --accumulation 4 --schedule $schedule
    compare -n $ranks --pp 2 --stage 1 --accumulation 4 --schedule $schedule
  done
done
for ranks in 4 8; do
  compare -n $ranks --sp 4 --stage 3
  compare -n $ranks --tp 4 --stage 1 --sequence-parallel
  compare -n $ranks --pp 4 --accumulation 8 --schedule zb-h1
  compare -n $ranks --pp 2 --tp 2 --stage 1 --accumulation 4 --schedule zb-h1
  compare -n $ranks --pp 2 --tp 2 --stage 1 --accumulation 4 --schedule 1f1b --sequence-parallel
done
exit $bad
