#!/bin/sh
# Measurements of one's own: this machine is measured, a short run is recorded, a profile that both agree with is made of
# them, the fastest configuration is searched with it, trained, and compared with the prediction.
# Usage: scenarios/measured/run.sh [BUILD_FOLDER]. Results lie in BUILD_FOLDER/measured. TEXT: a file in place of the King
# James Bible of the Debian package bible-kjv; STEPS: how many the winner is trained; CALIBRATE: options of the calibration.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../text/recipe.sh"
begin_recipe measured "${1:-build}"
STEPS=${STEPS:-200}

cp "$here/../text/config.json" "$out"
cd "$out"

say "What do kernels cost here?"
# shellcheck disable=SC2086 # several options
show calibrate --quick -m config.json --micro-batch 2,4,8,16 -n 1 ${CALIBRATE:-} -o host.json

say "A short run, recorded"
show train -m config.json --data text.txt --micro-batch 4 --steps 20 -n 1 --csv steps.csv

say "A profile with which that run is predicted as it was measured"
show calibrate --from steps.csv -m config.json --micro-batch 4 -n 1 --profile host.json -o mine.json

say "The fastest configuration for batches of 16, found with it"
show tune -m config.json -b 16 --ranks 1 --profile mine.json -o tune

say "The winner, trained"
show train -m config.json -c tune/ds_config_optimal.json --data text.txt --steps "$STEPS" --every "$STEPS" --result train.json

say "Predicted and measured"
"$twinspeed" simulate -m config.json -c tune/ds_config_optimal.json --profile mine.json --json >simulate.json 2>/dev/null
show report simulate.json train.json
say "Done in $(($(date +%s) - began)) s; all of it is in the folder measured"
