#!/bin/sh
# The whole loop on this machine, with a small GPT-2 on the bytes of the King James Bible:
#   calibrate -> estimate -> tune in simulation -> train the winner over MPI ranks -> predicted against measured
# Usage: scenarios/demo/run.sh [BUILD_FOLDER]. Results lie in BUILD_FOLDER/demo.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:-build}" && pwd)
out=$build/demo
twinspeed=$build/twinspeed
model=$here/config.json
config=$here/ds_config.json
STEPS=${STEPS:-300}

# Ctrl-C reaches the running verb, which ends its ranks and removes what it has half written; what was done stays.
interrupted() {
  trap - INT TERM
  echo "demo: interrupted, what was done is in $out" >&2
  exit 130
}
trap interrupted INT TERM

say() { printf '\n== %s\n' "$*"; }
show() {
  printf '$ twinspeed'
  printf ' %s' "$@" | sed "s|$here/||g; s|$out/||g"
  printf '\n'
  "$twinspeed" "$@"
}

command -v bible >/dev/null 2>&1 || { echo "demo: the program bible is missing: ./install.sh" >&2; exit 4; }
began=$(date +%s)
rm -rf "$out"
mkdir -p "$out"

say "The text: the King James Bible of the Debian package bible-kjv, without verse numbers"
bible -f gen1:1-rev22:21 | sed 's/^[^ ]* //' >"$out/kjv.txt"
printf '%s bytes, %s lines; the first: %s\n' "$(wc -c <"$out/kjv.txt")" "$(wc -l <"$out/kjv.txt")" "$(head -n 1 "$out/kjv.txt")"

say "What does this machine cost? Kernels and collectives are measured into a profile"
show calibrate --quick -m "$model" --micro-batch 1,2,4,8,16 --out "$out/host.json"

say "Does it fit, and what fills the memory?"
show estimate -m "$model" -c "$config" --profile "$out/host.json"

say "Which configuration is fastest here? Found in simulation; the best three are then measured"
show tune -m "$model" -c "$config" --profile "$out/host.json" --data "$out/kjv.txt" --results "$out/tune" --validate 3
best=$out/tune/ds_config_optimal.json
# The runs may have corrected the profile: what follows predicts with that.
profile=$out/host.json
[ ! -f "$out/tune/profile_corrected.json" ] || profile=$out/tune/profile_corrected.json

say "The winner, trained for $STEPS steps"
show train -m "$model" -c "$best" --data "$out/kjv.txt" --steps "$STEPS" --every 25 --csv "$out/steps.csv" \
  --trace "$out/train-trace.json" --result "$out/train.json"

say "Predicted against measured"
show validate -m "$model" -c "$best" --profile "$profile" --data "$out/kjv.txt" --trace "$out/both-trace.json" \
  --figures "$out/figures"
"$twinspeed" simulate -m "$model" -c "$best" --profile "$profile" --json >"$out/simulate.json" 2>/dev/null
show report "$out/simulate.json" "$out/train.json" --plot "$out/figures"

say "Done in $(($(date +%s) - began)) s. In $out:"
cat <<END
  host.json                  this machine's profile        tune/                  the experiments of the search,
                             as calibrated                                        and the corrected profile
  steps.csv                  loss and time of each step    train.json             summary of the run
  both-trace.json            simulated and measured step, for https://ui.perfetto.dev
  figures/                   timeline, memory over time, predicted against measured
END
