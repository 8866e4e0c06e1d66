# The beginning of the comparisons of optimizers, which source this file with their arguments PROGRAM and FOLDER, and with
# STEPS and RANKS set. It prepares the text, and defines run(), which calls the script's own configure().
here=$(cd "$(dirname "$0")" && pwd)
twinspeed=$1
out=$2
model=${MODEL:-$here/../demo/config.json}
csv=$out/losses.csv

# Makes the folder $out with the King James Bible of the Debian package bible-kjv in two files: train.txt, and eval.txt,
# which is the last tenth.
prepare_text() {
  mkdir -p "$out"
  command -v bible >/dev/null 2>&1 || { echo "the program bible is missing: ./install.sh" >&2; exit 4; }
  [ -f "$out/kjv.txt" ] || bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$out/kjv.txt"
  cut=$(($(wc -c <"$out/kjv.txt") / 10 * 9))
  head -c "$cut" "$out/kjv.txt" >"$out/train.txt"
  tail -c +"$((cut + 1))" "$out/kjv.txt" >"$out/eval.txt"
  touch "$csv"
}

# Trains the model $model by $out/ds_config.json on $RANKS ranks for $STEPS steps, and prints the evaluation loss.
evaluation_loss() {
  "$twinspeed" train -m "$model" -c "$out/ds_config.json" --data "$out/train.txt" -n "$RANKS" --threads 1 \
    --steps "$STEPS" --eval-data "$out/eval.txt" --eval-steps 8 --result "$out/result.json" --force >"$out/train.log" 2>&1
  sed -n 's/.*"loss":[[:space:]]*\([0-9.]*\).*/\1/p' "$out/result.json" | tail -n 1
}

# Adds the line OPTIMIZER,VARIANT,SEED,evaluation loss to losses.csv, unless it has it. `configure OPTIMIZER VARIANT SEED`
# prints the run's configuration; VARIANT is what a comparison varies beside the optimizer and the seed.
run() {
  grep -q "^$1,$2,$3," "$csv" && return
  configure "$1" "$2" "$3" >"$out/ds_config.json"
  printf '%s,%s,%s,%s\n' "$1" "$2" "$3" "$(evaluation_loss)" | tee -a "$csv"
}

prepare_text
